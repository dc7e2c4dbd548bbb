"""Cases of kind 1: from the body of a cell to what runs on a rank."""

from __future__ import annotations

import math
import threading

import pytest
from IPython.core.error import UsageError

from jupyter_torchdist.errors import WorkerError


def lines(cell, rank=0):
    return cell.logs[rank].splitlines()


def same_on_both(cell, *expected):
    assert cell.error is None, cell.text
    assert {rank: text.splitlines() for rank, text in cell.logs.items()} == {0: list(expected), 1: list(expected)}


# ------------------------------------------------------------ B01


@pytest.mark.parametrize(
    "body",
    [
        "from math import *\nprint(int(sqrt(16)))",
        "if True:\n    from math import *\nprint(int(sqrt(16)))",
        "from math import *\ndef f(x):\n    return int(sqrt(x))\nprint(f(16))",
        "from math import *\nfrom os.path import *\nprint(int(sqrt(16)))\nreturn join('a', 'b')",
        "try:\n    from math import *\nexcept ImportError:\n    pass\nprint([int(sqrt(x)) for x in [16]][0])",
    ],
    ids=["plain", "in an if", "used in a function", "with a return", "in a try"],
)
def test_b01_star_import(cell, body):
    """A star import works, for the body is an ordinary module."""
    cell("--workers 2", body)
    same_on_both(cell, "4")


def test_b01_star_import_wins_over_a_notebook_variable_of_the_same_name(cell):
    """A star import gives a name its new meaning although the notebook has another one."""
    cell.shell.run_cell("sqrt = None")
    cell("--workers 2", "from math import *\nprint(int(sqrt(16)))")
    same_on_both(cell, "4")


def test_b01_star_import_of_a_module_with_all(cell, tmp_path, monkeypatch):
    """A star import keeps to ``__all__``, also where the body has a return."""
    (tmp_path / "starred_b01.py").write_text("__all__ = ['a']\na, b = 1, 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    cell("--workers 2", "from starred_b01 import *\nprint(a, 'b' in globals())\nreturn a")
    same_on_both(cell, "1 False")


# ------------------------------------------------------------ B02


B02 = """\
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class C:
    lr: float = 0.1
print(C().lr)
"""


@pytest.mark.parametrize(
    "body",
    [
        B02,
        "'''A docstring.'''\n" + B02,
        "# a comment\n\n" + B02,
        B02 + "return C().lr",
        B02.replace("import annotations\n", "import annotations, division\n"),
        B02 + "import typing\nassert typing.get_type_hints(C) == {'lr': float}",
        B02 + "def f(x: Unknown) -> AlsoUnknown: pass\n",
    ],
    ids=["plain", "docstring", "comment", "return", "two features", "hints resolve", "names that are nowhere"],
)
def test_b02_future_annotations_with_a_dataclass(cell, body):
    """``from __future__ import annotations`` may stand first, and dataclasses find their module."""
    cell("--workers 2", body)
    same_on_both(cell, "0.1")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int = 1\nprint(P())", "P(x=1)"),
        (
            "from typing import ClassVar\nfrom dataclasses import *\n@dataclass(slots=True)\nclass P:\n    n: ClassVar[int] = 3\n    x: int = 1\nprint(P(), P.n)",
            "P(x=1) 3",
        ),
        (
            "from enum import Enum\nclass E(Enum):\n    A = 1\nimport pickle\nprint(pickle.loads(pickle.dumps(E.A)) is E.A)",
            "True",
        ),
        ("from typing import TypedDict\nclass D(TypedDict):\n    x: int\nprint(D(x=1))", "{'x': 1}"),
    ],
    ids=["NamedTuple", "slots and ClassVar", "Enum", "TypedDict"],
)
def test_b02_classes_that_look_up_their_module(cell, body, shown):
    """Classes whose making looks at their module's namespace work under future annotations."""
    cell("--workers 2", "from __future__ import annotations\n" + body)
    same_on_both(cell, shown)


