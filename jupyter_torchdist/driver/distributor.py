"""``PyTorchDistributor`` and what it shares with the cell: from checked arguments to a started run."""

from __future__ import annotations

import inspect
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jupyter_torchdist.config import PyTorchScalingConfig, RunOptions, WorkerResourceConfig
from jupyter_torchdist.driver import cluster, host
from jupyter_torchdist.driver.handle import RunHandle
from jupyter_torchdist.driver.result import PyTorchDistributorResult
from jupyter_torchdist.driver.ship import Packed, pack
from jupyter_torchdist.errors import ConfigError, NotEnoughResources
from jupyter_torchdist.records import RunRequest, Source
from jupyter_torchdist.run_folder import RunFolder, new_run_id
from jupyter_torchdist.stage.location import resolve_stage
from jupyter_torchdist.worker.cell import takes_argument

#: payloads above this go through Ray's object store, which keeps one copy a node
_INLINE_BYTES = 64 << 10
_WAIT_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """Everything that a run needs of the notebook, packed and checked; ``start`` needs nothing else."""

    scaling: PyTorchScalingConfig
    options: RunOptions
    source: Source
    packed: Packed
    stage: str
    hyper_params: Any = None
    notes: tuple[str, ...] = ()
    address: str | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    #: when it was asked for, Unix seconds
    began: float = 0.0


class PyTorchDistributor:
    """Runs ``train_func`` on every rank of the world that ``scaling_config`` describes.

    ``train_func``: a callable that takes no argument, or one: the hyper-parameters. ``scaling_config``: None is one
    node with a worker per GPU of it, or one worker where it has none. Raises ``ConfigError`` for anything else.

    >>> PyTorchDistributor(train, PyTorchScalingConfig(2, 4)).run(hyper_params={"lr": 0.1})  # doctest: +SKIP
    """

    def __init__(self, train_func: Any, scaling_config: PyTorchScalingConfig | None = None) -> None:
        check_train_function(train_func)
        if scaling_config is not None and not isinstance(scaling_config, PyTorchScalingConfig):
            raise ConfigError(f"scaling_config is {scaling_config!r}; it must be a PyTorchScalingConfig or None.")
        self._train_func = train_func
        self._scaling = scaling_config

    def run(
        self,
        *,
        dataset_map: Mapping[str, Any] | None = None,
        hyper_params: Any = None,
        artifact_stage_location: str | None = None,
        name: str | None = None,
        backend: str = "auto",
        init_process_group: bool = True,
        timeout: float | None = None,
        max_restarts: int = 0,
        grace: float = 10.0,
        stall_after: float = 600.0,
        straggler_grace: float = 30.0,
        rendezvous_timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
        display: Literal["auto", "none"] = "auto",
        verbose: int = 1,
    ) -> PyTorchDistributorResult:
        """Runs to the end and returns the result.

        ``dataset_map``: data by name, connectors or anything picklable. ``hyper_params``: passed on unchanged.
        ``artifact_stage_location``: where the run folder goes (a folder, ``@name/path``; None: ``./stage``).
        ``timeout``: seconds, then the run is ended. ``grace``: seconds that a stopped train function gets to save.
        ``stall_after``: seconds without anything from any rank until all stacks are shown; 0: never.
        ``straggler_grace``: seconds in which no rank can get out of its collective, then the run is ended.
        ``rendezvous_timeout``: seconds in which all ranks must have met. ``env``: variables of the ranks.
        ``display="none"``: shows nothing.

        Raises ``ConfigError`` before anything starts; ``WorkerError``, ``RunTimeout``, ``NotEnoughResources``,
        ``ClusterError``, ``RunLost`` (each a ``RuntimeError``); ``RunStopped`` (a ``KeyboardInterrupt``).
        """
        return self.start(
            dataset_map=dataset_map,
            hyper_params=hyper_params,
            artifact_stage_location=artifact_stage_location,
            name=name,
            backend=backend,
            init_process_group=init_process_group,
            timeout=timeout,
            max_restarts=max_restarts,
            grace=grace,
            stall_after=stall_after,
            straggler_grace=straggler_grace,
            rendezvous_timeout=rendezvous_timeout,
            env=env,
            tags=tags,
            display=display,
            verbose=verbose,
        ).result()

    def start(
        self,
        *,
        dataset_map: Mapping[str, Any] | None = None,
        hyper_params: Any = None,
        artifact_stage_location: str | None = None,
        name: str | None = None,
        backend: str = "auto",
        init_process_group: bool = True,
        timeout: float | None = None,
        max_restarts: int = 0,
        grace: float = 10.0,
        stall_after: float = 600.0,
        straggler_grace: float = 30.0,
        rendezvous_timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
        display: Literal["auto", "none"] = "auto",
        verbose: int = 1,
    ) -> RunHandle:
        """The same as ``run``, but returns a live ``RunHandle`` as soon as the run is submitted."""
        if max_restarts != 0:
            raise ConfigError(f"max_restarts is {max_restarts!r}; this version does not restart runs, use 0.")
        began = time.time()
        check_dataset_map(dataset_map)
        options = RunOptions(
            name, backend, init_process_group, timeout, grace, stall_after, straggler_grace, rendezvous_timeout,
            dict(env or {}), tuple(tags), display, verbose,
        )  # fmt: skip
        stage = resolve_stage(artifact_stage_location, host.notebook_folder())
        namespace = sys.modules["__main__"].__dict__
        label = getattr(self._train_func, "__name__", type(self._train_func).__name__)
        packed = pack(
            label=label,
            captured={},
            namespace=namespace,
            hyper_params=hyper_params,
            dataset_map=dataset_map,
            function=self._train_func,
            places=notebook_places(),
        )
        job = Job(
            scaling=self._scaling or default_scaling(),
            options=options,
            source=Source(source_text(self._train_func), label, "function"),
            packed=packed,
            stage=str(stage),
            hyper_params=hyper_params,
            env=run_environment(options),
            began=began,
        )
        return start(job)

    async def run_async(self, **options: Any) -> PyTorchDistributorResult:
        """``run`` for a cell with top-level ``await``; the same arguments, and the kernel stays free meanwhile."""
        return await self.start(**options)


