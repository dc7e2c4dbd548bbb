"""A rank process from its first line to its last."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import io
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson

from jupyter_torchdist.data.connector import set_world
from jupyter_torchdist.records import ErrorRecord, RankPhase, RankSpec
from jupyter_torchdist.worker import accelerate_cpu, preload
from jupyter_torchdist.worker.cell import (
    CompiledCell,
    call_train_function,
    compile_cell,
    new_main,
    remember_source,
    run_cell,
)
from jupyter_torchdist.worker.context import RankContext, get_context, report, set_context
from jupyter_torchdist.worker.exceptions import error_record, with_limits
from jupyter_torchdist.worker.payload import PayloadReader, map_parts
from jupyter_torchdist.worker.reporter import MetricsReporter
from jupyter_torchdist.worker.shell import SHELL_NAME, CellShell

#: makes a rank write its stack; a number that no library and hardly a user takes
STACK_SIGNAL = signal.SIGRTMIN + 9
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """The kernel ends this process when its parent ends, whatever ended that."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """The name that ``ps`` and ``top`` show, at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


class Events:
    """The line to the agent: one JSON line an event, each written at once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, event: Mapping[str, Any]) -> None:
        """Writes one line; whole lines of several threads do not mix because the pipe takes them at once."""
        os.write(self._fd, orjson.dumps({"time": time.time(), **event}, default=str) + b"\n")

    def phase(self, phase: RankPhase, **more: Any) -> None:
        self.send({"phase": str(phase), **more})

    def note(self, note: Mapping[str, Any]) -> None:
        self.send({"note": note})


def run_rank(spec: RankSpec) -> int:
    """Runs the train function of ``spec`` on this, the main thread; returns the exit code."""
    events = Events(spec.event_fd)
    places: dict[str, str] = {}
    code, payload_loaded = 1, False
    artifacts = None
    try:
        events.phase(RankPhase.STARTED, pid=os.getpid())
        if "torch" not in sys.modules:  # a fresh interpreter
            preload.preload()
        _prepare_process(spec)
        if not spec.num_gpus:
            accelerate_cpu.prepare()
        reader = PayloadReader(map_parts(spec.payload_fd))
        head = reader.head
        places.update(head.places)
        for name, text in head.sources.items():
            remember_source(name, text)
        sys.argv = [head.label]
        main = new_main(head.label, head.cell)
        shipment = reader.load(main.__dict__)
        payload_loaded = True
        reporter = MetricsReporter(spec.rank, spec.report_fd, events.note)
        from jupyter_torchdist.worker.artifacts import ArtifactManager

        artifacts = ArtifactManager(Path(spec.stage_dir) / "checkpoints", spec.rank)
        context = RankContext(
            spec,
            reporter=reporter,
            artifacts=artifacts,
            hyper_params=shipment.hyper_params,
            dataset_map=shipment.dataset_map,
        )
        set_context(context)
        set_world(spec.rank, spec.world_size)
        events.phase(RankPhase.LOADED)
        from jupyter_torchdist.worker import process_group

        group = process_group.prepare(spec)
        if spec.init_process_group:
            process_group.join(group)
        events.phase(RankPhase.JOINED)
        if head.code is not None:
            cell = compile_cell(head.code, head.label)
            run = _cell_runner(cell, main, context, shipment.hyper_params)
        else:
            run = lambda: call_train_function(shipment.function, shipment.hyper_params)  # noqa: E731
        events.phase(RankPhase.ENTERED)
        value = run()
        _returned(events, spec, value)
        artifacts.close()
        code = 0
    except SystemExit as exc:
        code = _exit_code(exc)
        if code:
            events.phase(RankPhase.RAISED, error=asdict(error_record(exc, places)), exitcode=code)
        else:
            _returned(events, spec, None)
    except BaseException as exc:
        record = with_limits(error_record(exc, places))
        if not payload_loaded:
            record = _named_payload_problem(record)
        events.phase(RankPhase.RAISED, error=asdict(record))
    _leave(artifacts)
    return code


def _cell_runner(cell: CompiledCell, main: Any, context: RankContext, hyper_params: Any) -> Callable[[], Any]:
    provided = {
        "ctx": context,
        "report": report,
        "display": lambda *things: print(*things, sep="\n"),
        "get_context": get_context,
        SHELL_NAME: CellShell(main),
    }
    return lambda: run_cell(cell, main, provided, hyper_params)


def _returned(events: Events, spec: RankSpec, value: Any) -> None:
    """Leaves the value in the scratch folder; one that can not be pickled is named and everything else stays."""
    problem = ""
    data = b""
    try:
        from jupyter_torchdist.worker.pickler import Pickler

        buffer = io.BytesIO()
        Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        data = buffer.getvalue()
    except Exception as exc:
        problem = (
            f"the return value of rank {spec.rank} is a {type(value).__name__} that can not be pickled ({exc}); "
            "return plain data, or save it to get_model_dir()"
        )
    if not problem and value is not None:
        (Path(spec.scratch) / f"value-{spec.rank}").write_bytes(data)
    events.phase(RankPhase.RETURNED, problem=problem)


def _exit_code(exc: SystemExit) -> int:
    if exc.code is None:
        return 0
    if isinstance(exc.code, int):
        return exc.code & 0xFF
    sys.stderr.write(f"{exc.code}\n")
    return 1


def _named_payload_problem(record: ErrorRecord) -> ErrorRecord:
    note = "this happened while the rank unpickled what was shipped from the notebook"
    return replace(record, notes=(*record.notes, note))


def _leave(artifacts: Any) -> None:
    """What an interpreter does at its end, and the process group before it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if artifacts is not None:
        try:
            artifacts.close()
        except Exception as exc:
            sys.stderr.write(f"jupyter_torchdist: {exc}\n")
    if "torch.distributed" in sys.modules:
        from jupyter_torchdist.worker import process_group

        process_group.leave()
    set_context(None)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _prepare_process(spec: RankSpec) -> None:
    name_process(f"rank{spec.rank}-{spec.run_id[-6:]}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
    for stream, fd in (("stdout", 1), ("stderr", 2)):
        # a lone surrogate in a print must not end the training, so what can not be encoded is escaped
        raw = io.FileIO(fd, "wb", closefd=False)
        text = io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", write_through=True)
        setattr(sys, stream, text)
        setattr(sys, f"__{stream}__", text)
    faulthandler.enable(2)
    faulthandler.register(STACK_SIGNAL, spec.stack_fd, all_threads=True, chain=False)
    os.environ.clear()
    os.environ.update(spec.env)
    sys.path[:] = list(spec.sys_path)
    if spec.cwd:
        try:
            os.chdir(spec.cwd)
        except OSError:
            os.chdir(spec.scratch)
            sys.stderr.write(
                f"jupyter_torchdist: the notebook's folder {spec.cwd} is not on this node; the rank works in "
                f"{spec.scratch}. Give data by absolute paths, or through dataset_map.\n"
            )
    _own_logger()
    import random

    random.seed()
    named = spec.env.get("OMP_NUM_THREADS", "").split(",")[0]
    preload.set_threads(int(named) if named.isdigit() and int(named) else spec.threads)


def _own_logger() -> None:
    """Our own lines go to the rank's stderr; the root logger stays as a fresh interpreter has it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
    logger = logging.getLogger("jupyter_torchdist")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