# ------------------------------------------------------------ B04


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("loss = 1.5\nreturn loss", 1.5),
        ("for i in range(9):\n    if i == 3:\n        return i", 3),
        ("try:\n    return 1\nfinally:\n    done = True", 1),
        ("with open('/dev/null') as f:\n    return f.name", "/dev/null"),
        ("if ctx.get_rank():\n    return\nx = 5\nx", 5),
        ("import asyncio\nawait asyncio.sleep(0)\nreturn 4", 4),
        ("x: int = 2\ny = [x * i for i in range(2)]\ndef f():\n    return y\nreturn f()", [0, 2]),
        ("class A:\n    x = 1\nreturn A.__qualname__", "A"),
        ("return", None),
        ("n = 1\ndel n\nreturn 'n' in globals()", False),
        ("match {'a': 1, 'b': 2}:\n    case {'a': x, **rest}:\n        return (x, rest)", (1, {"b": 2})),
    ],
)
def test_b04_return_in_the_body(cell, body, value):
    """A ``return`` ends the body, and its value is the rank's result."""
    cell("--workers 2", body)
    assert cell.error is None, cell.text
    assert cell.result.values[0] == value if value is not None else cell.result.value is None


@pytest.mark.parametrize(
    ("body", "line", "source"),
    [
        ("x = 1\nyield x\nreturn x", 2, "yield x"),
        ("x = 1\nyield x", 2, "yield x"),
        ("x = 1\ny = (yield from [])\nreturn", 2, "yield from"),
        ("x = 1\nif x:\n    break\nreturn x", 3, "break"),
        ("x = 1\n\nreturn return", 3, "return return"),
        ("x = 1\nclass A:\n    return 1", 3, "return 1"),
    ],
)
def test_b04_what_python_refuses_is_a_syntax_error_at_its_line(cell, body, line, source):
    """What can not stand in a body is a SyntaxError with the line of the body, before anything starts."""
    cell("--workers 2", body)
    assert isinstance(cell.error, UsageError)
    assert "SyntaxError" in cell.text and f"line {line} " in cell.text and source in cell.text
    assert not cell.folders


# ------------------------------------------------------------ B05


def test_b05_shell_lines_and_line_magics(cell):
    """Shell lines run on each rank, the few line magics that mean something there work."""
    cell("--workers 2", "!echo hi-$RANK\n%env MODE=x\nprint('done')\nimport os\nprint(os.environ['MODE'])")
    assert cell.error is None, cell.text
    for rank in (0, 1):
        assert lines(cell, rank) == [f"hi-{rank}", "done", "x"]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("x = 3\n!echo $x", ["3"]),
        ("x = 3\n!echo {x + 1}", ["4"]),
        ("x = 3\n!echo {x} {{x}} $$HOME_IS_NOT_SET", None),
        ("found = !printf 'a\\nb\\n'\nprint(found)", ["['a', 'b']"]),
        ("found = !echo a; echo b\nprint(list(found), repr(found.n), found.s)", ["['a', 'b'] 'a\\nb' a b"]),
        ("!false\nprint(_exit_code)", ["1"]),
        ("if True:\n    !echo inside", ["inside"]),
        ("for i in range(2):\n    !echo {i}", ["0", "1"]),
        ("!echo a \\\n  b", ["a b"]),
        ("x = 3\n!echo $x {x!r} '$x' $NOT_THERE.", ["3 3 $x ."]),
        ("x = 3\n!printf 'a b\\n' | awk '{print $2}'", ["b"]),
        ("RANK = 'mine'\n!echo $RANK", ["mine"]),
        ("class P: pass\nP.v = 4\n!echo $P.v", ["4"]),
        ("text = 'get_ipython().system(1)'\n!true\nprint(text)", ["get_ipython().system(1)"]),
        ("%env MODE x\nimport os\nprint(os.environ['MODE'])", ["x"]),
        ("mode = 'y'\n%env MODE=$mode\nimport os\nprint(os.environ['MODE'])", ["y"]),
        ("%time x = 5\nprint(x)", None),
        ("here = %pwd\n%cd /\nimport os\nprint(here == os.getcwd(), os.getcwd())", None),
        ("s = '''\n!not a shell line\n%not_a_magic\n'''\nprint(len(s.splitlines()))", ["3"]),
        ("s = '''\n%nope\n'''\n!echo $RANK > /dev/null\nprint(s.strip())", ["%nope"]),
        ("print(7 %\n3)", ["1"]),
        ("!echo one\nreturn 5", ["one"]),
        ("get_ipython().system('echo called')", ["called"]),
        ("!!echo two", None),
        ("!cat <<'E'\n", None),
    ],
)
def test_b05_neighbours(cell, body, shown):
    """What IPython does with ``!`` and ``%`` lines holds on a rank, and nothing asks for the kernel."""
    cell("--workers 2", body)
    assert "NameError" not in cell.text
    if shown is not None:
        same_on_both(cell, *shown)
    else:
        assert cell.error is None, cell.text


