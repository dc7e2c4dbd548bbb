"""Cases of kind 8: metrics and the chart."""

from __future__ import annotations

import base64
import itertools
import json
import math
from array import array

import nbformat
import pytest

from jupyter_torchdist import PyTorchDistributor, PyTorchScalingConfig, get_context
from jupyter_torchdist.driver.series import Series
from tests.kernel import PLOTLY_MIME as PLOTLY
from tests.kernel import RUN_MIME, Sent, running_kernel, strict

TWO = PyTorchScalingConfig(1, 2)


def points(trace):
    """(steps, values) of a trace of the figure."""
    found = []
    for axis in ("x", "y"):
        data = trace[axis]
        if isinstance(data, dict):
            data = array({"f8": "d", "f4": "f"}[data["dtype"]], base64.b64decode(data["bdata"])).tolist()
        found.append([math.nan if v is None else float(v) for v in data])
    return found


def traces(result):
    """The chart of a result by metric, as plain numbers."""
    figure = strict(result.plot().to_json())
    return {trace["meta"]["key"]: points(trace) for trace in figure["data"]}


def finite(values):
    return [v for v in values if math.isfinite(v)]


def rows_on_disk(result, rank=0):
    text = (result.folder / "metrics.jsonl").read_text("utf-8")
    return [row for row in map(strict, text.splitlines()) if row["rank"] == rank]


@pytest.fixture
def go(cluster, stage):
    def go(function, scaling=TWO, **options):
        return PyTorchDistributor(function, scaling).run(
            artifact_stage_location=str(stage), **{"display": "none", **options}
        )

    return go


# ------------------------------------------------------------ B77, B78


def test_b77_nan_and_infinity(go):
    """Numbers that JSON does not have are kept, written as strict JSON, and the chart goes on behind them."""

    def train():
        for step, loss in enumerate([1.0, math.nan, math.inf, -math.inf, 2.0]):
            get_context().get_metrics_reporter().log_metrics({"loss": loss}, step=step)

    result = go(train)
    frame = result.get_metrics()
    assert frame["step"].tolist() == [0, 1, 2, 3, 4]
    loss = frame["loss"].tolist()
    assert loss[0] == 1 and math.isnan(loss[1]) and loss[2:] == [math.inf, -math.inf, 2]
    assert [row["metrics"]["loss"] for row in rows_on_disk(result)] == [1.0, "NaN", "Infinity", "-Infinity", 2.0]
    strict((result.folder / "run.json").read_text())
    steps, values = traces(result)["loss"]
    assert steps == [0, 1, 2, 3, 4]
    assert [v if math.isfinite(v) else None for v in values] == [1, None, None, None, 2]


