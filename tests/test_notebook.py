"""The product as a notebook has it: a real kernel, nbclient, the interrupt, the ends."""

import base64
import json
import os
import re
import signal
from array import array
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from tests.browser.lab import with_environment
from tests.kernel import PLOTLY_MIME, RUN_MIME, running_kernel

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with running_kernel(tmp_path_factory.mktemp("notebook")) as kernel:
        yield kernel


def folders(kernel):
    stage = kernel.folder / "stage"
    return sorted(p for p in stage.iterdir()) if stage.is_dir() else []


def record(folder):
    return json.loads((folder / "run.json").read_text())


def numbers(trace, axis):
    data = trace[axis]
    return array({"f8": "d", "f4": "f"}[data["dtype"]], base64.b64decode(data["bdata"])).tolist()


LIVE = """\
%%torchdist --nodes 2 --workers 2 --name live
import time
print("begun", flush=True)
try:
    for step in range(100_000):
        report(loss=1 / (step + 1))
        time.sleep(0.01)
finally:
    open(ctx.get_model_dir() + f"/kept-{ctx.get_rank()}", "w").close()
"""


def begin_live(kernel):
    """Starts ``LIVE`` and waits until points have come; (what was sent, the id of its comm)."""
    sent = kernel.begin(LIVE)
    while not sent.updates or not sent.drawn()[0].get("loss", [[]])[0]:
        message = kernel.take(sent)
        mine = message["parent_header"].get("msg_id") == sent.id
        assert not (mine and message["content"].get("execution_state") == "idle"), sent.shown
    [opened] = sent.of("comm_open")
    return sent, opened["content"]["comm_id"]


def expect_stopped(kernel, sent):
    """The cell ended quietly as stopped, everything was kept and nothing runs."""
    assert sent.reply["status"] == "error" and sent.reply["ename"] == "RunStopped"
    assert "Traceback" not in sent.shown, sent.shown
    assert "stopped after" in sent.shown, sent.shown
    folder = folders(kernel)[-1]
    assert record(folder)["state"] == "stopped"
    assert sorted(p.name for p in (folder / "model").iterdir()) == [f"kept-{rank}" for rank in range(4)]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    series, status = sent.drawn()
    assert status["state"] == "stopped" and status["reports"] == sum(line["rank"] == 0 for line in lines)
    assert series["loss"][0][-1] == max(line["step"] for line in lines if line["rank"] == 0)
    assert with_environment("TORCHELASTIC_RUN_ID", folder.name) == []
    again = kernel("%%torchdist --workers 2 --out result\n1 + ctx.get_rank()")
    assert again.reply["status"] == "ok"
    assert kernel("print(result.values)").text == "{0: 1, 1: 2}\n"


def test_the_journey_of_a_metric(kernel):
    """One report is the same number in the journal, in the messages to the browser, in the chart, and in the result."""
    values = [0.5, 0.25, 1e-9, -3.0]
    sent = kernel(
        f"%%torchdist --workers 2 --out result --name journey\n"
        f"for i, x in enumerate({values}):\n"
        f"    ctx.get_metrics_reporter().log_metrics({{'loss': x, 'rank': ctx.get_rank()}}, step=10 * i)"
    )
    assert sent.reply["status"] == "ok", sent.shown
    steps = [0, 10, 20, 30]
    lines = [json.loads(line) for line in (folders(kernel)[-1] / "metrics.jsonl").read_text().splitlines()]
    for rank in (0, 1):
        rows = [line for line in lines if line["rank"] == rank]
        assert [(r["step"], r["metrics"]["loss"], r["metrics"]["rank"]) for r in rows] == [
            (step, value, rank) for step, value in zip(steps, values, strict=True)
        ]
    series, status = sent.drawn()
    assert status["state"] == "finished" and status["reports"] == 4 and status["step"] == 30
    assert [list(part) for part in series["loss"]] == [steps, values]
    assert list(series["rank"][1]) == [0.0] * 4, "rank 0 alone is streamed"
    [trace] = [t for t in sent.bundle[PLOTLY_MIME]["data"] if t["meta"]["key"] == "loss"]
    assert numbers(trace, "x") == steps and numbers(trace, "y") == pytest.approx(values, rel=1e-6)
    frame = kernel("print(result.get_metrics()[['step', 'loss']].values.tolist(), result.last())")
    assert frame.text == f"{[[float(s), v] for s, v in zip(steps, values, strict=True)]} {{'loss': -3.0, 'rank': 0}}\n"


