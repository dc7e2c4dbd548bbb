"""The Ray cluster of this process: the user's own where there is one, else an embedded local one."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from dataclasses import dataclass
from typing import Any

from jupyter_torchdist.config import setting
from jupyter_torchdist.driver.guardian import Guardian
from jupyter_torchdist.errors import ClusterError, ConfigError

_log = logging.getLogger("jupyter_torchdist")
#: Ray replaces 127.0.0.1 by a routable address; any other address of the loopback network it keeps
_LOOPBACK = "127.0.0.2"
_SLOTS = 100_000


@dataclass
class Cluster:
    """A connected cluster and this session's coordinator on it."""

    address: str
    local: bool
    node_id: str
    coordinator: Any
    guardian: Guardian | None = None

    def describe(self) -> str:
        """The line that says which cluster is used."""
        return "embedded local cluster" if self.local else f"Ray cluster {self.address}"


class _Keeper:
    """Owns the connection. Ray's processes end with the thread that started them, so that thread lives as long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._address: str | None = None
        self._ready = threading.Event()
        self._close = threading.Event()
        self._cluster: Cluster | None = None
        self._error: BaseException | None = None

    def begin(self, address: str | None = None) -> None:
        """Starts connecting in the background; a second call is harmless."""
        with self._lock:
            if self._thread is not None and not (self._ready.is_set() and self._error is not None):
                self._same(address)
                return
            self._address = address
            self._ready.clear()
            self._close.clear()
            self._cluster, self._error = None, None
            self._thread = threading.Thread(target=self._live, name="torchdist-cluster", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> Cluster | None:
        """The cluster if it is there within ``seconds``. Raises ``ClusterError`` when it could not be had."""
        if not self._ready.wait(seconds):
            return None
        if self._error is not None:
            raise ClusterError(f"no Ray cluster: {self._error}") from self._error
        return self._cluster

    def close(self) -> None:
        """Ends the coordinator and the connection, and with it the embedded cluster."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._close.set()
            thread.join(20)

    def _same(self, address: str | None) -> None:
        if address is not None and address != self._address and self._resolved(self._address) != address:
            raise ConfigError(
                f"this process is connected to {self._resolved(self._address) or 'the embedded local cluster'}; "
                f"call jupyter_torchdist.shutdown() before using {address}."
            )

    @staticmethod
    def _resolved(address: str | None) -> str | None:
        return address or os.environ.get("RAY_ADDRESS") or None

    def _live(self) -> None:
        try:
            self._cluster = _connect(self._resolved(self._address))
        except BaseException as exc:
            self._error = exc
            self._ready.set()
            return
        self._ready.set()
        self._close.wait()
        _disconnect(self._cluster)


def _connect(address: str | None) -> Cluster:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    from jupyter_torchdist.coordinator.actor import start_coordinator

    if address and address.startswith("ray://"):
        raise ConfigError(
            f"the address {address} is Ray Client's; start the notebook on a node of the cluster and use its GCS "
            "address (host:6379) or 'auto'."
        )
    local, guardian = False, None
    if not ray.is_initialized():
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "torchdist"}
        if address and address != "local":
            ray.init(address=address, **quiet)
        else:
            local = True
            ray.init(
                address="local",
                resources={"torchdist_slot": _SLOTS},
                include_dashboard=False,
                object_store_memory=int(setting("OBJECT_STORE_BYTES", str(512 << 20))),
                _node_ip_address=_LOOPBACK,
                **quiet,
            )
            guardian = _guarded()
    else:
        local = "torchdist_slot" in ray.cluster_resources()
    node_id = ray.get_runtime_context().get_node_id()
    node = next(n for n in ray.nodes() if n["NodeID"] == node_id)
    coordinator = start_coordinator(node_id)
    ray.get(coordinator.warm.remote(node_id, node["NodeManagerAddress"]))
    return Cluster(address or ray.get_runtime_context().gcs_address, local, node_id, coordinator, guardian)


def _guarded() -> Guardian:
    """A guardian for everything that this process has below it now: the processes of the embedded cluster."""
    import psutil

    below = [process.pid for process in psutil.Process().children(recursive=True)]
    guardian = Guardian()
    guardian.guard(_of_ray(below))
    return guardian


def _of_ray(pids: list[int]) -> list[int]:
    """Those that belong to Ray: a driver may have children of its own, which are not ours to end."""
    import psutil

    found = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            words = " ".join([process.name(), *process.cmdline()])
        except psutil.Error:
            continue
        if "ray" in words:
            found.append(pid)
    return found


def _disconnect(cluster: Cluster | None) -> None:
    import ray

    if cluster is None or not ray.is_initialized():
        return
    try:
        ray.get(cluster.coordinator.close.remote(), timeout=5)
    except Exception as exc:
        _log.debug("coordinator did not close: %s", exc)
    ray.kill(cluster.coordinator)
    ray.shutdown()
    if cluster.guardian is not None:
        cluster.guardian.close()


_keeper = _Keeper()
begin = _keeper.begin
wait = _keeper.wait
atexit.register(_keeper.close)


def shutdown() -> None:
    """Ends what runs, this session's coordinator and the embedded local cluster; a later run starts a new one."""
    _keeper.close()


def connected() -> Cluster | None:
    """The cluster that is connected now, without waiting for one."""
    return _keeper._cluster


def resources() -> dict[str, float]:
    """CPUs and GPUs of the connected cluster; empty while there is none."""
    import sys

    if _keeper._cluster is None or "ray" not in sys.modules:
        return {}
    import ray

    return {k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")}
