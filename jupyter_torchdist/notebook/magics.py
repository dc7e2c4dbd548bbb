"""``%%torchdist`` and ``%torchdist``."""

from __future__ import annotations

import difflib
import shlex
import time
from collections.abc import Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from jupyter_torchdist.driver import api, cluster, host
from jupyter_torchdist.driver.distributor import Job, notebook_places, run_environment, start
from jupyter_torchdist.driver.handle import RunHandle
from jupyter_torchdist.driver.ship import pack, reachable
from jupyter_torchdist.errors import CaptureError, ConfigError
from jupyter_torchdist.notebook.cell import PreparedCell, prepare
from jupyter_torchdist.notebook.options import CellOptions, parse, parser
from jupyter_torchdist.notebook.view import state_line
from jupyter_torchdist.records import Source
from jupyter_torchdist.run_folder import find_run
from jupyter_torchdist.stage.location import resolve_stage

_WORDS = ("status", "runs", "show", "stop", "logs", "stacks")
_LISTED = 8


@magics_class
class TorchdistMagics(Magics):
    """The magics of one shell."""

    @no_var_expand
    @cell_magic("torchdist")
    def torchdist_cell(self, line: str, cell: str) -> Any:
        """Trains with the body of the cell on every rank. See ``%%torchdist --help``."""
        options = parse(line)
        if options is None:
            print(parser().format_help())
            return None
        began = time.time()
        namespace = self.shell.user_ns
        prepared = prepare(cell, namespace)
        job = _job(options, prepared, namespace, began)
        if options.check:
            print("\n".join(["nothing is started; the cell is good to run:", *job.notes]))
            return None
        handle = start(job)
        if options.out:
            namespace[options.out] = handle
        if not options.wait:
            return None
        result = handle.result()
        if options.out:
            namespace[options.out] = result
        return None

    @no_var_expand
    @line_magic("torchdist")
    def torchdist_line(self, line: str) -> Any:
        """``%torchdist status | runs | show RUN | stop RUN | logs RUN [--rank K] | stacks RUN``.

        RUN is an id, the beginning of one, a name, or last.
        """
        try:
            words = shlex.split(line)
        except ValueError as exc:
            raise UsageError(f"%torchdist: {str(exc).lower()}; close the quote.") from exc
        if not words or words[0] in ("--help", "-h", "help"):
            print(f"%torchdist {' | '.join(_WORDS)}\n{self.torchdist_line.__doc__}\n\n{parser().format_help()}")
            return None
        word, arguments = words[0], words[1:]
        if word not in _WORDS:
            close = difflib.get_close_matches(word, _WORDS, 1)
            hint = f"Did you mean %torchdist {close[0]}?" if close else f"There are {', '.join(_WORDS)}."
            raise UsageError(f"%torchdist: unknown word {word!r}. {hint}")
        try:
            return getattr(self, f"_{word}")(arguments)
        except ConfigError as exc:
            raise UsageError(f"%torchdist {word}: {exc}") from exc

    def _status(self, arguments: list[str]) -> None:
        if arguments:
            raise ConfigError(f"it takes no argument, not {arguments[0]!r}; %torchdist show RUN tells about one run.")
        connected = cluster.connected()
        if connected is None:
            print("no cluster is connected yet; the first run starts one")
        else:
            resources = ", ".join(f"{amount:g} {kind}s" for kind, amount in cluster.resources().items())
            print(f"{connected.describe()}: {resources}")
        for handle in api.live_runs():
            print(f"  {handle.run_id}: {state_line(handle)}")

    def _runs(self, arguments: list[str]) -> Any:
        if len(arguments) > 1:
            raise ConfigError(f"it takes one stage, not {len(arguments)}; put quotes around a name with blanks.")
        return api.runs(arguments[0] if arguments else None)

    def _show(self, arguments: list[str]) -> Any:
        handle = _live(arguments)
        if handle is not None:
            from jupyter_torchdist.notebook.view import show

            show(handle, 1)
            return None
        return api.finished(_word(arguments))

    def _stop(self, arguments: list[str]) -> None:
        handle = _running(arguments)
        handle.stop()
        print(f"asked {handle.run_id} to stop")

    def _stacks(self, arguments: list[str]) -> None:
        handle = _running(arguments)
        print(handle.stack_text() or f"no rank of {handle.run_id} runs now")

    def _logs(self, arguments: list[str]) -> None:
        rank, rest = 0, list(arguments)
        if "--rank" in rest:
            place = rest.index("--rank")
            value = rest[place + 1] if place + 1 < len(rest) else ""
            if not value.isdigit():
                raise ConfigError(f"--rank is {value!r}; it must be the number of a rank.")
            rank = int(value)
            del rest[place : place + 2]
        handle = _live(rest or ["last"])
        folder = (
            handle.folder if handle else find_run(resolve_stage(None, host.notebook_folder()), _word(rest or ["last"]))
        )
        if not folder.log(rank).exists():
            raise ConfigError(f"run {folder.run_id} has no rank {rank}.")
        print(folder.read_log(rank), end="")


