"""The run folder: the only owner of its paths and of the formats inside it. See ``docs/run-folder.md``."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.records import Artifact, Report, decode_report

FORMAT_VERSION = 1
_RUN_ID = re.compile(r"\d{8}-\d{6,9}-(?:.+-)?[0-9a-f]{6}")
#: Names that begin so are on their way to be complete; no reader shows them.
PARTIAL = ".partial-"


def new_run_id(name: str | None, now: datetime | None = None) -> str:
    """A new id: UTC start to the millisecond, name, six random hex digits: ``20261201-173012042-digits-7f3a9c``."""
    # a warm run is over in a fraction of a second, and ids sort as their runs began
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S%f")[:-3]
    slug = re.sub(r"[^\w.\-]+", "-", name or "").strip("-.")[:60]
    return "-".join(part for part in (stamp, slug, secrets.token_hex(3)) if part)


def contained(root: Path, relative: str) -> Path:
    """``root / relative``, resolved; raises ``ConfigError`` when it does not lie below ``root``."""
    if "\0" in relative or Path(relative).is_absolute():
        raise ConfigError(f"{relative!r} is not a path below the run folder; give a relative path without NUL.")
    base = root.resolve()
    path = (base / relative).resolve()
    if path != base and base not in path.parents:
        raise ConfigError(f"{relative!r} leads out of {base}; give a path below it.")
    return path


def write_atomic(path: Path, data: bytes, durable: bool = True) -> None:
    """Replaces ``path`` as a whole: a reader sees the old bytes or the new ones.

    ``durable``: also after a power failure, which costs the time that the disk needs.
    """
    fd, temporary = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. Holds nothing but its place, so any process may make one."""

    path: Path

    @classmethod
    def create(cls, stage: Path, run_id: str) -> RunFolder:
        """Makes the folder of a new run below ``stage``. Raises ``ConfigError`` when the stage can not be written."""
        folder = cls(stage / run_id)
        try:
            stage.mkdir(parents=True, exist_ok=True)
            folder.path.mkdir()
            for part in (folder.logs_dir, folder.model_dir, folder.checkpoints_dir):
                part.mkdir()
        except OSError as exc:
            raise ConfigError(
                f"the stage {stage} can not be written: {exc.strerror}. Choose another place with --stage."
            ) from exc
        return folder

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def cell(self) -> Path:
        return self.path / "cell.py"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def logs_dir(self) -> Path:
        return self.path / "logs"

    @property
    def model_dir(self) -> Path:
        return self.path / "model"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    def log(self, rank: int) -> Path:
        return self.logs_dir / f"rank-{rank}.log"

    def write_run(self, record: Mapping[str, Any], durable: bool = True) -> None:
        """Replaces ``run.json`` atomically."""
        options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
        write_atomic(self.run_json, orjson.dumps({"format": FORMAT_VERSION, **record}, option=options) + b"\n", durable)

    def read_run(self) -> dict[str, Any]:
        """``run.json`` as a dict, ``{}`` while there is none or when it is not readable."""
        try:
            record = orjson.loads(self.run_json.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return {}
        return record if isinstance(record, dict) else {}

    def reports(self) -> Iterator[Report]:
        """Every complete report of every rank, in order of arrival."""
        try:
            file = self.metrics.open("rb")
        except FileNotFoundError:
            return
        with file:
            for line in file:
                if line.endswith(b"\n"):
                    yield decode_report(line)

    def read_log(self, rank: int) -> str:
        """The whole output of a rank; bytes that are not UTF-8 come as replacement characters."""
        path = self.log(rank)
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def artifacts(self) -> list[Artifact]:
        """The files of ``model/`` and ``checkpoints/``, sorted; nothing that is still being written."""
        return sorted(
            (Artifact(file.relative_to(self.path).as_posix(), file.lstat().st_size)
             for top in (self.model_dir, self.checkpoints_dir) for file in _files(top)),
            key=lambda a: a.path,
        )  # fmt: skip

    def tree(self) -> str:
        """The folder as lines of text, with sizes."""
        files = sorted(_files(self.path))
        lines = [f"  {file.relative_to(self.path).as_posix()}  {file.lstat().st_size:,} bytes" for file in files]
        return "\n".join([f"{self.path}/", *lines])


def _files(top: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(top):
        names[:] = sorted(n for n in names if not n.startswith(PARTIAL))
        yield from (Path(folder) / name for name in sorted(files) if not name.startswith(PARTIAL))


def run_folders(stage: Path) -> list[RunFolder]:
    """The runs of a stage, newest first."""
    try:
        names = [entry.name for entry in os.scandir(stage) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [RunFolder(stage / name) for name in sorted(names, reverse=True) if _RUN_ID.fullmatch(name)]


def find_run(stage: Path, word: str) -> RunFolder:
    """The run that ``word`` names: an id, a unique prefix, a run's name, or ``last``. Raises ``ConfigError``."""
    folders = run_folders(stage)
    if not folders:
        raise ConfigError(f"there is no run in {stage} yet.")
    if word == "last":
        return folders[0]
    found = [f for f in folders if f.run_id == word]
    found = found or [f for f in folders if f.run_id.startswith(word)]
    found = found or [f for f in folders if f.read_run().get("name") == word][:1]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{word!r} begins {len(found)} runs: {', '.join(f.run_id for f in found[:5])}. Give more of it."
        )
    raise ConfigError(f"there is no run {word!r} in {stage}; the newest is {folders[0].run_id}.")
