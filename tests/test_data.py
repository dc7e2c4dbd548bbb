"""Connectors: shards and batches."""

import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from jupyter_torchdist import DataConnector, ShardedDataConnector
from jupyter_torchdist.data import connector
from jupyter_torchdist.errors import ConfigError


def frame(rows=5):
    return pd.DataFrame(
        {
            "x": np.arange(rows, dtype="float32"),
            "n": np.arange(rows),
            "flag": np.arange(rows) % 2 == 0,
            "v": [[i, i + 0.5, i + 1] for i in range(rows)],
            "s": [f"row {i}" for i in range(rows)],
            '"label"': np.arange(rows),
        }
    )


class Subclass(pd.DataFrame):
    """A frame of another library that builds on pandas."""


def with_method(name, answer):
    """Something that is no table and gives one by a method: Snowpark, Spark and polars frames do."""
    return type("Frame", (), {name: lambda self: answer})()


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d,
        Subclass,
        pa.Table.from_pandas,
        lambda d: with_method("to_pandas", d),
        lambda d: with_method("toArrow", pa.Table.from_pandas(d)),
        lambda d: with_method("to_arrow", pa.Table.from_pandas(d)),
        lambda d: pa.Table.from_pandas(d).to_batches()[0],
    ],
    ids=["pandas", "subclass", "arrow", "to_pandas", "toArrow", "to_arrow", "record-batch"],
)
def test_batches_have_the_shapes_of_the_reference(make):
    data = DataConnector.from_dataframe(make(frame()))
    batches = list(data.to_torch_dataset(batch_size=2))
    assert len(batches) == 2 and list(batches[0]) == ["x", "n", "flag", "v", "s", '"label"']
    first = batches[0]
    assert first["x"].shape == first["n"].shape == first["flag"].shape == (2, 1) and first["v"].shape == (2, 3)
    assert first["x"].dtype == np.float32 and first["flag"].dtype == bool and first["s"] == ["row 0", "row 1"]
    assert first.pop('"label"').tolist() == [[0], [1]] and '"label"' in next(iter(data.to_torch_dataset(batch_size=2)))
    first["x"][:] = 99
    assert next(iter(data.to_torch_dataset(batch_size=2)))["x"].max() == 1
    row = next(iter(data.to_torch_dataset()))
    assert row["x"].shape == (1,) and row["v"].shape == (3,) and row["s"] == "row 0"
    assert len(list(data.to_torch_dataset(batch_size=2, drop_last_batch=False))) == 3
    assert len(data.to_torch_dataset(batch_size=2)) == 2 and len(data) == 5 and "5 rows" in repr(data)


