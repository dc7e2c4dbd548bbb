"""From what a run needs of the notebook to a ``Payload``: one pickler, so that what is shared stays shared."""

from __future__ import annotations

import functools
import io
import linecache
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as internals

from jupyter_torchdist.errors import CaptureError
from jupyter_torchdist.records import Captured, Payload, Shown
from jupyter_torchdist.worker.payload import Head, cached_again, code_at, main_namespace
from jupyter_torchdist.worker.pickler import Pickler

_MAX_DEPTH = 4


@dataclass(frozen=True)
class Packed:
    """A payload and what is in it."""

    payload: Payload
    captured: tuple[Captured, ...]
    shown: Shown


class _MainGlobals(dict[str, Any]):
    """Stands for the notebook's namespace: on a rank every shipped function has ``__main__``'s globals."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return main_namespace, ()


class _Pickler(Pickler):
    """cloudpickle, with the functions of the notebook sharing one namespace, and their definitions noted."""

    def __init__(self, file: io.BytesIO, buffers: list[Any], namespace: dict[str, Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._namespace = namespace
        self.definitions: dict[str, Any] = {}
        #: file name → the lines (first, last) of each code object that is shipped
        self.files: dict[str, list[tuple[int, int]]] = {}
        shared = _MainGlobals()
        shared["__name__"] = "__main__"  # cloudpickle fills a dict that is empty
        self.globals_ref[id(namespace)] = shared

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and getattr(obj, "__module__", None) == "__main__":
            name = obj.__name__
            if self._namespace.get(name) is obj:
                self.definitions[name] = obj
        elif isinstance(obj, CodeType):
            # cloudpickle drops the file name, and with it the user's lines in a traceback
            ends = [end for _, end, _, _ in obj.co_positions() if end is not None]
            self.files.setdefault(obj.co_filename, []).append((obj.co_firstlineno, max(ends, default=0)))
            return code_at, (obj.co_filename, *internals._code_reduce(obj)[1])
        elif isinstance(obj, functools._lru_cache_wrapper) and not internals._should_pickle_by_reference(
            obj.__wrapped__
        ):
            # its own pickle is its name, which a rank does not know yet
            return cached_again, (obj.__wrapped__, obj.cache_parameters())
        elif isinstance(obj, ModuleType) and obj is sys.modules.get("__main__"):
            raise pickle.PicklingError("the module __main__ itself can not be shipped; name what you use of it")
        return super().reducer_override(obj)


def pack(
    *,
    label: str,
    captured: Mapping[str, Any],
    namespace: dict[str, Any],
    hyper_params: Any,
    dataset_map: Mapping[str, Any] | None,
    function: Any = None,
    cell: str | None = None,
    code: str | None = None,
    places: Mapping[str, str] | None = None,
    function_name: str = "the train function",
) -> Packed:
    """Pickles everything for the ranks. Raises ``CaptureError`` that names what can not be pickled."""
    buffers: list[Any] = []
    body = io.BytesIO()
    pickler = _Pickler(body, buffers, namespace)
    rows = []
    for name, value in captured.items():
        size = _dump(pickler, value, f"the notebook variable {name!r}", name, body, buffers)
        rows.append(Captured(name, _type_name(value), size))
    _dump(pickler, hyper_params, "hyper_params", "hyper_params", body, buffers)
    _dump_data(pickler, dataset_map, body, buffers)
    _dump(pickler, function, function_name, _name_of(function), body, buffers)
    _dump(pickler, dict(pickler.definitions), "the definitions of the notebook", "", body, buffers)
    sources, shown = _sources(pickler.files, dict(places or {}))
    head = Head(label, tuple(captured), cell, code, sources, shown)
    payload = Payload(cloudpickle.dumps(head, protocol=5), body.getvalue(), tuple(b.raw() for b in buffers))
    return Packed(payload, tuple(rows), Shown(shown, {**sources, **({label: cell} if cell else {})}))


def _dump_data(pickler: _Pickler, data: Mapping[str, Any] | None, body: io.BytesIO, buffers: list[Any]) -> None:
    try:
        _dump(pickler, data, "dataset_map", "dataset_map", body, buffers)
    except CaptureError as exc:
        for name, value in (data or {}).items():
            try:
                _Pickler(io.BytesIO(), [], {}).dump(value)
            except Exception as cause:
                raise CaptureError(_problem(f"dataset_map[{name!r}]", value, cause), (name,)) from exc
        raise


def _dump(pickler: _Pickler, value: Any, what: str, name: str, body: io.BytesIO, buffers: list[Any]) -> int:
    before, first = body.tell(), len(buffers)
    try:
        pickler.dump(value)
    except Exception as exc:
        raise CaptureError(_problem(what, value, exc), (name,) if name else ()) from exc
    size: int = sum(b.raw().nbytes for b in buffers[first:])
    return body.tell() - before + size


def _problem(what: str, value: Any, exc: Exception) -> str:
    where = culprit(value)
    detail = f" because of {where}" if where else ""
    reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
    return (
        f"{what} (a {_type_name(value)}) is used by the run and can not be shipped{detail}: {reason}. "
        "Create it inside the cell or the train function instead."
    )


def culprit(value: Any, path: str = "", depth: int = 0) -> str:
    """Where inside ``value`` the thing is that can not be pickled, e.g. ``['lock'] (a lock)``; "" when unknown."""
    for step, inner in _parts(value) if depth < _MAX_DEPTH else ():
        try:
            _Pickler(io.BytesIO(), [], {}).dump(inner)
        except Exception:
            return culprit(inner, path + step, depth + 1) or f"{path + step} (a {_type_name(inner)})"
    return ""


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", inner) for key, inner in list(value.items())[:200]]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", inner) for index, inner in enumerate(list(value)[:200])]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        closure = [(f" its closure variable {name!r}", cell.cell_contents) for name, cell in cells]
        used = [name for name in code_names(value.__code__) if name in value.__globals__]
        closure += [(f" its default {index}", inner) for index, inner in enumerate(value.__defaults__ or ())]
        closure += [(f" its default {name!r}", inner) for name, inner in (value.__kwdefaults__ or {}).items()]
        return closure + [(f" its global {name!r}", value.__globals__[name]) for name in used]
    if isinstance(value, MethodType):
        return [(" its object", value.__self__), (" its function", value.__func__)]
    if isinstance(value, functools.partial):
        arguments = [(f" its argument {index}", inner) for index, inner in enumerate(value.args)]
        return [
            *arguments,
            *((f" its argument {k!r}", v) for k, v in value.keywords.items()),
            (" its function", value.func),
        ]
    return [(f".{name}", inner) for name, inner in list(getattr(value, "__dict__", {}).items())[:200]]


def code_names(code: CodeType) -> list[str]:
    """The global names that a function's code reads, with those of the functions inside it."""
    return list(internals._extract_code_globals(code))


