"""Kind 3: how failures of ranks are told."""

from __future__ import annotations

import re
import threading

import pytest

from jupyter_torchdist import get_context
from jupyter_torchdist.errors import WorkerError


def failed(cell, flags, body):
    """The error of a cell that must fail as a rank's failure."""
    cell(flags, body)
    assert isinstance(cell.error, WorkerError), cell.text
    return cell.error


@pytest.mark.parametrize(
    "body",
    [
        "class E(Exception):\n    def __init__(self, code, msg):\n        super().__init__(msg); self.code = code\n"
        "raise E(7, 'bad shard')",
        "class E(Exception):\n    def __init__(self):\n        super().__init__('bad shard')\nraise E()",
        "class E(Exception):\n    def __init__(self, *, msg):\n        super().__init__(msg)\nraise E(msg='bad shard')",
        "class E(Exception):\n    def __reduce__(self): raise TypeError('never')\nraise E('bad shard')",
        "class E(Exception):\n    lock = __import__('threading').Lock()\n    def __str__(self): return 'bad shard'\n"
        "e = E(); e.lock = E.lock\nraise e",
    ],
)
def test_b31_an_exception_that_can_not_be_rebuilt_is_shown_as_it_was(cell, body):
    error = failed(cell, "--workers 2", body)
    assert "E: bad shard" in str(error)
    assert body.splitlines()[-1] in str(error)
    assert error.failures[0].error.type == "E"


def test_b31_an_exception_whose_text_fails_is_still_an_exception(cell):
    body = "class E(Exception):\n    def __str__(self): raise OSError('no text')\nraise E('bad shard')"
    error = failed(cell, "--workers 1", body)
    assert error.failures[0].error.type == "E" and "raise E('bad shard')" in str(error)


def test_b33_the_root_cause_on_another_rank_comes_first(cell):
    body = "import torch\nif ctx.get_rank() == 1: raise ValueError('rank1 broke')\ntorch.distributed.barrier()"
    error = failed(cell, "--workers 3", body)
    assert error.rank == 1 and str(error).splitlines()[0].startswith("ValueError: rank1 broke on rank 1")
    assert all(f.consequence for f in error.failures if f.rank != 1)
    assert set(cell.logs) == {0, 1, 2}


def test_b34_the_others_are_stopped_while_they_wait_in_a_collective(cell):
    body = """
import torch
if ctx.get_rank() == 1:
    raise ValueError("rank1 broke")
while True:
    torch.distributed.all_reduce(torch.ones(1))
"""
    error = failed(cell, "--workers 3", body)
    assert error.rank == 1 and "rank1 broke" in str(error)


@pytest.mark.parametrize(
    ("body", "code"), [("import sys; print('bye'); sys.exit(3)", 3), ("import os; print('bye'); os._exit(5)", 5)]
)
def test_b36_an_exit_code_is_told(cell, body, code):
    error = failed(cell, "--workers 2", body)
    assert error.exitcode == code and f"exited with code {code}" in str(error)
    assert cell.logs == {0: "bye\n", 1: "bye\n"}


@pytest.mark.parametrize("body", ["import sys; print('bye'); sys.exit(0)", "print('bye'); raise SystemExit"])
def test_b36_an_exit_with_zero_is_success(cell, body):
    cell("--workers 2", body)
    assert cell.error is None, cell.text
    assert cell.logs == {0: "bye\n", 1: "bye\n"}


def test_b37_a_killed_rank_is_named_with_its_signal_and_memory(cell):
    body = """
import os, signal, torch
print("the last line", flush=True)
if ctx.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
torch.distributed.barrier()
"""
    error = failed(cell, "--workers 2", body)
    assert (error.rank, error.signal, error.exitcode) == (1, "SIGKILL", None)
    assert "killed by SIGKILL on rank 1" in str(error)
    assert "memory" in str(error) and re.search(r"\d+ MB", str(error)), "what it used, since memory is the usual cause"
    assert "the last line" in str(error)
    assert len(cell.new_folders) == 1, "it is not tried again in silence"


