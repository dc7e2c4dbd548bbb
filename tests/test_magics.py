"""The magics in a real terminal shell."""

import shutil

import pytest
from IPython.core.error import UsageError

from tests.conftest import until

FREE = "--workers 2 --no-wait"
BODY = (
    "import time\nprint('rank', ctx.get_rank(), flush=True)\nreport(x=1)\nwhile not ctx.should_stop(): time.sleep(0.01)"
)


@pytest.fixture
def line(shell, capsys):
    """``line("status")`` runs ``%torchdist status``; (what was printed or returned, the error)."""

    def line(words):
        capsys.readouterr()
        done = shell.run_cell(f"%torchdist {words}")
        out = capsys.readouterr().out
        return out, done.error_in_exec or done.error_before_exec

    return line


def begun(cell, name):
    """The handle of a live run that has reported."""
    cell(f"{FREE} --name {name}", BODY)
    handle = cell.shell.user_ns["_outcome"]
    until(lambda: handle.status.reports)
    return handle


def test_a_terminal_shows_a_run_as_lines(cell):
    cell("--nodes 2 --workers 2 --name lines", "print('hello from', ctx.get_rank())\nreport(loss=0.25)")
    assert "2 nodes × 2 workers = 4 ranks" in cell.text
    assert "hello from 0" in cell.text and "hello from 1" not in cell.text
    assert "torchdist: finished after" in cell.text and "loss 0.25" in cell.text
    assert str(cell.new_folders[-1]) in cell.text


def test_words_about_a_live_run(cell, line):
    handle = begun(cell, "alive")
    out, error = line("status")
    assert error is None and "embedded local cluster: " in out and "CPUs" in out
    assert handle.run_id in out and "running after" in out
    for name in ("alive", handle.run_id, handle.run_id[:-1], "last"):
        out, error = line(f"logs {name} --rank 1")
        assert error is None and out == "rank 1\n"
    out, error = line("show alive")
    assert error is None and "1 node × 2 workers = 2 ranks" in out
    out, error = line("stop alive")
    assert error is None and out == f"asked {handle.run_id} to stop\n"
    assert handle.wait(20) and handle.state == "stopped"
    out, error = line(f"runs '{cell.stage}'")
    assert error is None and handle.run_id in out and "stopped" in out


def test_the_stacks_of_a_live_run(cell, line):
    handle = begun(cell, "silent")
    out, error = line("stacks silent")
    assert error is None
    assert "cell, line 4, in <module>" in out and "while not ctx.should_stop()" in out
    handle.stop()
    handle.wait()
    out, error = line("stacks silent")
    assert "no run 'silent' that is running" in str(error)


def test_words_about_ended_runs_of_the_default_stage(shell, line, monkeypatch, tmp_path):
    from jupyter_torchdist.driver import host

    monkeypatch.setattr(host, "notebook_folder", lambda: tmp_path)
    assert "no runs in" in line("runs")[0]
    out, error = line("logs")
    assert isinstance(error, UsageError) and "there is no run in" in str(error)
    for name in ("first", "second"):
        shell.run_cell(f"%%torchdist --workers 2 --name {name}\nprint('{name}')\nreport(loss=0.5)")
    table = line("runs")[0].splitlines()[1:]
    assert len(table) == 3 and "second" in table[1] and "first" in table[2] and "finished" in table[1]
    assert line("logs")[0] == "second\n" and line("logs first")[0] == "first\n"
    out, error = line("show first")
    assert error is None and "finished in" in out and "loss 0.5" in out
    assert "second" in line("show last")[0]
    shutil.rmtree(tmp_path / "stage")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("statsu", "Did you mean %torchdist status?"),
        ("xyz", "There are status, runs, show, stop, logs, stacks."),
        ("show", "name one run"),
        ("show nosuchrun", "no run"),
        ("stop nosuchrun", "no run 'nosuchrun' that is running"),
        ("stop a b", "name one run"),
        ("logs last --rank x", "--rank is 'x'"),
        ("logs last --rank", "--rank is ''"),
        ("logs 'last", "close the quote"),
        ("status all", "takes no argument"),
        ("runs a b", "takes one stage"),
        ("runs @../up", "leads out of"),
    ],
)
def test_a_wrong_word_says_what_is_right(line, words, hint):
    _, error = line(words)
    assert isinstance(error, UsageError), error
    assert hint in str(error) and str(error).startswith("%torchdist")


def test_help_lists_the_words_and_the_options(cell, line):
    out, error = line("")
    assert error is None and "status | runs | show | stop | logs | stacks" in out and "--workers" in out
    cell("--help", "x = 1")
    assert "examples:" in cell.text and "--nodes N" in cell.text and cell.folders == []


def test_check_starts_nothing(cell):
    cell.shell.user_ns["table"] = list(range(100))
    cell("--workers 2 --check", "print(len(table))")
    assert "the cell is good to run" in cell.text and "table (list, " in cell.text and cell.folders == []