@pytest.mark.parametrize("word", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("kind", ["float", "numpy", "torch", "half", "list", "nested", "Decimal"])
def test_b77_the_same_for_every_kind_of_number(go, kind, word):
    """Infinity and NaN of numpy, torch, lists and nested dicts are kept alike, also as the only values."""

    def train():
        from decimal import Decimal

        import numpy as np
        import torch

        value = {
            "float": float(word), "numpy": np.float32(word), "torch": torch.tensor(float(word), requires_grad=True),
            "half": torch.tensor(float(word), dtype=torch.bfloat16), "list": [float(word), 1.0],
            "nested": {"a": float(word)}, "Decimal": Decimal(word),
        }[kind]  # fmt: skip
        get_context().get_metrics_reporter().log_metrics({"loss": value})

    result = go(train, PyTorchScalingConfig(1, 1))
    (value,) = result.last().values()
    value = value[0] if kind == "list" else value
    assert math.isnan(value) if word == "nan" else value == float(word)
    assert traces(result)
    strict((result.folder / "metrics.jsonl").read_text())
    json.dumps(result.last())


def test_b78_infinity_reads_back_as_infinity(go):
    """Infinity comes back as infinity, not as the largest double."""

    def train():
        report = get_context().get_metrics_reporter().log_metrics
        report({"loss": math.inf, "other": 1.7976931348623157e308, "tiny": 5e-324, "zero": -0.0})

    result = go(train)
    row = result.get_metrics().iloc[0]
    assert math.isinf(row["loss"]) and math.isinf(result.last()["loss"])
    assert row["other"] == 1.7976931348623157e308 and row["tiny"] == 5e-324
    assert math.copysign(1, row["zero"]) == -1
    assert "inf" in repr(result)
    assert traces(result)["other"][1] == [1.7976931348623157e308] and traces(result)["tiny"][1] == [5e-324]


# ------------------------------------------------------------ B80


def test_b80_tensors_and_numpy_scalars(go):
    """0-d and 1-element tensors, numpy scalars and bools become numbers when they are reported, without a word."""

    def train():
        import numpy as np
        import torch

        get_context().get_metrics_reporter().log_metrics(
            {
                "a": torch.tensor(0.5, requires_grad=True),
                "b": np.float32(1),
                "c": np.int64(2),
                "d": torch.tensor([3.0]),
                "e": True,
            }
        )

    result = go(train)
    assert result.last() == {"a": 0.5, "b": 1, "c": 2, "d": 3, "e": True}
    assert result.logs(0) == result.logs(1) == ""
    assert str(result.get_metrics()["c"].dtype) == "int64"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("torch.tensor(3)", 3),
        ("torch.tensor(True)", True),
        ("torch.tensor(2.5, dtype=torch.bfloat16)", 2.5),
        ("torch.tensor(2.5, dtype=torch.float16)", 2.5),
        ("torch.tensor([[7.0]])", 7.0),
        ("torch.tensor(0.5, requires_grad=True) * 2", 1.0),
        ("torch.nn.Parameter(torch.tensor(2.0))", 2.0),
        ("torch.tensor(200, dtype=torch.uint8)", 200),
        ("torch.tensor(1.5).to_sparse() if False else torch.tensor([1.5]).to_sparse()", 1.5),
        ("torch.quantize_per_tensor(torch.tensor([1.0]), 0.5, 0, torch.quint8)", 1.0),
        ("np.array(1.5)", 1.5),
        ("np.array([[2]])", 2),
        ("np.bool_(True)", True),
        ("np.float16(0.5)", 0.5),
        ("np.longdouble(0.25)", 0.25),
        ("np.uint64(2**64 - 1)", 2**64 - 1),
        ("np.datetime64('NaT') if False else np.timedelta64(3, 's').astype(int)", 3),
        ("np.ma.masked_array(1.5, mask=False)", 1.5),
        ("Decimal('0.25')", 0.25),
        ("Fraction(1, 4)", 0.25),
        ("pd.Series([4.0]).mean()", 4.0),
        ("pd.Series([1.0, 2.0])", [1.0, 2.0]),
        ("torch.arange(3)", [0, 1, 2]),
        ("torch.tensor([0.5, 1.5], requires_grad=True)", [0.5, 1.5]),
        ("np.array([True, False])", [True, False]),
        ("[torch.tensor(1.0), np.float32(2)]", [1.0, 2.0]),
        ("(1, 2)", [1, 2]),
        ("range(3)", [0, 1, 2]),
        ("[]", []),
        ("torch.tensor([])", []),
        ("enum.IntEnum('E', 'A').A", 1),
        ("type('F', (float,), {})(0.5)", 0.5),
    ],
)
def test_b80_other_kinds_of_numbers(go, expression, expected):
    """Numbers of numpy, torch, pandas and the standard library, of any dtype, are kept as what they are."""

    def train():
        import enum
        from decimal import Decimal
        from fractions import Fraction

        import numpy as np
        import pandas as pd
        import torch

        names = {"enum": enum, "Decimal": Decimal, "Fraction": Fraction, "np": np, "pd": pd, "torch": torch}
        get_context().get_metrics_reporter().log_metrics({"x": eval(expression, names), "y": 1})

    result = go(train, PyTorchScalingConfig(1, 1))
    assert result.last() == {"x": expected, "y": 1}, result.logs(0)
    assert type(result.last()["x"]) is type(expected)
    assert "grad" not in result.logs(0)
    assert len(result.get_metrics()) == 1


