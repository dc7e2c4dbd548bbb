"""The records that cross a border between two processes, and their codecs; the one place for both.

Standard library and orjson only: every process imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from jupyter_torchdist.config import PyTorchScalingConfig

# ---------------------------------------------------------------- metrics: rank → journal → kernel

Scalar = float | int | bool
MetricValue = Scalar | list[Scalar]

_NAN, _INF, _NINF = '"NaN"', '"Infinity"', '"-Infinity"'
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INT64 = 2**63
_keys: dict[str, str] = {}


@dataclass(frozen=True)
class Report:
    """One ``log_metrics`` call. ``time`` is Unix seconds on the rank's node."""

    rank: int
    step: int
    time: float
    metrics: Mapping[str, MetricValue]


def _key(name: str) -> str:
    text = _keys.get(name)
    if text is None:
        clean = name.encode("utf-8", "replace").decode("utf-8")
        text = _keys[name] = orjson.dumps(clean).decode() + ":"
    return text


def _number(value: Scalar) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    text = repr(value)
    # repr of a non-finite float begins with one of n, i, - followed by i.
    if text[-1] in "nfy":
        return _NAN if value != value else _INF if value > 0 else _NINF
    return text


def encode_report(rank: int, step: int, time: float, metrics: Mapping[str, MetricValue]) -> bytes:
    """One line of ``metrics.jsonl``, strict JSON; non-finite numbers are the strings NaN, Infinity, -Infinity."""
    row = {"rank": rank, "step": step, "time": time, "metrics": metrics}
    try:
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # half of a surrogate pair in a name
        line = b"null"
    # orjson writes null for a number that is not finite
    return line if b"null" not in line else _encode_slowly(rank, step, time, metrics)


def _encode_slowly(rank: int, step: int, time: float, metrics: Mapping[str, MetricValue]) -> bytes:
    parts = [
        _key(name) + (_number(value) if not isinstance(value, list) else f"[{','.join(map(_number, value))}]")
        for name, value in metrics.items()
    ]
    return f'{{"rank":{rank},"step":{step},"time":{time!r},"metrics":{{{",".join(parts)}}}}}\n'.encode()


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return _SPECIAL[value]
    if isinstance(value, list):
        return [_value(v) for v in value]
    return value


def decode_report(line: bytes) -> Report:
    """The inverse of ``encode_report``. Raises ``ValueError`` for a line that is none."""
    try:
        row = orjson.loads(line)
        metrics = row["metrics"]
        for key, value in metrics.items():
            if isinstance(value, (str, list)):
                metrics[key] = _value(value)
        return Report(row["rank"], row["step"], row["time"], metrics)
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"not a report: {line[:80]!r}") from exc


# ---------------------------------------------------------------- failures


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback. ``place`` is the file as shown: ``cell`` for a cell's body."""

    place: str
    line: int
    function: str
    source: str
    user: bool = True


@dataclass(frozen=True)
class ErrorRecord:
    """An exception as values, so that none has to be unpickled to be shown."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    notes: tuple[str, ...] = ()
    cause: ErrorRecord | None = None
    context: ErrorRecord | None = None
    group: tuple[ErrorRecord, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why one rank failed: an exception, an exit code or a signal. ``time`` is Unix seconds at the coordinator."""

    rank: int
    node: int
    host: str
    time: float
    error: ErrorRecord | None = None
    exitcode: int | None = None
    signal: str | None = None
    tail: str = ""
    hint: str = ""
    traceback: str = ""
    #: true where the rank only failed because another one had
    consequence: bool = False


def error_from_plain(data: Mapping[str, Any]) -> ErrorRecord:
    """The inverse of ``dataclasses.asdict`` for an ``ErrorRecord``."""
    inner = {key: error_from_plain(data[key]) if data[key] else None for key in ("cause", "context")}
    return ErrorRecord(
        type=data["type"],
        message=data["message"],
        frames=tuple(Frame(**frame) for frame in data["frames"]),
        notes=tuple(data["notes"]),
        group=tuple(map(error_from_plain, data["group"])),
        **inner,
    )


# ---------------------------------------------------------------- driver → coordinator


