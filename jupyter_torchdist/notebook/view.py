"""The run view in the kernel: a rich output with a comm in a notebook, plain text in a terminal."""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_torchdist.driver.handle import RunHandle
from jupyter_torchdist.driver.plot import figure
from jupyter_torchdist.driver.series import SeriesReader
from jupyter_torchdist.notebook.tail import screen_text
from jupyter_torchdist.records import COMM_TARGET, RUN_MIME, VIEW_VERSION, RunStatus, view_bundle, view_update

#: at most ten messages a second to the browser
_INTERVAL = 0.1
#: and where the labextension does not answer, one redrawn chart in this many seconds
_PLAIN_INTERVAL = 2.0
_ARTIFACT_INTERVAL = 2.0
_MAX_ARTIFACTS = 200
_TAIL_LINES = 20
PLOTLY_MIME = "application/vnd.plotly.v1+json"


class RichView:
    """One display and one comm for a run. One thread sends, at most ten times a second; ``close`` is its end."""

    def __init__(self, handle: RunHandle) -> None:
        from comm import create_comm
        from IPython.display import display

        self._handle = handle
        self._series = SeriesReader(handle.series)
        self._root = server_root()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._seq = 0
        self._everything = False
        self._answered = False
        self._sent_status: RunStatus | None = None
        self._sent_output: int | None = None
        self._sent_artifacts: list[dict[str, Any]] | None = None
        self._plain_at = time.monotonic()
        self._artifacts_at = 0.0
        self._comm = create_comm(target_name=COMM_TARGET, data={"version": VIEW_VERSION, "run_id": handle.run_id})
        if hasattr(type(self._comm), "_reply_subshell_for"):
            # ipykernel 7.4 would hand the browser's messages to the loop that the cell blocks
            self._comm._reply_subshell_for = None
        self._comm.on_msg(self._received)
        self._display = display(self.bundle(), raw=True, display_id=True)
        handle.view = self
        handle.listen(self._changed)
        self._thread = threading.Thread(target=self._send_all, name=f"torchdist-view-{handle.run_id}", daemon=True)
        self._thread.start()

    def bundle(self, final: bool = False) -> dict[str, Any]:
        """The MIME bundle of the output; the chart is in it when it is ``final``."""
        status = self._status()
        text = text_of(self._handle)
        bundle: dict[str, Any] = {
            RUN_MIME: view_bundle(self._handle.run_id, status),
            "text/html": f"<pre>{html.escape(text)}</pre>",
            "text/plain": text,
        }
        if final and len(self._handle.series):
            bundle[PLOTLY_MIME] = figure(self._handle.series)
        return bundle

    def _status(self) -> RunStatus:
        from dataclasses import replace

        status = self._handle.status
        return replace(status, folder_browser_path=browser_path(Path(status.folder), self._root))

    def _received(self, message: Mapping[str, Any]) -> None:
        # may run on a thread of the kernel's own: nothing here waits
        data = message["content"]["data"]
        self._answered = True
        if data.get("kind") == "stop":
            self._handle.stop(force=bool(data.get("force")))
        elif data.get("kind") == "snapshot":
            self._everything = True
            self._wake.set()

    def _changed(self, handle: RunHandle) -> None:
        self._wake.set()
        if handle.status.state.final:
            self.close()

    def _send_all(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(_PLAIN_INTERVAL)
            if not self._closed.is_set():
                with self._lock:
                    self._send()
            self._closed.wait(_INTERVAL)

    def _send(self) -> None:
        self._wake.clear()
        everything, self._everything = self._everything, False
        status = self._status()
        output = self._handle.output_total
        artifacts = self._artifacts(everything or status.state.final)
        data, buffers = view_update(
            self._handle.run_id,
            self._seq,
            status=status if everything or status != self._sent_status else None,
            series=self._series.deltas(everything),
            tail=screen_text(self._handle.output) if everything or output != self._sent_output else None,
            artifacts=artifacts,
        )
        if data["status"] is None and not buffers and data["tail"] is None and artifacts is None:
            return
        self._seq += 1
        self._sent_status, self._sent_output = status, output
        self._comm.send(data=data, buffers=buffers)
        if not self._answered and time.monotonic() - self._plain_at > _PLAIN_INTERVAL:
            self._plain_at = time.monotonic()
            self._display.update(self.bundle(final=True), raw=True)

    def _artifacts(self, now: bool) -> list[dict[str, Any]] | None:
        if not now and time.monotonic() - self._artifacts_at < _ARTIFACT_INTERVAL:
            return None
        self._artifacts_at = time.monotonic()
        folder = self._handle.folder
        found = [
            {"path": a.path, "size": a.size, "browser_path": browser_path(folder.path / a.path, self._root)}
            for a in folder.artifacts()[:_MAX_ARTIFACTS]
        ]
        if found == self._sent_artifacts and not now:
            return None
        self._sent_artifacts = found
        return found

    def close(self) -> None:
        """Sends the end, leaves the static form in the notebook, closes the comm."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            # whole, for a page that was reloaded during the run has seen a part only
            self._everything = True
            self._send()
            self._display.update(self.bundle(final=True), raw=True)
            self._comm.close()


class TextView:
    """Lines in a terminal: rank 0's output as it comes, a line of state and metrics now and then."""

    def __init__(self, handle: RunHandle) -> None:
        self._printed = 0
        self._hang = ""
        self._said_at = time.monotonic()
        print(headline(handle.status))
        for note in handle.status.notes:
            print(f"  {note}")
        print(f"  {handle.status.folder}")
        handle.listen(self._changed)

    def _changed(self, handle: RunHandle) -> None:
        new = handle.output_total - self._printed
        if new > 0:
            self._printed = handle.output_total
            sys.stdout.write(handle.output[-new:].decode("utf-8", "replace"))
            sys.stdout.flush()
        status = handle.status
        if status.state.final:
            print(f"torchdist: {state_line(handle)}")
        elif status.hang is not None and status.hang.title != self._hang:
            self._hang = status.hang.title
            print("\n".join(["torchdist: " + status.hang.title, *status.hang.lines]))
        elif status.reports and time.monotonic() - self._said_at > 5:
            self._said_at = time.monotonic()
            print(f"torchdist: {state_line(handle)}")


def headline(status: RunStatus) -> str:
    """``2 nodes × 4 workers × 1 GPU = 8 ranks, 8 GPUs``."""
    world = status.nodes * status.workers
    parts = [_count(status.nodes, "node"), _count(status.workers, "worker")]
    total = _count(world, "rank")
    if status.gpus:
        parts.append(_count(status.gpus, "GPU"))
        total += f", {_count(world * status.gpus, 'GPU')}"
    return f"{' × '.join(parts)} = {total}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def state_line(handle: RunHandle) -> str:
    """State, time, step and the last metrics in one line."""
    status = handle.status
    step = f", step {status.step}" if status.step is not None else ""
    step += f" of {status.total}" if status.total and step else ""
    metrics = "".join(f", {key} {_short(value)}" for key, value in list(handle.series.last.items())[:8])
    return f"{status.state} after {status.elapsed:.1f} s{step}{metrics}"


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:60]