def test_the_stop_button_ends_a_run_while_its_cell_blocks(kernel):
    """A stop over the comm reaches the kernel while the cell runs."""
    sent, comm_id = begin_live(kernel)
    kernel.send(comm_id, {"kind": "stop", "force": False})
    expect_stopped(kernel, kernel.finish(sent, LIVE, timeout=30))


def test_an_interrupt_of_the_kernel_stops_the_run(kernel):
    """The kernel's interrupt is a stop: the cell waits for the end and says what was kept."""
    sent, _ = begin_live(kernel)
    kernel.manager.interrupt_kernel()
    expect_stopped(kernel, kernel.finish(sent, LIVE, timeout=30))


def test_a_second_interrupt_ends_ranks_that_do_not_listen(kernel):
    """The second interrupt does not wait for the grace of the first."""
    body = (
        "%%torchdist --workers 2\nimport signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\nreport(x=1)\nwhile True: time.sleep(0.1)"
    )
    sent = kernel.begin(body)
    while not sent.updates or "x" not in sent.drawn()[0]:
        kernel.take(sent)
    kernel.manager.interrupt_kernel()
    while sent.drawn()[1]["state"] != "stopping":
        kernel.take(sent)
    kernel.manager.interrupt_kernel()
    kernel.finish(sent, body, timeout=30)
    assert sent.reply["ename"] == "RunStopped"
    assert record(folders(kernel)[-1])["duration"] < 9, "the grace of 10 s was not waited for"
    assert with_environment("TORCHELASTIC_RUN_ID", folders(kernel)[-1].name) == []


def test_an_error_is_a_card_with_the_users_line(kernel):
    """A failed cell shows the first cause at its line, and no frame of the launcher."""
    sent = kernel("%%torchdist --workers 2\nx = [1]\ndef f():\n    return x[ctx.get_rank() + 1]\nf()")
    assert sent.reply["ename"] == "WorkerError"
    for text in (sent.bundle["text/plain"], sent.shown):
        assert "IndexError: list index out of range" in text
        assert "cell, line 3, in f" in text and "return x[ctx.get_rank() + 1]" in text
        assert "jupyter_torchdist/" not in text
    assert sent.bundle[RUN_MIME]["status"]["error"]["title"].startswith(
        "IndexError: list index out of range on ranks 0, 1"
    )


def test_no_wait_leaves_the_kernel_free_and_words_reach_the_run(kernel):
    """``--no-wait``, then ``%torchdist status | show | logs | stop``, and the handle can be awaited."""
    body = LIVE.replace("--name live", "--name free --no-wait --out handle")
    assert kernel(body).reply["status"] == "ok"
    kernel("import time\nwhile not handle.status.reports: time.sleep(0.01)")
    status = kernel("%torchdist status").text
    assert "embedded local cluster" in status and "free" in status and "running after" in status
    shown = kernel("%torchdist show free")
    assert RUN_MIME in shown.outputs()[0]["data"]
    assert "begun" in kernel("%torchdist logs free --rank 1").text
    assert "running" in kernel("%torchdist runs").shown
    assert "asked" in kernel("%torchdist stop free").text
    ended = kernel("try:\n    await handle\nexcept BaseException as exc:\n    print(type(exc).__name__, handle.state)")
    assert ended.text == "RunStopped stopped\n"
    assert "stopped" in kernel("%torchdist show free").shown
    wrong = kernel("%torchdist stop free")
    assert wrong.reply["ename"] == "UsageError" and "no run 'free' that is running" in wrong.shown


