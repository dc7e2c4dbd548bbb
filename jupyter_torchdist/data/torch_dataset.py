"""Batches of a table for torch: the one place of ``data`` that knows torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from jupyter_torchdist.errors import ConfigError

Array = np.ndarray[Any, Any]
Batch = dict[str, Any]


class TableDataset(IterableDataset[Batch]):
    """Re-iterable batches of an Arrow table; see ``DataConnector.to_torch_dataset`` for the shapes."""

    def __init__(self, table: pa.Table, batch_size: int | None, shuffle: bool, drop_last_batch: bool) -> None:
        super().__init__()
        _check_batch_size(batch_size)
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
            raise RuntimeError(
                f"shuffle=True can not be used inside a DataLoader with worker processes ({worker.num_workers}); "
                "use num_workers=0."
            )
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        order = torch.randperm(self._rows).numpy() if self._shuffle else None
        for index in range(first, len(self), step):
            yield self._batch(index, order)

    def _batch(self, index: int, order: Array | None) -> Batch:
        if self._batch_size is None:
            row = index if order is None else int(order[index])
            return {name: column[row] if isinstance(column, list) else column[row].copy()
                    for name, column in self._columns.items()}  # fmt: skip
        rows = slice(index * self._batch_size, (index + 1) * self._batch_size)
        picked: Any = rows if order is None else order[rows]
        return {name: _take(column, picked) for name, column in self._columns.items()}


def data_loader(data: TableDataset, options: Mapping[str, Any]) -> DataLoader[Batch]:
    """Return a loader that hands on the batches of ``data``; ``options`` are those of ``DataLoader``."""
    # the dataset makes the batches, and DataLoader's types know no batch_size=None
    loader: Any = DataLoader
    made: DataLoader[Batch] = loader(data, batch_size=None, **options)
    return made


def _check_batch_size(size: object) -> None:
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(f"batch_size is {size!r}; it must be a whole number of at least 1, or None.")


def _take(column: Any, rows: Any) -> Any:
    if isinstance(column, list):
        return column[rows] if isinstance(rows, slice) else [column[i] for i in rows]
    # a copy, so that a train function may write to its batch and never to the table; picked rows are one already
    return column[rows].copy() if isinstance(rows, slice) else column[rows]


def _column(name: str, column: pa.ChunkedArray) -> Any:
    """Read numbers as an array of (rows, 1), lists as (rows, width), strings as a list."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if _is_string(kind):
        return _strings(name, column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(name, _whole(column))
    if pa.types.is_decimal(kind):
        return _numbers(_whole(column.cast(pa.float64()))).reshape(-1, 1)
    if _is_number(kind):
        return _numbers(_whole(column)).reshape(-1, 1)
    raise ConfigError(
        f"column {name!r} is {kind}, which is no number, string or list of numbers; convert it to a number, "
        "or leave it out."
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    # combine_chunks would copy a column that is in one piece already
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _numbers(array: pa.Array) -> Array:
    """Read the values, without a copy where none is missing; a missing one is NaN, which makes integers floats."""
    if array.null_count and pa.types.is_boolean(array.type):
        array = array.cast(pa.float64())
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _strings(name: str, column: pa.ChunkedArray) -> list[str]:
    if column.null_count:
        raise ConfigError(
            f"column {name!r} has {column.null_count} missing strings; fill them, or leave the column out."
        )
    values: list[str] = column.to_pylist()
    return values


def _lists(name: str, array: pa.Array) -> Array:
    if array.null_count:
        raise ConfigError(f"column {name!r} has {array.null_count} missing lists; fill them, or leave the column out.")
    flat = array.flatten()
    if not _is_number(flat.type):
        raise ConfigError(f"column {name!r} holds lists of {flat.type}; lists of numbers can become batches.")
    # Arrow keeps the NaN of a pandas list as a null, so that in floats both are NaN
    if flat.null_count and not pa.types.is_floating(flat.type):
        raise ConfigError(f"column {name!r} has {flat.null_count} missing values inside its lists; fill them.")
    return _numbers(flat).reshape(len(array), _width(name, array))


def _width(name: str, array: pa.Array) -> int:
    """Find the one length of all lists. Raises ``ConfigError`` when they differ."""
    if pa.types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    widths = array.value_lengths().to_numpy(zero_copy_only=False)
    if not len(widths):
        return 0
    least, most = int(widths.min()), int(widths.max())
    if least != most:
        raise ConfigError(f"column {name!r} has lists of different lengths ({least} to {most}); pad them.")
    return most