@pytest.mark.parametrize(
    "line", ["!echo $seen", "!echo {seen}", "x = !echo {seen + ''}\nprint(x[0])", "def f():\n    !echo $seen\nf()"]
)
def test_b05_a_shell_line_reads_notebook_variables(cell, line):
    """A notebook variable that only a shell line uses travels too."""
    cell.shell.run_cell("seen = 'here'")
    cell("--workers 2", line)
    same_on_both(cell, "here")


@pytest.mark.parametrize(
    ("body", "line", "name"),
    [
        ("get_ipython().run_line_magic('matplotlib', 'inline')", 1, "%matplotlib"),
        ("x = 1\n%matplotlib inline\n", 2, "%matplotlib"),
        ("%load_ext tensorboard", 1, "%load_ext"),
        ("\n\nif True:\n    %timeit 1", 4, "%timeit"),
        ("import os\nos?", 2, "pinfo"),
    ],
)
def test_b05_other_line_magics_are_refused_with_their_line(cell, body, line, name):
    """A line magic that has no meaning on a rank is refused with its line, and nothing starts."""
    cell("--workers 2", body)
    assert isinstance(cell.error, UsageError)
    assert f"line {line}" in str(cell.error) and name in str(cell.error)
    assert not cell.folders


def test_b05_a_cell_magic_inside_the_body_is_refused(cell):
    """A second cell magic in the body is a usage error that says so."""
    cell("--workers 2", "%%time\nprint(1)")
    assert isinstance(cell.error, UsageError) and not cell.folders


# ------------------------------------------------------------ B06


@pytest.mark.parametrize("above", ["# note\n", "import os\n", "\n# note\n\n", "x = 1; y = 2\n", '"""text"""\n'])
def test_b06_something_above_the_magic(cell, stage, above, capsys):
    """Code or a comment above the magic: the message says that it must be the first line, and nothing starts."""
    done = cell.shell.run_cell(f"{above}%%torchdist --workers 2 --stage '{stage}'\nprint(1)")
    captured = capsys.readouterr()
    error = done.error_before_exec or done.error_in_exec
    assert isinstance(error, UsageError)
    assert "first line" in captured.out + captured.err
    assert "not found" not in captured.out + captured.err
    assert not stage.exists()


@pytest.mark.parametrize("above", ["\n", "\n\n\n", "   \n", "\t\n \n"])
def test_b06_blank_lines_above_the_magic(cell, stage, above, capsys):
    """Blank lines above the magic are fine."""
    done = cell.shell.run_cell(f"{above}%%torchdist --workers 1 --stage '{stage}'\nprint('ran')")
    assert done.success
    assert "ran" in capsys.readouterr().out
    assert len(cell.folders) == 1


def test_b06_the_magic_named_in_a_string_is_no_magic(cell, capsys):
    """A cell that only talks about the magic, in a string or a comment, is left alone."""
    done = cell.shell.run_cell("text = '''\n%%torchdist --workers 2\nprint(1)\n'''\nlen(text)")
    assert done.success, capsys.readouterr()
    done = cell.shell.run_cell("!true\ntext = '''a\n%%torchdist --workers 2\n'''\nlen(text)")
    assert done.success, capsys.readouterr()
    done = cell.shell.run_cell("%%capture held\nprint('%%torchdist')\n")
    assert done.success and cell.shell.user_ns["held"].stdout == "%%torchdist\n"