def test_b80_values_of_the_same_tensor_are_those_at_the_report(go):
    """A tensor that is changed in place later was reported with the value it had."""

    def train():
        import torch

        loss = torch.zeros(())
        for _ in range(3):
            get_context().get_metrics_reporter().log_metrics({"loss": loss})
            loss += 1

    assert go(train).get_metrics()["loss"].tolist() == [0, 1, 2]


@pytest.mark.gpu
def test_b80_tensors_on_a_gpu(go):
    """A tensor on a GPU, with grad, becomes a number."""

    def train():
        import torch

        get_context().get_metrics_reporter().log_metrics(
            {"a": torch.tensor(0.5, device="cuda", requires_grad=True), "v": torch.ones(2, device="cuda")}
        )

    assert go(train, PyTorchScalingConfig(1, 1)).last() == {"a": 0.5, "v": [1.0, 1.0]}


# ------------------------------------------------------------ B82


def test_b82_a_vector_a_nested_dict_a_text_and_none(go):
    """A vector is kept and drawn by position, a nested dict is flattened, text and None are left out with a warning."""

    def train():
        import torch

        for _ in range(3):
            get_context().get_metrics_reporter().log_metrics(
                {"v": torch.ones(3), "m": {"f1": 0.5}, "s": "text", "n": None}
            )

    result = go(train)
    assert result.state == "finished"
    assert result.last() == {"v": [1.0, 1.0, 1.0], "m/f1": 0.5}
    assert set(traces(result)) == {"v[0]", "v[1]", "v[2]", "m/f1"}
    log = result.logs(0)
    assert log.count("'s'") == 1 and log.count("'n'") == 1 and len(log.splitlines()) == 2
    assert "'v'" not in log and "m/f1" not in log


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        ("torch.ones(2, 2)", "2 dimensions"),
        ("np.ones((2, 2))", "2 dimensions"),
        ("[[1, 2], [3]]", "list of lists"),
        ("torch.ones(100_000)", "100000"),
        ("list(range(100_000))", "100000"),
        ("['a', 'b']", "not a number"),
        ("torch.tensor(1j)", "complex"),
        ("np.complex64(1j)", "not a number"),
        ("1j", "not a number"),
        ("object()", "not a number"),
        ("b'1'", "not a number"),
        ("{1, 2}", "not a number"),
        ("lambda: 1", "not a number"),
        ("torch.empty(1, device='meta')", ""),
        ("np.array(['a'])", "not a number"),
        ("np.datetime64('2026-01-01')", "not a number"),
        ("type('Bad', (), {'item': lambda s: 1 / 0})()", "zero"),
        ("type('Bad', (), {'__repr__': lambda s: 1 / 0})()", "Bad"),
        ("float", "not a number"),
        ("{'a': {'b': {'c': {'d': {'e': {'f': 1}}}}}}", ""),
    ],
)
def test_b82_a_value_that_can_not_be_kept_ends_nothing(go, expression, word):
    """A value that is no number is left out with one warning that names its key; the others of the report stay."""

    def train():
        import numpy as np
        import torch

        for step in range(3):
            get_context().get_metrics_reporter().log_metrics(
                {"odd": eval(expression, {"np": np, "torch": torch}), "loss": step}
            )

    result = go(train, PyTorchScalingConfig(1, 1))
    assert result.last() == {"loss": 2} and len(result.get_metrics()) == 3
    log = result.logs(0)
    assert "odd" in log and word in log and len(log.splitlines()) == 1, log


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({1: 2.0}, {"1": 2.0}),
        ({("a", 1): 2.0}, {"('a', 1)": 2.0}),
        ({None: 2.0}, {"None": 2.0}),
        ({"": 2.0}, {"": 2.0}),
        ({"a/b": 1.0, "a": {"c": 2.0}}, {"a/b": 1.0, "a/c": 2.0}),
        ({"step": 7, "time": 8.0}, {"step": 7, "time": 8.0}),
        ({"loss[0]": 1.0, "loss": [2.0]}, {"loss[0]": 1.0, "loss": [2.0]}),
        ({"<b>": 1.0, "ä ☃": 2.0, 'q"': 3.0, "n\nl": 4.0}, {"<b>": 1.0, "ä ☃": 2.0, 'q"': 3.0, "n\nl": 4.0}),
        ({"m": {}}, {}),
        ({}, {}),
    ],
)
def test_b82_odd_names(go, metrics, expected):
    """Names of any kind are kept as text, and the frame, the chart and the views hold with them."""
    result = go(lambda: get_context().get_metrics_reporter().log_metrics(metrics), PyTorchScalingConfig(1, 1))
    assert result.last() == expected
    assert list(result.get_metrics()["step"]) in ([0], [])
    result.plot().to_json()
    repr(result), result._repr_html_()
    assert "<b>1" not in result._repr_html_()


