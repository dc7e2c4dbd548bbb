"""The records and their codecs."""

import json
import math
import pickle
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_torchdist import errors
from jupyter_torchdist.records import (
    ErrorCard,
    ErrorRecord,
    Failure,
    Frame,
    RunState,
    RunStatus,
    SeriesDelta,
    decode_report,
    encode_report,
    error_from_plain,
    view_bundle,
    view_update,
)

numbers = st.one_of(st.floats(), st.integers(-(2**63), 2**64 - 1), st.booleans())
values = st.one_of(numbers, st.lists(numbers, max_size=5))


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@given(
    st.integers(0, 10_000),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(0, 2e9),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), values, max_size=6),
)
def test_a_report_comes_back_as_it_was(rank, step, time, metrics):
    line = encode_report(rank, step, time, metrics)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    json.loads(line, parse_constant=lambda name: pytest.fail(f"not strict JSON: {name}"))
    back = decode_report(line)
    assert (back.rank, back.step, back.time) == (rank, step, time)
    assert list(back.metrics) == list(metrics)
    assert all(same(metrics[k], back.metrics[k]) for k in metrics)


@given(st.binary(max_size=60))
def test_a_line_that_is_no_report_is_a_value_error(line):
    try:
        decode_report(line)
    except ValueError:
        return
    assert set(orjson.loads(line)) >= {"rank", "step", "time", "metrics"}


def test_a_key_with_a_lone_surrogate_does_not_break_the_line():
    assert decode_report(encode_report(0, 0, 0.0, {"a\ud800": 1.0})).metrics == {"a?": 1.0}


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError("a"),
        errors.CaptureError("b", ["x"]),
        errors.NotEnoughResources("c"),
        errors.WorkerError("d", [Failure(1, 0, "h", 1.0, signal="SIGKILL")]),
        errors.RunTimeout("e"),
        errors.RunLost("f"),
        errors.RunStopped("g"),
        errors.ResultError("h"),
    ],
)
def test_every_error_can_be_pickled(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)
    assert isinstance(error, (RuntimeError, KeyboardInterrupt))


def test_an_error_record_survives_its_plain_form():
    from dataclasses import asdict

    record = ErrorRecord(
        "ValueError", "x", (Frame("cell", 3, "<module>", "raise"),), ("note",), cause=ErrorRecord("KeyError", "'k'"),
        group=(ErrorRecord("E", "m"),),
    )  # fmt: skip
    assert error_from_plain(json.loads(json.dumps(asdict(record)))) == record


def sample():
    status = RunStatus(
        state=RunState.FAILED, detail="", name="digits", nodes=2, workers=2, gpus=1, elapsed=12.5, step=7, total=10,
        reports=8, rate=3.5, folder="/stage/run", folder_browser_path="stage/run", notes=("a note",),
        hang=ErrorCard("No report and no output", ("ranks 0, 1:",)), timeline={"ship": 0.01, "schedule": 0.002, "start": 0.013, "import": 0.004, "rendezvous": 0.009},
        error=ErrorCard("ValueError: here on rank 1", ("cell, line 3, in <module>", "    raise"), "rank 0 lost its peer"),
    )  # fmt: skip
    import struct

    points = struct.pack("<3d", 0.0, 1.0, 2.0), struct.pack("<3d", 1.0, math.nan, 0.25)
    data, buffers = view_update(
        "20261201-173012-digits-7f3a9c", 4, status=status, series=[SeriesDelta("loss", 0, True, *points)],
        tail="epoch 1\n", artifacts=[{"path": "model/net.pt", "size": 12, "browser_path": None}],
    )  # fmt: skip
    from base64 import b64encode

    from jupyter_torchdist.driver.plot import figure
    from jupyter_torchdist.driver.series import SeriesTable
    from jupyter_torchdist.records import Report

    table = SeriesTable()
    for step, value in enumerate([1.0, math.nan, 0.25]):
        table.add(Report(0, step, 0.0, {"loss": value}))
    return {
        "bundle": view_bundle("20261201-173012-digits-7f3a9c", status),
        "status": status.to_json(),
        "update": {"data": data, "buffers": [b64encode(b).decode() for b in buffers]},
        "plotly": figure(table),
    }


def test_the_samples_that_the_browser_side_reads_are_what_is_written_here():
    file = Path(__file__).parent / "fixtures" / "records.json"
    text = json.dumps(sample(), indent=1) + "\n"
    assert file.read_text() == text, "write the new samples with: python -m tests.test_records"


if __name__ == "__main__":
    (Path(__file__).parent / "fixtures" / "records.json").write_text(json.dumps(sample(), indent=1) + "\n")
