"""Runs through the Python API, with real processes."""

import functools
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from jupyter_torchdist import (
    Context,
    PyTorchDistributor,
    PyTorchScalingConfig,
    WorkerResourceConfig,
    get_context,
    run,
    runs,
)
from jupyter_torchdist.errors import (
    CaptureError,
    ConfigError,
    NotEnoughResources,
    ResultError,
    RunStopped,
    RunTimeout,
    WorkerError,
)
from jupyter_torchdist.run_folder import RunFolder
from tests.conftest import until

TWO = PyTorchScalingConfig(1, 2)


@pytest.fixture
def go(cluster, stage):
    """Runs a train function with a stage of its own."""

    def go(function, scaling=TWO, **options):
        options = {"display": "none", **options}
        return PyTorchDistributor(function, scaling).run(artifact_stage_location=str(stage), **options)

    return go


def processes_of(run_id):
    """The ranks of a run by the name of their processes, and what has a rank's variables."""
    found = []
    for process in psutil.process_iter():
        try:
            if run_id[-6:] in process.name() or process.environ().get("TORCHELASTIC_RUN_ID") == run_id:
                found.append(process)
        except psutil.Error:
            continue
    return found


def log_has(handle, text, rank=0):
    return lambda: text in handle.logs(rank)


def test_a_world_of_two_nodes_knows_its_places(go):
    def train():
        import os

        import torch
        import torch.distributed as dist

        ctx = get_context()
        assert isinstance(ctx, Context)
        total = torch.tensor([float(ctx.get_rank())])
        dist.all_reduce(total)
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
        return {
            "ranks": (ctx.get_rank(), ctx.get_world_rank(), ctx.get_local_rank(), ctx.get_node_rank()),
            "sizes": (ctx.get_world_size(), ctx.get_local_world_size(), ctx.get_node_count()),
            "env": {n: os.environ[n] for n in names},
            "master": (ctx.get_master_addr(), str(ctx.get_master_port())),
            "sum": total.item(),
            "backend": (ctx.get_default_backend(), ctx.get_supported_backends(), dist.get_backend()),
            "device": str(ctx.get_device()),
            "restarts": ctx.get_restart_count(),
        }

    values = go(train, PyTorchScalingConfig(2, 2)).values
    assert [values[r]["ranks"] for r in range(4)] == [(0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 0, 1), (3, 3, 1, 1)]
    for rank, value in values.items():
        assert value["sizes"] == (4, 2, 2) and value["sum"] == 6.0 and value["device"] == "cpu"
        assert value["backend"] == ("gloo", ["gloo"], "gloo") and value["restarts"] == 0
        env = value["env"]
        assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == (str(rank), "4", "2")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == value["master"] == values[0]["master"]


def test_every_run_has_fresh_processes_and_leaves_none(go):
    def train():
        import os
        import subprocess
        import sys

        sys.modules["stale"] = sys
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return os.getpid(), child.pid

    first, second = go(train), go(train)
    pids = [pid for result in (first, second) for pair in result.values.values() for pid in pair]
    assert len(set(pids)) == 8
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not processes_of(first.run_id)
    assert go(lambda: "stale" in __import__("sys").modules).value is False


def test_a_rank_that_returns_at_once_does_not_leave_while_another_joins(go):
    for _ in range(10):
        assert go(lambda: get_context().get_rank(), PyTorchScalingConfig(2, 2)).values == {0: 0, 1: 1, 2: 2, 3: 3}


def test_the_launch_is_told_part_by_part(begin):
    handle = begin(lambda: get_context().get_metrics_reporter().log_metrics({"a": 1.0}))
    handle.result()
    parts = ["ship", "schedule", "start", "import", "rendezvous", "first step"]
    recorded = handle.folder.read_run()["timeline"]
    assert list(recorded) == parts and dict(handle.status.timeline) == recorded
    assert all(seconds >= 0 for seconds in recorded.values())
    assert sum(recorded.values()) <= time.time() - handle._request.began


