"""Kind 6: what a stop does, and what it leaves. The kernel's own interrupt and its end are in ``test_notebook.py``."""

from __future__ import annotations

import psutil
import pytest

from jupyter_torchdist import get_context
from jupyter_torchdist.errors import RunStopped
from tests.conftest import until


def stop_when_both_say(handle, word):
    """Stops once both ranks have printed ``word``; their processes are gone then."""
    until(lambda: all(word in handle.logs(rank) for rank in (0, 1)))
    ranks = [p for p in psutil.process_iter(["name"]) if handle.run_id[-6:] in (p.info["name"] or "")]
    assert len(ranks) == 2
    handle.stop()
    with pytest.raises(RunStopped):
        handle.result()
    assert handle.state == "stopped"
    assert not [p for p in ranks if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def endless():
    import time

    print("ready", flush=True)
    while True:
        time.sleep(0.1)


def swallows():
    import time

    print("ready", flush=True)
    while True:
        try:
            time.sleep(0.1)
        except KeyboardInterrupt:
            print("swallowed", flush=True)


def in_a_barrier():
    import time

    import torch.distributed as dist

    print("ready", flush=True)
    if get_context().get_rank() == 0:
        dist.barrier()
    time.sleep(600)


@pytest.mark.parametrize(("function", "grace"), [(endless, 10), (swallows, 0.5), (in_a_barrier, 0.5)])
def test_b63_a_stop_ends_every_rank(begin, function, grace):
    stop_when_both_say(begin(function, grace=grace), "ready")


def test_b65_finally_runs_after_a_stop(begin):
    def train():
        import os
        import time

        try:
            print("ready", flush=True)
            time.sleep(99)
        finally:
            open(os.path.join(get_context().get_model_dir(), f"cleanup-{get_context().get_rank()}"), "w").close()

    handle = begin(train)
    stop_when_both_say(handle, "ready")
    assert sorted(p.name for p in handle.folder.model_dir.iterdir()) == ["cleanup-0", "cleanup-1"]


def test_c02_users_own_signal_handlers_stay_in_force(begin):
    def train():
        import os
        import signal
        import threading
        import time

        flag = []
        signal.signal(signal.SIGINT, lambda *_: flag.append(1))
        signal.signal(signal.SIGTERM, lambda *_: flag.append(1))
        print(threading.current_thread() is threading.main_thread(), "ready", flush=True)
        while not flag:
            time.sleep(0.1)
        open(os.path.join(get_context().get_model_dir(), f"saved-{get_context().get_rank()}"), "w").close()

    for _ in range(2):  # the second is not stopped by what the first left
        handle = begin(train)
        stop_when_both_say(handle, "True ready")
        assert sorted(p.name for p in handle.folder.model_dir.iterdir()) == ["saved-0", "saved-1"]


def test_c02_a_rank_can_signal_itself(begin):
    def train():
        import os
        import signal

        seen = []
        signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
        os.kill(os.getpid(), signal.SIGUSR1)
        return [int(number) for number in seen]

    import signal

    assert begin(train).result().values == {0: [signal.SIGUSR1], 1: [signal.SIGUSR1]}
