"""The config form: fields, what they mean as code, Run and Stop."""

import time

import pytest

from jupyter_torchdist import form, get_context
from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.notebook.options import parse


def train(params):
    reporter = get_context().get_metrics_reporter()
    reporter.log_metrics({"lr": params["lr"]})
    while params["forever"] and not get_context().should_stop():
        time.sleep(0.01)
    return params


def test_the_line_and_the_python_say_what_the_fields_say(cluster):
    made = form(
        train, nodes=2, workers=3, cpus=0.5, backend="gloo", stage="my runs", name="it is", hyper_params={"lr": 0.1}
    )
    options = parse(made.magic().removeprefix("%%torchdist"))
    assert options.scaling == made.scaling and options.run.backend == "gloo"
    assert options.stage == "my runs" and options.run.name == "it is"
    assert options.hyper_params == {"lr": 0.1}
    assert made.python() == (
        "PyTorchDistributor(train, PyTorchScalingConfig(2, 3, WorkerResourceConfig(num_cpus=0.5))).run("
        "hyper_params={'lr': 0.1}, artifact_stage_location='my runs', name='it is', backend='gloo')"
    )
    made.nodes.value = 1
    made.hyper_params["lr"].value = 0.5
    assert "--nodes 1" in made.code.value and "lr=0.5" in made.code.value


def test_hyper_parameters_keep_their_types(cluster, stage):
    params = {"lr": 0.1, "epochs": 3, "forever": False, "name": "1", "layers": [1, 2], "none": None}
    made = form(train, hyper_params=params, stage=str(stage))
    assert made.values == params
    assert made.run().result().value == params
    assert parse(made.magic().removeprefix("%%torchdist")).hyper_params["layers"] == [1, 2]


def test_limits_come_from_the_cluster(cluster):
    made = form(train, gpus=1)
    assert made.gpus.max == 0 and made.gpus.value == 0 and made.gpus.disabled, "this machine has no GPU"
    assert "gpus=1 is more than the 0" in made.message.value
    made.workers.value = 10_000
    assert made.workers.value == made.workers.max


def test_run_and_stop_are_what_the_buttons_do(cluster, stage):
    made = form(train, workers=2, stage=str(stage), hyper_params={"lr": 1.0, "forever": True})
    made.run_button.click()
    handle = made.handle
    assert made.message.value == "" and made.run_button.disabled and not made.stop_button.disabled
    while handle.status.reports == 0:
        time.sleep(0.01)
    made.stop_button.click()
    assert handle.wait(20) and handle.state == "stopped"
    while made.run_button.disabled:
        time.sleep(0.01)
    assert made.stop_button.disabled
    made.hyper_params["forever"].value = False
    made.run_button.click()
    assert made.handle.result().value == {"lr": 1.0, "forever": False}


def test_a_click_that_can_not_start_says_why(cluster, tmp_path):
    (tmp_path / "file").write_text("")
    made = form(train, stage=str(tmp_path / "file"), hyper_params={"lr": 1.0, "forever": False})
    made.run_button.click()
    assert made.handle is None and "can not be written" in made.message.value
    assert not made.run_button.disabled


@pytest.mark.parametrize(
    ("function", "defaults", "word"),
    [
        (train, {"worker": 2}, "worker"),
        (train, {"nodes": 0}, "num_nodes is 0"),
        (train, {"workers": 2.5}, "num_workers_per_node is 2.5"),
        (train, {"backend": "smoke"}, "smoke"),
        (train, {"hyper_params": [1]}, "hyper_params"),
        (5, {}, "train_func is 5"),
    ],
)
def test_a_wrong_default_is_refused_by_name(cluster, function, defaults, word):
    with pytest.raises(ConfigError, match=word):
        form(function, **defaults)