def test_the_result_has_metrics_values_files_and_logs(go):
    def train(config):
        ctx = get_context()
        reporter = ctx.get_metrics_reporter()
        for step in range(3):
            reporter.log_metrics({"loss": 1 / (step + 1), "good": step > 1, "n": step, "v": [step, 0.5]})
        reporter.log_metrics({"extra": float("nan")}, step=10)
        Path(ctx.get_model_dir(), f"net-{ctx.get_rank()}.txt").write_text(str(config["lr"]))
        print("hello from", ctx.get_rank())
        return {"rank": ctx.get_rank(), **config}

    result = go(train, hyper_params={"lr": 0.1, "layers": [3, 4]}, name="first", tags=["a"])
    frame = result.get_metrics()
    assert list(frame.columns) == ["step", "time", "loss", "good", "n", "v", "extra"]
    assert frame["step"].tolist() == [0, 1, 2, 10] and str(frame["step"].dtype) == "int64"
    assert frame["loss"].tolist()[:3] == [1.0, 0.5, 1 / 3] and frame["loss"].isna()[3]
    assert result.last()["loss"] == 1 / 3 and result.last()["good"] is True and result.last()["v"] == [2, 0.5]
    assert result.values == {0: {"rank": 0, "lr": 0.1, "layers": [3, 4]}, 1: {"rank": 1, "lr": 0.1, "layers": [3, 4]}}
    assert result.value["rank"] == 0
    assert [a.path for a in result.artifacts] == ["model/net-0.txt", "model/net-1.txt"]
    assert (result.get_model_dir() / "net-1.txt").read_text() == "0.1"
    assert result.logs(1) == "hello from 1\n" and result.state == "finished" and result.world["world_size"] == 2
    assert result.run_id in repr(result) and "first" in result.run_id and "<b>" in result._repr_html_()
    assert len(result.plot().data) == 6
    record = json.loads((result.folder / "run.json").read_text())
    assert record["state"] == "finished" and record["hyper_params"] == {"lr": 0.1, "layers": [3, 4]}
    assert record["options"]["tags"] == ["a"] and record["reports"] == 4
    other_ranks = [r for r in RunFolder(result.folder).reports() if r.rank == 1]
    assert len(other_ranks) == 4
    events = [json.loads(line)["event"] for line in (result.folder / "events.jsonl").read_text().splitlines()]
    assert "state" in events and events[-1] == "end"


@pytest.mark.parametrize(
    "function",
    [
        lambda: 1,
        functools.partial(lambda a, b: a + b - 1, 1, b=1),
        type("Callable", (), {"__call__": lambda self: 1})(),
        type("Owner", (), {"train": lambda self: 1})().train,
    ],
)
def test_a_train_function_is_anything_that_can_be_called(go, function):
    assert go(function).value == 1


def test_the_hyper_parameters_are_passed_unchanged(go):
    params = {"n": 1, "f": 0.5, "s": "x", "nested": {"a": [1, (2,)]}, "none": None}
    assert go(lambda p: p, hyper_params=params).value == params
    assert go(lambda: get_context().get_hyper_params()).value is None
    assert go(lambda: get_context().get_dataset_map(), dataset_map={"x": [1]}).value == {"x": [1]}


@pytest.mark.parametrize("bad", [None, 5, "train", lambda a, b: 1, lambda *, k: 1])
def test_a_train_function_that_can_not_be_called_is_refused_at_once(bad):
    with pytest.raises(ConfigError, match="train_func"):
        PyTorchDistributor(bad)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_restarts": 1}, "max_restarts"),
        ({"backend": "smoke"}, "smoke"),
        ({"timeout": -1}, "timeout"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"RANK": "1"}}, "RANK"),
        ({"dataset_map": [1]}, "dataset_map"),
        ({"name": "a/b"}, "a/b"),
        ({"display": "loud"}, "loud"),
    ],
)
def test_a_bad_option_is_refused_before_anything_starts(go, stage, options, word):
    with pytest.raises(ConfigError, match=word):
        go(lambda: 1, **options)
    assert not stage.exists()


def test_more_gpus_than_there_are_is_refused_with_both_numbers(go, stage):
    scaling = PyTorchScalingConfig(2, 4, WorkerResourceConfig(num_gpus=1))
    with pytest.raises(NotEnoughResources, match=r"asked for 8 GPUs \(2 nodes × 4 workers × 1\); the cluster has \d"):
        go(lambda: 1, scaling)
    assert not stage.exists()


def test_what_can_not_be_pickled_is_named_before_anything_starts(go, stage):
    import threading

    lock = threading.Lock()
    with pytest.raises(CaptureError, match=r"closure variable 'lock'"):
        go(lambda: lock)
    with pytest.raises(CaptureError, match=r"dataset_map\['d'\]"):
        go(lambda: 1, dataset_map={"d": (i for i in [1])})
    assert not stage.exists()


def test_an_error_shows_the_users_line_and_the_first_cause_first(go):
    def train():
        import torch
        import torch.distributed as dist

        if get_context().get_rank() == 1:
            raise ValueError("broken on purpose")
        dist.all_reduce(torch.ones(1))

    with pytest.raises(WorkerError) as caught:
        go(train)
    error = caught.value
    assert isinstance(error, RuntimeError) and error.rank == 1 and error.node == 0
    text = str(error)
    assert text.startswith("ValueError: broken on purpose on rank 1")
    assert 'raise ValueError("broken on purpose")' in text and "jupyter_torchdist/worker" not in text
    assert "rank 0 lost its peer" in text


