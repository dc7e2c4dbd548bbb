"""Ways to start two ranks that all-reduce once. Each yields what launches them, given the folder for their stamps."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.moments import moments
from benchmarks.ranks import reach

RANKS = 2
_SECONDS = 120
#: launches in the given folder; returns the run folder where there is one
Launch = Callable[[str], Path | None]
Measure = Callable[[Any], dict[str, Any]]


def _measured(launch: Launch) -> Measure:
    """Calls ``launch``; the seconds until the last rank's stamp and until it returned, and the moments of our run."""

    def measure(_: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            clock, begin = time.time(), time.monotonic()
            run = launch(folder)
            whole = time.monotonic() - begin
            stamps = [float((Path(folder) / str(rank)).read_text()) for rank in range(RANKS)]
            reached = max(stamps) - begin
            return {"reached": reached, "whole": whole, "moments": moments(run, clock, reached, whole) if run else {}}

    return measure


@contextlib.contextmanager
def ours() -> Iterator[Measure]:
    """The embedded cluster is up before the first round; that round is the cold one, the others are warm."""
    from jupyter_torchdist import PyTorchDistributor, PyTorchScalingConfig, shutdown
    from jupyter_torchdist.driver.distributor import connect

    def launch(folder: str) -> Path:
        distributor = PyTorchDistributor(reach, PyTorchScalingConfig(1, RANKS))
        result = distributor.run(hyper_params=folder, artifact_stage_location=folder, timeout=_SECONDS, display="none")
        return result.folder

    connect()
    try:
        yield _measured(launch)
    finally:
        shutdown()


@contextlib.contextmanager
def floor() -> Iterator[Measure]:
    """No launcher at all: a process with torch loaded forks two children. Nothing that forks can be faster."""
    import torch.distributed  # noqa: F401

    def launch(folder: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            children = [_fork(rank, listener, folder) for rank in range(RANKS)]
        codes = [os.waitpid(pid, 0)[1] for pid in children]
        if any(codes):
            raise RuntimeError(f"the children ended with {codes}")

    yield _measured(launch)


def _fork(rank: int, listener: socket.socket, folder: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.alarm(_SECONDS)
        _join(rank, listener)
        reach(folder)
        code = 0
    finally:
        os._exit(code)


def _join(rank: int, listener: socket.socket) -> None:
    import torch.distributed as dist

    host, port = listener.getsockname()
    more: dict[str, Any] = {"master_listen_fd": listener.detach()} if rank == 0 else {}
    store = dist.TCPStore(host, port, RANKS, is_master=rank == 0, wait_for_workers=False, **more)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)


@contextlib.contextmanager
def notebook_launcher() -> Iterator[Measure]:
    """Accelerate: torch and accelerate are loaded in the calling process, which is forked."""
    import torch.distributed  # noqa: F401
    from accelerate import notebook_launcher as start

    def launch(folder: str) -> None:
        start(reach, (folder,), num_processes=RANKS, use_port=str(_free_port()))

    yield _measured(launch)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def torchrun() -> Iterator[Measure]:
    """torchrun as users start it: a command."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]

    def launch(folder: str) -> None:
        subprocess.run([*command, "-m", "benchmarks.ranks", folder], check=True, timeout=_SECONDS)

    yield _measured(launch)


@contextlib.contextmanager
def torchrunx() -> Iterator[Measure]:
    """torchrunx is loaded in the calling process before."""
    from torchrunx import Launcher

    def launch(folder: str) -> None:
        Launcher(hostnames=["localhost"], workers_per_host=RANKS, backend="gloo").run(reach, folder)

    yield _measured(launch)


@contextlib.contextmanager
def ray_train() -> Iterator[Measure]:
    """Ray Train: its cluster is up before, and the driver has torch loaded."""
    with ray_cluster():
        yield _measured(lambda folder: fit(reach, folder, folder))


@contextlib.contextmanager
def ray_cluster() -> Iterator[None]:
    """A local Ray cluster with what Ray finds, without the dashboard."""
    import ray
    import ray.train.torch
    import torch.distributed  # noqa: F401

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def fit(function: Callable[[Any], Any], config: Any, storage: str, workers: int = RANKS) -> None:
    """One ``TorchTrainer.fit`` on CPUs."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def loop(options: dict[str, Any]) -> None:
        function(options["value"])

    trainer = TorchTrainer(
        loop,
        train_loop_config={"value": config},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=False),
        run_config=RunConfig(storage_path=storage),
    )
    trainer.fit()
