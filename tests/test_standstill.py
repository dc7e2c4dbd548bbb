"""Whether a world can still go on: the pure functions, and real worlds that can and can not."""

from __future__ import annotations

import pytest

import jupyter_torchdist
from jupyter_torchdist import PyTorchScalingConfig, get_context
from jupyter_torchdist.agent.stacks import parse
from jupyter_torchdist.coordinator.standstill import Stand, disagreement, is_idle, is_locked, stack_lines, stand
from jupyter_torchdist.errors import RunStopped, WorkerError
from jupyter_torchdist.records import Frame, RankLook, Shown
from tests.conftest import until

TORCH = "/site-packages/torch/distributed/distributed_c10d.py"
BARRIER = (
    Frame("cell", 4, "<module>", "step()"),
    Frame("cell", 2, "step", "dist.barrier()"),
    Frame("/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper", "", False),
    Frame(TORCH, 5000, "barrier", "work.wait()", False),
)
REDUCE = (Frame("cell", 3, "<module>", ""), Frame(TORCH, 3000, "all_reduce", "", False))
SLEEP = (Frame("cell", 9, "<module>", "time.sleep(9)"),)
DUMP = f"""Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 5000 in barrier
  File "cell-name", line 2 in step
  File "cell-name", line 4 in <module>
  File "{jupyter_torchdist.__path__[0]}/worker/rank.py", line 116 in run_rank
"""


def test_a_dump_becomes_the_frames_of_the_train_function():
    frames = parse(DUMP, Shown({"cell-name": "cell"}, {"cell-name": "a\nb = 1\nc\n  d()\n"}))
    assert [(f.place, f.line, f.function, f.source, f.user) for f in frames[-2:]] == [
        ("cell", 2, "step", "b = 1", True),
        ("/x/site-packages/torch/distributed/distributed_c10d.py", 5000, "barrier", "", True),
    ]


def test_a_rank_stands_in_a_collective_or_anywhere_else():
    assert stand(BARRIER) == Stand("barrier", "cell, line 2")
    assert stand(REDUCE) == Stand("all_reduce", "cell, line 3")
    assert stand(SLEEP) is None and stand(()) is None
    loader = (
        Frame("cell", 1, "f", ""),
        Frame("/site-packages/torch/utils/data/dataloader.py", 1, "__next__", "", False),
    )
    assert stand(loader) is None


@pytest.mark.parametrize(
    ("stands", "returned", "locked"),
    [
        ({0: stand(BARRIER), 1: stand(BARRIER)}, [], False),
        ({0: stand(BARRIER), 1: stand(REDUCE)}, [], True),
        ({1: stand(BARRIER), 2: stand(BARRIER)}, [0], True),
        ({0: stand(BARRIER), 1: None}, [], False),
        ({0: stand(BARRIER), 1: None}, [2], False),
        ({}, [0, 1], False),
    ],
)
def test_a_world_is_locked_when_nobody_can_get_out(stands, returned, locked):
    assert is_locked(stands, returned) is locked


def test_a_rank_that_works_is_not_idle():
    assert is_idle(RankLook(0, 1.0, 10.0), RankLook(0, 1.01, 15.0))
    assert not is_idle(RankLook(0, 1.0, 10.0), RankLook(0, 2.0, 15.0))


def test_what_is_told_names_everyone():
    text = disagreement({0: stand(BARRIER), 1: stand(REDUCE), 2: stand(REDUCE)}, [3], 31.0)
    for part in (
        "rank 0 waits in barrier (cell, line 2)",
        "ranks 1, 2 wait in all_reduce (cell, line 3)",
        "rank 3 has",
    ):
        assert part in text
    lines = stack_lines({0: BARRIER, 1: SLEEP, 2: BARRIER, 3: ()})
    assert lines[0] == "ranks 0, 2 wait for ranks 1, 3"
    assert "ranks 0, 2:" in lines and "rank 1:" in lines and any("no answer" in line for line in lines)


def test_different_collectives_end_the_run_with_both_lines(begin):
    def mixed():
        import torch
        import torch.distributed as dist

        if get_context().get_rank() == 0:
            dist.recv(torch.zeros(1), src=1)
        else:
            dist.recv(torch.zeros(1), src=0)

    with pytest.raises(WorkerError, match=r"RanksDisagree.*collectives differ") as caught:
        begin(mixed, straggler_grace=1).result()
    assert "rank 0 waits in recv" in str(caught.value) and "rank 1 waits in recv" in str(caught.value)
    assert not any(f.consequence for f in caught.value.failures)


def test_a_rank_may_return_while_others_wait_for_one_that_works(begin):
    """False alarms: one returns early, one sleeps and one computes for longer than the grace, one waits for them."""

    def train():
        import time

        import torch
        import torch.distributed as dist

        rank = get_context().get_rank()
        group = dist.new_group([0, 1, 2])
        if rank == 3:
            return
        if rank == 1:
            time.sleep(3)
        if rank == 2:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                torch.ones(64, 64) @ torch.ones(64, 64)
        dist.all_reduce(torch.ones(1), group=group)

    assert begin(train, PyTorchScalingConfig(1, 4), straggler_grace=0.6).result().state == "finished"


def test_a_peer_that_has_returned_is_named(begin):
    def train():
        import torch.distributed as dist

        if get_context().get_rank() == 0:
            return
        dist.barrier()

    with pytest.raises(WorkerError, match="rank 0 has returned before"):
        begin(train, straggler_grace=1).result()


def test_a_silent_run_shows_its_stacks_and_goes_on(begin, tmp_path):
    gate = tmp_path / "gate"

    def train(gate=str(gate)):
        import os
        import time

        import torch.distributed as dist

        while get_context().get_rank() == 1 and not os.path.exists(gate):
            time.sleep(0.05)
        dist.barrier()

    handle = begin(train, stall_after=0.5, straggler_grace=0.5)
    hang = until(lambda: handle.status.hang)
    assert "the run goes on" in hang.title and handle.state == "running"
    assert hang.lines[0] == "rank 0 waits for rank 1"
    assert any("time.sleep(0.05)" in line or "os.path.exists" in line for line in hang.lines)
    assert set(handle.stacks()) == {0, 1} and "dist.barrier()" in handle.stacks()[0]
    gate.touch()
    assert handle.result().state == "finished"
    assert handle.status.hang is None, "it no longer goes on"
    assert "stall" in (handle.folder.path / "events.jsonl").read_text()


def test_stacks_of_a_rank_that_is_inside_of_native_code(begin):
    def train():
        import torch.distributed as dist

        if get_context().get_rank() == 0:
            print("waits", flush=True)
            dist.barrier()
        else:
            import ctypes
            import os

            print("reads", flush=True)
            ctypes.CDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)

    handle = begin(train)
    until(lambda: "waits" in handle.logs(0) and "reads" in handle.logs(1))
    text = until(lambda: "dist.barrier()" in handle.stack_text() and handle.stack_text())
    assert "rank 0 waits for rank 1" in text and "ctypes.CDLL(None).read" in text
    handle.stop(force=True)
    with pytest.raises(RunStopped):
        handle.result()
    assert handle.stacks() == {}
