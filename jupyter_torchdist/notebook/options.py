"""The options of ``%%torchdist``: from the magic's line to checked values."""

from __future__ import annotations

import argparse
import ast
import difflib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from jupyter_torchdist.config import PyTorchScalingConfig, RunOptions, WorkerResourceConfig, parse_seconds
from jupyter_torchdist.errors import ConfigError

EXAMPLES = """\
examples:
  %%torchdist --workers 2
  %%torchdist --nodes 2 --workers 4 --gpus 1 --name digits --hp lr=0.01 --hp epochs=5
  %%torchdist --workers 2 --data train=df --hparams config --out result
  %%torchdist --workers 4 --stage "my runs" --timeout 2h

--workers is per node, --gpus and --cpus are per worker. In the cell, ctx is get_context() and report(loss=0.3)
reports metrics. A body that only defines main, train, train_func or train_fn is called."""


@dataclass(frozen=True)
class CellOptions:
    """What the line of a cell asks for. ``data`` and ``hparams`` name notebook variables."""

    scaling: PyTorchScalingConfig
    run: RunOptions
    stage: str | None = None
    hyper_params: Mapping[str, Any] = field(default_factory=dict)
    hparams: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    out: str | None = None
    wait: bool = True
    check: bool = False
    address: str | None = None


