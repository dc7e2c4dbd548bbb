"""``DataConnector`` and ``ShardedDataConnector`` over one in-memory Arrow table."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from jupyter_torchdist.errors import ConfigError, TorchdistError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from jupyter_torchdist.data.torch_dataset import TableDataset

_world: tuple[int, int] | None = None


def set_world(rank: int, world_size: int) -> None:
    """Tells this process which shard is its own; a rank calls it at its start."""
    global _world
    _world = rank, world_size


def _own_world() -> tuple[int, int]:
    if _world is not None:
        return _world
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise TorchdistError(
            "get_shard() works inside a run only: outside of one there is no rank whose shard it could be."
        ) from None


class DataConnector:
    """A table that a train function reads as torch batches, a frame or an Arrow table."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @classmethod
    def from_dataframe(cls, df: Any) -> Self:
        """From pandas, polars, an Arrow table, or anything with ``to_arrow``, ``toArrow`` or ``to_pandas``.

        Raises ``ConfigError`` for anything else.
        """
        return cls(_as_table(df))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows; {', '.join(self._table.column_names)})"

    def to_torch_dataset(
        self, *, batch_size: int | None = None, shuffle: bool = False, drop_last_batch: bool = True
    ) -> TableDataset:
        """Return an iterable dataset of dicts in column order, a new one a batch.

        With ``batch_size=k``: numbers are arrays of (k, 1), lists of width w (k, w), strings lists of k. Without:
        (1,), (w,) and str. ``shuffle``: a new order each epoch, from torch's seed; not inside a DataLoader with
        workers (``RuntimeError``). With n workers, worker i yields every n-th batch. Raises ``ConfigError``.
        """
        from jupyter_torchdist.data.torch_dataset import TableDataset

        return TableDataset(self._table, batch_size, shuffle, drop_last_batch)

    def to_torch_datapipe(
        self, *, batch_size: int | None = None, shuffle: bool = False, drop_last_batch: bool = True
    ) -> TableDataset:
        """Do the same as ``to_torch_dataset``; the reference deprecates this name."""
        warnings.warn("to_torch_datapipe is deprecated; use to_torch_dataset", DeprecationWarning, stacklevel=2)
        return self.to_torch_dataset(batch_size=batch_size, shuffle=shuffle, drop_last_batch=drop_last_batch)

    def to_dataloader(
        self, *, batch_size: int | None = None, shuffle: bool = False, drop_last_batch: bool = True, **options: Any
    ) -> Any:
        """Return a ``torch.utils.data.DataLoader`` over ``to_torch_dataset``; ``options`` are the loader's.

        The loader makes tensors of the arrays, of the same shapes. Raises ``ConfigError`` for ``shuffle`` with
        ``num_workers``.
        """
        from jupyter_torchdist.data.torch_dataset import data_loader

        if (workers := options.get("num_workers")) and shuffle:
            raise ConfigError(
                f"shuffle=True can not be used with num_workers={workers}; shuffle the table, or load without workers."
            )
        data = self.to_torch_dataset(batch_size=batch_size, shuffle=shuffle, drop_last_batch=drop_last_batch)
        return data_loader(data, options)

    def to_pandas(self, limit: int | None = None) -> pd.DataFrame:
        """Return the table, or its first ``limit`` rows, as a frame."""
        table = self._table if limit is None else self._table.slice(0, max(0, limit))
        frame: pd.DataFrame = table.to_pandas()
        return frame

    def to_arrow(self) -> pa.Table:
        """Return the table itself."""
        return self._table


class ShardedDataConnector(DataConnector):
    """A table of which every rank reads its own part."""

    def __init__(self, table: pa.Table, equal: bool = True) -> None:
        super().__init__(table)
        self._equal = equal

    @classmethod
    def from_dataframe(cls, df: Any, equal: bool = True) -> Self:
        """As ``DataConnector.from_dataframe``.

        ``equal=True``: every shard has the same number of rows and the remainder is left out, so that no rank waits
        for a batch that another does not have. ``equal=False``: sizes differ by at most one row, nothing is left out.
        """
        return cls(_as_table(df), equal)

    def get_shard(self) -> DataConnector:
        """Return the part of this rank. Raises ``RuntimeError`` outside a run, ``ConfigError`` for too few rows."""
        rank, world = _own_world()
        start, length = shard_bounds(len(self), rank, world, self._equal)
        return DataConnector(self._table.slice(start, length))


def shard_bounds(rows: int, rank: int, world: int, equal: bool) -> tuple[int, int]:
    """(first row, number of rows) of a rank's shard. Raises ``ConfigError`` when equal shards would be empty."""
    each, rest = divmod(rows, world)
    if equal:
        if not each:
            raise ConfigError(
                f"{rows} rows can not be shared equally by {world} ranks; use equal=False or fewer workers."
            )
        return rank * each, each
    return rank * each + min(rank, rest), each + (rank < rest)


def _as_table(df: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(df, DataConnector):
        return df.to_arrow()
    for candidate in _forms(df):
        if isinstance(candidate, pa.RecordBatch):
            candidate = pa.Table.from_batches([candidate])
        if isinstance(candidate, pa.Table):
            _check_names(candidate.column_names)
            return candidate.combine_chunks()
        if _is_pandas(candidate):
            return _from_pandas(candidate)
    raise ConfigError(
        f"a {type(df).__name__} is no table: give a pandas or polars frame, an Arrow table, "
        "or something with to_pandas()."
    )


def _forms(df: Any) -> Iterator[Any]:
    yield df
    for name in ("to_arrow", "toArrow", "to_pandas"):
        if callable(method := getattr(df, name, None)):
            yield method()


def _is_pandas(candidate: Any) -> bool:
    # whoever holds a frame has loaded pandas: nobody else shall pay for its import
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(candidate, pandas.DataFrame)


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name, count in Counter(names).items() if count > 1})
    if twice:
        raise ConfigError(
            f"{len(names)} columns, but {', '.join(map(repr, twice))} more than once; give each column its own name."
        )


def _from_pandas(frame: Any) -> pa.Table:
    import pyarrow as pa

    _check_names([str(name) for name in frame.columns])
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError) as exc:
        raise ConfigError(f"the frame can not become a table: {'; '.join(map(str, exc.args))}.") from exc
    return table.replace_schema_metadata(None).combine_chunks()