def test_b06_the_magic_below_another_cell_magic_is_that_magics_affair(cell, capsys):
    """``%%capture`` above the magic gets its body as it is."""
    done = cell.shell.run_cell("%%writefile /dev/null\n%%torchdist --workers 2\nprint(1)")
    assert done.success


# ------------------------------------------------------------ B08


def test_b08_quotes_and_spaces_in_the_line(cell, tmp_path, monkeypatch):
    """Quoting is the shell's: a stage with blanks and Greek letters is one word."""
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "nb.ipynb"))
    cell.stage = tmp_path / "my stage" / "α β"
    cell("--stage 'my stage/α β' --workers 2", "print(1)")
    assert cell.error is None, cell.text
    assert len(cell.folders) == 1
    same_on_both(cell, "1")


@pytest.mark.parametrize(
    "line",
    ["--stage it's", '--stage "open', "--name 'a", "--hp x='1", "--workers 2 --stage 'a b", "--stage a\\"],
)
def test_b08_an_unclosed_quote(cell, line):
    """An unclosed quote is a usage error, not a ValueError from inside."""
    cell.shell.run_cell("x = 1")
    done = cell.shell.run_cell(f"%%torchdist {line}\nprint(1)")
    error = done.error_in_exec or done.error_before_exec
    assert isinstance(error, UsageError)
    assert "ValueError" not in str(error)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("""--hp 'title=a b' --hp "c='x y'" """, {"title": "a b", "c": "x y"}),
        ("--hp path=a=b", {"path": "a=b"}),
        ("--hp x= ", {"x": ""}),
        ("--hp 'l=[1, 2]' --hp lr=1e-3", {"l": [1, 2], "lr": 1e-3}),
        ("--hp n=-1 --hp s='-x'", {"n": -1, "s": "-x"}),
        ("--hp price=$5 --hp t={x}", {"price": "$5", "t": "{x}"}),
        ("--hp c=#3", {"c": "#3"}),
        ("--hp a=inf --hp b=-inf --hp c=info", {"a": math.inf, "b": -math.inf, "c": "info"}),
    ],
)
def test_b08_values_arrive_as_they_are_quoted(cell, words, expected):
    """Quoted values arrive whole; IPython's own ``$`` and ``{}`` are left alone."""
    cell.shell.run_cell("x = 1")
    cell("--workers 1 " + words, "return ctx.get_hyper_params()")
    assert cell.error is None, cell.text
    assert cell.result.value == expected


# ------------------------------------------------------------ B10


def test_b10_functions_and_cell_level_names_are_one_namespace(cell):
    """``global`` in a function of the body reaches the body's own name; the notebook's stays."""
    cell.shell.run_cell("n = 0")
    cell("--workers 2", "n = 10\ndef bump():\n    global n; n += 1\nbump(); bump(); print(n)")
    same_on_both(cell, "12")
    assert cell.shell.user_ns["n"] == 0