def start(job: Job) -> RunHandle:
    """Connects, makes the run folder, submits. Nothing has started when it raises."""
    connected = connect(job.address)
    scaling, options = job.scaling, job.options
    from jupyter_torchdist.coordinator import lease

    if scaling.resource_requirements_per_worker.num_gpus or not connected.local:
        import ray

        lease.check(scaling, ray.nodes(), connected.local)
    from pathlib import Path

    folder = RunFolder.create(Path(job.stage), new_run_id(options.name))
    folder.cell.write_text(job.source.text, "utf-8", errors="backslashreplace")
    request = RunRequest(
        run_id=folder.run_id,
        folder=str(folder.path),
        scaling=scaling,
        source=Source("", job.source.label, job.source.entry),
        name=options.name,
        backend=options.backend,
        init_process_group=options.init_process_group,
        timeout=options.timeout,
        grace=options.grace,
        stall_after=options.stall_after,
        straggler_grace=options.straggler_grace,
        rendezvous_timeout=options.rendezvous_timeout,
        env=dict(job.env),
        cwd=host.working_folder(),
        sys_path=host.search_path(),
        hyper_params=_plain(job.hyper_params),
        captured=job.packed.captured,
        shown=job.packed.shown,
        tags=options.tags,
        versions=host.versions(),
        began=job.began,
        notes=job.notes,
        local=connected.local,
    )
    handle = RunHandle(request, connected)
    payload: list[Any] = [job.packed.payload]
    if job.packed.payload.size > _INLINE_BYTES:
        import ray

        payload = [ray.put(job.packed.payload)]
    if options.display == "auto" and options.verbose:
        for show in host.display_hooks:
            show(handle, options.verbose)
    handle.begin(payload)
    return handle


def connect(address: str | None = None) -> cluster.Cluster:
    """The cluster; waits for it so that an interrupt gets through."""
    cluster.begin(address)
    while True:
        found = cluster.wait(_WAIT_SECONDS)
        if found is not None:
            return found


def _plain(value: Any) -> Any:
    from jupyter_torchdist.config import jsonable

    return jsonable(value)


def run_environment(options: RunOptions) -> dict[str, str | None]:
    """What the notebook changed in ``os.environ``, then ``env=``."""
    return {**host.changed_environment(), **options.env}


def default_scaling() -> PyTorchScalingConfig:
    """One node; a worker per GPU of it, or one worker where it has none."""
    connect()
    gpus = int(cluster.resources().get("GPU", 0))
    if not gpus:
        return PyTorchScalingConfig(1, 1)
    import ray

    per_node = max((int(n["Resources"].get("GPU", 0)) for n in ray.nodes() if n["Alive"]), default=0)
    if not per_node:
        raise NotEnoughResources("the cluster has GPUs but no node of it has a whole one.")
    return PyTorchScalingConfig(1, per_node, WorkerResourceConfig(num_gpus=1))


def check_train_function(function: Any) -> None:
    """Raises ``ConfigError`` with the signature of a function that the launcher could not call."""
    if not callable(function):
        raise ConfigError(f"train_func is {function!r}; it must be a function that takes no argument or one.")
    if inspect.isgeneratorfunction(function):
        raise ConfigError("train_func is a generator function: calling it would train nothing. Remove its yield.")
    try:
        takes_argument(function)
    except TypeError as exc:
        raise ConfigError(f"train_func can not be called: {exc}.") from exc


def check_dataset_map(data: Any) -> None:
    if data is None:
        return
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"dataset_map is a {type(data).__name__}; it must be a dict of names to data.")


def source_text(function: Any) -> str:
    """The source of a train function, for ``cell.py``."""
    inner = inspect.unwrap(getattr(function, "func", function))
    try:
        return textwrap.dedent(inspect.getsource(inner))
    except (OSError, TypeError):
        return f"# no source: {function!r}\n"


def notebook_places() -> dict[str, str]:
    """Notebook cells by the file name that IPython gave them, as ``cell [3]``."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return {name: f"cell [{number}]" for name, number in names.items()}
