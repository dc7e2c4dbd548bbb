"""Thinned series, the chart, the terminal's text."""

import base64
import math
from array import array

from hypothesis import given
from hypothesis import strategies as st

from jupyter_torchdist.driver.plot import figure
from jupyter_torchdist.driver.series import Series, SeriesReader, SeriesTable
from jupyter_torchdist.notebook.tail import screen_text
from jupyter_torchdist.records import Report


def replay(deltas):
    """What the browser holds after these messages."""
    steps, values = array("d"), array("d")
    for delta in deltas:
        if delta.reset:
            steps, values = array("d"), array("d")
        steps.frombytes(delta.steps)
        values.frombytes(delta.values)
    return steps, values


def equal(a, b):
    return len(a) == len(b) and all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))


@given(st.lists(st.tuples(st.integers(-5, 50), st.floats()), max_size=300), st.integers(1, 50))
def test_the_messages_together_are_the_series(points, every):
    series, deltas, sent = Series("x"), [], None
    for index, (step, value) in enumerate(points):
        series.add(step, value)
        if index % every == 0:
            delta, sent = series.after(sent)
            deltas += [delta] if delta else []
    delta, sent = series.after(sent)
    assert series.after(sent) == (None, sent)
    steps, values = replay([*deltas, *([delta] if delta else [])])
    assert equal(steps, series.steps) and equal(values, series.values)


def test_a_million_points_stay_a_thousand_and_the_last_is_drawn():
    series = Series("x")
    for step in range(1_000_000):
        series.add(step, float(step))
    steps, _ = series.points()
    assert len(steps) <= 1001 and steps[0] == 0 and steps[-1] == 999_999
    assert all(a < b for a, b in zip(steps, steps[1:], strict=False))


def test_two_readers_of_one_table_each_get_every_point():
    table = SeriesTable()
    readers = [SeriesReader(table), SeriesReader(table)]
    got = [[], []]
    for step in range(3000):
        table.add(Report(0, step, 0.0, {"loss": float(step)}))
        for index, reader in enumerate(readers):
            if step % (3 + index * 4) == 0:
                got[index] += reader.deltas()
    for index, reader in enumerate(readers):
        got[index] += reader.deltas()
        steps, _ = replay(got[index])
        assert steps[0] == 0 and steps[-1] == 2999 and len(steps) <= 1250
    assert len(readers[0].deltas(everything=True)) == 1


def test_an_update_of_a_long_series_is_small():
    series, sent = Series("x"), None
    for step in range(100_000):
        series.add(step, 1.0)
        delta, sent = series.after(sent) if step % 10 == 0 else (None, sent)
        assert delta is None or len(delta.steps) + len(delta.values) <= 16_016


@given(st.lists(st.integers(-3, 20), min_size=1, max_size=200))
def test_no_line_runs_backwards(steps):
    series = Series("x")
    for step in steps:
        series.add(step, 1.0)
    drawn, _ = series.points()
    for before, after in zip(drawn, drawn[1:], strict=False):
        assert math.isnan(before) or math.isnan(after) or after > before


def test_a_list_is_one_line_a_position_and_nan_is_a_gap():
    table = SeriesTable()
    table.add(Report(0, 0, 0.0, {"v": [1.0, 2.0], "loss": math.inf, "big": 2**60 + 1}))
    table.add(Report(0, 1, 0.0, {"v": [3.0, 4.0], "loss": 0.5, "big": 1}))
    made = figure(table)
    assert [t["meta"]["key"] for t in made["data"]] == ["v[0]", "v[1]", "loss", "big"]
    loss = made["data"][2]["y"]
    numbers = array("f" if loss["dtype"] == "f4" else "d", base64.b64decode(loss["bdata"]))
    assert math.isnan(numbers[0]) and numbers[1] == 0.5
    assert table.last["loss"] == 0.5


@given(st.binary(max_size=400))
def test_any_output_is_text(data):
    text = screen_text(data)
    assert "\r" not in text and "\x1b" not in text
    assert text.count("\n") <= 200


def test_progress_bars_stay_one_line():
    bar = b"".join(f"\r{i}%|{'#' * (i // 10)}".encode() for i in range(101))
    assert screen_text(bar + b"\ndone\n") == "100%|##########\ndone"
    assert screen_text(b"long line\rshort\x1b[K") == "short"
    nested = b"outer 0\ninner 0\x1b[A\router 1\n\rinner 1"
    assert screen_text(nested) == "outer 1\ninner 1"
    assert screen_text(b"\x1b[31mred\x1b[0m") == "red"
