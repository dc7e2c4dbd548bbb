"""A live run: one thread polls the coordinator; listeners draw what it brings; the caller waits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jupyter_torchdist.coordinator.failures import frame_lines, summary
from jupyter_torchdist.coordinator.standstill import stack_lines
from jupyter_torchdist.driver.cluster import Cluster
from jupyter_torchdist.driver.result import PyTorchDistributorResult, metrics_frame
from jupyter_torchdist.driver.series import SeriesTable
from jupyter_torchdist.errors import RunLost, RunStopped, RunTimeout, TorchdistError, WorkerError
from jupyter_torchdist.records import (
    ErrorCard,
    Frame,
    RankValue,
    RunRequest,
    RunState,
    RunStatus,
    RunUpdate,
    decode_report,
)
from jupyter_torchdist.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger("jupyter_torchdist")
Listener = Callable[["RunHandle"], None]
_WAIT_SECONDS = 0.2


#: runs of this process that were started, so that they can be listed and stopped
_handles: dict[str, RunHandle] = {}
_KEEP = 50


def handles() -> list[RunHandle]:
    """The newest runs of this process, oldest first."""
    return list(_handles.values())


class RunHandle:
    """A run that was started. ``wait()`` or ``await`` it, ``stop()`` it, ask it; its repr is the run view."""

    def __init__(self, request: RunRequest, cluster: Cluster) -> None:
        self._request = request
        self._cluster = cluster
        self._folder = RunFolder(_path(request.folder))
        self.series = SeriesTable()
        self.status = RunStatus(
            name=request.name,
            nodes=request.scaling.num_nodes,
            workers=request.scaling.num_workers_per_node,
            gpus=request.scaling.resource_requirements_per_worker.num_gpus,
            folder=request.folder,
            notes=request.notes,
        )
        self.output = b""
        self.output_total = 0
        self._last: RunUpdate | None = None
        self._values: list[RankValue] = []
        self._lost: BaseException | None = None
        self._done = threading.Event()
        self._listeners: list[Listener] = []
        self._stops = 0
        self.view: Any = None

    # ------------------------------------------------------------ what users ask

    @property
    def run_id(self) -> str:
        return self._request.run_id

    @property
    def state(self) -> str:
        """``waiting``, ``starting``, ``running``, ``stopping``, ``publishing``, then a final state."""
        return str(self.status.state)

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return self._folder

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the run has ended (``timeout`` seconds at most); whether it has.

        An interrupt asks the run to stop, a second one at once; then the wait goes on until it has ended.
        """
        import time

        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done.is_set():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            left = _WAIT_SECONDS if deadline is None else min(_WAIT_SECONDS, max(0.0, deadline - time.monotonic()))
            try:
                self._done.wait(left)
            except KeyboardInterrupt:
                self.stop(force=self._stops > 0)
        return True

    def stop(self, force: bool = False) -> None:
        """Asks the run to end: an interrupt in the train function, then ``grace`` seconds; ``force``: at once."""
        if self._done.is_set():
            return
        self._stops += 1
        self._cluster.coordinator.stop.remote(self.run_id, force)

    def result(self) -> PyTorchDistributorResult:
        """Waits and returns the result.

        Raises ``WorkerError``, ``RunTimeout``, ``RunStopped``, ``NotEnoughResources``, ``ClusterError`` or ``RunLost``.
        """
        self.wait()
        error = self.error()
        if error is not None:
            raise error
        return PyTorchDistributorResult(self._folder, self.status, self._values)

    def error(self) -> BaseException | None:
        """Why the run has no result; None for one that has."""
        if self._lost is not None:
            return RunLost(
                f"the coordinator of the run was lost ({self._lost}); what was reported is in {self._folder.path}"
            )
        last = self._last
        if last is None:
            return None
        if self.status.state is RunState.STOPPED:
            return RunStopped(
                f"stopped after {self.status.elapsed:.1f} s; metrics and files are in {self._folder.path}"
            )
        if last.refusal is not None:
            return last.refusal
        if last.failures:
            return WorkerError(summary(last.failures), last.failures)
        if last.timed_out:
            return RunTimeout(
                f"the run was ended after its timeout of {self._request.timeout:g} s; "
                f"metrics and files are in {self._folder.path}"
            )
        return None if self.status.state is RunState.FINISHED else TorchdistError(f"the run ended {self.state}")

    def metrics(self) -> pd.DataFrame:
        """The reports of rank 0 until now."""
        return metrics_frame(self._folder)

    def logs(self, rank: int = 0) -> str:
        """The output of a rank until now."""
        return self._folder.read_log(rank)

    def stacks(self) -> dict[int, str]:
        """Where each running rank stands now: the lines of its train function, outermost first. No ptrace is used."""
        return {rank: "\n".join(frame_lines(frames or ())) for rank, frames in self._frames().items()}

    def stack_text(self) -> str:
        """The stacks of all running ranks, equal ones once, and who waits for whom."""
        return "\n".join(stack_lines({rank: frames or () for rank, frames in self._frames().items()}))

    def _frames(self) -> dict[int, tuple[Frame, ...] | None]:
        if self._done.is_set():
            return {}
        import ray

        found: dict[int, tuple[Frame, ...] | None] = ray.get(self._cluster.coordinator.stacks.remote(self.run_id))
        return found

    def __await__(self) -> Generator[Any, None, PyTorchDistributorResult]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> PyTorchDistributorResult:
        while not self._done.is_set():
            await asyncio.sleep(0.05)
        return self.result()

    def __repr__(self) -> str:
        return f"<RunHandle {self.run_id}: {self.state}, {self.status.reports} reports, {self._folder.path}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any] | None:
        return self.view.bundle() if self.view is not None else None

    # ------------------------------------------------------------ the poll

    def listen(self, listener: Listener) -> None:
        """``listener(handle)`` is called on the poll's thread after each update; the last time when it has ended."""
        self._listeners.append(listener)

    def begin(self, payload: list[Any]) -> None:
        """Submits the run and starts the poll. Raises what the submission raises."""
        import ray

        ray.get(self._cluster.coordinator.submit.remote(self._request, payload))
        _handles[self.run_id] = self
        while len(_handles) > _KEEP:
            del _handles[next(iter(_handles))]
        threading.Thread(target=self._poll, name=f"torchdist-{self.run_id}", daemon=True).start()

    def _poll(self) -> None:
        import ray

        cursor, revision, complete = 0, -1, False
        try:
            while not complete:
                update: RunUpdate = ray.get(self._cluster.coordinator.update.remote(self.run_id, cursor, revision))
                cursor, revision, complete = update.cursor, update.revision, update.complete
                if complete:
                    self._values = ray.get(self._cluster.coordinator.take_values.remote(self.run_id))
                self._take(update)
                if not complete:
                    self._tell()
        except BaseException as exc:
            self._lost = exc
            card = ErrorCard(f"RunLost: {type(exc).__name__}", (str(exc)[:500],))
            self.status = replace(self.status, state=RunState.LOST, error=card)
            record = self._folder.read_run()
            self._folder.write_run({**{k: v for k, v in record.items() if k != "format"}, "state": "lost"})
        try:
            self._tell()
        finally:
            self._done.set()

    def _take(self, update: RunUpdate) -> None:
        self._last = update
        for line in update.reports.splitlines():
            self.series.add(decode_report(line))
        self.output, self.output_total = update.output, update.output_total
        self.status = update.status

    def _tell(self) -> None:
        for listener in self._listeners:
            try:
                listener(self)
            except Exception:
                _log.exception("a listener of run %s failed", self.run_id)


def _path(folder: str) -> Any:
    from pathlib import Path

    return Path(folder)