@pytest.mark.parametrize(
    ("notebook", "body", "shown"),
    [
        ("n = 0", "def bump():\n    global n; n += 1\nbump(); bump(); print(n)", "2"),
        ("n = 0\ndef bump():\n    global n; n += 1", "bump(); bump(); print(n)", "2"),
        ("n = 0\ndef bump():\n    global n; n += 1\ndef look():\n    return n", "n = 10\nbump(); bump(); print(look(), n)", "12 12"),
        ("n = 0", "n += 5\nprint(n)", "5"),
        ("rows = []\ndef add(x):\n    rows.append(x)", "add(1); rows.append(2); print(rows)", "[1, 2]"),
        ("", "def even(k):\n    return k == 0 or odd(k - 1)\ndef odd(k):\n    return k != 0 and even(k - 1)\nprint(even(10))", "True"),
        ("def even(k):\n    return k == 0 or odd(k - 1)\ndef odd(k):\n    return k != 0 and even(k - 1)", "print(even(10))", "True"),
        ("k = 2\nclass A:\n    def f(self):\n        return k", "class B(A):\n    pass\nk = 3\nprint(B().f())", "3"),
        ("def base():\n    return helper() + 1\ndef helper():\n    return 1", "def helper():\n    return 10\nprint(base())", "11"),
        ("shared = {}\na = {'d': shared}\nb = {'d': shared}", "print(a['d'] is b['d'])", "True"),
        ("x = 5", "print([x for x in range(2)], x)", "[0, 1] 5"),
        ("x = 5", "class K:\n    x = x\nprint(K.x)", "5"),
        ("x = 5", "def f(x=x):\n    return x\nprint(f())", "5"),
        ("x = 5", "print(f'{x + 1}')", "6"),
        ("d = {'x': 1}", "del d['x']\nprint(d)", "{}"),
        ("m = 3", "try:\n    print(m)\nexcept NameError:\n    m = 0", "3"),
        ("m = 3", "if False:\n    m = 0\nprint(m)", "3"),
        ("m = 3", "if False:\n    m = 0\nelse:\n    print(m)", "3"),
        ("m = 3", "for m in []: pass\nelse: print(m)\nprint(m - 3)", "3\n0"),
        ("m = 3", "while False: m = 0\nprint(m)", "3"),
        ("m = 3", "try:\n    1/0\n    m = 0\nexcept ZeroDivisionError:\n    print(m)", "3"),
        ("m = 3", "try:\n    1/0\n    m = 0\nexcept ZeroDivisionError:\n    pass\nprint(m)", "3"),
        ("m = 3", "False and (m := 0)\nprint(m)", "3"),
        ("m = 3", "x = (m := 0) if False else m\nprint(m)", "3"),
        ("m = 3", "match 1:\n    case 2: m = 0\nprint(m)", "3"),
        ("m = 3", "match 1:\n    case [m]: pass\n    case _: print(m)", "3"),
        ("m = 3", "if True:\n    def f(): return m\n    print(f())", "3"),
        ("m = 3", "class m(type(m)): pass\nprint(m(3))", "3"),
        ("m = 3", "import math as k, sys\nfrom os import *\nprint(m)", "3"),
        ("def deco(f):\n    return lambda: f() + offset\noffset = 1", "@deco\ndef g():\n    return 1\nprint(g())", "2"),
        ("import functools\nbase = 4\n@functools.cache\ndef cached():\n    return base\nclass A:\n    @functools.lru_cache(2)\n    def f(self):\n        return base", "print(cached(), A().f())", "4 4"),
        ("import functools\nbase = 4\n@functools.lru_cache\ndef cached():\n    return base", "print(cached())", "4"),
        ("import functools\ndef add(a, b):\n    return a + b + c\nc = 1\npart = functools.partial(add, 1)", "print(part(1))", "3"),
        ("class P:\n    @property\n    def v(self):\n        return scale\n    @staticmethod\n    def s():\n        return scale\n    @classmethod\n    def c(cls):\n        return scale\nscale = 7", "print(P().v, P.s(), P.c())", "7 7 7"),
        ("lam = lambda: inner()\ndef inner():\n    return 8", "print(lam())", "8"),
        ("fns = {'f': lambda: depth}\ndepth = 9", "print(fns['f']())", "9"),
    ],
)  # fmt: skip
def test_b10_names_of_notebook_and_body(cell, notebook, body, shown):
    """A function sees the names of the body and of the notebook as it would in the notebook."""
    if notebook:
        assert cell.shell.run_cell(notebook).success
    before = {k: repr(cell.shell.user_ns[k]) for k in ("n", "rows", "x", "d", "m", "k") if k in cell.shell.user_ns}
    cell("--workers 2", body)
    same_on_both(cell, *shown.split("\n"))
    assert {k: repr(cell.shell.user_ns[k]) for k in before} == before


# ------------------------------------------------------------ B12


