"""Cases of kind 2: shipping code and data to the ranks."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from IPython.core.error import UsageError

from jupyter_torchdist import PyTorchDistributor, PyTorchScalingConfig, WorkerResourceConfig, get_context
from jupyter_torchdist.errors import CaptureError, ClusterError, ConfigError, ResultError, WorkerError

ONE = PyTorchScalingConfig(1, 1)
TWO = PyTorchScalingConfig(1, 2)


def same_on_both(cell, *expected):
    assert cell.error is None, cell.text
    assert {rank: text.splitlines() for rank, text in cell.logs.items()} == {0: list(expected), 1: list(expected)}


@pytest.fixture
def go(cluster, stage):
    def go(function, scaling=TWO, **options):
        return PyTorchDistributor(function, scaling).run(
            artifact_stage_location=str(stage), **{"display": "none", **options}
        )

    return go


@pytest.fixture
def notebook(cell, tmp_path, monkeypatch):
    """A notebook in a folder of its own, in which the kernel stands."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("JPY_SESSION_NAME", str(folder / "nb.ipynb"))
    monkeypatch.chdir(folder)
    cell.folder = folder
    return cell


@pytest.fixture
def jobs(monkeypatch):
    """The jobs that the cells of the test start, as they are packed."""
    from jupyter_torchdist.notebook import magics

    started, real = [], magics.start

    def start(job):
        started.append(job)
        return real(job)

    monkeypatch.setattr(magics, "start", start)
    return started


def packed_bytes(job):
    payload = job.packed.payload
    return payload.head + payload.data + b"".join(bytes(b) for b in payload.buffers)


def script(text, folder, **env):
    """Runs a script in a process and a cluster of its own."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text), "utf-8")
    return subprocess.run(
        [sys.executable, path], cwd=folder, env={**os.environ, **env}, capture_output=True, timeout=200, check=False
    )


# ------------------------------------------------------------ B14


B14 = """
from enum import Enum, IntEnum, Flag, auto
from dataclasses import dataclass
class Mode(Enum):
    A = 1
    B = 2
class Level(IntEnum):
    LOW = 1
class Opt(Flag):
    X = auto()
    Y = auto()
@dataclass
class Cfg:
    mode: Mode = Mode.A
cfg = Cfg()
"""


@pytest.mark.parametrize(
    "check",
    [
        "cfg.mode is Mode.A",
        "[Mode.A][0] is Mode.A and Mode(1) is Mode.A and Mode['A'] is Mode.A",
        "Level.LOW is Level(1) and Level.LOW == 1",
        "(Opt.X | Opt.Y) & Opt.X is Opt.X",
        "{Mode.A: 1}[cfg.mode] == 1",
        "type(cfg) is Cfg and isinstance(cfg, Cfg)",
    ],
)
def test_b14_enum_members_keep_their_identity_on_a_rank(cell, check):
    """A member of a notebook's enum is the same object wherever the rank finds it."""
    assert cell.shell.run_cell(B14).success
    cell("--workers 2", f"assert {check}\nprint('same')")
    same_on_both(cell, "same")


@pytest.mark.parametrize("value", ["Mode.A", "cfg.mode", "Level.LOW", "Opt.X", "Mode(2)"])
def test_b14_enum_members_come_back_as_themselves(cell, value):
    """A returned member is the notebook's own, from the cell and from the API."""
    assert cell.shell.run_cell(B14).success
    cell("--workers 2", f"return {value}")
    assert cell.error is None, cell.text
    assert cell.result.value is eval(value, cell.shell.user_ns)
    cell.shell.user_ns["stage"] = str(cell.stage)
    done = cell.shell.run_cell(
        "from jupyter_torchdist import *\n"
        f"r = PyTorchDistributor(lambda: {value}, PyTorchScalingConfig(1, 2)).run(artifact_stage_location=stage, display='none')\n"
        f"assert r.value is {value} and r.values[1] is {value}\n"
        f"r = PyTorchDistributor(lambda h: h['m'] is {value}, PyTorchScalingConfig(1, 1)).run(hyper_params={{'m': {value}}}, artifact_stage_location=stage, display='none')\n"
        "assert r.value is True"
    )
    assert done.success


def test_b14_hyper_params_and_captured_names_share_the_enum(cell):
    """A member in the hyper-parameters is the one that the body reads by name."""
    assert cell.shell.run_cell(B14 + "hp = {'mode': Mode.B, 'cfg': cfg}\ndata = [Mode.A]").success
    cell(
        "--workers 2 --hparams hp --data d=data",
        "h = ctx.get_hyper_params()\nassert h['mode'] is Mode.B and h['cfg'].mode is Mode.A\nassert ctx.get_dataset_map()['d'][0] is Mode.A\nassert type(h['cfg']) is Cfg and h['cfg'] is cfg\nprint('same')",
    )
    same_on_both(cell, "same")


def test_b14_an_enum_that_is_defined_in_a_function(go):
    """An enum of a function's scope keeps its identity too."""

    class Mode(enum.Enum):
        A = 1

    result = go(lambda h: (h["m"] is Mode.A, Mode.A), hyper_params={"m": Mode.A})
    assert result.value[0] is True and result.value[1] is Mode.A


# ------------------------------------------------------------ B16


def test_b16_a_dataclass_keeps_its_fields(cell):
    """A config dataclass of the notebook is whole on the rank, and what comes back is too."""
    assert cell.shell.run_cell(
        "from dataclasses import *\n@dataclass\nclass Cfg:\n    lr: float = .1\ncfg = Cfg()"
    ).success
    cell(
        "--workers 2",
        "from dataclasses import asdict, replace, fields\nassert asdict(cfg) == {'lr': 0.1}\nassert asdict(replace(cfg, lr=1)) == {'lr': 1}\nassert [f.name for f in fields(Cfg)] == ['lr']\nreturn replace(cfg, lr=2)",
    )
    assert cell.error is None, cell.text
    assert dataclasses.asdict(cell.result.value) == {"lr": 2}
    assert type(cell.result.value) is cell.shell.user_ns["Cfg"]


