"""The ``ArtifactManager`` of a rank: snapshots in the train function, publishes on one thread behind it."""

from __future__ import annotations

import pickle
import queue
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from jupyter_torchdist.errors import ConfigError, TorchdistError
from jupyter_torchdist.run_folder import contained
from jupyter_torchdist.stage import checkpoints
from jupyter_torchdist.stage.checkpoints import Manifest, Published
from jupyter_torchdist.worker.reporter import as_metric

#: name of the file that holds what ``save_checkpoint`` was given
STATE_FILE = "state.pt"


class ArtifactManager:
    """Publishes files, folders and checkpoints of a run, each complete or invisible.

    The calls return as soon as a snapshot is taken; an error of an earlier publication is raised by the next call,
    by ``wait()``, or at the end of the run.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._queue: queue.SimpleQueue[tuple[Path, Manifest] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open = 0
        self._idle = threading.Condition()
        self._error: BaseException | None = None

    @property
    def location(self) -> str:
        """The folder that holds what was published."""
        return str(self._folder)

    def save(
        self,
        path_or_dir: str | Path,
        name: str | None = None,
        *,
        step: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """Publishes a file or a folder under ``name`` (its own name when None). Nothing is overwritten: ``name@2`` …

        Raises ``FileNotFoundError``, ``ConfigError`` for a bad name, or the error of an earlier publication.
        """
        self._raise_earlier()
        source = Path(path_or_dir)
        label = checkpoints.check_artifact_name(source.resolve().name if name is None else name)
        manifest = self._manifest(label, "artifact", step, metrics, tags)
        self._begin(checkpoints.snapshot(source, self._folder), manifest)

    def save_checkpoint(self, state: Mapping[str, Any], *, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Publishes ``torch.save(state)`` as the checkpoint of ``step``; call it on one rank.

        ``restore`` never unpickles code, so ``state`` should hold tensors, numbers, strings, lists and dicts. Raises
        ``ConfigError`` for a bad step or metric, or the error of an earlier publication.
        """
        import torch

        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ConfigError(f"step is {step!r}; it must be a whole number of at least 0.")
        self._raise_earlier()
        manifest = self._manifest(checkpoints.checkpoint_name(step), "checkpoint", step, metrics, ())
        partial = checkpoints.new_partial(self._folder)
        try:
            torch.save(state, partial / STATE_FILE)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._begin(partial, manifest)

    def wait(self) -> None:
        """Returns when everything that was saved is published; raises what went wrong."""
        with self._idle:
            self._idle.wait_for(lambda: not self._open)
        self._raise_earlier()

    def list(self) -> list[Published]:
        """What is published and complete, oldest first."""
        return checkpoints.published(self._folder)

    def latest(self) -> Path | None:
        """The newest complete checkpoint (highest step), or None."""
        found = checkpoints.latest(self.list())
        return found.path if found else None

    def best(self, metric: str, mode: str = "min") -> Path | None:
        """The complete checkpoint with the best value of ``metric``; ``mode`` is ``min`` or ``max``."""
        found = checkpoints.best(self.list(), metric, mode)
        return found.path if found else None

    def open(self, name: str) -> IO[bytes]:
        """Opens a published file for reading: ``name`` or ``name/path/inside``. Raises ``FileNotFoundError``."""
        item, _, inside = name.partition("/")
        found = [p for p in self.list() if p.path.name == checkpoints.check_artifact_name(item)]
        if not found:
            raise FileNotFoundError(f"nothing named {item!r} is published in {self._folder}")
        path = contained(found[-1].path, inside) if inside else found[-1].content
        return path.open("rb")

    def restore(self, to: str | Path | None = None, checkpoint: str | Path | None = None) -> Any:
        """Brings a checkpoint back: the latest, or the one named.

        With ``to`` its files are copied there and the path is returned. Without, what ``save_checkpoint`` was given is
        loaded (on the CPU, ``weights_only=True``). None when there is no checkpoint yet.
        """
        path = self.latest() if checkpoint is None else contained(self._folder, Path(checkpoint).name)
        if path is None:
            return None
        found = checkpoints.read_published(path)
        if found is None:
            raise FileNotFoundError(f"there is no complete checkpoint at {path}")
        if to is not None:
            return shutil.copytree(
                path, Path(to), dirs_exist_ok=True, ignore=shutil.ignore_patterns(checkpoints.MANIFEST)
            )
        import torch

        try:
            return torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as exc:
            raise TorchdistError(
                f"{path / STATE_FILE} holds more than tensors, numbers, strings, lists and dicts. If you trust it: "
                f"torch.load(path, weights_only=False)."
            ) from exc

    def close(self) -> None:
        """Publishes what is left and ends the thread; raises what went wrong."""
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._queue.put(None)
                self._thread.join()
                self._thread = None

    def _manifest(
        self,
        name: str,
        kind: Literal["artifact", "checkpoint"],
        step: int | None,
        metrics: Mapping[str, Any] | None,
        tags: Sequence[str],
    ) -> Manifest:
        values = {str(key): value for key, value in _numbers(metrics or {}).items()}
        return Manifest(name, kind, step, time.time(), self._rank, values, tuple(map(str, tags)))

    def _begin(self, partial: Path, manifest: Manifest) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._publish_all, name="torchdist-publish", daemon=True)
            self._thread.start()
        with self._idle:
            self._open += 1
        self._queue.put((partial, manifest))

    def _publish_all(self) -> None:
        while (item := self._queue.get()) is not None:
            partial, manifest = item
            try:
                checkpoints.publish(partial, manifest)
            except BaseException as exc:
                shutil.rmtree(partial, ignore_errors=True)
                self._error = exc
            with self._idle:
                self._open -= 1
                self._idle.notify_all()

    def _raise_earlier(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise TorchdistError(f"an artifact could not be published to {self._folder}: {error}") from error


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    values = {}
    for key, value in metrics.items():
        number = as_metric(value)
        if isinstance(number, list):
            raise ConfigError(f"metrics[{key!r}] of a checkpoint is a list; it must be one number.")
        values[key] = float(number)
    return values
