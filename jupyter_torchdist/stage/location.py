"""From what a user calls a stage to its folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.run_folder import contained

#: the folder of the default stage, beside the notebook
STAGE_ROOT = "stage"
#: ``DB.SCHEMA.STAGE``
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*){2}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")


def resolve_stage(place: str | os.PathLike[str] | None, folder: Path) -> Path:
    """The folder of a stage, not made yet; a relative place counts from ``folder``, the notebook's.

    ``None`` is ``./stage``; ``@name/path`` and ``DB.SCHEMA.STAGE`` are folders of that name below it; a path, also one
    with ``~``, and a ``file://`` URL are what they say. Raises ``ConfigError`` for anything else.
    """
    if place is None:
        return folder / STAGE_ROOT
    if not isinstance(place, (str, os.PathLike)) or not isinstance(text := os.fspath(place), str):
        raise ConfigError(f"artifact_stage_location is {place!r}; it must be a path or a name like @team/digits.")
    if not text.strip() or "\0" in text:
        raise ConfigError(f"artifact_stage_location is {text!r}; it must be a path or a name like @team/digits.")
    if _URL.match(text):
        return _local(text)
    if text.startswith("@"):
        if not text.strip("@/ "):
            raise ConfigError(f"artifact_stage_location is {text!r}; give a name behind the @, like @team/digits.")
        return contained(folder / STAGE_ROOT, text[1:].strip("/"))
    if _DOTTED.fullmatch(text):
        return folder / STAGE_ROOT / text
    try:
        return folder / Path(text).expanduser()
    except RuntimeError as exc:
        raise ConfigError(f"artifact_stage_location is {text!r}: {exc}") from exc


def _local(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme.lower() != "file":
        raise ConfigError(
            f"artifact_stage_location is {url!r}; stages are local folders so far. Give a path that every node sees."
        )
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise ConfigError(f"artifact_stage_location is {url!r}; write file:///folder for a local folder.")
    return Path(unquote(parts.path))
