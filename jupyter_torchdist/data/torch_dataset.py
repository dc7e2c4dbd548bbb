"""Batches of a table for torch: the one place of ``data`` that knows torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from jupyter_torchdist.errors import ConfigError

Batch = dict[str, Any]


class TableDataset(IterableDataset[Batch]):
    """Re-iterable batches of an Arrow table; see ``DataConnector.to_torch_dataset`` for the shapes."""

    def __init__(self, table: pa.Table, batch_size: int | None, shuffle: bool, drop_last_batch: bool) -> None:
        super().__init__()
        if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
            raise ConfigError(f"batch_size is {batch_size!r}; it must be a whole number of at least 1, or None.")
        self._columns = {name: _column(name, table.column(name)) for name in table.column_names}
        self._rows = int(table.num_rows)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last_batch

    def __len__(self) -> int:
        """Batches of one epoch; rows with ``batch_size=None``."""
        if self._batch_size is None:
            return self._rows
        whole, rest = divmod(self._rows, self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is not None and self._shuffle:
            raise RuntimeError("shuffle=True can not be used inside a DataLoader with worker processes; use num_workers=0.")
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        order = torch.randperm(self._rows).numpy() if self._shuffle else None
        for index in range(first, len(self), step):
            yield self._batch(index, order)

    def _batch(self, index: int, order: np.ndarray[Any, Any] | None) -> Batch:
        if self._batch_size is None:
            row = index if order is None else int(order[index])
            return {name: column[row] if isinstance(column, list) else column[row].copy()
                    for name, column in self._columns.items()}  # fmt: skip
        rows = slice(index * self._batch_size, (index + 1) * self._batch_size)
        picked: Any = rows if order is None else order[rows]
        return {name: _take(column, picked) for name, column in self._columns.items()}


def _take(column: Any, rows: Any) -> Any:
    if isinstance(column, list):
        return column[rows] if isinstance(rows, slice) else [column[i] for i in rows]
    # a copy, so that a train function may write to its batch and never to the table
    return column[rows].copy()


def _column(name: str, chunked: pa.ChunkedArray) -> Any:
    """Numbers as an array of (rows, 1), lists as (rows, width), strings as a list."""
    array = chunked.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_view(kind):
        return _strings(name, array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(name, array)
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ConfigError(
            f"column {name!r} is {kind}, which is no number, string or list of numbers; convert it to a number, "
            "or leave it out."
        )
    return array.to_numpy(zero_copy_only=False).reshape(-1, 1)


def _is_view(kind: pa.DataType) -> bool:
    return str(kind) == "string_view"


def _strings(name: str, array: pa.Array) -> list[str]:
    if array.null_count:
        raise ConfigError(f"column {name!r} has {array.null_count} missing strings; fill them, or leave the column out.")
    values: list[str] = array.to_pylist()
    return values


def _lists(name: str, array: pa.Array) -> np.ndarray[Any, Any]:
    if array.null_count:
        raise ConfigError(f"column {name!r} has {array.null_count} missing lists; fill them, or leave the column out.")
    flat = array.flatten()
    inner = flat.type
    if not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)):
        raise ConfigError(f"column {name!r} holds lists of {inner}; lists of numbers can become batches.")
    lengths = {len(item) for item in array.to_numpy(zero_copy_only=False)} if _ragged(array, len(flat)) else set()
    if lengths:
        raise ConfigError(f"column {name!r} has lists of different lengths ({min(lengths)} to {max(lengths)}); pad them.")
    width = len(flat) // len(array) if len(array) else 0
    return flat.to_numpy(zero_copy_only=False).reshape(len(array), width)


def _ragged(array: pa.Array, values: int) -> bool:
    if pa.types.is_fixed_size_list(array.type) or not len(array):
        return False
    widths = array.value_lengths().to_numpy(zero_copy_only=False)
    return bool((widths != widths[0]).any()) or int(widths.sum()) != values