@pytest.mark.parametrize("metrics", [None, 5, [("a", 1)], "loss"])
def test_b82_what_is_no_dict_is_left_out_with_a_warning(go, metrics):
    """A report that is no dict does not end training."""

    def train():
        get_context().get_metrics_reporter().log_metrics(metrics)
        get_context().get_metrics_reporter().log_metrics({"a": 1})

    result = go(train, PyTorchScalingConfig(1, 1))
    assert result.last() == {"a": 1} and "dict" in result.logs(0)


def test_b82_a_metric_that_changes_its_kind(go):
    """A metric that is a number, then a list, then a bool keeps every value, and all is drawn."""

    def train():
        for value in (1.5, [1.0, 2.0], True, 3):
            get_context().get_metrics_reporter().log_metrics({"x": value})

    result = go(train)
    assert result.get_metrics()["x"].tolist() == [1.5, [1.0, 2.0], True, 3]
    assert result.last() == {"x": 3} and traces(result)


# ------------------------------------------------------------ C23


def test_c23_steps_that_go_back_or_repeat(go):
    """Every row is kept in order of arrival; a step that is not larger starts a new line, none runs backwards."""

    def train():
        report = get_context().get_metrics_reporter().log_metrics
        for step in range(10):
            report({"loss": step}, step=step)
        for step in range(5, 13):
            report({"loss": 100 + step}, step=step)
        report({"loss": -1.0}, step=-1)
        report({"loss": 7.0}, step=2**40)
        report({"a": 1.0}, step=12)
        report({"b": 2.0}, step=12)

    result = go(train)
    frame = result.get_metrics()
    assert len(frame) == 22
    assert frame["step"].tolist() == [*range(10), *range(5, 13), -1, 2**40, 12, 12]
    assert frame["loss"].dropna().tolist() == [*range(10), *range(105, 113), -1, 7]
    assert result.last() == {"loss": 7.0, "a": 1.0, "b": 2.0}
    assert result.logs(0) == ""
    drawn = traces(result)
    steps, values = drawn["loss"]
    for before, after in itertools.pairwise(steps):
        assert math.isnan(before) or math.isnan(after) or before < after
    assert finite(steps) == [*range(10), *range(5, 13), -1, 2**40]
    assert finite(values) == [*range(10), *range(105, 113), -1, 7]
    assert finite(drawn["a"][0]) == finite(drawn["b"][0]) == [12]


def test_c23_the_two_values_of_one_step_are_both_kept(go):
    """One metric reported twice at a step keeps both values, and the last is the last."""

    def train():
        report = get_context().get_metrics_reporter().log_metrics
        for value in (1.0, 2.0):
            report({"x": value}, step=3)

    result = go(train)
    assert result.get_metrics()["x"].tolist() == [1, 2] and result.last() == {"x": 2.0}


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        ("3", 3), ("np.int64(3)", 3), ("torch.tensor(3)", 3), ("3.0", 3), ("True", 1), ("-5", -5), ("2**62", 2**62),
        ("'x'", 0), ("2**70", 0), ("float('nan')", 0), ("[1]", 0), ("None", 0),
    ],
)  # fmt: skip
def test_c23_steps_of_other_kinds(go, step, kept):
    """A step of numpy or torch is its int; what is none is replaced by the report's number with one warning."""

    def train():
        import numpy as np
        import torch

        get_context().get_metrics_reporter().log_metrics({"x": 1.0}, step=eval(step, {"np": np, "torch": torch}))

    result = go(train, PyTorchScalingConfig(1, 1))
    assert result.get_metrics()["step"].tolist() == [kept]
    assert ("step" in result.logs(0)) == (kept == 0 and step != "None")