@given(st.integers(0, 60), st.integers(1, 9), st.booleans())
def test_shards_are_disjoint_and_complete(rows, world, equal):
    if equal and rows < world:
        with pytest.raises(ConfigError, match=f"{rows} rows can not be shared equally by {world} ranks"):
            connector.shard_bounds(rows, 0, world, equal)
        return
    bounds = [connector.shard_bounds(rows, rank, world, equal) for rank in range(world)]
    taken = [row for start, length in bounds for row in range(start, start + length)]
    sizes = {length for _, length in bounds}
    assert taken == list(range(len(taken))) and len(taken) <= rows
    assert sizes == {rows // world} if equal else (max(sizes) - min(sizes) <= 1 and len(taken) == rows)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40, unique=True), st.integers(1, 6))
def test_the_ranks_read_each_row_in_one_shard_only(values, world):
    data = ShardedDataConnector.from_dataframe(pa.table({"n": values}), equal=False)
    read = []
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(world):
            patch.setattr(connector, "_world", (rank, world))
            read += [b["n"].item() for b in data.get_shard().to_torch_dataset()]
    assert read == values


def numbers(rows):
    return DataConnector.from_dataframe(pd.DataFrame({"n": np.arange(rows)}))


def values_of(batches):
    return [int(v) for b in batches for v in b["n"].ravel()]


@given(st.integers(0, 40), st.integers(1, 7), st.booleans(), st.booleans())
def test_no_row_comes_twice_and_only_the_last_batch_is_dropped(rows, size, shuffle, drop):
    seen = values_of(numbers(rows).to_torch_dataset(batch_size=size, shuffle=shuffle, drop_last_batch=drop))
    expected = rows - rows % size if drop else rows
    assert len(seen) == len(set(seen)) == expected and set(seen) <= set(range(rows))


ROWS = st.tuples(
    st.floats(allow_nan=False), st.booleans(), st.text(), st.lists(st.integers(0, 9), min_size=2, max_size=2)
)


@given(st.lists(ROWS, min_size=1, max_size=20), st.integers(1, 7), st.integers(0, 19))
def test_batches_one_after_the_other_are_the_table(rows, size, start):
    names = ["x", "flag", "s", "v"]
    kinds = [pa.float64(), pa.bool_(), pa.string(), pa.list_(pa.int64())]
    columns = [pa.array(c, kind) for c, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    table = pa.table(columns, names=names).slice(min(start, len(rows) - 1))
    batches = list(DataConnector(table).to_torch_dataset(batch_size=size, drop_last_batch=False))
    joined = {
        "x": np.concatenate([b["x"] for b in batches]).ravel().tolist(),
        "flag": np.concatenate([b["flag"] for b in batches]).ravel().tolist(),
        "s": [text for b in batches for text in b["s"]],
        "v": np.concatenate([b["v"] for b in batches]).tolist(),
    }
    assert joined == table.to_pydict()


def test_shuffle_is_new_each_epoch_and_follows_the_seed():
    data = numbers(100).to_torch_dataset(batch_size=100, shuffle=True)
    torch.manual_seed(1)
    first, second = (next(iter(data))["n"].ravel().tolist() for _ in range(2))
    torch.manual_seed(1)
    assert first != second and next(iter(data))["n"].ravel().tolist() == first


def test_loader_workers_share_the_batches():
    data = numbers(20)
    dataset = data.to_torch_dataset(batch_size=2)
    # the loader takes one batch of each worker in turn, so the table's own order shows that each has every second
    assert values_of(DataLoader(dataset, batch_size=None, num_workers=2)) == list(range(20))
    assert values_of(data.to_dataloader(batch_size=2, num_workers=1)) == list(range(20))
    first = next(iter(data.to_dataloader(batch_size=5)))
    assert len(list(data.to_dataloader(batch_size=5))) == 4 and first["n"].shape == (5, 1)
    assert isinstance(first["n"], torch.Tensor)
    with pytest.raises(RuntimeError, match="shuffle"):
        list(DataLoader(data.to_torch_dataset(batch_size=2, shuffle=True), batch_size=None, num_workers=1))
    with pytest.raises(ConfigError, match="shuffle"):
        data.to_dataloader(batch_size=2, shuffle=True, num_workers=1)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"t": pd.to_datetime(["2026-01-01"])}, "column 't' is timestamp.*convert it to a number"),
        ({"v": [[1, 2], [1]]}, r"'v' has lists of different lengths \(1 to 2\)"),
        ({"v": [[1], None]}, "'v' has 1 missing lists"),
        ({"v": [[1], [None]]}, "'v' has 1 missing values inside"),
        ({"s": ["a", None]}, "'s' has 1 missing strings"),
        ({"v": [["a"], ["b"]]}, "'v' holds lists of"),
        ({"b": [b"a"]}, "'b' is"),
    ],
)
def test_a_column_that_can_not_be_a_batch_is_named(columns, word):
    with pytest.raises(ConfigError, match=word):
        DataConnector.from_dataframe(pd.DataFrame(columns)).to_torch_dataset(batch_size=1)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None]),
        pa.array([1.0, None], pa.float32()),
        pa.array([True, None]),
        pa.array([Decimal("1"), None]),
    ],
    ids=["int", "float32", "bool", "decimal"],
)
def test_missing_numbers_are_nan(column):
    batch = next(iter(DataConnector.from_dataframe(pa.table({"n": column})).to_torch_dataset(batch_size=2)))
    values = batch["n"]
    assert values.dtype.kind == "f" and values[0, 0] == 1 and np.isnan(values[1, 0])


