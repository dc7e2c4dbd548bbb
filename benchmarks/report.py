"""``python -m benchmarks report``: what one report costs its rank, and when the kernel has it."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import ranks
from benchmarks.host import Host, NotMeasured
from benchmarks.measure import header, span, summarize, table, times
from benchmarks.ways import fit, ray_cluster

_SECONDS = 240
_CALLS = {"ours": 5000, "tensorboard": 1000}
_TRAIN_CALLS = 6
_RATE = 100
#: a series is thinned above a thousand points, and each of these has to be seen
_STEADY_CALLS = 900
_TITLES = {
    "ours": "`log_metrics`",
    "tensorboard": "TensorBoard `add_scalar` × 3",
    "ray_train": "Ray Train `report`",
}


@contextlib.contextmanager
def on_our_ranks() -> Iterator[Callable[[str], list[float]]]:
    """A warm cluster on which each round is a run of one rank."""
    from jupyter_torchdist import shutdown
    from jupyter_torchdist.driver.distributor import connect

    rounds = {
        "ours": lambda stage: _run(ranks.time_log_metrics, _CALLS["ours"], stage).result().value,
        "tensorboard": lambda stage: _run(ranks.time_summary_writer, _CALLS["tensorboard"], stage).result().value,
        "latency": _latencies,
    }

    def one(name: str) -> list[float]:
        with tempfile.TemporaryDirectory(prefix="bench-") as stage:
            return rounds[name](stage)

    connect()
    try:
        yield one
    finally:
        shutdown()


def _run(function: Callable[[Any], Any], params: Any, stage: str) -> Any:
    from jupyter_torchdist import PyTorchDistributor, PyTorchScalingConfig

    distributor = PyTorchDistributor(function, PyTorchScalingConfig(1, 1))
    return distributor.start(hyper_params=params, artifact_stage_location=stage, timeout=_SECONDS, display="none")


def _latencies(stage: str) -> list[float]:
    """Seconds from each report on the rank until a listener in the kernel's process has it in its series."""
    from jupyter_torchdist.driver.series import SeriesReader

    handle = _run(ranks.send_steadily, {"count": _STEADY_CALLS, "rate": _RATE}, stage)
    reader, spans = SeriesReader(handle.series), array("d")

    def arrived(_: Any) -> None:
        now = time.time()
        for delta in reader.deltas():
            if delta.key == "sent":
                spans.extend(now - sent for sent in array("d", delta.values))

    handle.listen(arrived)
    handle.result()
    return list(spans)


@contextlib.contextmanager
def on_ray_train() -> Iterator[Callable[[str], list[float]]]:
    """Ray Train with one worker."""

    def one(_: str) -> list[float]:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            file = Path(folder) / "spans.json"
            fit(ranks.time_train_report, {"count": _TRAIN_CALLS, "file": str(file)}, folder, workers=1)
            spans: list[float] = json.loads(file.read_text())
            return spans

    with ray_cluster():
        yield one


def run(rounds: int) -> None:
    """Measures and prints; rounds of ours and TensorBoard's take turns, Ray Train's few reports come last."""
    print(header(f"report: 3 scalars, {rounds} rounds"), flush=True)
    spans: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    _ask_all("on_our_ranks", ["ours", "tensorboard", "latency"] * rounds, spans, reasons)
    _ask_all("on_ray_train", ["ray_train"], spans, reasons)
    print("\n## one report on its rank\n")
    print(table(("report", "median", "p99", "max", "reports", "ours = 1"), _cost_rows(spans, reasons)))
    print(f"\n## report → kernel, {_RATE} reports/s\n")
    head = ("from the rank's clock to a listener", "p50", "p99", "max", "reports", "")
    print(table(head, [_cells("`RunHandle.listen`", "latency", spans, reasons)]))


def _ask_all(way: str, names: list[str], spans: dict[str, list[float]], reasons: dict[str, str]) -> None:
    """Adds each name's spans, pooled over its rounds, or the reason why it has none."""
    host: Host | None = None
    for name in names:
        if name in reasons:
            continue
        try:
            host = host or Host("benchmarks.report", way)
            spans.setdefault(name, []).extend(host.ask(name, _SECONDS))
        except NotMeasured as exc:
            reasons[name] = str(exc)
            # the process of a round that failed has ended, so the next one gets a new one
            host = _closed(host)
    _closed(host)


def _closed(host: Host | None) -> None:
    if host is not None:
        host.close()


def _cost_rows(spans: dict[str, list[float]], reasons: dict[str, str]) -> list[list[str]]:
    return [_cells(title, name, spans, reasons) for name, title in _TITLES.items()]


def _cells(title: str, name: str, spans: dict[str, list[float]], reasons: dict[str, str]) -> list[str]:
    if not spans.get(name):
        return [title, f"not measured: {reasons.get(name, 'no round')}", "", "", "0", ""]
    found = summarize(spans[name])
    ours = spans.get("ours")
    ratio = times(found.median / summarize(ours).median) if ours and name in _TITLES else ""
    return [title, span(found.median), span(found.p99), span(found.most), f"{found.count:,}", ratio]