@pytest.mark.parametrize("restarts", [1, 3, 50, 2000])
def test_c23_many_restarts_stay_thinned_and_never_run_back(restarts):
    """A series with many segments stays within its size, ends with the last point, and no line runs backwards."""
    series = Series("x")
    for restart in range(restarts):
        for step in range(40_000 // restarts):
            series.add(step, restart + step)
    steps, values = series.points()
    assert len(steps) <= 1001
    assert steps[-1] == 40_000 // restarts - 1 and values[-1] == restarts - 1 + steps[-1]
    for before, after in itertools.pairwise(steps):
        assert math.isnan(before) or math.isnan(after) or before < after


@pytest.mark.parametrize("count", [1, 2, 999, 1000, 1001, 1002, 5000])
def test_c23_the_last_point_of_a_thinned_series_is_the_last_report(count):
    """The chart ends with the last report, also one at a step that was there before."""
    series = Series("x")
    for step in range(count):
        series.add(step, float(step))
    series.add(count - 1, -1.0)
    steps, values = series.points()
    assert (steps[-1], values[-1]) == (count - 1, -1.0)


# ------------------------------------------------------------ B84 to B87: a real kernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with running_kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        yield kernel


def body(text, flags="--workers 2", out="result"):
    return f"%%torchdist {flags} --out {out}\n{text}"


def test_b84_many_points(kernel):
    """20,000 reports: few small messages, everything on disk, and the last point is drawn."""
    sent = kernel(body("for i in range(20000): report(loss=1/(i+1), acc=i)"))
    assert sent.reply["status"] == "ok", sent.shown
    assert len(sent.of("comm_msg", "update_display_data", "display_data")) < 200
    assert sent.bytes < 10_000_000
    series, status = sent.drawn()
    assert status["state"] == "finished" and status["reports"] == 20000 and status["step"] == 19999
    for key, last in (("loss", 1 / 20000), ("acc", 19999.0)):
        assert (series[key][0][-1], series[key][1][-1]) == (19999.0, last)
        assert len(series[key][0]) <= 1001
    rows = kernel("print(len(result.get_metrics()), int(result.get_metrics()['acc'].iloc[-1]))").text
    assert rows == "20000 19999\n"
    chart = {trace["meta"]["key"]: points(trace) for trace in sent.bundle[PLOTLY]["data"]}
    assert chart["acc"][0][-1] == chart["acc"][1][-1] == 19999
    assert len(json.dumps(sent.bundle)) < 100_000


def test_b84_many_points_of_many_metrics_on_all_ranks(kernel):
    """Many metrics, lists among them, on every rank: still few and small messages."""
    sent = kernel(body("for i in range(3000): report(**{f'm{k}': i * k for k in range(20)}, v=[i] * 40)"))
    assert sent.reply["status"] == "ok", sent.shown
    assert len(sent.of("comm_msg", "update_display_data", "display_data")) < 200
    assert sent.bytes < 10_000_000
    series, _ = sent.drawn()
    assert len(series) == 20 + 16
    assert all(steps[-1] == 2999 for steps, _ in series.values())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("range(1)", [0]),
        ("range(1001)", None),
        ("range(1500)", None),
        ("[5, 4, 3]", [5, math.nan, 4, math.nan, 3]),
        ("[*range(1200), 3]", None),
    ],
)
def test_b84_the_last_point_is_drawn(kernel, steps, expected):
    """Whatever the number and the order of the steps, the last report is the last point in the browser."""
    sent = kernel(
        body(f"log = ctx.get_metrics_reporter().log_metrics\nfor n, s in enumerate({steps}): log({{'x': n}}, step=s)")
    )
    series, _ = sent.drawn()
    wanted = list(eval(steps))
    assert (series["x"][0][-1], series["x"][1][-1]) == (wanted[-1], len(wanted) - 1)
    if expected is not None:
        assert [repr(float(v)) for v in series["x"][0]] == [repr(float(v)) for v in expected]