@dataclass(frozen=True)
class Payload:
    """What the ranks unpickle: pickle protocol 5 with its buffers out of band, so that arrays are not copied twice.

    ``head``: one pickle that says what follows; ``data``: the pickles of one pickler, in order.
    """

    head: bytes
    data: bytes
    buffers: tuple[Any, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.head) + len(self.data) + sum(memoryview(b).nbytes for b in self.buffers)


@dataclass(frozen=True)
class Captured:
    """A notebook name that travels with the run."""

    name: str
    type: str
    size: int


@dataclass(frozen=True)
class Shown:
    """How files are shown: ``places`` maps a file name to a place, e.g. ``cell``; ``sources`` to its text."""

    places: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """What runs: ``text`` is kept as ``cell.py``. ``label`` names it in tracebacks."""

    text: str
    label: str
    entry: str = "cell"


@dataclass(frozen=True)
class RunRequest:
    """One run as asked for by the driver, everything resolved and checked."""

    run_id: str
    folder: str
    scaling: PyTorchScalingConfig
    source: Source
    name: str | None = None
    backend: str = "auto"
    init_process_group: bool = True
    timeout: float | None = None
    grace: float = 10.0
    #: seconds without anything from any rank until their stacks are shown; 0: never
    stall_after: float = 600.0
    #: seconds in which no rank can get out of its collective, then the run is ended
    straggler_grace: float = 30.0
    rendezvous_timeout: float = 60.0
    env: Mapping[str, str | None] = field(default_factory=dict)
    cwd: str = ""
    sys_path: tuple[str, ...] = ()
    hyper_params: Any = None
    captured: tuple[Captured, ...] = ()
    shown: Shown = Shown()
    tags: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    #: when the driver was asked for the run, Unix seconds
    began: float = 0.0
    notes: tuple[str, ...] = ()
    #: the embedded local cluster: nodes are simulated on this machine and CPUs are not reserved
    local: bool = True


# ---------------------------------------------------------------- coordinator → agent → rank


@dataclass(frozen=True)
class NodeInfo:
    """What an agent says of its node."""

    node_id: str
    host: str
    address: str
    python: str
    torch: str
    interface: str
    cuda_devices: int = 0
    shares_folder: bool = True


@dataclass(frozen=True)
class RankSpec:
    """Everything a rank process is told at its start; ``env`` is its whole environment.

    ``gpu_ids``: the GPUs of the node that the run holds, as CUDA_VISIBLE_DEVICES names them, index local rank first.
    """

    run_id: str
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    node_count: int
    master_addr: str
    master_port: int
    backend: str
    init_process_group: bool
    model_dir: str
    stage_dir: str
    scratch: str
    cwd: str
    sys_path: tuple[str, ...]
    threads: int
    interface: str
    address: str = ""
    rendezvous_timeout: float = 60.0
    num_gpus: int = 0
    gpu_ids: tuple[str, ...] = ()
    restart_count: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    report_fd: int = -1
    event_fd: int = -1
    control_fd: int = -1
    payload_fd: int = -1
    stack_fd: int = -1