def text_of(handle: RunHandle) -> str:
    """The whole view as text, for a frontend that draws nothing else."""
    status = handle.status
    lines = [f"{headline(status)}{f' · {status.name}' if status.name else ''}", state_line(handle)]
    lines += [f"  {note}" for note in status.notes]
    if status.error is not None:
        lines += [status.error.title, *status.error.lines, *([status.error.also] if status.error.also else [])]
    if status.hang is not None:
        lines += [status.hang.title, *status.hang.lines]
    tail = screen_text(handle.output, _TAIL_LINES)
    if tail:
        lines += ["output of rank 0:", tail]
    if status.timeline:
        lines.append(f"launch: {', '.join(f'{part} {seconds:.3g} s' for part, seconds in status.timeline.items())}")
    return "\n".join([*lines, f"folder: {status.folder}"])


def show(handle: RunHandle, verbose: int) -> None:
    """Shows a run where it was started: in the cell's output, or as lines of a terminal."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        RichView(handle)
    else:
        TextView(handle)


def server_root() -> Path | None:
    """The root folder of the Jupyter server that started this kernel, None when it can not be known."""
    import json

    from jupyter_core.paths import jupyter_runtime_dir

    parent = os.environ.get("JPY_PARENT_PID", str(os.getppid()))
    try:
        record = json.loads((Path(jupyter_runtime_dir()) / f"jpserver-{parent}.json").read_text())
        return Path(record["root_dir"]).resolve()
    except (OSError, ValueError, KeyError):
        return None


def browser_path(path: Path, root: Path | None) -> str | None:
    """``path`` as JupyterLab's file browser names it, None outside of its root."""
    if root is None:
        return None
    try:
        return path.resolve().relative_to(root).as_posix()
    except ValueError:
        return None
