"""Kind 7: what ranks print."""

from __future__ import annotations

import logging

import pytest

from jupyter_torchdist.notebook.tail import screen_text


def shown(cell, rank=0):
    """What the run view makes of a rank's output."""
    return screen_text((cell.new_folders[-1] / "logs" / f"rank-{rank}.log").read_bytes())


def test_b70_no_line_is_lost(cell):
    cell("--workers 4", "for i in range(5): print(i)")
    assert cell.logs == dict.fromkeys(range(4), "0\n1\n2\n3\n4\n")


def test_b71_a_line_comes_once_with_several_nodes_on_one_machine(cell):
    cell("--nodes 2 --workers 1", "print('one-%d' % ctx.get_rank())")
    assert cell.logs == {0: "one-0\n", 1: "one-1\n"}
    assert cell.text.count("one-0") == 1 and "one-1" not in cell.text


def test_b73_a_progress_bar_stays_one_line(cell):
    cell("--workers 4", "from tqdm import tqdm\nfor _ in tqdm(range(2000)): pass")
    assert cell.error is None, cell.text
    lines = shown(cell).splitlines()
    assert len(lines) == 1 and "2000/2000" in lines[0]


def test_b74_much_output_is_complete_in_the_log(cell):
    body = "for i in range(200000): print(i, 'x' * 80)\nreport(loss=1.0)"
    result = cell("--workers 2", body)
    for log in cell.logs.values():
        lines = log.splitlines()
        assert len(lines) == 200_000 and lines[-1].startswith("199999 x")
    assert list(result.get_metrics()["loss"]) == [1.0]


def test_c17_output_of_children_is_the_ranks(cell):
    body = """
import subprocess, sys, os
subprocess.run(["echo", "child-%d" % ctx.get_rank()])
subprocess.Popen(["echo", "again"], stdout=sys.stdout).wait(); os.system("echo third")
subprocess.Popen(["sleep", "120"], start_new_session=True)
print("done")
"""
    cell("--workers 2", body)
    assert cell.logs == {rank: f"child-{rank}\nagain\nthird\ndone\n" for rank in (0, 1)}


def test_c18_a_line_of_any_length(cell):
    body = """
print("x" * 300_000); print("after")
import sys; sys.stdout.write("y" * 5_000_000); sys.stdout.flush()
report({"loss": 1}); print(); print("end")
"""
    result = cell("--workers 2", body)
    assert cell.error is None, cell.text
    for log in cell.logs.values():
        assert [len(line) for line in log.splitlines()] == [300_000, 5, 5_000_000, 3]
    assert len(shown(cell)) < 200_000 and shown(cell).endswith("end")
    assert len(result.get_metrics()) == 1


@pytest.mark.parametrize("end", ["", "\\n"])
def test_output_without_a_newline_and_broken_utf8_is_kept_as_it_is(cell, end):
    cell("--workers 1", f"import os; os.write(1, b'\\xff\\xfe broken{end}')")
    data = (cell.new_folders[-1] / "logs" / "rank-0.log").read_bytes()
    assert data == b"\xff\xfe broken" + (b"\n" if end else b"")


def test_c19_the_root_logger_is_as_in_a_fresh_interpreter(cell):
    body = """
import logging, sys
print(logging.getLogger().handlers, logging.getLogger().level)
logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.info("hello-%d", ctx.get_rank())
own = logging.getLogger("own"); own.propagate = False; own.addHandler(logging.StreamHandler(sys.stdout))
own.warning("own-%d", ctx.get_rank())
"""
    before = list(logging.getLogger().handlers)
    for _ in range(3):
        cell("--workers 2", body)
        assert cell.logs == {rank: f"[] 30\nhello-{rank}\nown-{rank}\n" for rank in (0, 1)}
    assert logging.getLogger().handlers == before


def test_report_takes_names_a_dict_or_both_and_refuses_the_rest(cell):
    result = cell("--workers 1", "report(a=1.0)\nreport({'b': 2.0})\nreport({'c': 3.0}, d=4.0)\nreport([])\nreport(0)")
    assert cell.error is None, cell.text
    assert result.last() == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert len(result.get_metrics()) == 3 and "takes a dict of names to numbers" in cell.logs[0]
