"""What runs in the ranks: the same functions whichever launcher started them. As light to import as a cell."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: fractions with all their digits, as a loss has: the text of 0.5 would be shorter than any real report's
_VALUES = [0.6931471805599453, 0.8414709848078965, 0.0009502129316321]


def reach(folder: str) -> float:
    """One all-reduce, then the moment of it in ``folder/<rank>``: CLOCK_MONOTONIC, one clock for all processes."""
    import torch
    import torch.distributed as dist

    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    moment = time.monotonic()
    (Path(folder) / str(dist.get_rank())).write_text(repr(moment))
    if ours:
        dist.destroy_process_group()
    return moment


def time_calls(call: Callable[[dict[str, float], int], Any], count: int) -> list[float]:
    """The seconds of each call; the first tenth is left out, it fills caches and opens files."""
    spans = []
    for number in range(count):
        values = scalars(number)
        begin = time.perf_counter_ns()
        call(values, number)
        spans.append((time.perf_counter_ns() - begin) / 1e9)
    return spans[count // 10 :]


def scalars(number: int) -> dict[str, float]:
    """Three scalars that change from report to report."""
    return {key: value + number * 1e-9 for key, value in zip(("loss", "accuracy", "lr"), _VALUES, strict=True)}


def time_log_metrics(count: int) -> list[float]:
    """Our reporter, on a rank."""
    from jupyter_torchdist import get_context

    return time_calls(get_context().get_metrics_reporter().log_metrics, count)


def time_summary_writer(count: int) -> list[float]:
    """TensorBoard's writer, on the same kind of rank."""
    from torch.utils.tensorboard import SummaryWriter

    from jupyter_torchdist import get_context

    with SummaryWriter(get_context().get_model_dir()) as writer:

        def report(values: dict[str, float], number: int) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, number)

        return time_calls(report, count)


def time_train_report(options: dict[str, Any]) -> None:
    """Ray Train's report, on a worker of it; the seconds go to a file."""
    from ray import train

    spans = time_calls(lambda values, _: train.report(values), options["count"])
    Path(options["file"]).write_text(json.dumps(spans))


def send_steadily(options: dict[str, float]) -> None:
    """Reports at a steady rate, each with the moment when it was made."""
    from jupyter_torchdist import get_context

    reporter = get_context().get_metrics_reporter()
    begin = time.monotonic()
    for number in range(int(options["count"])):
        time.sleep(max(0.0, begin + number / options["rate"] - time.monotonic()))
        reporter.log_metrics({**scalars(number), "sent": time.time()}, step=number)


if __name__ == "__main__":
    reach(sys.argv[1])