@pytest.mark.parametrize(
    ("body", "signal_name", "code", "words"),
    [
        ("os.kill(os.getpid(), 9)", "SIGKILL", None, "killed by SIGKILL"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV", None, "killed by SIGSEGV"),
        ("os._exit(3)", None, 3, "exited with code 3"),
        ("sys.exit(4)", None, 4, "exited with code 4"),
    ],
)
def test_a_rank_that_dies_is_named_with_its_last_output(go, body, signal_name, code, words):
    def train():
        import os
        import sys

        print("before the end", flush=True)
        if get_context().get_rank() == 1:
            exec(body, {"os": os, "sys": sys})
        __import__("time").sleep(60)

    with pytest.raises(WorkerError) as caught:
        go(train)
    error = caught.value
    assert (error.rank, error.signal, error.exitcode) == (1, signal_name, code)
    assert words in str(error) and "before the end" in str(error)


def test_leaving_with_zero_is_success(go):
    assert go(lambda: __import__("sys").exit(0)).state == "finished"
    assert go(lambda: __import__("sys").exit()).value is None


def test_reports_of_a_killed_rank_are_kept(go, stage):
    def train():
        import os

        reporter = get_context().get_metrics_reporter()
        for i in range(5000):
            reporter.log_metrics({"i": i})
        os.kill(os.getpid(), 9)

    with pytest.raises(WorkerError):
        go(train, PyTorchScalingConfig(1, 1))
    (folder,) = stage.iterdir()
    assert [r.metrics["i"] for r in RunFolder(folder).reports()] == list(range(5000))


def test_a_return_value_that_can_not_be_pickled_leaves_everything_else(go):
    def train():
        get_context().get_metrics_reporter().log_metrics({"loss": 1.0})
        return (i for i in range(3))

    result = go(train)
    assert len(result.get_metrics()) == 1
    with pytest.raises(ResultError, match="return value of rank 0 is a generator"):
        _ = result.value


def test_stop_interrupts_lets_finally_run_and_keeps_what_there_is(begin):
    def train():
        import time

        ctx = get_context()
        ctx.get_metrics_reporter().log_metrics({"x": 1})
        print("in the loop", flush=True)
        try:
            time.sleep(600)
        finally:
            Path(ctx.get_model_dir(), f"saved-{ctx.get_rank()}-{ctx.should_stop()}").write_text("x")

    handle = begin(train)
    until(log_has(handle, "in the loop", 0))
    until(log_has(handle, "in the loop", 1))
    handle.stop()
    with pytest.raises(RunStopped):
        handle.result()
    assert handle.state == "stopped"
    assert [a.path for a in handle.folder.artifacts()] == ["model/saved-0-True", "model/saved-1-True"]
    assert len(handle.metrics()) == 1
    assert json.loads(handle.folder.run_json.read_text())["state"] == "stopped"
    assert not processes_of(handle.run_id)


def test_a_second_stop_ends_a_rank_that_does_not_listen(begin):
    def train():
        import signal
        import time

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(600)

    handle = begin(train)
    until(log_has(handle, "deaf", 0))
    handle.stop()
    handle.stop()
    with pytest.raises(RunStopped):
        handle.result()
    assert not processes_of(handle.run_id)


def test_a_stop_at_any_moment_of_the_start_ends_as_stopped(begin):
    handle = begin(lambda: __import__("time").sleep(600), PyTorchScalingConfig(1, 3))
    handle.stop(force=True)
    with pytest.raises(RunStopped):
        handle.result()
    assert not processes_of(handle.run_id)


def test_a_timeout_ends_the_run(go):
    with pytest.raises(RunTimeout, match=r"timeout of 0\.5 s"):
        go(lambda: __import__("time").sleep(600), timeout=0.5)


def test_two_runs_at_once_do_not_mix(begin):
    def train(params):
        import torch
        import torch.distributed as dist

        total = torch.tensor([params["value"]])
        dist.all_reduce(total)
        get_context().get_metrics_reporter().log_metrics({"value": params["value"]})
        return total.item(), get_context().get_master_port()

    handles = [begin(train, hyper_params={"value": v}) for v in (1.0, 10.0)]
    results = [h.result() for h in handles]
    assert [r.value[0] for r in results] == [2.0, 20.0]
    assert results[0].value[1] != results[1].value[1]
    assert [r.last()["value"] for r in results] == [1.0, 10.0]


def test_the_runs_of_a_stage_are_listed_newest_first(go, stage):
    ids = [go(lambda: 1, name=name).run_id for name in ("one", "two")]
    listed = runs(str(stage))
    assert [row["run"] for row in listed] == sorted(ids, reverse=True)
    assert {row["name"] for row in listed} == {"one", "two"} and "finished" in repr(listed)
    assert listed[0].state == "finished" and "<table>" in listed._repr_html_()


def test_users_own_init_process_group_works_in_all_its_ways(go):
    def train():
        import torch
        import torch.distributed as dist

        def total():
            one = torch.ones(1)
            dist.all_reduce(one)
            return one.item()

        seen = []
        dist.init_process_group()
        seen.append(total())
        dist.init_process_group("gloo", init_method="env://")
        seen.append(total())
        dist.init_process_group(backend="cpu:gloo")
        seen.append(total())
        dist.destroy_process_group()
        dist.init_process_group("gloo", rank=get_context().get_rank(), world_size=2)
        seen.append(total())
        dist.destroy_process_group()
        return seen

    assert go(train).values == {0: [2.0] * 4, 1: [2.0] * 4}


def test_the_process_group_can_be_left_to_the_user(go):
    def train():
        import torch.distributed as dist

        before = dist.is_initialized()
        dist.init_process_group("gloo")
        return before, dist.get_world_size()

    assert go(train, init_process_group=False).value == (False, 2)


def test_a_fresh_interpreter_is_used_where_native_libraries_must_see_a_variable(go):
    def train():
        import os

        import torch

        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    assert go(train, env={"OMP_NUM_THREADS": "3"}).value == (3, "3")
    two = PyTorchScalingConfig(1, 1, WorkerResourceConfig(num_cpus=2))
    assert go(train, two).value == (2, "2")


def test_artifacts_and_checkpoints_are_published_whole(go):
    def train():
        import torch

        ctx = get_context()
        artifacts = ctx.get_artifact_manager()
        if ctx.get_rank() == 0:
            assert artifacts.latest() is None and artifacts.restore() is None
            for step in (1, 2):
                artifacts.save_checkpoint({"w": torch.full((2,), float(step))}, step=step, metrics={"loss": step})
            note = Path(ctx.get_model_dir(), "note.txt")
            note.write_text("kept")
            artifacts.save(note, tags=["final"])
            artifacts.wait()
            assert artifacts.open("note.txt").read() == b"kept"
            return artifacts.restore()["w"].tolist(), artifacts.best("loss").name, len(artifacts.list())
        return None

    result = go(train)
    assert result.value == ([2.0, 2.0], "step-000000001", 3)
    assert result.get_checkpoint_location().name == "step-000000002"


def test_an_artifact_that_is_not_there_fails_where_it_is_saved(go):
    with pytest.raises(WorkerError, match="FileNotFoundError"):
        go(lambda: get_context().get_artifact_manager().save("/no/such/file"))


def test_there_is_no_context_outside_of_a_run():
    with pytest.raises(RuntimeError, match="inside a run"):
        get_context()


def test_run_is_the_short_way(cluster, stage):
    assert run(lambda: 3, artifact_stage_location=str(stage), display="none").value == 3


def test_spawned_ranks_do_the_same(stage):
    code = (
        "import jupyter_torchdist as t\n"
        "def train():\n import torch, torch.distributed as d\n x = torch.ones(1); d.all_reduce(x); print('hi'); return x.item()\n"
        f"r = t.run(train, t.PyTorchScalingConfig(1, 2), artifact_stage_location={str(stage)!r})\n"
        "assert r.values == {0: 2.0, 1: 2.0} and r.logs(1) == 'hi\\n', r.values\n"
    )
    import sys

    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TORCHDIST_START_METHOD": "spawn"})


def below(pid):
    return psutil.Process(pid).children(recursive=True)


def test_nothing_is_alive_after_the_driver_was_killed(tmp_path):
    code = (
        "import jupyter_torchdist as t, time\n"
        "def train():\n"
        " import subprocess, time\n"
        " subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        " print('up', flush=True)\n"
        " time.sleep(600)\n"
        f"h = t.PyTorchDistributor(train, t.PyTorchScalingConfig(1, 2)).start(artifact_stage_location={str(tmp_path)!r})\n"
        "h.wait()\n"
    )
    import sys

    driver = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until(lambda: len([p for p in tmp_path.glob("*/logs/rank-*.log") if "up" in p.read_text()]) == 2)
    (folder,) = tmp_path.iterdir()
    everything = [*below(driver.pid), *processes_of(folder.name)]
    assert len(processes_of(folder.name)) >= 4
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(everything, timeout=20)
    assert not alive


def test_nothing_is_alive_after_shutdown(tmp_path):
    code = (
        "import jupyter_torchdist as t, psutil, os\n"
        f"t.run(lambda: 1, artifact_stage_location={str(tmp_path)!r})\n"
        "below = psutil.Process().children(recursive=True)\n"
        "t.shutdown()\n"
        "gone, alive = psutil.wait_procs(below, timeout=20)\n"
        "assert gone and not alive, alive\n"
        f"assert t.run(lambda: 2, artifact_stage_location={str(tmp_path)!r}).value == 2\n"
    )
    import sys

    subprocess.run([sys.executable, "-c", code], check=True)