@dataclass(frozen=True)
class NodeRun:
    """What the coordinator asks of one agent. ``env`` is put over the node's own; None removes a variable."""

    run_id: str
    folder: str
    ranks: tuple[RankSpec, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    shown: Shown = Shown()


@dataclass(frozen=True)
class OpenedRun:
    """An agent is ready for a run. ``store_port``: its rendezvous store listens there, 0 where it has none."""

    store_port: int = 0
    notes: tuple[str, ...] = ()


class RankPhase(StrEnum):
    """How far a rank has come."""

    STARTED = "started"
    LOADED = "loaded"
    JOINED = "joined"
    ENTERED = "entered"
    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "exited"


@dataclass(frozen=True)
class RankEvent:
    """One step in the life of a rank, as its agent saw it. ``time`` is Unix seconds on the node."""

    rank: int
    phase: RankPhase
    time: float
    pid: int = 0
    error: ErrorRecord | None = None
    exitcode: int | None = None
    signal: str | None = None
    max_rss: int = 0
    tail: str = ""
    hint: str = ""
    problem: str = ""


@dataclass(frozen=True)
class RankLook:
    """How a running rank is seen from outside. ``cpu``: seconds used; ``time``: seconds of the node's clock.

    ``frames``: the stack of its train function, outermost first; None when it was not asked for or did not answer.
    """

    rank: int
    cpu: float
    time: float
    frames: tuple[Frame, ...] | None = None


@dataclass(frozen=True)
class AgentBatch:
    """What an agent has gathered since it was asked last.

    ``reports``: whole lines of ``metrics.jsonl``. ``output``: the newest output of rank 0. ``notes``: rank → what its
    train function said beside metrics (``total``, ``text``).
    """

    reports: bytes = b""
    output: bytes = b""
    events: tuple[RankEvent, ...] = ()
    notes: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    #: some rank has reported or printed
    moved: bool = False


# ---------------------------------------------------------------- coordinator → kernel


class RunState(StrEnum):
    """The states of a run that a user sees."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    PUBLISHING = "publishing"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Nothing comes after this state."""
        return self in (RunState.FINISHED, RunState.FAILED, RunState.STOPPED, RunState.LOST)


@dataclass(frozen=True)
class ErrorCard:
    """An error as the run view shows it."""

    title: str
    lines: tuple[str, ...] = ()
    also: str = ""


@dataclass(frozen=True)
class RunStatus:
    """The head of the run view; see ``docs/run-view.md``. Times are seconds."""

    state: RunState = RunState.WAITING
    detail: str = ""
    name: str | None = None
    nodes: int = 1
    workers: int = 1
    gpus: int = 0
    elapsed: float = 0.0
    step: int | None = None
    total: int | None = None
    reports: int = 0
    rate: float = 0.0
    folder: str = ""
    folder_browser_path: str | None = None
    notes: tuple[str, ...] = ()
    #: seconds of each part of the launch, in their order
    timeline: Mapping[str, float] = field(default_factory=dict)
    error: ErrorCard | None = None
    #: the run goes on, but nothing has come from any rank for long
    hang: ErrorCard | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        cards = {"error": _card(self.error), "hang": _card(self.hang)}
        return {**asdict(self), "state": str(self.state), "notes": list(self.notes), **cards}


def _card(card: ErrorCard | None) -> dict[str, Any] | None:
    return {**asdict(card), "lines": list(card.lines)} if card else None


@dataclass(frozen=True)
class Artifact:
    """A file below the run folder: ``path`` relative with ``/``, ``size`` in bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class RunUpdate:
    """One answer to the kernel's poll. ``cursor`` is the next position in ``metrics.jsonl``.

    ``reports``: rank 0's lines. ``output``: the newest output of rank 0, the last of
    ``output_total`` bytes. ``refusal``: why the run could not start.
    """

    cursor: int
    revision: int
    status: RunStatus
    reports: bytes = b""
    output: bytes = b""
    output_total: int = 0
    failures: tuple[Failure, ...] = ()
    refusal: Exception | None = None
    timed_out: bool = False
    #: true when the state is final and every report has been handed over
    complete: bool = False


@dataclass(frozen=True)
class RankValue:
    """What the train function returned on one rank: pickled, or why it could not be."""

    rank: int
    data: bytes | None
    problem: str = ""


# ---------------------------------------------------------------- kernel → browser

VIEW_VERSION = 1
RUN_MIME = "application/vnd.jupyter-torchdist.run.v1+json"
COMM_TARGET = "jupyter_torchdist.run"


@dataclass(frozen=True)
class SeriesDelta:
    """New points of one series; ``steps`` and ``values`` are float64 bytes, little endian."""

    key: str
    rank: int
    reset: bool
    steps: bytes
    values: bytes


def view_update(
    run_id: str,
    seq: int,
    *,
    status: RunStatus | None,
    series: Sequence[SeriesDelta] = (),
    tail: str | None = None,
    artifacts: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[dict[str, Any], list[bytes]]:
    """The data and the buffers of one comm message; ``None`` means unchanged."""
    data = {
        "version": VIEW_VERSION,
        "kind": "update",
        "run_id": run_id,
        "seq": seq,
        "status": status.to_json() if status else None,
        "series": [{"key": s.key, "rank": s.rank, "reset": s.reset, "count": len(s.steps) // 8} for s in series],
        "tail": tail,
        "artifacts": list(artifacts) if artifacts is not None else None,
    }
    return data, [part for s in series for part in (s.steps, s.values)]


def view_bundle(run_id: str, status: RunStatus) -> dict[str, Any]:
    """The value of our own MIME type in a cell's output."""
    return {"version": VIEW_VERSION, "run_id": run_id, "status": status.to_json()}