class _Parser(MagicArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%torchdist: {message}. See %%torchdist --help.")


def parser() -> argparse.ArgumentParser:
    """All options, with their help."""
    p = _Parser(
        prog="%%torchdist",
        description="Trains with the body of the cell on every rank of a world.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.allow_abbrev = False
    p.add_argument("--help", "-h", action="store_true", help="show this text")
    p.add_argument("--nodes", default="1", metavar="N", help="nodes (1)")
    p.add_argument("--workers", default="1", metavar="N", help="workers per node (1)")
    p.add_argument("--gpus", default="0", metavar="N", help="GPUs per worker (0)")
    p.add_argument("--cpus", default="1", metavar="X", help="CPUs per worker, fractions allowed (1)")
    p.add_argument("--backend", default="auto", help="auto, gloo, nccl (auto: nccl with GPUs, else gloo)")
    p.add_argument("--no-process-group", action="store_true", help="leave init_process_group to the cell")
    p.add_argument("--stage", metavar="PLACE", help="where the run folder goes: a folder or @name/path (./stage)")
    p.add_argument("--name", help="a name for the run")
    p.add_argument("--hp", action="append", default=[], metavar="KEY=VALUE", help="a hyper-parameter; repeatable")
    p.add_argument("--hparams", metavar="VAR", help="the notebook variable with the hyper-parameters")
    p.add_argument("--data", action="append", default=[], metavar="NAME=VAR", help="data from a variable; repeatable")
    p.add_argument("--out", metavar="VAR", help="put the result into this variable")
    p.add_argument("--timeout", metavar="TIME", help="end the run after this time: 90, 90s, 10m, 2h")
    p.add_argument("--grace", default="10", metavar="TIME", help="what a stopped cell gets to save (10 s)")
    p.add_argument(
        "--stall-after",
        default="10m",
        metavar="TIME",
        help="show all stacks after so long without news; 0: never (10m)",
    )
    p.add_argument(
        "--straggler-grace",
        default="30",
        metavar="TIME",
        help="end a run whose ranks are locked in collectives (30 s)",
    )
    p.add_argument(
        "--rendezvous-timeout", default="60", metavar="TIME", help="the time in which all ranks must have met (60 s)"
    )
    p.add_argument(
        "--env", action="append", default=[], metavar="KEY=VALUE", help="a variable of the ranks; repeatable"
    )
    p.add_argument("--tag", action="append", default=[], help="a tag for the run; repeatable")
    p.add_argument("--no-wait", action="store_true", help="return at once with a handle (see --out)")
    p.add_argument("--check", action="store_true", help="check everything and start nothing")
    p.add_argument("--address", metavar="ADDR", help="the Ray cluster (RAY_ADDRESS, else an embedded local one)")
    return p


def parse(line: str) -> CellOptions | None:
    """The options of a line, None when help is asked for. Raises ``UsageError``, whatever the line holds."""
    if any("\ud800" <= character <= "\udfff" for character in line):
        raise UsageError(
            f"%%torchdist: {line.strip()!r} has half of a surrogate pair, which no file can hold. Remove it."
        )
    try:
        words = shlex.split(line)
    except ValueError as exc:
        raise UsageError(f"%%torchdist: {str(exc).lower()} in {line.strip()!r}. Close the quote.") from exc
    made = parser()
    known, unknown = made.parse_known_args(words)
    if known.help:
        return None
    if unknown:
        raise UsageError(_unknown(made, unknown[0]))
    try:
        return _checked(known)
    except ConfigError as exc:
        raise UsageError(f"%%torchdist: {exc}") from exc


def _unknown(made: argparse.ArgumentParser, word: str) -> str:
    options = [option for action in made._actions for option in action.option_strings]
    close = difflib.get_close_matches(word.split("=")[0], options, 1)
    hint = f"Did you mean {close[0]}?" if close else "See %%torchdist --help."
    what = "unknown option" if word.startswith("-") else "unexpected word"
    return f"%%torchdist: {what} {word!r}. {hint}"


def _checked(known: argparse.Namespace) -> CellOptions:
    scaling = PyTorchScalingConfig(
        _whole("--nodes", known.nodes, 1),
        _whole("--workers", known.workers, 1),
        WorkerResourceConfig(_number("--cpus", known.cpus), _whole("--gpus", known.gpus, 0)),
    )
    if known.hp and known.hparams:
        raise ConfigError("--hp and --hparams exclude each other; put everything into the variable.")
    options = RunOptions(
        name=known.name,
        backend=known.backend,
        init_process_group=not known.no_process_group,
        timeout=_seconds("--timeout", known.timeout) if known.timeout is not None else None,
        grace=_seconds("--grace", known.grace),
        stall_after=_seconds("--stall-after", known.stall_after),
        straggler_grace=_seconds("--straggler-grace", known.straggler_grace),
        rendezvous_timeout=_seconds("--rendezvous-timeout", known.rendezvous_timeout),
        env=_pairs("--env", known.env),
        tags=tuple(known.tag),
    )
    if known.out is not None:
        _identifier("--out", known.out)
    data = {name: _identifier("--data", variable) for name, variable in _pairs("--data", known.data).items()}
    return CellOptions(
        scaling=scaling,
        run=options,
        stage=known.stage,
        hyper_params={key: literal(value) for key, value in _pairs("--hp", known.hp).items()},
        hparams=_identifier("--hparams", known.hparams) if known.hparams else None,
        data=data,
        out=known.out,
        wait=not known.no_wait,
        check=known.check,
        address=known.address,
    )


def _whole(option: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; it must be a whole number of at least {least}.") from None
    if value < least:
        raise ConfigError(f"{option} is {value}; it must be at least {least}.")
    return value


def _number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; it must be a number of at least 0.") from None
    return int(value) if value.is_integer() else value


def _seconds(option: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ConfigError as exc:
        raise ConfigError(f"{option}: {exc}") from exc


def _pairs(option: str, words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise ConfigError(f"{option} {word!r} is not KEY=VALUE.")
        if key in found:
            raise ConfigError(f"{option} gives {key!r} twice.")
        found[key] = value
    return found


def _identifier(option: str, text: str) -> str:
    if not text.isidentifier():
        raise ConfigError(f"{option} is {text!r}; it must be the name of a variable.")
    return text


def literal(text: str) -> Any:
    """``0.1`` → a number, ``[1, 2]`` → a list, ``true`` → True; anything else stays text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text in ("inf", "-inf", "nan"):  # how Python writes them
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