@pytest.mark.parametrize(
    "decoration",
    [
        "",
        "(frozen=True)",
        "(slots=True)",
        "(kw_only=True)",
        "(order=True)",
        "(frozen=True, slots=True)",
        "(unsafe_hash=True)",
    ],
)
def test_b16_dataclasses_of_every_kind_in_the_hyper_params(cell, decoration):
    """Frozen, slotted and other dataclasses with defaults, factories and pseudo-fields are whole on the rank."""
    assert cell.shell.run_cell(
        "from dataclasses import *\nimport typing\n"
        f"@dataclass{decoration}\nclass Cfg:\n    lr: float = .1\n    tags: list = field(default_factory=list)\n"
        "    n: typing.ClassVar[int] = 3\n    seed: InitVar[int] = 1\n    def __post_init__(self, seed): pass\n"
        f"@dataclass{decoration}\nclass Sub(Cfg):\n    inner: Cfg = field(default_factory=Cfg)\n"
        "hp = {'cfg': Sub(), 'made': make_dataclass('Made', [('x', int, 5)])()}\nMade = type(hp['made'])"
    ).success
    cell(
        "--workers 2 --hparams hp",
        "from dataclasses import *\nh = ctx.get_hyper_params()\nc = h['cfg']\nprint(asdict(c), asdict(replace(c, lr=1))['lr'], len(fields(c)), c == replace(c, seed=1), asdict(h['made']))",
    )
    same_on_both(cell, "{'lr': 0.1, 'tags': [], 'inner': {'lr': 0.1, 'tags': []}} 1 3 True {'x': 5}")


def test_b16_the_api_the_same(go):
    """A dataclass in ``hyper_params`` of the API keeps its fields on every rank."""

    @dataclasses.dataclass
    class Cfg:
        lr: float = 0.1

    def train(h):
        from dataclasses import asdict, replace

        return asdict(h["cfg"]), asdict(replace(h["cfg"], lr=1))

    assert go(train, hyper_params={"cfg": Cfg()}).values == {0: ({"lr": 0.1}, {"lr": 1}), 1: ({"lr": 0.1}, {"lr": 1})}


# ------------------------------------------------------------ B18


@pytest.mark.parametrize(
    ("make", "use", "words"),
    [
        ("import threading; tracker = {'lock': threading.Lock()}", "print(tracker)", ["tracker", "lock"]),
        ("tracker = open('/dev/null')", "print(tracker)", ["tracker", "TextIOWrapper"]),
        ("import sqlite3; tracker = sqlite3.connect(':memory:')", "print(tracker)", ["tracker", "Connection"]),
        ("tracker = (i for i in range(3))", "print(tracker)", ["tracker", "generator"]),
        ("import threading\nclass T:\n    def __init__(self): self.inner = {'a': [threading.Lock()]}\ntracker = T()", "print(tracker)", ["tracker", ".inner['a'][0]", "lock"]),
        ("import threading\nlock = threading.Lock()\ndef tracker():\n    return lock", "tracker()", ["lock"]),
        ("import threading\ndef make():\n    guard = threading.Lock()\n    return lambda: guard\ntracker = make()", "tracker()", ["tracker", "guard"]),
        ("import socket; tracker = [socket.socket()]", "print(tracker)", ["tracker", "[0]", "socket"]),
        ("import _thread; tracker = _thread.allocate_lock()", "def f():\n    return tracker\nf()", ["tracker", "lock"]),
        ("class Bad:\n    def __reduce__(self): raise RuntimeError('my own reason')\ntracker = Bad()", "tracker", ["tracker", "my own reason"]),
        ("import asyncio\nasync def c(): pass\ntracker = c()", "tracker", ["tracker", "coroutine"]),
        ("tracker = get_ipython()", "tracker", ["tracker"]),
        ("import sys; tracker = sys.modules['__main__']", "tracker", ["tracker", "__main__"]),
        ("import sys; tracker = sys._getframe()", "tracker", ["tracker", "frame"]),
        ("import threading\ntracker = 1\nclass M:\n    lock = threading.Lock()", "M()", ["M", "lock"]),
    ],
)  # fmt: skip
def test_b18_what_can_not_be_pickled_is_named(cell, make, use, words):
    """The error names the variable, where in it the culprit is and its type, before anything starts."""
    assert cell.shell.run_cell(make).success
    cell("--workers 2", use)
    assert isinstance(cell.error, UsageError), cell.text
    for word in words:
        assert word in str(cell.error), str(cell.error)
    assert not cell.folders


@pytest.mark.parametrize("where", ["closure", "global", "hyper_params", "dataset_map", "method", "partial", "default"])
def test_b18_the_api_names_it_too(go, stage, where):
    """Through the API the closure variable, the argument or the attribute is named, and no run folder is made."""
    import functools

    tracker = {"lock": threading.Lock()}

    class Owner:
        def __init__(self):
            self.tracker = tracker

        def train(self):
            return 1

    functions = {
        "closure": lambda: tracker,
        "method": Owner().train,
        "partial": functools.partial(lambda t: 1, tracker),
        "default": lambda config=None, t=tracker: 1,
    }
    if where == "global":
        functions["global"] = eval("lambda: tracker", {"tracker": tracker, "__name__": "__main__"})
    options = {where: {"tracker": tracker}} if where in ("hyper_params", "dataset_map") else {}
    with pytest.raises(CaptureError, match="lock") as caught:
        go(functions.get(where, lambda: 1), **options)
    assert "tracker" in str(caught.value) or where in ("partial", "default")
    assert "captured" in str(caught.value) or "used by the run" in str(caught.value)
    assert not stage.exists()


# ------------------------------------------------------------ B19


def test_b19_a_huge_variable_is_shipped_once(cell, jobs):
    """A 200 MB array used by name is on each rank, packed once and out of band, and the run says its size."""
    import psutil

    assert cell.shell.run_cell("import numpy\nbig = numpy.zeros(200_000_000 // 8)").success
    before = psutil.Process().memory_info().rss
    cell("--workers 2", "print(big.nbytes)\nbig[0] = ctx.get_rank()\nimport torch\nt = torch.from_numpy(big)")
    same_on_both(cell, "200000000")
    payload = jobs[0].packed.payload
    assert len(payload.data) < 100_000 and sum(len(b) for b in payload.buffers) == 200_000_000
    assert "big" in cell.text and "200 MB" in cell.text
    assert psutil.Process().memory_info().rss - before < 400_000_000


