"""Cases F1 to F7: what was found while checking, with no public report behind it."""

from __future__ import annotations

import json
import math

import pytest
from IPython.core.error import UsageError

from jupyter_torchdist.errors import WorkerError


def same_on_both(cell, *expected):
    assert cell.error is None, cell.text
    assert {rank: text.splitlines() for rank, text in cell.logs.items()} == {0: list(expected), 1: list(expected)}


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("s='''a\nb'''; print(len(s))", "3"),
        ("s='''a\nb'''; print(len(s))\nreturn s", "3"),
        ("def f():\n    return '''a\nb'''\nprint(len(f()))", "3"),
        ("s=f'''a\n{1}'''; print(len(s))", "3"),
        ("s='''a\n\tb'''; print(len(s))", "4"),
        ("s='''a\nb'''; print(len(s))\n!true", "3"),
        ("s='''a\n\n\nb'''; print(len(s))\n%time x = 1\nreturn 1", None),
        ("s='a\\\nb'; print(len(s))", "2"),
        ("s='''a  \n  b  '''; print(len(s))", "9"),
    ],
)
def test_f1_triple_quoted_strings_are_left_as_they_are(cell, body, shown):
    """A string over several lines has on a rank the characters that it has in the cell."""
    cell("--workers 2", body)
    if shown is None:
        assert cell.error is None, cell.text
        assert cell.logs[0].startswith("5\n")
    else:
        same_on_both(cell, shown)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("def f(): return 1\nprint([f() for _ in range(1)])", "[1]"),
        ("def f(): return 1\nprint([f() for _ in range(1)])\nreturn 1", "[1]"),
        ("k = 2\nprint({i: [k * j for j in range(2)] for i in range(1)})", "{0: [0, 2]}"),
        ("k = 2\nprint(sorted([3, 1], key=lambda x: -x * k))", "[3, 1]"),
        ("k = 2\nclass A:\n    x = [k for _ in range(1)]\n    def f(self): return k\nprint(A.x, A().f())", "[2] 2"),
        ("import math\ndef area(r): return round(math.pi * r)\nprint(area(1))", "3"),
        ("def fact(n): return 1 if n < 2 else n * fact(n - 1)\nprint(fact(5))\nreturn 0", "120"),
        ("k = 1\nprint(eval('k'), [eval('k') for _ in [0]], sorted(n for n in globals() if n == 'k'))", "1 [1] ['k']"),
        ("k = 1\nexec('k = 2')\nprint(k, locals() is globals())", "2 True"),
        ("if (n := 3) and [m := n for _ in [0]]:\n    print(n, m)", "3 3"),
        ("if (n := 3) and [m := n for _ in [0]]:\n    print(n, m)\nreturn m", "3 3"),
    ],
)
def test_f2_functions_and_comprehensions_see_cell_level_names(cell, body, shown):
    """The body runs in one namespace: whatever is nested in it sees the names of the cell."""
    cell("--workers 2", body)
    same_on_both(cell, shown)


@pytest.mark.parametrize("body", ["   \n", "\n\n", "\t\n  \n", " ", "\x0c\n", "\u3000\n"])
def test_f3_a_body_of_blanks(cell, body):
    """A body of blanks is a usage error, and nothing starts."""
    cell("--workers 2", body)
    assert isinstance(cell.error, (UsageError, SyntaxError)), cell.error
    assert isinstance(cell.error, UsageError)
    assert not cell.folders


@pytest.mark.parametrize("body", ["# train here", "# a\n\n  # b\n", "'''text'''\n# more"])
def test_f3_a_body_of_comments_runs_and_does_nothing(cell, body):
    """A body of comments is a legal module."""
    cell("--workers 2", body)
    assert cell.error is None, cell.text


@pytest.mark.parametrize(
    "body",
    [
        "def main():\n    print('ran')\nif __name__ == '__main__':\n    main()",
        "def main():\n    print('ran')\nif __name__ == '__main__':\n    main()\nreturn 1",
        "import sys\nassert sys.modules['__main__'].__dict__ is globals()\nif __name__ == '__main__': print('ran')",
        "def train(config):\n    print('ran')\n\ndef main():\n    train({})\n\nif __name__ == '__main__':\n    main()",
        "class A: pass\nassert A.__module__ == '__main__'\nprint('ran')",
        "def f(): return __name__\nassert f() == '__main__'\nprint('ran')",
    ],
)
def test_f4_the_name_is_main(cell, body):
    """``__name__`` is ``__main__`` on a rank, so pasted scripts run, and once."""
    cell("--workers 2", body)
    same_on_both(cell, "ran")


def test_f4_a_script_with_spawned_children_does_not_run_again_in_them(cell):
    """A child that multiprocessing spawns does not run the cell again."""
    cell(
        "--workers 1",
        "import multiprocessing as mp, math\nprint('once')\nif __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as pool:\n        print(pool.map(math.sqrt, [4]))",
    )
    assert cell.error is None, cell.text
    assert cell.logs[0].splitlines() == ["once", "[2.0]"]


@pytest.mark.parametrize("body", ["print(eval('big'))", "print(globals()['big'])", "x = 1\nexec('print(big)')"])
def test_f5_names_used_through_eval_are_not_captured(cell, body):
    """A notebook variable that only a text names does not travel, and the error names it."""
    cell.shell.run_cell("big = list(range(10))")
    cell("--workers 2", body)
    assert isinstance(cell.error, WorkerError)
    assert "big" in str(cell.error) and str(cell.error.failures[0].error.type) in ("NameError", "KeyError")


