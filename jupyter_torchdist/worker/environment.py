"""The environment of a rank: the node's own, what the notebook changed, torchrun's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from jupyter_torchdist.records import RankSpec

#: read by native libraries when they are loaded: a rank with other values needs a forkserver of its own
_LOAD_PREFIXES = (
    "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "BLIS_", "NUMEXPR_", "LD_", "PYTHON", "MALLOC_", "ATEN_", "DNNL_",
    "ONEDNN_", "PYTORCH_", "TORCH_LOGS", "TORCH_SHOW_CPP", "GLIBC_TUNABLES", "LC_", "LANG", "TZ",
)  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: what Ray sets for its own worker processes
_RAY_PREFIXES = ("RAY_", "__RAY")


def node_environment() -> dict[str, str]:
    """This process's environment without what Ray and a Jupyter kernel put there for themselves."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_RAY_PREFIXES)}
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MPLBACKEND", "JPY_PARENT_PID", "JPY_SESSION_NAME"):
        env.pop(name, None)
    return env


def load_environment(wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The part of a run's variables that has to be there before a native library is loaded."""
    return {k: v for k, v in sorted(wanted.items()) if v is not None and k.startswith(_LOAD_PREFIXES)}


def rank_environment(node: Mapping[str, str], wanted: Mapping[str, str | None], spec: RankSpec) -> dict[str, str]:
    """Everything that ``os.environ`` holds on a rank; the variables are torchrun's."""
    env = dict(node)
    env["MPLBACKEND"] = "Agg"
    env.update(dict.fromkeys(_THREADS, str(spec.threads)))
    for name, value in wanted.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    if spec.backend in ("gloo", "nccl") and spec.interface:
        # gloo otherwise takes what the host name resolves to, which is loopback on many machines
        env.setdefault("GLOO_SOCKET_IFNAME", spec.interface)
        env.setdefault("NCCL_SOCKET_IFNAME", spec.interface)
    if not spec.num_gpus:
        # accelerate takes a rank without this for one of many single processes
        env.setdefault("ACCELERATE_USE_CPU", "true")
    env.update(
        RANK=str(spec.rank),
        LOCAL_RANK=str(spec.local_rank),
        WORLD_SIZE=str(spec.world_size),
        LOCAL_WORLD_SIZE=str(spec.local_world_size),
        GROUP_RANK=str(spec.node_rank),
        GROUP_WORLD_SIZE=str(spec.node_count),
        ROLE_NAME="default",
        ROLE_RANK=str(spec.rank),
        ROLE_WORLD_SIZE=str(spec.world_size),
        MASTER_ADDR=spec.master_addr,
        MASTER_PORT=str(spec.master_port),
        TORCHELASTIC_RUN_ID=spec.run_id,
        TORCHELASTIC_RESTART_COUNT=str(spec.restart_count),
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_USE_AGENT_STORE="True",
        CUDA_VISIBLE_DEVICES=",".join(spec.gpu_ids),
    )
    return env