def test_b19_shared_and_unused_arrays(cell, jobs):
    """What two variables share travels once and is one object there; what is not used does not travel."""
    assert cell.shell.run_cell(
        "import numpy\nbig = numpy.zeros(1_000_000)\na = {'x': big}\nb = [big, big]\nunused = numpy.ones(5_000_000)"
    ).success
    cell("--workers 2", "print(a['x'] is b[0], b[0] is b[1])")
    same_on_both(cell, "True True")
    assert 8_000_000 <= len(packed_bytes(jobs[0])) < 9_000_000


def test_b19_a_large_value_that_is_no_array(cell):
    """A large text or list works too."""
    assert cell.shell.run_cell("text = 'x' * 50_000_000\nrows = list(range(500_000))").success
    cell("--workers 2", "print(len(text), len(rows))")
    same_on_both(cell, "50000000 500000")


@pytest.mark.parametrize(
    "make",
    ["torch.zeros(10_000_000)", "pandas.DataFrame({'x': numpy.zeros(10_000_000)})", "torch.nn.Linear(3000, 3000)"],
)
def test_b19_tensors_frames_and_models(cell, make):
    """A tensor, a frame and a model of some ten MB arrive whole."""
    assert cell.shell.run_cell(f"import numpy, pandas, torch\nbig = {make}").success
    cell(
        "--workers 2",
        "print(type(big).__name__)\nif hasattr(big, 'parameters'): sum(p.sum() for p in big.parameters()).backward()",
    )
    assert cell.error is None, cell.text


# ------------------------------------------------------------ B20


SECRETS = "import threading\ntoken = 's3cret'\nlock = threading.Lock()\nother = {'t': token}"


@pytest.mark.parametrize(
    "body",
    [
        "print(1)",
        "def f():\n    return 1\nprint(f())",
        "class A:\n    def token(self): return 1\nprint(A().token())",
        "x = dict(token=1)\nprint(1)",
        "token = 1\nprint(token)",
        "def f(token, lock=None):\n    return token\nprint(f(1))",
        "print([token for token in [1]][0])",
        "for token in [1]: print(token)",
        "import types as lock\nprint(1)",
        "with open('/dev/null') as lock: print(1)",
        "try:\n    1/0\nexcept ZeroDivisionError as lock: print(1)",
        "def lock(): return 1\nprint(lock())",
        "f = lambda token: token\nprint(f(1))",
        "def f():\n    token = 1\n    return token\nprint(f())",
        "print(len('token'))\n# token lock",
        "class A:\n    token = 1\n    x = token\nprint(A.x)",
        "token, lock = 1, 2\nprint(token)",
        "import math\nprint(math.floor(1.5))\nmath.token = 1",
        "if True:\n    token = 1\n    print(token)",
        "(token := 1)\nprint(token)",
        "print(1 if (token := 1) else token)",
        "def f():\n    def g():\n        return token\n    token = 1\n    return g()\nprint(f())",
        "match 1:\n    case token: print(token)",
        "token: int = 1\nprint(token)",
        "try:\n    import no_such_module as token\nexcept ImportError:\n    token = None\nprint(token)",
        "if ctx.get_rank():\n    token = 1\nelse:\n    token = 2\nprint(token)",
        "if (token := 1) and token:\n    print(token)",
        "while (token := 1):\n    print(token)\n    break",
        "async def token(): pass\nprint(token.__name__)",
        "from math import pi as token\nprint(token)",
        "try:\n    token = 1\nfinally:\n    pass\nprint(token)",
        "for i in [1]:\n    token = i\n    print(token)",
        "match {'a': 1}:\n    case {'a': 2, **lock}: pass\n    case {'a': token}: print(token)",
    ],
)
def test_b20_only_what_the_body_uses_travels(cell, jobs, body):
    """Other variables of the notebook do not travel, not even those whose names the body binds itself."""
    assert cell.shell.run_cell(SECRETS).success
    cell("--workers 2", body)
    assert cell.error is None, cell.text
    assert b"s3cret" not in packed_bytes(jobs[0])
    for text in cell.new_folders[-1].rglob("*"):
        assert text.is_dir() or b"s3cret" not in text.read_bytes()


def test_b20_a_notebook_function_brings_only_its_own_names(cell, jobs):
    """A function of the notebook brings the names that it reads, and no history and no other name."""
    assert cell.shell.run_cell(SECRETS + "\nscale = 3\ndef f(x):\n    return x * scale", store_history=True).success
    cell(
        "--workers 2",
        "print(f(2), sorted(n for n in globals() if n in ('In', 'Out', 'token', 'lock', '_ih', 'scale')))",
    )
    same_on_both(cell, "6 ['scale']")
    assert b"s3cret" not in packed_bytes(jobs[0])


def test_b20_the_source_of_a_notebook_function_is_there_on_the_rank(cell):
    """``inspect.getsource`` finds a shipped function's own lines, also where the rest of its cell stays behind."""
    assert cell.shell.run_cell(
        "token = 's3cret'\n@(lambda g: g)\ndef f(\n    x,\n):\n    return [\n        x,\n    ]\nafter = 's3cret'",
        store_history=True,
    ).success
    cell("--workers 2", "import inspect\nprint(inspect.getsource(f).strip())")
    same_on_both(cell, "@(lambda g: g)", "def f(", "    x,", "):", "    return [", "        x,", "    ]")


def test_b20_the_function_of_the_api_too(cell):
    """Through the API a function of the notebook brings only what it uses."""
    cell.shell.user_ns["stage"] = str(cell.stage)
    assert cell.shell.run_cell(
        SECRETS + "\nscale = 3\ndef train():\n    return scale, 'token' in globals(), 'lock' in globals()"
    ).success
    assert cell.shell.run_cell(
        "from jupyter_torchdist import *\nr = PyTorchDistributor(train, PyTorchScalingConfig(1, 2)).run(artifact_stage_location=stage, display='none')\nassert r.value == (3, False, False), r.value"
    ).success


# ------------------------------------------------------------ B22


def test_b22_the_return_value(go):
    """The result has rank 0's return value, and those of the others by rank."""
    result = go(lambda: {"score": get_context().get_rank() + 1})
    assert result.value == {"score": 1} and result.values == {0: {"score": 1}, 1: {"score": 2}}


