"""The process group of a rank: joined before the train function, left after it.

The rendezvous is torchrun's agent store: every rank, rank 0 too, is a client of a store that outlives all of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from jupyter_torchdist.records import RankSpec

_log = logging.getLogger("jupyter_torchdist")
_original = dist.init_process_group


class _Group:
    """How this rank (re)joins: each group gets keys of its own in the store, so that none meets another's."""

    def __init__(self, spec: RankSpec) -> None:
        self.spec = spec
        self.joined = 0
        self.store: Any = None

    def join(self, backend: str | None, **options: Any) -> None:
        """Raises ``RuntimeError`` that names the rank, the addresses and the interface when it can not join."""
        spec, store = self.spec, None
        limit = timedelta(seconds=spec.rendezvous_timeout)
        try:
            if self.store is None:
                self.store = TCPStore(spec.master_addr, spec.master_port, None, is_master=False, timeout=limit)
            store = PrefixStore(f"torchdist/{spec.restart_count}/{self.joined}", self.store)
            self.joined += 1
            self._meet(store, "here", limit)
            _original(backend, store=store, rank=spec.rank, world_size=spec.world_size, **options)
            # a rank that is through must not leave while gloo still connects another one to it
            self._meet(store, "joined", limit)
        except RuntimeError as exc:
            missing = self._missing(store)
            reason = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} did not come" if missing else exc
            raise RuntimeError(
                f"rank {spec.rank} ({spec.address}, interface {spec.interface or 'unknown'}) could not join the world "
                f"at {host_port(spec.master_addr, spec.master_port)} within {spec.rendezvous_timeout:g} s: {reason}"
            ) from exc

    def _meet(self, store: Any, name: str, limit: timedelta) -> None:
        store.set(f"{name} {self.spec.rank}", b"")
        if store.add(name, 1) == self.spec.world_size:
            store.set(f"all {name}", b"")
        store.wait([f"all {name}"], limit)

    def _missing(self, store: Any) -> list[int]:
        """The ranks that have not come to the store."""
        if store is None:
            return []
        try:
            return [rank for rank in range(self.spec.world_size) if not store.check([f"here {rank}"])][:8]
        except RuntimeError:  # the store is out of reach
            return []

    def init_process_group(
        self, backend: str | None = None, init_method: str | None = None, *args: Any, **options: Any
    ) -> None:
        """Stands in for ``torch.distributed.init_process_group`` while a train function runs."""
        foreign = args or options.get("store") is not None or init_method not in (None, "env://")
        for name in ("rank", "world_size"):  # env:// ignores what it can read from the environment
            if not foreign:
                options.pop(name, None)
        if not foreign:
            options.pop("store", None)
        if dist.is_initialized():
            if backend is None or _compatible(str(backend)):
                _log.info("init_process_group: the group of the run is used (%s)", dist.get_backend())
                if (timeout := options.get("timeout")) is not None:
                    distributed_c10d._set_pg_timeout(timeout, dist.group.WORLD)
                return
            dist.destroy_process_group()
        if foreign:
            _original(backend, init_method, *args, **options)
        else:
            self.join(backend or self.spec.backend, **options)


def host_port(address: str, port: int) -> str:
    """``10.0.0.1:29500``, ``[fd00::1]:29500``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _compatible(wanted: str) -> bool:
    """``gloo``, ``cpu:gloo,cuda:nccl`` and the like against the group that is there."""
    have = dist.get_backend_config(dist.group.WORLD)
    parts = dict(part.split(":", 1) for part in str(have).split(",") if ":" in part)
    asked = [part.split(":", 1) for part in wanted.lower().split(",")]
    if len(asked) == 1 and len(asked[0]) == 1:
        return asked[0][0] in (dist.get_backend(), *(parts.values() if len(set(parts.values())) == 1 else ()))
    return all(len(pair) == 2 and parts.get(pair[0]) == pair[1] for pair in asked)


def prepare(spec: RankSpec) -> _Group:
    """Puts the run's own ``init_process_group`` in the place of torch's."""
    group = _Group(spec)
    for module in (dist, distributed_c10d):
        module.__dict__["init_process_group"] = group.init_process_group
    return group


def join(group: _Group) -> None:
    """Joins the world. Raises torch's error when a peer does not come."""
    options: dict[str, Any] = {}
    if group.spec.num_gpus:
        torch.cuda.set_device(group.spec.local_rank)
        if group.spec.backend == "nccl":
            options["device_id"] = torch.device("cuda", group.spec.local_rank)
    group.join(group.spec.backend, **options)


def leave() -> None:
    """Destroys what groups there are; an end that fails changes nothing about the result."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def serve_store(address: str, listen_fd: int, world_size: int) -> None:
    """Hosts the store of a run on a listening socket until the process is ended."""
    port = _port(listen_fd)
    store = TCPStore(
        address,
        port,
        world_size + 1,
        is_master=True,
        timeout=timedelta(seconds=60),
        wait_for_workers=False,
        master_listen_fd=listen_fd,
    )
    os.write(1, b"serving\n")
    import signal

    signal.pause()
    del store


def _port(fd: int) -> int:
    import socket

    with socket.socket(fileno=os.dup(fd)) as sock:
        return int(sock.getsockname()[1])
