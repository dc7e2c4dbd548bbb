"""The line of ``%%torchdist``."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError

from jupyter_torchdist.config import PyTorchScalingConfig, WorkerResourceConfig
from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.notebook.options import literal, parse, parser


@given(st.text())
def test_any_line_is_options_or_a_usage_error(line):
    try:
        parse(line)
    except UsageError as exc:
        assert str(exc).startswith("%%torchdist: ")


@given(
    st.integers(1, 100), st.integers(1, 100), st.integers(0, 8), st.text(min_size=1),
    st.dictionaries(st.from_regex(r"[a-z]\w{0,5}", fullmatch=True), st.one_of(st.integers(), st.floats(allow_nan=False))),
)  # fmt: skip
def test_what_is_written_is_what_is_read(nodes, workers, gpus, stage, hp):
    words = ["--nodes", str(nodes), "--workers", str(workers), "--gpus", str(gpus), f"--stage={stage}"]
    for key, value in hp.items():
        words += ["--hp", f"{key}={value!r}"]
    options = parse(shlex.join(words))
    assert options.scaling == PyTorchScalingConfig(nodes, workers, WorkerResourceConfig(num_gpus=gpus))
    assert options.stage == stage and options.hyper_params == hp


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--workers 0", ["--workers", "0", "at least 1"]),
        ("--workers two", ["--workers", "'two'"]),
        ("--workers 2.0", ["--workers", "'2.0'"]),
        ("--cpus -1", ["num_cpus", "-1"]),
        ("--cpus nan", ["num_cpus", "nan"]),
        ("--gpus 0.5", ["--gpus", "0.5"]),
        ("--backend foo", ["backend", "'foo'", "gloo"]),
        ("--timeout soon", ["--timeout", "soon", "10m"]),
        ("--timeout 0", ["timeout", "0"]),
        ("--grace soon", ["soon", "10m"]),
        ("--straggler-grace 0", ["straggler_grace", "0", "above"]),
        ("--rendezvous-timeout 0", ["rendezvous_timeout", "0"]),
        ("--stall-after -1", ["stall-after"]),
        ("--hp lr", ["--hp", "KEY=VALUE"]),
        ("--hp lr=1 --hp lr=2", ["lr", "twice"]),
        ("--hp lr=1 --hparams cfg", ["--hparams", "exclude"]),
        ("--out 2x", ["--out", "2x"]),
        ("--name ../x", ["name", "../x"]),
        ("--env RANK=1", ["RANK", "launcher"]),
        ("--nods 2", ["--nods", "--nodes"]),
        ("--node 2", ["--node", "--nodes"]),
        ("stray", ["stray", "--help"]),
        ("--detach", ["--detach"]),
        ("--max-restarts 2", ["--max-restarts"]),
    ],
)
def test_a_bad_line_names_the_option_the_value_and_what_to_do(line, words):
    with pytest.raises(UsageError) as caught:
        parse(line)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_help_shows_every_option_and_examples():
    assert parse("--help") is None and parse("-h --workers 2") is None
    text = parser().format_help()
    assert "%%torchdist --nodes 2 --workers 4 --gpus 1" in text and "--hparams" in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("3", 3),
        ("[1, 2]", [1, 2]),
        ("true", True),
        ("False", False),
        ("adam", "adam"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_a_hyper_parameter_is_read_as_a_python_literal_or_stays_text(text, value):
    assert literal(text) == value


@pytest.mark.parametrize("bad", [True, 2.0, 0, -1, "2", None])
def test_the_scaling_config_refuses_what_is_no_positive_whole_number(bad):
    for arguments in ((bad, 1), (1, bad)):
        with pytest.raises(ConfigError, match=r"PyTorchScalingConfig\.num_"):
            PyTorchScalingConfig(*arguments)


@pytest.mark.parametrize("bad", [True, -1, float("nan"), float("inf"), "1"])
def test_the_resources_refuse_bad_cpus(bad):
    with pytest.raises(ConfigError, match="num_cpus"):
        WorkerResourceConfig(num_cpus=bad)
    assert WorkerResourceConfig(0, 1).num_cpus == 0 and WorkerResourceConfig(0.5).num_cpus == 0.5