@pytest.mark.parametrize(
    "make",
    ["threading.Lock()", "(i for i in [1])", "open('/dev/null')", "{'a': [threading.Lock()]}", "sys._getframe()"],
)
def test_b22_a_value_that_can_not_be_pickled(go, make):
    """Metrics and files are kept, and asking for the value says that the return value is at fault."""

    def train():
        import sys
        import threading

        ctx = get_context()
        ctx.get_metrics_reporter().log_metrics({"x": 1})
        Path(ctx.get_model_dir(), "f").write_text("kept")
        return eval(make, {"threading": threading, "sys": sys})

    result = go(train)
    assert result.last() == {"x": 1} and (result.get_model_dir() / "f").read_text() == "kept"
    with pytest.raises(ResultError, match="return value"):
        _ = result.value
    repr(result)


@pytest.mark.parametrize(
    "make",
    ["None", "0", "''", "[]", "b'x' * 3_000_000", "torch.ones(3)", "np.arange(3)", "pd.DataFrame({'a': [1]})", "torch.nn.Linear(2, 2)", "lambda: 5", "type('T', (), {})", "float('nan')", "[torch.ones(2)] * 2"],
)  # fmt: skip
def test_b22_values_of_every_kind_come_back(go, make):
    """Falsy, large, array, tensor, model and function values come back."""

    def train():
        import numpy as np
        import pandas as pd
        import torch

        return eval(make, {"np": np, "pd": pd, "torch": torch})

    result = go(train, ONE)
    import numpy as np
    import pandas as pd
    import torch

    expected = eval(make, {"np": np, "pd": pd, "torch": torch})
    assert type(result.value) is type(expected)
    if isinstance(expected, (int, str, bytes)):
        assert result.value == expected


def test_b22_a_value_of_one_rank_only(go):
    """Where rank 1 returns what can not be pickled, rank 0's value is there."""
    result = go(lambda: 5 if get_context().get_rank() == 0 else (i for i in [1]))
    assert result.value == 5
    with pytest.raises(ResultError, match="rank 1"):
        _ = result.values


def test_b22_an_exception_object_as_value(go):
    """An exception that is returned, not raised, is a value."""
    result = go(lambda: ValueError("x"))
    assert isinstance(result.value, ValueError) and result.state == "finished"


# ------------------------------------------------------------ B23


@pytest.mark.parametrize("flags", ["--workers 2", "--nodes 2"])
@pytest.mark.parametrize("moved", [False, True], ids=["at home", "after chdir"])
def test_b23_a_module_beside_the_notebook(notebook, flags, moved, tmp_path, monkeypatch):
    """A module and a package next to the notebook are importable on every rank, whatever ``os.chdir`` did."""
    name = f"helper_b23_{len(flags)}{moved}"
    (notebook.folder / f"{name}.py").write_text("def f(): return 7\n")
    (notebook.folder / f"pkg_{name}").mkdir()
    (notebook.folder / f"pkg_{name}" / "sub.py").write_text("from .other import g\ndef f(): return g()\n")
    (notebook.folder / f"pkg_{name}" / "other.py").write_text("def g(): return 8\n")
    if moved:
        (tmp_path / "elsewhere").mkdir()
        notebook.shell.run_cell(f"import os; os.chdir({str(tmp_path / 'elsewhere')!r})")
    notebook(flags, f"from {name} import f\nimport pkg_{name}.sub\nprint(f(), pkg_{name}.sub.f())")
    same_on_both(notebook, "7 8")


def test_b23_a_module_that_the_notebook_imported(notebook, monkeypatch):
    """Functions and classes of a local module travel by name, and the newest text of the file is used."""
    monkeypatch.syspath_prepend(str(notebook.folder))
    (notebook.folder / "local_b23.py").write_text("scale = 1\ndef f(): return scale\nclass A:\n    x = 1\n")
    assert notebook.shell.run_cell("import local_b23\nfrom local_b23 import f, A\na = A()").success
    notebook("--workers 2", "print(f(), local_b23.scale, type(a) is A, A.__module__)")
    same_on_both(notebook, "1 1 True local_b23")
    (notebook.folder / "local_b23.py").write_text("scale = 22\ndef f(): return scale\nclass A:\n    x = 1\n")
    notebook("--workers 2", "import local_b23\nprint(local_b23.scale)")
    same_on_both(notebook, "22")


def test_b23_a_path_that_the_notebook_added(notebook, tmp_path):
    """What the notebook put into ``sys.path`` is there on the ranks, relative entries too."""
    (tmp_path / "work" / "lib").mkdir()
    (tmp_path / "work" / "lib" / "inlib_b23.py").write_text("x = 9\n")
    try:
        notebook.shell.run_cell("import sys; sys.path.insert(0, 'lib')")
        notebook("--workers 2", "import inlib_b23\nprint(inlib_b23.x)")
        same_on_both(notebook, "9")
    finally:
        sys.path.remove("lib")


# ------------------------------------------------------------ B25


def test_b25_a_big_notebook_folder_is_not_uploaded(notebook, jobs):
    """A 600 MB file, a .git folder and an old stage beside the notebook cost nothing: only what is used is shipped."""
    with (notebook.folder / "data.bin").open("wb") as file:
        file.truncate(600_000_000)
    (notebook.folder / ".git").mkdir()
    (notebook.folder / ".git" / "objects").write_bytes(b"x" * 1000)
    (notebook.folder / "stage" / "20260101-000000-abcdef" / "model").mkdir(parents=True)
    notebook.shell.run_cell("used = [1, 2]")
    notebook("--workers 2", "print(len(used))")
    same_on_both(notebook, "2")
    assert len(packed_bytes(jobs[0])) < 100_000
    record = json.loads((notebook.new_folders[-1] / "run.json").read_text())
    assert [c["name"] for c in record["captured"]] == ["used"] and record["captured"][0]["size"] < 1000


# ------------------------------------------------------------ B26