def _word(arguments: list[str]) -> str:
    if len(arguments) != 1:
        raise ConfigError("name one run: its id, the beginning of it, its name, or last.")
    return arguments[0]


def _live(arguments: list[str]) -> RunHandle | None:
    word = _word(arguments)
    runs = api.live_runs()
    if word == "last":
        return runs[-1] if runs else None
    return next((h for h in runs if h.run_id.startswith(word) or h.status.name == word), None)


def _running(arguments: list[str]) -> RunHandle:
    """The live run that is named, the last one where none is. Raises ``ConfigError``."""
    words = arguments or ["last"]
    handle = _live(words)
    if handle is None:
        raise ConfigError(f"there is no run {_word(words)!r} that is running.")
    return handle


def _job(options: CellOptions, prepared: PreparedCell, namespace: dict[str, Any], began: float) -> Job:
    hyper_params = _hyper_params(options, namespace)
    data = {name: _variable("--data", variable, namespace) for name, variable in options.data.items()} or None
    names = reachable(list(prepared.names), namespace)
    try:
        packed = pack(
            label=prepared.label,
            captured={name: namespace[name] for name in names},
            namespace=namespace,
            hyper_params=hyper_params,
            dataset_map=data,
            cell=prepared.text,
            code=prepared.code,
            places={**notebook_places(), prepared.label: "cell"},
        )
        stage = resolve_stage(options.stage, host.notebook_folder())
    except (CaptureError, ConfigError) as exc:
        raise UsageError(f"%%torchdist: {exc}") from exc
    notes = []
    if prepared.entry:
        notes.append(f"the cell only defines {prepared.entry}: it is called")
    if packed.captured:
        shown = ", ".join(f"{c.name} ({c.type}, {_bytes(c.size)})" for c in packed.captured[:_LISTED])
        more = f" and {len(packed.captured) - _LISTED} more" if len(packed.captured) > _LISTED else ""
        notes.append(f"from the notebook: {shown}{more}")
    return Job(
        scaling=options.scaling,
        options=options.run,
        source=Source(prepared.text, prepared.label, "cell"),
        packed=packed,
        stage=str(stage),
        hyper_params=hyper_params,
        notes=tuple(notes),
        address=options.address,
        env=run_environment(options.run),
        began=began,
    )


def _hyper_params(options: CellOptions, namespace: Mapping[str, Any]) -> Any:
    if options.hparams:
        return _variable("--hparams", options.hparams, namespace)
    return dict(options.hyper_params) or None


def _variable(option: str, name: str, namespace: Mapping[str, Any]) -> Any:
    if name not in namespace:
        raise UsageError(f"%%torchdist: {option} names {name!r}, which the notebook does not define.")
    return namespace[name]


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