def reachable(names: list[str], namespace: Mapping[str, Any]) -> list[str]:
    """``names`` and, through the notebook's own functions and classes, what those use of the notebook."""
    found: dict[str, None] = {}
    queue = list(names)
    while queue:
        name = queue.pop(0)
        if name in found or name not in namespace:
            continue
        found[name] = None
        value = namespace[name]
        for function in _own_functions(value):
            queue += code_names(function.__code__)
    return list(found)


def _own_functions(value: Any) -> list[FunctionType]:
    if isinstance(value, FunctionType) and value.__module__ == "__main__":
        return [value]
    if isinstance(value, type) and value.__module__ == "__main__":
        members = [getattr(m, "__func__", getattr(m, "fget", m)) for m in vars(value).values()]
        return [m for m in members if isinstance(m, FunctionType)]
    return []


def _sources(
    files: Mapping[str, list[tuple[int, int]]], places: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The lines of shipped functions in their notebook cells; files on a disk speak for themselves.

    The other lines of such a cell are left blank: what they say, a password perhaps, is not used by the run.
    """
    sources = {}
    for name, ranges in files.items():
        entry = linecache.cache.get(name)
        if entry is not None and len(entry) == 4 and entry[1] is None:
            used = {number for first, last in ranges for number in range(first, last + 1)}
            sources[name] = "".join(line if i in used else "\n" for i, line in enumerate(entry[2], 1))
    return sources, {name: places.get(name, name) for name in {*sources, *places}}


def _type_name(value: Any) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