def test_b26_variables_set_in_the_notebook(cell, monkeypatch):
    """What the notebook set in ``os.environ`` reaches the ranks, as it is at each run; a rank's own never leak."""
    for name in ("FOO_B26", "RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "9")
        monkeypatch.delenv(name)
    body = "import os\nprint(os.environ.get('FOO_B26'), os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'] != '9', os.environ['LOCAL_RANK'] == os.environ['RANK'] == str(ctx.get_rank()), os.environ.get('CUDA_VISIBLE_DEVICES'))"
    cell.shell.run_cell(
        "import os\nfor n in ('RANK', 'MASTER_ADDR', 'CUDA_VISIBLE_DEVICES', 'WORLD_SIZE', 'LOCAL_RANK'): os.environ[n] = '9'\nos.environ['FOO_B26'] = '1'"
    )
    cell("--workers 2", body)
    same_on_both(cell, "1 2 True True ")
    cell.shell.run_cell("os.environ['FOO_B26'] = 'two words = ü'")
    cell("--workers 2", body)
    same_on_both(cell, "two words = ü 2 True True ")
    cell.shell.run_cell("del os.environ['FOO_B26']")
    cell("--workers 2", body)
    same_on_both(cell, "None 2 True True ")


def test_b26_named_variables_win(cell, go, monkeypatch):
    """``--env`` and ``env=`` go over the notebook's own, and reach that run only."""
    monkeypatch.setenv("FOO_B26", "notebook")
    show = "import os\nprint(os.environ.get('FOO_B26'))"
    cell("--workers 2 --env FOO_B26=named", show)
    same_on_both(cell, "named")
    cell("--workers 2 --env FOO_B26=", show)
    same_on_both(cell, "")
    cell("--workers 2", show)
    same_on_both(cell, "notebook")
    assert go(lambda: os.environ["FOO_B26"], env={"FOO_B26": "api"}).values == {0: "api", 1: "api"}


@pytest.mark.parametrize("name", ["RANK", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID", "WORLD_SIZE"])
def test_b26_a_ranks_own_variables_can_not_be_named(cell, name):
    """Naming a variable of the launcher is refused before anything starts."""
    cell(f"--workers 2 --env {name}=9", "print(1)")
    assert isinstance(cell.error, UsageError) and name in str(cell.error) and not cell.folders


def test_b26_a_change_on_a_rank_does_not_reach_the_next_run(cell):
    """What a body sets in ``os.environ`` ends with its rank."""
    cell("--workers 2", "import os\nos.environ['FOO_B26_RANK'] = 'x'")
    cell("--workers 2", "import os\nprint(os.environ.get('FOO_B26_RANK'))")
    same_on_both(cell, "None")
    assert "FOO_B26_RANK" not in os.environ


# ------------------------------------------------------------ B27


@pytest.mark.parametrize(("mine", "changed"), [({"python": "3.10.1"}, "3.10.1"), ({"python": "3.99.0"}, "3.99.0")])
def test_b27_other_python_versions_are_refused_before_shipping(go, monkeypatch, tmp_path, stage, mine, changed):
    """Where the driver's Python is another one than the node's, the error has both and nothing is unpickled."""
    from jupyter_torchdist.driver import host

    real = host.versions
    monkeypatch.setattr(host, "versions", lambda: {**real(), **mine})
    mark = tmp_path / "unpickled"

    class Marks:
        def __getstate__(self):
            return {"path": str(mark)}

        def __setstate__(self, state):
            open(state["path"], "w").close()

    with pytest.raises(ClusterError) as caught:
        go(lambda: 1, hyper_params={"m": Marks()})
    assert changed in str(caught.value) and sys.version.split()[0] in str(caught.value)
    assert not mark.exists()


def test_b27_another_torch_is_told(cell, monkeypatch):
    """Another torch on the node is told with both versions, by an error or by a line of the run."""
    from importlib.metadata import version

    from jupyter_torchdist.driver import host

    real = host.versions
    monkeypatch.setattr(host, "versions", lambda: {**real(), "torch": "1.2.3"})
    cell("--workers 2", "print(1)")
    shown = cell.text + "".join((f / "run.json").read_text() for f in cell.new_folders)
    assert "1.2.3" in shown and version("torch") in shown


def test_b27_the_same_minor_version_is_fine(go, monkeypatch):
    """Another patch release of the same Python runs."""
    from jupyter_torchdist.driver import host

    real = host.versions
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}.99"
    monkeypatch.setattr(host, "versions", lambda: {**real(), "python": minor})
    assert go(lambda: 5).value == 5


# ------------------------------------------------------------ B28


B28 = """\
from IPython.terminal.interactiveshell import TerminalInteractiveShell
shell = TerminalInteractiveShell.instance(colors="nocolor")
shell.run_line_magic("load_ext", "jupyter_torchdist")
done = shell.run_cell('''%%torchdist --workers 2 --stage out --out result --name größe
import os
open(ctx.get_model_dir() + f"/ä {ctx.get_rank()}.txt", "w").close()
open(os.path.join(os.getcwd(), "gelesen-模.txt"), "a").close()
print('ok')
''')
assert done.success
result = shell.user_ns["result"]
print(ascii((result.logs(0), result.logs(1), str(result.get_model_dir()), sorted(p.name for p in result.get_model_dir().iterdir()))))
"""


@pytest.mark.parametrize("env", [{}, {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "LANG": ""}], ids=["utf-8", "C", "POSIX"])
def test_b28_blanks_and_other_letters_in_paths(tmp_path, env):
    """A folder with blanks and Chinese letters works, whatever the locale is, and the files are below it."""
    folder = tmp_path / "My Work" / "模型"
    folder.mkdir(parents=True)
    done = script(B28, folder, **env)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    shown = done.stdout.decode().splitlines()[-1]
    first, second, place, names = eval(shown)
    assert first == second == "ok\n" and names == ["ä 0.txt", "ä 1.txt"]
    encoded = os.fsencode(place) if "模型" in place else place.encode("utf-8", "surrogateescape")
    assert encoded.startswith(os.fsencode(str(folder / "out")))


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "模型",
        "it's",
        'q"uote',
        "dollar$HOME",
        "semi;colon",
        "per%cent",
        "#hash",
        "new\nline",
        "[1]",
        "~tilde",
        "-dash",
        "a=b",
        "back\\slash",
    ],
)
def test_b28_stages_and_folders_with_odd_names(go, tmp_path, monkeypatch, name):
    """Stages and working folders with any legal name work."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)

    def train():
        Path(get_context().get_model_dir(), "f").touch()
        return os.getcwd()

    result = PyTorchDistributor(train, TWO).run(artifact_stage_location=str(folder / "stage"), display="none")
    assert result.values == {0: str(folder), 1: str(folder)}
    assert result.get_model_dir().is_relative_to(folder / "stage") and (result.get_model_dir() / "f").exists()


# ------------------------------------------------------------ B30


def test_b30_an_object_store_that_is_too_small(tmp_path):
    """A 300 MB table with a 100 MB object store: the run succeeds, or the error has the name and both sizes."""
    done = script(
        """
        import numpy as np, pandas as pd
        from jupyter_torchdist import PyTorchDistributor, PyTorchScalingConfig, get_context
        table = pd.DataFrame({"x": np.zeros(300_000_000 // 8)})
        def train():
            return len(get_context().get_dataset_map()["train"])
        try:
            result = PyTorchDistributor(train, PyTorchScalingConfig(1, 2)).run(
                dataset_map={"train": table}, artifact_stage_location="stage", display="none")
            print("values", result.values)
        except RuntimeError as exc:
            print("error", type(exc).__name__, exc)
        small = PyTorchDistributor(lambda: 1, PyTorchScalingConfig(1, 2)).run(artifact_stage_location="stage", display="none")
        print("small", small.values)
        """,
        tmp_path,
        TORCHDIST_OBJECT_STORE_BYTES="100000000",
    )
    text = done.stdout.decode()
    assert done.returncode == 0, (text, done.stderr[-3000:])
    if "values {0: 37500000, 1: 37500000}" not in text:
        assert "error" in text and "train" in text and "300" in text and "100" in text, text
    assert "small {0: 1, 1: 1}" in text


# ------------------------------------------------------------ C01


@pytest.mark.parametrize("call", ["parse_args()", "parse_known_args()[0]"])
def test_c01_argparse_in_the_body(cell, call):
    """``sys.argv`` has one element on a rank, so the defaults apply."""
    cell(
        "--workers 2",
        f"import argparse, sys\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\nprint(len(sys.argv), p.{call}.lr)",
    )
    same_on_both(cell, "1 0.1")


def test_c01_a_real_mistake(cell):
    """A wrong option shows argparse's own text and exit code 2 at the cell's line."""
    cell("--workers 2", "import argparse\np = argparse.ArgumentParser()\n\np.parse_args(['--nope'])")
    assert isinstance(cell.error, WorkerError) and cell.error.exitcode == 2
    assert "unrecognized arguments: --nope" in cell.text and "usage:" in cell.text
    assert "cell, line 4, in <module>" in cell.text and "code 2" in cell.text


@pytest.mark.parametrize(
    ("body", "code"),
    [("import sys; sys.exit(0)", 0), ("import sys; sys.exit()", 0), ("raise SystemExit", 0), ("exit()", 0), ("quit()", 0), ("import sys; sys.exit(3)", 3), ("import sys; sys.exit('bad end')", 1), ("import sys; sys.exit(True)", 1)],
)  # fmt: skip
def test_c01_exits(cell, body, code):
    """An exit with 0 is a good end; any other is a failure with its code."""
    cell("--workers 2", body)
    if code:
        assert isinstance(cell.error, WorkerError) and cell.error.exitcode == code
        assert "bad end" not in body or "bad end" in cell.text
    else:
        assert cell.error is None, cell.text


def test_c01_the_api_has_one_argument_too(go):
    """A train function of the API sees one element too, and what it puts there stays its own."""

    def train():
        import sys

        seen = list(sys.argv)
        sys.argv.append("--x")
        return len(seen)

    assert go(train).values == {0: 1, 1: 1} and go(train).values == {0: 1, 1: 1}


# ------------------------------------------------------------ C05


@pytest.mark.parametrize("flags", ["--workers 2", "--nodes 2"])
def test_c05_relative_reads(notebook, flags):
    """Every rank works in the kernel's current folder, and nothing of the product is written there."""
    (notebook.folder / "data").mkdir()
    (notebook.folder / "data" / "x.csv").write_text("a,b")
    (notebook.folder / "sub").mkdir()
    notebook(flags, "import os\nprint(open('data/x.csv').read(), os.getcwd())")
    same_on_both(notebook, f"a,b {notebook.folder}")
    notebook.shell.run_cell("%cd -q sub")
    notebook(flags, "import os\nprint(open('../data/x.csv').read(), os.getcwd())")
    same_on_both(notebook, f"a,b {notebook.folder / 'sub'}")
    assert sorted(p.relative_to(notebook.folder).as_posix() for p in notebook.folder.rglob("*")) == [
        "data",
        "data/x.csv",
        "sub",
    ]


def test_c05_a_missing_file_says_where_the_rank_stands(notebook):
    """A missing file is Python's own error at the cell's line, naming the file."""
    notebook("--workers 2", "open('no/such.csv')")
    assert isinstance(notebook.error, WorkerError)
    assert "no/such.csv" in notebook.text and "line 1" in notebook.text


def test_c05_a_removed_folder(notebook, tmp_path):
    """A kernel whose folder was removed gets an error that says so, and nothing starts."""
    (tmp_path / "gone").mkdir()
    notebook.shell.run_cell(f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir({str(tmp_path / 'gone')!r})")
    notebook("--workers 2", "print(1)")
    os.chdir(tmp_path)
    assert notebook.error is not None
    assert "folder" in notebook.text or "directory" in notebook.text


# ------------------------------------------------------------ C06


C06 = """\
import hashlib, marshal
def prep(x): return x + 1
print(hashlib.sha1(marshal.dumps(prep.__code__)).hexdigest())
"""


def test_c06_the_identity_of_code_is_the_same_in_every_run(cell):
    """A function of the same body has one digest on all ranks, in the next run and with another world."""
    digests = set()
    for flags in ("--workers 2", "--workers 2", "--nodes 2 --workers 1"):
        cell(flags, C06)
        assert cell.error is None, cell.text
        digests |= set(cell.logs.values())
    assert len(digests) == 1


def test_c06_a_return_or_a_shell_line_keeps_the_identity(cell):
    """The digest does not change between runs of a body with a return or with a shell line either."""
    for more in ("return 1", "!true", "await __import__('asyncio').sleep(0)"):
        digests = set()
        for _ in range(2):
            cell("--workers 2", C06 + more)
            assert cell.error is None, cell.text
            digests |= set(cell.logs.values())
        assert len(digests) == 1


def test_c06_an_edited_cell_shows_its_new_text(cell):
    """After editing a line the traceback shows the new text at the new line."""
    cell("--workers 2", "def prep(x):\n    return x + undefined_1\nprep(1)")
    assert "return x + undefined_1" in cell.text
    cell("--workers 2", "# another line\ndef prep(x):\n    return x + undefined_2\nprep(1)")
    assert "return x + undefined_2" in cell.text and "undefined_1" not in cell.text and "line 3, in prep" in cell.text


def test_c06_functions_of_the_notebook_keep_their_identity(cell):
    """A function of another notebook cell has the notebook's own code identity on the rank, in every run."""
    cell.shell.run_cell("def prep(x): return x + 1")
    seen = set()
    for _ in range(2):
        cell("--workers 2", "import hashlib, marshal\nprint(hashlib.sha1(marshal.dumps(prep.__code__)).hexdigest())")
        assert cell.error is None, cell.text
        seen |= set(cell.logs.values())
    assert len(seen) == 1


# ------------------------------------------------------------ C08


THREADS = "import os, torch\nprint(torch.get_num_threads(), os.environ.get('OMP_NUM_THREADS'))"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("--cpus 2", "2 2"), ("--cpus 0.5", "1 1"), ("--cpus 1", "1 1"), ("", "1 1"), ("--cpus 1.5", "1 1")],
)
def test_c08_threads_are_the_cpus_that_a_rank_asked_for(cell, flags, expected):
    """Intra-op threads are the rank's CPUs, at least 1."""
    cell("--workers 2 " + flags, THREADS)
    same_on_both(cell, expected)


def test_c08_no_cpus_is_a_valid_number_of_threads(go):
    """``num_cpus=0`` gives a valid number of threads, and libgomp has nothing to say."""

    def train():
        import torch

        torch.ones(300, 300) @ torch.ones(300, 300)
        return torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"])

    result = go(train, PyTorchScalingConfig(1, 2, WorkerResourceConfig(num_cpus=0)))
    assert all(a >= 1 and a == b for a, b in result.values.values())
    assert result.logs(0) == ""


@pytest.mark.parametrize("place", ["cell", "api", "notebook"])
def test_c08_named_values_are_there_before_torch(cell, go, place, monkeypatch):
    """A value that the user names is in place before torch is loaded, also with a captured torch object."""
    import torch

    weights = torch.ones(3)
    env = {"OMP_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "false"}

    def train():
        import threadpoolctl
        import torch

        pools = [p["num_threads"] for p in threadpoolctl.threadpool_info() if p["user_api"] == "openmp"]
        return (
            torch.get_num_threads(),
            os.environ["OMP_NUM_THREADS"],
            os.environ["TOKENIZERS_PARALLELISM"],
            weights.sum().item(),
            set(pools) <= {3},
        )

    expected = (3, "3", "false", 3.0, True)
    if place == "api":
        assert go(train, env=env).values == {0: expected, 1: expected}
        return
    if place == "notebook":
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        flags = ""
    else:
        flags = " ".join(f"--env {k}={v}" for k, v in env.items())
    cell.shell.user_ns["w"] = weights
    cell(f"--workers 2 {flags}", THREADS + "\nprint(os.environ['TOKENIZERS_PARALLELISM'], w.sum().item())")
    same_on_both(cell, "3 3", "false 3.0")


@pytest.mark.parametrize("value", ["0", "x", "-1", "", "4,2"])
def test_c08_a_bad_number_of_threads_is_not_fatal(cell, value):
    """A wrong ``OMP_NUM_THREADS`` does not end the run, and torch has at least one thread."""
    cell(
        f"--workers 2 --env 'OMP_NUM_THREADS={value}'",
        "import torch\nassert torch.get_num_threads() >= 1\ntorch.ones(300, 300) @ torch.ones(300, 300)\nprint('ok')",
    )
    assert cell.error is None, cell.text
    assert cell.logs[0].endswith("ok\n")


C08C = """\
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import torch
print(torch.zeros(1, device=ctx.get_device()).device)
"""


def test_c08_cuda_visible_devices_in_the_body_of_a_cpu_rank(cell, monkeypatch):
    """Setting the variable in the body fails nothing on a CPU rank, also where the kernel has a GPU's UUID in it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f1e3a44-0000-0000-0000-000000000000")
    cell("--workers 2", C08C)
    same_on_both(cell, "cpu")


@pytest.mark.gpu
def test_c08_cuda_visible_devices_in_the_body_of_a_gpu_rank(cell):
    """Setting the variable in the body leaves a GPU rank its device."""
    cell("--workers 1 --gpus 1", C08C)
    assert cell.error is None, cell.text
    assert cell.logs[0].splitlines()[-1] == "cuda:0"


# ------------------------------------------------------------ C09


C09 = """\
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.savefig(ctx.get_model_dir() + "/f-%d.png" % ctx.get_rank()); plt.show()
print(plt.get_backend())
"""


def pngs(result):
    files = sorted(result.get_model_dir().glob("f-*.png"))
    assert all(f.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for f in files)
    return [f.name for f in files]


@pytest.mark.parametrize(
    "more",
    [
        "",
        "DISPLAY=:99",
        "MPLBACKEND=module://matplotlib_inline.backend_inline",
        "MPLBACKEND=module://no.such.backend",
        "MPLBACKEND=TkAgg",
    ],
)
def test_c09_matplotlib_draws_with_agg(cell, monkeypatch, more):
    """Ranks draw with Agg whatever the kernel's backend and display are, and ``show`` returns without noise."""
    if more:
        name, _, value = more.partition("=")
        monkeypatch.setenv(name, value)
    cell("--workers 2", C09)
    assert cell.error is None, cell.text
    for text in cell.logs.values():
        assert text.splitlines()[-1].lower() == "agg" and "Figure(" not in text
    assert pngs(cell.result) == ["f-0.png", "f-1.png"]


def test_c09_a_backend_that_the_user_names(cell):
    """A backend named for the run is used."""
    cell("--workers 2 --env MPLBACKEND=svg", "import matplotlib.pyplot as plt\nprint(plt.get_backend())")
    same_on_both(cell, "svg")


def test_c09_savefig_from_a_thread_and_a_figure_from_the_notebook(cell):
    """A figure is saved from a thread, and a captured figure of the notebook works."""
    cell.shell.run_cell(
        "import matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots()"
    )
    cell(
        "--workers 2",
        "import threading\nt = threading.Thread(target=lambda: fig.savefig(ctx.get_model_dir() + '/f-%d.png' % ctx.get_rank()))\nt.start(); t.join()\nprint(plt.get_backend().lower())",
    )
    same_on_both(cell, "agg")
    assert pngs(cell.result) == ["f-0.png", "f-1.png"]


def test_c09_a_kernel_with_inline_plots(tmp_path):
    """In a real kernel with ``%matplotlib inline`` ranks draw with Agg, and the kernel's backend stays."""
    import nbformat
    from nbclient import NotebookClient

    cells = [
        "%load_ext jupyter_torchdist\n%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);",
        "%%torchdist --workers 2 --out result\n" + C09,
        "print(plt.get_backend())\nprint(ascii((result.logs(0), result.logs(1), [f.name for f in result.get_model_dir().iterdir()])))\nplt.plot([1]);",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = notebook.cells[2].outputs
    text = "".join(o.get("text", "") for o in outputs)
    backend, logs = text.splitlines()[:2]
    assert "inline" in backend
    first, second, names = eval(logs)
    assert first.splitlines()[-1].lower() == second.splitlines()[-1].lower() == "agg" and "Figure(" not in first
    assert sorted(names) == ["f-0.png", "f-1.png"]
    assert any("image/png" in o.get("data", {}) for o in outputs)


# ------------------------------------------------------------ C13


# accelerate says cpu:0 where torch says cpu: the device is the one where a tensor is
C13 = """\
import torch
from accelerate import Accelerator
a = Accelerator()
print(a.num_processes, a.process_index, torch.zeros(1, device=a.device).device)
"""


@pytest.mark.parametrize("world", [2, 2, 3])
def test_c13_accelerate_has_the_world_of_the_run(cell, world):
    """``Accelerator()`` has the run's world size, rank and device on CPU ranks."""
    cell(
        f"--workers {world} --cpus 0.5",
        C13 + "assert torch.zeros(1, device=a.device).device == torch.zeros(1, device=ctx.get_device()).device",
    )
    assert cell.error is None, cell.text
    assert {rank: text.splitlines()[-1] for rank, text in cell.logs.items()} == {
        rank: f"{world} {rank} cpu" for rank in range(world)
    }


def test_c13_accelerate_trains_one_model(cell):
    """Under ``Accelerator`` gradients are averaged over the ranks, gathering works, and no process is started."""
    cell("--workers 2", C13 + """\
import psutil, torch
before = psutil.Process().children(recursive=True)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer = a.prepare(model, optimizer)
a.backward(model(torch.full((1, 1), float(a.process_index))).sum())
optimizer.step()
weight = a.unwrap_model(model).weight.item()
assert psutil.Process().children(recursive=True) == before
a.wait_for_everyone()
print(weight, a.gather(torch.tensor([float(a.process_index)])).tolist())
a.end_training()
""")  # fmt: skip
    assert cell.error is None, cell.text
    assert {text.splitlines()[-1] for text in cell.logs.values()} == {"0.5 [0.0, 1.0]"}


@pytest.mark.parametrize(
    "make", ["Accelerator(cpu=True)", "PartialState()", "PartialState(cpu=True)", "PartialState(cpu=False)"]
)
def test_c13_other_ways_to_ask(cell, make):
    """The other ways to ask accelerate have the run's world too."""
    cell(
        "--workers 2",
        f"from accelerate import Accelerator, PartialState\na = {make}\nprint(a.num_processes, a.process_index, a.device.type)",
    )
    assert cell.error is None, cell.text
    assert [text.splitlines()[-1] for _, text in sorted(cell.logs.items())] == ["2 0 cpu", "2 1 cpu"]


@pytest.mark.parametrize("flags", ["--workers 1", "--nodes 2", "--nodes 2 --no-process-group"])
def test_c13_other_worlds(cell, flags):
    """One rank, two nodes, and a group that is left to accelerate have the run's world."""
    cell(flags, C13)
    assert cell.error is None, cell.text
    world = len(cell.logs)
    assert [text.splitlines()[-1] for _, text in sorted(cell.logs.items())] == [
        f"{world} {r} cpu" for r in range(world)
    ]


@pytest.mark.gpu
def test_c13_accelerate_on_a_gpu(cell):
    """``Accelerator()`` has the rank's GPU."""
    cell(
        "--workers 1 --gpus 1",
        C13 + "assert torch.zeros(1, device=a.device).device == torch.zeros(1, device=ctx.get_device()).device",
    )
    assert cell.error is None, cell.text
    assert re.search(r"1 0 cuda(:0)?$", cell.logs[0].strip())


def test_c13_lightning(cell):
    """Lightning with a matching world starts no process."""
    cell("--workers 2", """\
import lightning, psutil, torch
class M(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(1, 1)
    def training_step(self, batch): return self.l(batch[0]).sum()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 1)))
before = psutil.Process().children(recursive=True)
lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=1, logger=False, enable_checkpointing=False).fit(M(), data)
assert psutil.Process().children(recursive=True) == before
""")  # fmt: skip
    assert cell.error is None, cell.text


def test_c13_the_trainer_of_transformers(cell):
    """The HF Trainer trains one model in the run's group and starts no process."""
    cell("--workers 2", """\
import os, torch
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import Trainer, TrainingArguments
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(1, 1)
    def forward(self, x, labels=None):
        y = self.l(x)
        return {"loss": (y - labels).pow(2).mean(), "logits": y}
torch.manual_seed(ctx.get_rank())
model = M()
data = [{"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])} for i in range(8)]
arguments = TrainingArguments(ctx.get_model_dir() + "/t", max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
print(trainer.args.world_size, trainer.args.process_index, round(model.l.weight.item(), 6))
""")  # fmt: skip
    assert cell.error is None, cell.text
    last = [cell.logs[rank].strip().splitlines()[-1].split() for rank in (0, 1)]
    assert [(world, rank) for world, rank, _ in last] == [("2", "0"), ("2", "1")]
    assert last[0][2] == last[1][2], "both ranks hold the same model"


def test_wrong_data_for_the_ranks_is_refused(go):
    """A ``dataset_map`` that is no dict of names is refused before anything starts."""
    for bad in ([1], "train", {1: 2}):
        with pytest.raises(ConfigError, match="dataset_map"):
            go(lambda: 1, dataset_map=bad)
