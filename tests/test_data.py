"""Connectors: shards and batches."""

import pickle

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


@pytest.mark.parametrize("make", [lambda d: d, pa.Table.from_pandas, lambda d: type("F", (), {"to_pandas": lambda s: d})()])
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
    if equal and 0 < rows < world:
        with pytest.raises(ConfigError, match=f"{rows} rows can not be shared equally by {world} ranks"):
            connector.shard_bounds(rows, 0, world, equal)
        return
    bounds = [connector.shard_bounds(rows, rank, world, equal) for rank in range(world)]
    taken = [row for start, length in bounds for row in range(start, start + length)]
    sizes = {length for _, length in bounds}
    assert taken == list(range(len(taken))) and len(taken) <= rows
    assert len(sizes) == 1 if equal else (max(sizes) - min(sizes) <= 1 and len(taken) == rows)


@given(st.integers(0, 40), st.integers(1, 7), st.booleans(), st.booleans())
def test_batches_together_are_the_table(rows, size, shuffle, drop):
    data = DataConnector.from_dataframe(pd.DataFrame({"n": np.arange(rows)}))
    seen = [int(v) for b in data.to_torch_dataset(batch_size=size, shuffle=shuffle, drop_last_batch=drop) for v in b["n"].ravel()]
    expected = rows - rows % size if drop else rows
    assert len(seen) == len(set(seen)) == expected and set(seen) <= set(range(rows))


def test_shuffle_is_new_each_epoch_and_follows_the_seed():
    data = DataConnector.from_dataframe(pd.DataFrame({"n": np.arange(100)})).to_torch_dataset(batch_size=100, shuffle=True)
    torch.manual_seed(1)
    first, second = (next(iter(data))["n"].ravel().tolist() for _ in range(2))
    torch.manual_seed(1)
    assert first != second and next(iter(data))["n"].ravel().tolist() == first


def test_loader_workers_share_the_batches():
    data = DataConnector.from_dataframe(pd.DataFrame({"n": np.arange(20)}))
    loader = DataLoader(data.to_torch_dataset(batch_size=2), batch_size=None, num_workers=3)
    assert sorted(int(v) for b in loader for v in b["n"].ravel()) == list(range(20))
    assert len(list(data.to_dataloader(batch_size=5))) == 4
    with pytest.raises(RuntimeError, match="shuffle"):
        list(DataLoader(data.to_torch_dataset(batch_size=2, shuffle=True), batch_size=None, num_workers=1))
    with pytest.raises(ConfigError, match="shuffle"):
        data.to_dataloader(batch_size=2, shuffle=True, num_workers=1)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"t": pd.to_datetime(["2026-01-01"])}, "'t'"),
        ({"v": [[1, 2], [1]]}, "different lengths"),
        ({"v": [[1], None]}, "missing"),
        ({"s": ["a", None]}, "missing"),
        ({"v": [["a"], ["b"]]}, "lists of"),
    ],
)
def test_a_column_that_can_not_be_a_batch_is_named(columns, word):
    with pytest.raises(ConfigError, match=word):
        DataConnector.from_dataframe(pd.DataFrame(columns)).to_torch_dataset(batch_size=1)


def test_missing_numbers_are_nan_and_categories_are_strings():
    data = DataConnector.from_dataframe(pd.DataFrame({"n": [1, None], "c": pd.Categorical(["a", "b"])}))
    batch = next(iter(data.to_torch_dataset(batch_size=2)))
    assert np.isnan(batch["n"][1, 0]) and batch["c"] == ["a", "b"]


def test_what_is_no_table_and_a_bad_batch_size_are_refused():
    with pytest.raises(ConfigError, match="no table"):
        DataConnector.from_dataframe([1, 2])
    for bad in (0, -1, True, 2.0):
        with pytest.raises(ConfigError, match="batch_size"):
            DataConnector.from_dataframe(frame()).to_torch_dataset(batch_size=bad)


def test_a_shard_is_asked_for_inside_a_run_only(monkeypatch):
    monkeypatch.setattr(connector, "_world", None)
    monkeypatch.delenv("RANK", raising=False)
    data = ShardedDataConnector.from_dataframe(frame())
    with pytest.raises(RuntimeError, match="inside a run"):
        data.get_shard()
    monkeypatch.setattr(connector, "_world", (1, 2))
    assert data.get_shard().to_pandas()["n"].tolist() == [2, 3]
    assert ShardedDataConnector.from_dataframe(frame(), equal=False).get_shard().to_pandas(1)["n"].tolist() == [3]


def test_a_table_is_pickled_without_a_copy_of_its_numbers():
    data = ShardedDataConnector.from_dataframe(pd.DataFrame({"x": np.zeros(100_000)}))
    buffers = []
    body = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(body) < 5_000 and sum(b.raw().nbytes for b in buffers) >= 800_000
    assert len(pickle.loads(body, buffers=buffers)) == 100_000


def test_to_torch_datapipe_is_deprecated_and_works():
    with pytest.warns(DeprecationWarning, match="to_torch_dataset"):
        assert len(list(DataConnector.from_dataframe(frame()).to_torch_datapipe(batch_size=5))) == 1