def test_an_awaited_run_leaves_the_kernel_free(kernel):
    """``run_async`` in a cell with top-level await; another task of the kernel's loop goes on meanwhile."""
    sent = kernel(
        "import asyncio\nfrom jupyter_torchdist import PyTorchDistributor, PyTorchScalingConfig\n"
        "def train():\n    import time\n    time.sleep(0.5)\n    return 7\n"
        "ticks = 0\n"
        "async def tick():\n    global ticks\n    while True:\n        ticks += 1\n        await asyncio.sleep(0.01)\n"
        "task = asyncio.create_task(tick())\n"
        "result = await PyTorchDistributor(train, PyTorchScalingConfig(1, 2)).run_async(display='none')\n"
        "task.cancel()\nprint(result.value, ticks > 10)"
    )
    assert sent.text == "7 True\n", sent.shown


def test_unloading_ends_the_cluster_and_loading_begins_anew(kernel):
    """``%unload_ext`` leaves no process and no magic; ``%load_ext`` again and the next run works."""
    count = "import psutil\nprint(len(psutil.Process().children(recursive=True)))"
    assert int(kernel(count).text) > 5
    kernel("%unload_ext jupyter_torchdist")
    assert kernel(count).text == "0\n"
    assert "not found" in kernel("%%torchdist\n1").text
    kernel("%load_ext jupyter_torchdist")
    kernel("%reload_ext jupyter_torchdist")
    assert kernel("%%torchdist --out result\n5").reply["status"] == "ok"
    assert (
        kernel("print(result.value, len(__import__('jupyter_torchdist.driver.host').driver.host.display_hooks))").text
        == "5 1\n"
    )


def test_nbclient_leaves_a_notebook_that_stands_alone(tmp_path):
    """An executed notebook holds the final output in all its forms, and no widget view."""
    cells = ["%load_ext jupyter_torchdist", "%%torchdist --workers 2\nfor i in range(5): report(loss=1 / (i + 1))"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.create_kernel_manager().shutdown_wait_time = 30.0
    client.execute()
    [output] = notebook.cells[1].outputs
    assert set(output.data) == {RUN_MIME, PLOTLY_MIME, "text/html", "text/plain"}
    assert output.data[RUN_MIME]["status"]["state"] == "finished"
    assert "finished after" in output.data["text/plain"] and "loss 0.2" in output.data["text/plain"]
    assert "widget-view" not in nbformat.writes(notebook)


def test_nothing_is_alive_after_the_kernel_was_killed(tmp_path):
    """SIGKILL of a kernel in the middle of a run: 20 s later there is no process of it, and the reports are on disk."""
    mark = "TORCHDIST_KILLED_KERNEL"
    os.environ[mark] = str(tmp_path)
    try:
        with running_kernel(tmp_path) as kernel:
            del os.environ[mark]
            begin_live(kernel)
            started = with_environment(mark, str(tmp_path))
            assert len(started) > 5
            os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
            _, alive = psutil.wait_procs(started, timeout=20)
            assert [p.cmdline() for p in alive] == []
            assert with_environment(mark, str(tmp_path)) == []
            assert (folders(kernel)[-1] / "metrics.jsonl").stat().st_size > 0
    finally:
        os.environ.pop(mark, None)


def test_the_quickstart_reaches_its_accuracy(tmp_path):
    """The notebook of ``make demo``, as it stands: from a cell, from a function, from the form; models are kept."""
    from notebooks.execute import execute, plain_outputs

    path = tmp_path / "quickstart.ipynb"
    path.write_text((REPOSITORY / "notebooks" / "quickstart.ipynb").read_text())
    notebook = execute(path)
    shown = "\n".join(plain_outputs(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert "Traceback" not in shown
    cell, function, form = sorted((tmp_path / "stage").iterdir())
    assert {record(run)["state"] for run in (cell, function, form)} == {"finished"}
    rows = [json.loads(line) for line in (cell / "metrics.jsonl").read_text().splitlines()]
    assert [r["metrics"]["accuracy"] for r in rows if "accuracy" in r["metrics"]][-1] >= 0.95
    assert (cell / "model" / "net.pt").is_file()
    assert re.search(r"loaded back: (9[5-9]|100)", shown)
    [manifest] = [json.loads(f.read_text()) for f in (function / "checkpoints").glob("*/torchdist-manifest.json")]
    assert manifest["metrics"]["accuracy"] >= 0.95
    assert (form / "checkpoints").is_dir() and "after three epochs" in shown