def test_b77_the_messages_of_a_run_with_nan_are_strict_json(kernel):
    """Messages and the saved bundle of a run with NaN and infinities are strict JSON, and all steps are drawn."""
    sent = kernel(body("for x in (1.0, float('nan'), float('inf'), float('-inf'), 2.0): report(loss=x, v=[x, 1.0])"))
    series, _ = sent.drawn()
    assert list(series["loss"][0]) == [0, 1, 2, 3, 4] and series["loss"][1][0] == 1 and series["loss"][1][-1] == 2
    assert all(math.isnan(v) for v in series["loss"][1][1:-1])
    strict(json.dumps(sent.bundle))
    sent = kernel(body("report(loss=float('inf'))"))
    assert strict(json.dumps(sent.bundle)) and "inf" in sent.bundle["text/plain"]


def test_c23_the_axis_says_its_range(kernel):
    """A step of 2**40 beside small ones reaches the chart as it is, so that the axis is labelled with it."""
    sent = kernel(body("log = ctx.get_metrics_reporter().log_metrics\nfor s in (0, 1, 2**40): log({'x': 1.0}, step=s)"))
    (trace,) = sent.bundle[PLOTLY]["data"]
    assert points(trace)[0] == [0, 1, 2**40]
    axis = sent.bundle[PLOTLY]["layout"]["xaxis"]
    assert axis.get("showticklabels", True) and axis.get("visible", True) and axis["title"]["text"] == "step"


def test_b85_a_saved_notebook_stays_small(kernel):
    """20 runs leave small static outputs, and nothing large in the notebook's metadata."""
    before = len(kernel.notebook.cells)
    for run in range(20):
        sent = kernel(body(f"for i in range(500): report(loss=1/(i+1), acc={run} + i)\nprint('x' * 1000)"))
        assert sent.reply["status"] == "ok", sent.shown
        assert [o["output_type"] for o in sent.outputs()] == ["display_data"]
    notebook = nbformat.v4.new_notebook(cells=kernel.notebook.cells[before:])
    nbformat.validate(notebook)
    assert len(nbformat.writes(notebook)) < 2_000_000
    assert len(json.dumps(notebook.metadata)) < 1000


def test_b85_a_noisy_run_leaves_a_small_output(kernel):
    """A run with a hundred thousand lines of output and a long error leaves a small output too."""
    sent = kernel(body("for i in range(100_000): print('line', i, 'x' * 100)\nraise ValueError('y' * 100_000)"))
    assert sent.reply["status"] == "error"
    assert len(json.dumps(sent.outputs())) < 200_000
    assert sent.bytes < 10_000_000


def test_b86_the_saved_output_stands_alone(kernel):
    """The saved output has a static form with the final values, next to our own MIME type, also in nbconvert's HTML."""
    from nbconvert import HTMLExporter

    sent = kernel(body("for i in range(5): report(loss=i / 8, acc=i)", flags="--workers 2 --name static"))
    bundle = sent.bundle
    assert set(bundle) == {RUN_MIME, PLOTLY, "text/html", "text/plain"}
    assert bundle[RUN_MIME]["status"]["state"] == "finished"
    for text in (bundle["text/plain"], bundle["text/html"]):
        assert "loss 0.5" in text and "acc 4" in text and "finished" in text
    assert "<script" not in bundle["text/html"]
    notebook = nbformat.v4.new_notebook(cells=[kernel.notebook.cells[-1]])
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert "model not found" not in html.lower()
    assert "loss 0.5" in html or "plotly" in html.lower()
    again = nbformat.reads(nbformat.writes(notebook), 4)
    assert again.cells[0].outputs[0]["data"]["text/plain"] == bundle["text/plain"]


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("report(loss=0.5)\nraise ValueError('<b>here</b>')", "failed"),
        ("report(loss=0.5)\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "failed"),
        ("print('no metric')", "finished"),
    ],
)
def test_b86_the_output_of_a_run_with_another_end_stands_alone(kernel, code, state):
    """A failed run and one without metrics leave their static form too, with text escaped in HTML."""
    sent = kernel(body(code))
    bundle = sent.bundle
    assert bundle[RUN_MIME]["status"]["state"] == state and state in bundle["text/plain"]
    assert "<b>here" not in bundle["text/html"] and bundle["text/html"].startswith("<")
    if "report" in code:
        assert "loss 0.5" in bundle["text/plain"]