def test_b37_a_crash_in_native_code_is_told_with_its_place(cell):
    error = failed(
        cell,
        "--workers 2",
        "import ctypes\nif ctx.get_rank() == 1:\n    ctypes.string_at(0)\nimport time\ntime.sleep(60)",
    )
    assert (error.rank, error.signal) == (1, "SIGSEGV")
    assert "line 3" in str(error), "faulthandler's frames are in the last output"


def test_b39_equal_errors_are_one_traceback_with_all_ranks(cell):
    error = failed(cell, "--workers 8", "raise KeyError('k')")
    assert str(error).count("raise KeyError('k')") == 1
    assert "on ranks 0, 1, 2, 3, 4, 5, 6, 7" in str(error)


def test_b40_outside_of_a_run_the_context_says_how_to_get_one():
    with pytest.raises(RuntimeError, match="PyTorchDistributor"):
        get_context().get_rank()
    found = []

    def ask():
        try:
            get_context()
        except RuntimeError as exc:
            found.append(exc)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "PyTorchDistributor" in str(found[0])


def test_b40_a_thread_and_a_forked_child_of_a_rank_have_its_context(cell):
    body = """
import threading, os
from concurrent.futures import ThreadPoolExecutor
from jupyter_torchdist import get_context
found = []
thread = threading.Thread(target=lambda: found.append(get_context().get_rank()))
thread.start(); thread.join()
with ThreadPoolExecutor(1) as pool:
    found.append(pool.submit(lambda: get_context().get_rank()).result())
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, str(get_context().get_rank()).encode()); os._exit(0)
found.append(int(os.read(read, 9)))
found
"""
    result = cell("--workers 2", body)
    assert result is not None, cell.text
    assert result.values == {0: [0, 0, 0], 1: [1, 1, 1]}


def test_c12_errors_that_differ_in_the_ranks_number_are_one(cell):
    body = """
import torch
from torch import nn
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    def forward(self, x):
        return self.layers[ctx.get_rank() % 2](x)
model = nn.parallel.DistributedDataParallel(M())
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
"""
    error = failed(cell, "--workers 4", body)
    text = str(error)
    assert text.count("Expected to have finished reduction") == 2, "once in the title, once in the text"
    assert "on ranks 0, 1, 2, 3" in text
    assert "model(torch.ones(1, 2)).sum().backward()" in text
    assert "iteration" in text and text.rstrip().splitlines()[-1].strip()


def test_c12_numbers_and_addresses_do_not_split_a_group(cell):
    body = "import os\nraise ValueError(f'bad shard on rank {ctx.get_rank()} pid {os.getpid()} at {hex(id(object()))}')"
    error = failed(cell, "--workers 4", body)
    assert str(error).count("raise ValueError") == 1 and "on ranks 0, 1, 2, 3" in str(error)


def test_c15_a_loader_child_that_dies_of_sigbus_is_told_with_the_shared_memory(cell):
    body = """
import os, signal
from torch.utils.data import DataLoader, Dataset
class D(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): os.kill(os.getpid(), signal.SIGBUS)
for batch in DataLoader(D(), num_workers=1):
    pass
"""
    text = str(failed(cell, "--workers 2", body)).lower()
    assert "bus error" in text and "shared memory" in text
    assert "rank" in text and re.search(r"\d+ mb", text)


def test_c15_exhausted_file_descriptors_are_told_as_such(cell):
    body = """
import resource, torch
from torch.utils.data import DataLoader, TensorDataset
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept = [batch for batch in DataLoader(TensorDataset(torch.zeros(400, 4)), batch_size=1, num_workers=1)]
"""
    text = str(failed(cell, "--workers 1", body))
    assert "64" in text and "file descriptors" in text