def test_b12_a_traceback_has_the_cells_lines(cell):
    """The failing line is shown with its text and its number, counted from the body; launcher frames are not."""
    cell("--workers 2", "x = 1\ny = 2\nraise ValueError('here')")
    assert isinstance(cell.error, WorkerError)
    assert "raise ValueError('here')" in cell.text
    assert "cell, line 3, in <module>" in cell.text
    for word in ("run_cell", "rank.py", "forkserver", "worker/cell.py", "_outcome"):
        assert word not in cell.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def f():\n    1 / 0\nf()", ["cell, line 3, in <module>", "    f()", "cell, line 2, in f", "    1 / 0"]),
        ("x = 1\nraise ValueError('here')\nreturn x", ["cell, line 2, in <module>", "    raise ValueError('here')"]),
        ("\n\n!true\nraise ValueError('here')", ["cell, line 4, in <module>", "    raise ValueError('here')"]),
        ("!echo a \\\n  b\nraise ValueError('here')", ["cell, line 3, in <module>", "    raise ValueError('here')"]),
        ("  !true\n  raise ValueError('here')", ["cell, line 2, in <module>", "    raise ValueError('here')"]),
        ("!true\n\nraise ValueError('here')", ["cell, line 3, in <module>", "    raise ValueError('here')"]),
        ("def main():\n    x = 1\n    raise ValueError('here')", ["cell, line 3, in main", "    raise ValueError('here')"]),
        ("import asyncio\nasync def f():\n    raise ValueError('here')\nawait f()", ["cell, line 4, in <module>", "cell, line 3, in f"]),
        ("exec('1/0')", ["cell, line 1, in <module>", "ZeroDivisionError"]),
        ("raise (\n  ValueError(\n  'here'))", ["cell, line 1, in <module>"]),
        ("s = '''\n\n'''\nassert not s, 'äöü'", ["cell, line 4, in <module>", "    assert not s, 'äöü'", "AssertionError: äöü"]),
        ("# ünïcode ☃\nraise KeyError('☃')", ["cell, line 2, in <module>", "    raise KeyError('☃')"]),
        ("x = 1\r\nraise ValueError('here')\r\n", ["cell, line 2, in <module>", "    raise ValueError('here')"]),
        ("x = '\\x0c'\n\x0c\nraise ValueError('here')", ["cell, line 3, in <module>", "    raise ValueError('here')"]),
        ("s = 'a\u2028b'\nraise ValueError('here')", ["cell, line 2, in <module>", "    raise ValueError('here')"]),
        ("if True:\n\traise ValueError('here')", ["cell, line 2, in <module>", "    raise ValueError('here')"]),
        ("import json\njson.loads('{')", ["cell, line 2, in <module>", "    json.loads('{')", "JSONDecodeError"]),
        ("try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('here') from e", ["cell, line 2, in <module>", "cell, line 4, in <module>", "ZeroDivisionError", "caused by"]),
        ("[1/0 for _ in range(1)]", ["cell, line 1, in"]),
        ("class A:\n    x = 1\n    1/0", ["cell, line 3, in A", "    1/0"]),
    ],
)  # fmt: skip
def test_b12_lines_of_functions_and_odd_bodies(cell, body, expected):
    """Line numbers count from the body in functions, in transformed bodies and in those with odd characters."""
    cell("--workers 2", body)
    assert isinstance(cell.error, WorkerError)
    shown = cell.text
    for part in expected:
        assert part in shown, shown
        shown = (
            shown[shown.index(part) + len(part) :]
            if part.startswith(("cell,", "    ")) and "caused" not in str(expected)
            else shown
        )


def test_b12_functions_of_other_notebook_cells_show_their_lines_too(cell):
    """A frame in a function of another notebook cell has its text and says which cell it is."""
    cell.shell.run_cell("def helper():\n    y = 1\n    raise ValueError('over there')", store_history=True)
    cell("--workers 2", "helper()")
    assert "cell, line 1, in <module>" in cell.text
    assert "line 3, in helper" in cell.text and "raise ValueError('over there')" in cell.text
    assert "<ipython-input" not in cell.text and "/tmp/ipykernel" not in cell.text


def test_b12_the_source_is_there_for_inspect_and_warnings(cell):
    """``inspect.getsource`` finds the text of functions and classes of the body."""
    cell(
        "--workers 2",
        "import inspect\ndef f():\n    return 1  # ☃\nclass A:\n    pass\nprint(inspect.getsource(f) + inspect.getsource(A))",
    )
    same_on_both(cell, "def f():", "    return 1  # ☃", "class A:", "    pass", "")