def test_b86_a_reload_in_the_middle_of_a_run_reconnects(kernel):
    """A browser that comes in the middle of a run asks for a snapshot and gets everything that was there."""
    kernel(
        body(
            "import time\nfor i in range(100): report(x=i)\nprint('ready', flush=True)\nwhile not ctx.should_stop(): time.sleep(0.01)\nreport(x=1000)",
            flags="--workers 1 --no-wait",
            out="live",
        )
    )
    kernel("import time\nwhile 'ready' not in live.logs(0) or live.status.reports < 100: time.sleep(0.01)")
    opened = [
        m
        for m in kernel("from jupyter_torchdist.notebook.view import show\nshow(live, 1)").messages
        if m["msg_type"] == "comm_open"
    ]
    comm_id = opened[-1]["content"]["comm_id"]
    kernel.send(comm_id, {"kind": "snapshot"})
    stopped = kernel("import time\nlive.view\nlive.stop()\nlive.wait()")
    late = Sent(stopped.id)
    late.messages = [m for m in [*stopped.messages, *kernel.drain()] if m["content"].get("comm_id") == comm_id]
    resets = [s for m in late.updates for s in m["content"]["data"]["series"] if s["reset"]]
    assert resets and resets[0]["count"] >= 100
    series, status = late.drawn()
    assert series["x"][1][:100] == [float(i) for i in range(100)] and status["state"] in ("stopped", "finished")


def test_b87_updates_from_a_thread(kernel):
    """Updates of the listener's thread carry the cell's parent, none is lost, and the end is the last report."""
    sent = kernel(body("import time\nfor i in range(200):\n    report(x=i)\n    time.sleep(0.01)"))
    assert sent.reply["status"] == "ok"
    series, status = sent.drawn()
    assert series["x"] == ([float(i) for i in range(200)], [float(i) for i in range(200)])
    assert status["state"] == "finished" and status["step"] == 199
    sequence = [m["content"]["data"]["seq"] for m in sent.updates]
    assert sequence == list(range(len(sequence))) and len(sequence) > 2
    for message in sent.of("comm_msg", "display_data", "update_display_data", "comm_close"):
        assert message["parent_header"].get("msg_id") == sent.id
    everything = json.dumps([m["content"] for m in [*sent.messages, *kernel.drain()]])
    assert "Exception in thread" not in everything and "Traceback" not in everything
    assert sent.of("comm_close")


def test_b87_an_immediate_end(kernel):
    """A run that ends right after its only report leaves that report in the final output, 20 times out of 20."""
    for value in range(20):
        sent = kernel(body(f"report(x={value})", flags="--workers 1"))
        series, status = sent.drawn()
        assert series["x"][1] == [value] and status["state"] == "finished"
        assert f"x {value}" in sent.bundle["text/plain"]


def test_b87_output_of_later_lines_stays(kernel):
    """What a cell prints around a run of the Python API is neither wiped nor reordered."""
    sent = kernel(
        "from jupyter_torchdist import *\n"
        "def f(): get_context().get_metrics_reporter().log_metrics({'x': 1})\n"
        "print('before')\n"
        "for _ in range(3): r = PyTorchDistributor(f, PyTorchScalingConfig(1, 1)).run(); print('after')"
    )
    kinds = [o["output_type"] for o in sent.outputs()]
    assert sent.text == "before\nafter\nafter\nafter\n" and kinds.count("display_data") == 3
    assert not sent.of("clear_output")