def test_categories_are_strings_and_decimals_are_floats():
    table = pa.table(
        {
            "c": pd.Categorical(["a", "b"]),
            "d": [Decimal("1.5"), Decimal("2")],
            "v": pa.FixedSizeListArray.from_arrays(pa.array([1.0, float("nan"), 3.0, 4.0], pa.float32()), 2),
        }
    )
    batch = next(iter(DataConnector.from_dataframe(table).to_torch_dataset(batch_size=2)))
    assert batch["c"] == ["a", "b"] and batch["d"].tolist() == [[1.5], [2.0]]
    assert batch["v"].dtype == np.float32 and np.isnan(batch["v"][0, 1]) and batch["v"][1].tolist() == [3, 4]


@pytest.mark.parametrize(
    "make", [lambda c: pd.DataFrame([c], columns=["a", "a"]), lambda c: pa.table(c, names=["a", "a"])]
)
def test_a_column_name_that_comes_twice_is_refused(make):
    with pytest.raises(ConfigError, match="2 columns, but 'a' more than once"):
        DataConnector.from_dataframe(make([[1], [2]]))


def test_numbers_are_read_where_they_lie():
    source = np.arange(1000.0)
    data = DataConnector.from_dataframe(pa.table({"x": source})).to_torch_dataset(batch_size=2)
    assert np.shares_memory(data._columns["x"], source)
    batch = next(iter(data))["x"]
    assert batch.flags.writeable and not np.shares_memory(batch, source)


def test_a_table_in_pieces_is_read_whole():
    table = pa.table({"n": pa.chunked_array([[0], [1, 2]]), "s": pa.chunked_array([["a"], ["b", "c"]])})
    for data in (DataConnector.from_dataframe(table), DataConnector(table)):
        batch = next(iter(data.to_torch_dataset(batch_size=3)))
        assert batch["n"].ravel().tolist() == [0, 1, 2] and batch["s"] == ["a", "b", "c"]
    assert DataConnector.from_dataframe(table).to_arrow().column("n").num_chunks == 1


def test_what_is_no_table_and_a_bad_batch_size_are_refused():
    with pytest.raises(ConfigError, match="no table"):
        DataConnector.from_dataframe([1, 2])
    for bad in (0, -1, True, 2.0):
        with pytest.raises(ConfigError, match="batch_size"):
            DataConnector.from_dataframe(frame()).to_torch_dataset(batch_size=bad)


def test_a_shard_is_asked_for_inside_a_run_only(monkeypatch):
    monkeypatch.setattr(connector, "_world", None)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    data = ShardedDataConnector.from_dataframe(frame())
    with pytest.raises(RuntimeError, match="inside a run"):
        data.get_shard()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert data.get_shard().to_pandas()["n"].tolist() == [0, 1]
    connector.set_world(1, 2)  # before the variables; monkeypatch takes it back
    assert data.get_shard().to_pandas()["n"].tolist() == [2, 3]
    assert ShardedDataConnector.from_dataframe(frame(), equal=False).get_shard().to_pandas(1)["n"].tolist() == [3]
    connector.set_world(0, 9)
    with pytest.raises(
        ConfigError, match="5 rows can not be shared equally by 9 ranks; use equal=False or fewer workers"
    ):
        data.get_shard()


def test_a_table_is_pickled_without_a_copy_of_its_numbers():
    data = ShardedDataConnector.from_dataframe(pd.DataFrame({"x": np.zeros(100_000)}))
    buffers = []
    body = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(body) < 5_000 and sum(b.raw().nbytes for b in buffers) >= 800_000
    assert len(pickle.loads(body, buffers=buffers)) == 100_000


def test_to_torch_datapipe_is_deprecated_and_works():
    with pytest.warns(DeprecationWarning, match="to_torch_dataset") as caught:
        assert len(list(DataConnector.from_dataframe(frame()).to_torch_datapipe(batch_size=5))) == 1
    assert len(caught) == 1


def test_methods_of_later_versions_are_absent():
    later = {"to_tf_dataset", "to_ray_dataset", "to_huggingface_dataset"}
    later |= {"from_sql", "from_dataset", "from_ray_dataset", "from_files", "from_sources"}
    assert not later & {*dir(DataConnector), *dir(ShardedDataConnector)}
