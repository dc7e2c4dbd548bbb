"""Artifacts and checkpoints on a local stage: a publication is complete, or no reader sees it.

A snapshot is taken into a hidden folder beside its place; publishing adds checksums and the manifest, and renames it.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.run_folder import PARTIAL, contained, write_atomic

#: beside the published files; not a name that a user's own folder is likely to have
MANIFEST = "torchdist-manifest.json"
_CHUNK = 1 << 20
_NAME = re.compile(r"[\w\-][\w.\- ]{0,126}")


@dataclass(frozen=True)
class Manifest:
    """What was published. ``time`` is Unix seconds; ``files`` holds size in bytes and SHA-256 of each file by path."""

    name: str
    kind: Literal["artifact", "checkpoint"]
    step: int | None
    time: float
    rank: int
    metrics: dict[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    files: dict[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A complete publication: its folder and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def content(self) -> Path:
        """The file when there is just one, else the folder."""
        names = list(self.manifest.files)
        return self.path / names[0] if len(names) == 1 else self.path


def check_artifact_name(name: object) -> str:
    """A name that is one folder: letters, digits, ``.``, ``_``, ``-``, blanks and ``@n``. Raises ``ConfigError``."""
    if not isinstance(name, str) or not _NAME.fullmatch(re.sub(r"@\d+$", "", name)) or name != name.strip(". "):
        raise ConfigError(
            f"the name of an artifact is {name!r}; it must be 1 to 127 letters, digits, '.', '_', '-' or blanks, "
            "and neither begin nor end with a dot or a blank."
        )
    return name


def checkpoint_name(step: int) -> str:
    """``step-000000042``: sorts as the steps do."""
    return f"step-{step:09d}"


def new_partial(folder: Path) -> Path:
    """A hidden folder to fill, beside the place where it will be published."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder))


def snapshot(source: Path, folder: Path) -> Path:
    """Copies a file or a folder into a new hidden folder below ``folder`` and returns it.

    Raises ``FileNotFoundError``, and ``ConfigError`` for what is not a plain file or a folder of plain files.
    """
    if not source.exists():
        raise FileNotFoundError(f"there is nothing at {source} to publish")
    partial = new_partial(folder)
    try:
        if source.is_dir():
            _copy_folder(source.resolve(), partial)
        else:
            _copy_file(source, partial / source.name)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return partial


def _copy_folder(source: Path, target: Path) -> None:
    for entry in sorted(os.scandir(source), key=lambda e: e.name):
        # the manifest of an artifact that is published once more is made anew; what is not complete stays out
        if entry.name == MANIFEST or entry.name.startswith(PARTIAL):
            continue
        path = Path(entry.path)
        if entry.is_symlink() and (path.is_dir() or source not in path.resolve().parents):
            raise ConfigError(f"{path} is a link to {path.resolve()}; publish the file itself, or a folder without it.")
        if entry.is_dir(follow_symlinks=False):
            (target / entry.name).mkdir()
            _copy_folder(path, target / entry.name)
        else:
            _copy_file(path, target / entry.name)


def _copy_file(source: Path, target: Path) -> None:
    if not stat.S_ISREG(source.stat().st_mode):
        raise ConfigError(f"{source} is not a plain file; only files and folders can be published.")
    shutil.copyfile(source, target)


def publish(partial: Path, manifest: Manifest) -> Path:
    """Completes a snapshot and renames it into sight: ``<name>``, or ``<name>@2`` … where that is taken."""
    listed = {file.relative_to(partial).as_posix(): _checked(file) for file in _plain_files(partial)}
    record = asdict(replace(manifest, files=listed))
    record["metrics"] = {key: _json_number(value) for key, value in manifest.metrics.items()}
    write_atomic(partial / MANIFEST, orjson.dumps(record, option=orjson.OPT_INDENT_2) + b"\n")
    partial.chmod(0o755)
    number = 1
    while True:
        target = partial.parent / (manifest.name if number == 1 else f"{manifest.name}@{number}")
        try:
            # fails on a folder that is not empty, so two ranks can not take the same name
            os.rename(partial, target)
        except FileExistsError:
            number += 1
        except OSError as exc:
            if not target.is_dir() and not target.is_file():
                raise exc
            number += 1
        else:
            return target


def _plain_files(folder: Path) -> Iterator[Path]:
    for top, names, files in os.walk(folder):
        names.sort()
        yield from (Path(top) / name for name in sorted(files))


def _checked(file: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    with file.open("rb") as stream:
        while data := stream.read(_CHUNK):
            digest.update(data)
            size += len(data)
        os.fsync(stream.fileno())
    return size, digest.hexdigest()


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def read_published(path: Path) -> Published | None:
    """The publication in a folder; None where there is none, or not all of it."""
    try:
        manifest = _manifest(orjson.loads((path / MANIFEST).read_bytes()))
        whole = all(contained(path, name).stat().st_size == size for name, (size, _) in manifest.files.items())
    except (OSError, ValueError, TypeError, KeyError):  # JSON errors are ValueErrors
        return None
    return Published(path, manifest) if whole else None


def _manifest(record: dict[str, Any]) -> Manifest:
    values = {f.name: record[f.name] for f in fields(Manifest)}
    values["metrics"] = {str(key): float(value) for key, value in record["metrics"].items()}
    values["files"] = {str(name): (int(size), str(digest)) for name, (size, digest) in record["files"].items()}
    values["tags"] = tuple(record["tags"])
    return Manifest(**values)


def published(folder: Path) -> list[Published]:
    """What is complete below ``folder``, oldest first."""
    try:
        names = sorted(e.name for e in os.scandir(folder) if e.is_dir(follow_symlinks=False))
    except OSError:
        return []
    found = (read_published(folder / name) for name in names if not name.startswith(PARTIAL))
    return sorted((item for item in found if item is not None), key=lambda item: item.manifest.time)


def latest(items: Iterable[Published]) -> Published | None:
    """The checkpoint with the highest step, the newest one of several."""
    return max(_checkpoints(items), key=lambda item: (item.manifest.step, item.manifest.time), default=None)


def best(items: Iterable[Published], metric: str, mode: str = "min") -> Published | None:
    """The checkpoint with the best value of ``metric``, NaN left out. Raises ``ConfigError`` for an unknown mode."""
    if mode not in ("min", "max"):
        raise ConfigError(f"mode is {mode!r}; it must be 'min' or 'max'.")
    rated = [i for i in _checkpoints(items) if not math.isnan(i.manifest.metrics.get(metric, math.nan))]
    choose = min if mode == "min" else max
    return choose(rated, key=lambda item: item.manifest.metrics[metric], default=None)


def _checkpoints(items: Iterable[Published]) -> list[Published]:
    return [item for item in items if item.manifest.kind == "checkpoint" and item.manifest.step is not None]