def test_b12_a_syntax_error_shows_the_line(cell):
    """A SyntaxError shows the line of the body and its number before anything starts."""
    cell("--workers 2", "x = 1\ny = = 2\n")
    assert isinstance(cell.error, UsageError)
    assert "line 2" in cell.text and "y = = 2" in cell.text and not cell.folders


# ------------------------------------------------------------ B13


def test_b13_torch_save_of_a_notebook_class(cell):
    """A model of a notebook's class is saved on a rank by ``torch.save`` and loads in the notebook."""
    cell.shell.run_cell("import torch\nclass Net(torch.nn.Linear): pass")
    cell("--workers 2", "if ctx.get_rank() == 0:\n    torch.save(Net(2, 2), ctx.get_model_dir() + '/m.pt')")
    assert cell.error is None, cell.text
    cell.shell.user_ns["path"] = cell.result.get_model_dir() / "m.pt"
    assert cell.shell.run_cell("loaded = torch.load(path, weights_only=False)\nassert type(loaded) is Net").success


@pytest.mark.parametrize(
    ("notebook", "body"),
    [
        ("", "class A:\n    pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)"),
        ("", "def f():\n    return 1\nprint(pickle.loads(pickle.dumps(f)) is f)\nreturn 1"),
        ("", "class A:\n    class B:\n        pass\nprint(type(pickle.loads(pickle.dumps(A.B()))) is A.B)"),
        ("class A: pass", "print(type(pickle.loads(pickle.dumps(A()))) is A)"),
        ("class A: pass\nobj = A()", "print(type(pickle.loads(pickle.dumps(obj))) is type(obj))"),
        ("class A: pass\nrows = [A()]", "print(pickle.loads(pickle.dumps(rows))[0].__class__ is rows[0].__class__)"),
        ("class A: pass\ndef make():\n    return A()", "print(type(pickle.loads(pickle.dumps(make()))) is type(make()))"),
        ("def f(): pass\ntable = {'f': f}", "print(pickle.loads(pickle.dumps(table))['f'] is table['f'])"),
        ("class Base: pass\nclass Sub(Base): pass\nobj = Sub()", "print(type(pickle.loads(pickle.dumps(obj))).__mro__[1].__name__ == 'Base')"),
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')\np = P(1, 2)", "print(pickle.loads(pickle.dumps(p)) == p)"),
        ("import enum\nE = enum.Enum('E', 'A B')\ne = E.A", "print(pickle.loads(pickle.dumps(e)) is e)"),
    ],
)  # fmt: skip
def test_b13_plain_pickle_finds_classes_and_functions_by_name(cell, notebook, body):
    """Plain ``pickle`` on a rank finds what the notebook or the body defined, by name."""
    if notebook:
        assert cell.shell.run_cell(notebook).success
    cell("--workers 2", "import pickle\n" + body)
    same_on_both(cell, "True")


def test_b13_a_data_loader_with_spawned_workers_finds_the_dataset(cell):
    """A DataLoader with worker processes, forked or spawned, gets a dataset class of the notebook."""
    cell.shell.run_cell(
        "import torch\nclass Rows(torch.utils.data.Dataset):\n    def __len__(self): return 4\n    def __getitem__(self, i): return i"
    )
    cell(
        "--workers 1",
        "from torch.utils.data import DataLoader\nprint([b.tolist() for b in DataLoader(Rows(), batch_size=2, num_workers=2)])",
    )
    assert cell.error is None and lines(cell) == ["[[0, 1], [2, 3]]"], cell.text


def test_b13_the_cells_own_values_come_back(cell):
    """A value of a class of the body comes back as the rank's result."""
    cell("--workers 2", "class R:\n    def __init__(self, x): self.x = x\nreturn R(ctx.get_rank() + 1)")
    assert cell.error is None, cell.text
    assert [v.x for v in cell.result.values.values()] == [1, 2]


def test_the_extension_leaves_the_namespace_alone(cell):
    """A run adds nothing to the notebook's namespace but the variable of ``--out``."""
    before = set(cell.shell.user_ns)
    cell("--workers 1", "left_behind = 1\nimport math")
    assert set(cell.shell.user_ns) - before <= {"_outcome"}
    assert math.pi and threading.main_thread()