def test_f5_a_name_that_the_body_reads_too_is_there_for_eval(cell):
    """A name that the body also reads itself is found by ``eval``."""
    cell.shell.run_cell("big = 3")
    cell("--workers 2", "big\nprint(eval('big'))")
    same_on_both(cell, "3")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("10**400", math.inf),
        ("-10**400", -math.inf),
        ("2**63", float(2**63)),
        ("2**64 + 1", float(2**64)),
        ("__import__('fractions').Fraction(10**400, 3)", math.inf),
        ("__import__('decimal').Decimal('1e999')", math.inf),
        ("__import__('decimal').Decimal('-Infinity')", -math.inf),
    ],
)
def test_f6_a_huge_number_does_not_end_training(cell, value, expected):
    """A metric beyond a double is kept as infinity of its sign, and training goes on."""
    cell("--workers 2", f"report(n={value}, loss=0.5)\nprint('on')")
    same_on_both(cell, "on")
    assert cell.result.last() == {"n": expected, "loss": 0.5}
    assert cell.result.get_metrics()["n"].tolist() == [expected]
    assert cell.result.plot() is not None and "n" in repr(cell.result)


def test_f6_a_huge_number_in_a_list_or_as_a_step(cell):
    """A huge number inside a list, or as the step, does not end training either."""
    cell(
        "--workers 2",
        "log = ctx.get_metrics_reporter().log_metrics\nlog({'v': [1, 10**400]})\nlog({'a': 1}, step=10**400)\nlog({'a': 2})",
    )
    assert cell.error is None, cell.text
    assert cell.result.last() == {"v": [1, math.inf], "a": 2}
    assert cell.result.get_metrics()["step"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "body",
    [
        "print('a\\ud800b')",
        "import sys\nsys.stderr.write('a\\udcffb\\n')",
        "raise ValueError('a\\ud800b')",
        "report(**{'a\\ud800b': 1.0})",
        "ctx.get_metrics_reporter().log_metrics({'x': 'a\\ud800b'})",
        "ctx.get_metrics_reporter().log_text('a\\ud800b', 'c\\udfffd')",
        "return 'a\\ud800b'",
        "return {'k\\ud800': ['a\\ud800b']}",
        "raise SystemExit('a\\ud800b')",
        "exec('def f\\ud800(): pass')",
        "class E(Exception): pass\nE.__name__ = E.__qualname__ = 'a\\ud800b'\nraise E('x')",
        "e = ValueError('x')\ne.add_note('a\\ud800b')\nraise e",
        "def f(): raise ValueError('x')\nf.__code__ = f.__code__.replace(co_name='a\\ud800b', co_qualname='a\\ud800b')\nf()",
    ],
)
def test_f7_a_lone_surrogate_ends_nothing(cell, body):
    """Text with a lone surrogate is escaped wherever it goes: the run ends as it would without it."""
    cell("--workers 2", body)
    if "raise" in body or "exec" in body:
        assert isinstance(cell.error, WorkerError), cell.error
        str(cell.error).encode()
    else:
        assert cell.error is None, cell.text
    cell.text.encode()
    folder = cell.new_folders[-1]
    json.loads((folder / "run.json").read_text("utf-8"))
    for name in ("metrics.jsonl", "events.jsonl"):
        for line in (folder / name).read_text("utf-8").splitlines():
            json.loads(line)
    if body.startswith("print"):
        assert "a\\ud800b" in cell.logs[0]
    if body.startswith("return 'a"):
        assert cell.result.value == "a\ud800b"
    if body.startswith("report"):
        assert list(cell.result.last().values()) == [1.0]


@pytest.mark.parametrize("body", ["print('a\ud800b')", "x = 1  # \ud800"])
def test_f7_a_lone_surrogate_in_the_cell_itself(cell, body):
    """A lone surrogate in the text of the cell is a usage error that says so, or runs; never an internal error."""
    cell("--workers 2", body)
    assert cell.error is None or isinstance(cell.error, UsageError), cell.error


@pytest.mark.parametrize("words", ["--hp 'x=a\ud800b'", "--name 'a\ud800b'", "--tag 'a\ud800b'", "--env 'X=a\ud800b'"])
def test_f7_a_lone_surrogate_in_the_options(cell, words):
    """A lone surrogate in an option is refused, or arrives; never an internal error."""
    cell("--workers 1 " + words, "pass")
    assert cell.error is None or isinstance(cell.error, UsageError), cell.error


def test_f7_bytes_that_are_not_text(cell):
    """Bytes that are no UTF-8 in the output are kept in the log and shown with replacements."""
    cell("--workers 1", "import os\nos.write(1, b'\\xff\\xfe bytes \\x00\\n')\nprint('after')")
    assert cell.error is None, cell.text
    assert "bytes" in cell.logs[0] and "after" in cell.logs[0]
    assert b"\xff\xfe" in (cell.new_folders[-1] / "logs" / "rank-0.log").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        {"hyper_params": {"x": "a\ud800b"}},
        {"hyper_params": {"\ud800": 1}},
        {"tags": ["a\ud800b"]},
        {"env": {"X_F7": "a\ud800b"}},
    ],
    ids=["hyper_params", "key of hyper_params", "tags", "env"],
)
def test_f7_a_lone_surrogate_in_the_arguments_of_a_run(cluster, stage, options):
    """A lone surrogate in an argument of ``run`` is refused as a ConfigError, or arrives as it is."""
    from jupyter_torchdist import PyTorchDistributor, PyTorchScalingConfig
    from jupyter_torchdist.errors import ConfigError

    try:
        result = PyTorchDistributor(lambda p: p, PyTorchScalingConfig(1, 1)).run(
            artifact_stage_location=str(stage), display="none", **options
        )
    except ConfigError as exc:
        str(exc).encode()
        return
    assert result.value == options.get("hyper_params")
