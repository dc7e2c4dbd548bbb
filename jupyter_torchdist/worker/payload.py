"""What a rank unpickles: written once by the driver, laid out once a node in shared memory, mapped by each rank."""

from __future__ import annotations

import functools
import io
import mmap
import os
import pickle
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from jupyter_torchdist.records import Payload

_ALIGN = 64


@dataclass(frozen=True)
class Head:
    """The first pickle of a payload. ``names``: the captured names, one pickle each behind it.

    ``sources``: file name → text, for tracebacks; ``places``: file name → how it is shown.
    """

    label: str
    names: tuple[str, ...] = ()
    cell: str | None = None
    code: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shipment:
    """A payload as a rank has it. ``function`` is None for a cell."""

    hyper_params: Any
    dataset_map: Mapping[str, Any] | None
    function: Any


def main_namespace() -> dict[str, Any]:
    """Stands for the notebook's globals in a pickle: on a rank its functions share one namespace, ``__main__``'s."""
    return sys.modules["__main__"].__dict__


def code_at(filename: str, *parts: Any) -> CodeType:
    """A code object from its parts, with the file that it was written in."""
    return CodeType(*parts).replace(co_filename=filename)


def cached_again(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """A function of the notebook under ``functools.lru_cache``, with an empty cache."""
    return functools.lru_cache(**parameters)(function)


def lay_out(payload: Payload) -> int:
    """A sealed memory file with the payload; its descriptor is the caller's to close."""
    fd = os.memfd_create("torchdist-payload", os.MFD_CLOEXEC)
    parts = [memoryview(payload.head), memoryview(payload.data), *(memoryview(b).cast("B") for b in payload.buffers)]
    header = struct.pack(f"<{len(parts) + 1}q", len(parts), *(p.nbytes for p in parts))
    offset = 0
    for part in (memoryview(header), *parts):
        written = 0
        while written < part.nbytes:
            written += os.pwrite(fd, part[written : written + (1 << 30)], offset + written)
        offset = _aligned(offset + part.nbytes)
    os.ftruncate(fd, max(offset, 1))
    return fd


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def map_parts(fd: int) -> list[memoryview]:
    """The parts of ``lay_out``: arrays stay in the shared memory, and a rank that writes to one gets its own pages."""
    mapped = memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    (count,) = struct.unpack_from("<q", mapped)
    sizes = struct.unpack_from(f"<{count}q", mapped, 8)
    parts, offset = [], _aligned(8 * (count + 1))
    for size in sizes:
        parts.append(mapped[offset : offset + size])
        offset = _aligned(offset + size)
    return parts


class PayloadReader:
    """Reads the pickles of a payload in their order, with one memory of shared objects."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self.head: Head = pickle.loads(parts[0])
        self._unpickler = pickle.Unpickler(io.BytesIO(parts[1]), buffers=iter(parts[2:]))

    def load(self, main: dict[str, Any]) -> Shipment:
        """Puts captured names and definitions into ``main``; returns the rest."""
        for name in self.head.names:
            main[name] = self._unpickler.load()
        hyper_params = self._unpickler.load()
        dataset_map = self._unpickler.load()
        function = self._unpickler.load()
        for name, definition in self._unpickler.load().items():
            main.setdefault(name, definition)
        return Shipment(hyper_params, dataset_map, function)
