"""The run view as a user meets it: JupyterLab in a browser, a kernel, a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.browser.lab import Lab, with_environment
from tests.conftest import CHROMIUM

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

RUN_MIME = "application/vnd.jupyter-torchdist.run.v1+json"
PLOTLY_MIME = "application/vnd.plotly.v1+json"
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: the first run of a kernel waits for its cluster
_START = 90_000
_SOON = 20_000

LOAD = "%load_ext jupyter_torchdist"
ENDLESS = """\
%%torchdist --nodes 2 --workers 2 --stage teststage
import subprocess, sys, time
left_behind = subprocess.Popen(["sleep", "600"])
print(f"rank {ctx.get_rank()} of {ctx.get_world_size()} begins")
for step in range(1, 6001):
    report(loss=1 / step ** 0.5, acc=1 - 1 / (1 + step / 40))
    time.sleep(0.05)
"""
SHORT = """\
%%torchdist --workers 2 --stage teststage --name short
import os, time
ctx.get_metrics_reporter().set_total(80)
for step in range(80):
    report(loss=1 / (1 + step), acc=step / 80)
    time.sleep(0.01)
if ctx.get_rank() == 0:
    with open(os.path.join(ctx.get_model_dir(), "summary.txt"), "w") as file:
        file.write("eighty steps done\\n")
"""
FAILING = """\
%%torchdist --workers 2 --stage teststage
values = [1, 2]
report(loss=0.5)
raise ValueError("the third line")
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    assert server.stop() == [], "processes outlived their JupyterLab server"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(_SOON)
    yield opened
    context.close()


class Notebook:
    """A notebook that is open in JupyterLab."""

    def __init__(self, lab: Lab, page: Page, name: str, cells: list[str]) -> None:
        self._lab = lab
        self.page = page
        self.path = lab.root / name
        nbformat.write(
            nbformat.v4.new_notebook(
                cells=[nbformat.v4.new_code_cell(text.rstrip("\n")) for text in cells],
                metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            ),
            self.path,
        )
        self.open()
        self.expect_kernel("idle")

    def open(self) -> None:
        self.page.goto(self._lab.url(self.path.name))
        self.page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=60_000)
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(index)

    def run_view(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-torchdist-run")

    def execute(self, index: int) -> None:
        """Runs a cell as a user does, and returns while it runs."""
        self.cell(index).locator(".jp-InputPrompt").first.click()
        self.page.keyboard.press("Control+Enter")

    def expect_running(self, index: int) -> None:
        expect(self.prompt(index)).to_have_text("[*]:")

    def expect_finished(self, index: int, timeout: float = _SOON) -> None:
        expect(self.prompt(index)).to_have_text(re.compile(r"^\[\d+\]:$"), timeout=timeout)

    def expect_kernel(self, status: str) -> None:
        found = "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
        self.page.wait_for_function(f"status => ({found})() === status", arg=status, timeout=60_000)

    def prompt(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-InputPrompt").first

    def save(self) -> nbformat.NotebookNode:
        """Saves, and reads what is on disk then."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.path, as_version=4)


def chart(view: Locator, key: str) -> Locator:
    return view.locator(f".jp-torchdist-chart[data-key='{key}']")


def points(view: Locator, key: str) -> int:
    return int(chart(view, key).get_attribute("data-points") or 0)


def expect_drawn(view: Locator, key: str) -> None:
    """The chart is on the canvas: some pixel has a colour."""
    # a chart that is not on the screen is not drawn
    chart(view, key).scroll_into_view_if_needed()
    canvas = chart(view, key).locator("canvas")
    drawn = "node => node.getContext('2d').getImageData(0, 0, node.width, node.height).data.some(byte => byte > 0)"
    view.page.wait_for_function(drawn, arg=canvas.element_handle())


def folder_of(view: Locator, stage: Path) -> Path:
    return stage / (view.get_attribute("data-run-id") or "no id")


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def reports_of_rank_0(folder: Path) -> int:
    return sum(json.loads(line)["rank"] == 0 for line in (folder / "metrics.jsonl").read_text().splitlines())


def test_live_stop_next_run_and_saved_outputs(lab: Lab, page: Page, output_folder: Path) -> None:
    def screenshot(name: str) -> None:
        page.screenshot(path=output_folder / f"{name}.png")

    notebook = Notebook(lab, page, "live.ipynb", [LOAD, ENDLESS, SHORT, FAILING])
    stage = lab.root / "teststage"
    page.evaluate(
        """() => {
            window.redrawn = 0;
            const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
            kernel.iopubMessage.connect((_, { header }) => {
                window.redrawn += header.msg_type === 'update_display_data' ? 1 : 0;
            });
        }"""
    )

    # live: the curves grow while the cell runs
    notebook.execute(0)
    notebook.expect_finished(0, _START)
    notebook.execute(1)
    live = notebook.run_view(1)
    expect(live).to_have_attribute("data-state", "running", timeout=_START)
    seen = [0]
    for _ in range(4):
        chart(live, "loss").wait_for()
        grown = "([key, than]) => Number(document.querySelector(`.jp-torchdist-chart[data-key=${key}]`).dataset.points) > than"
        page.wait_for_function(grown, arg=["loss", seen[-1]])
        seen.append(points(live, "loss"))
        notebook.expect_running(1)
    assert seen == sorted(set(seen))
    expect(live).to_have_attribute("data-connection", "live")
    expect(live.locator(".jp-torchdist-tail-lines")).to_contain_text("rank 0 of 4 begins")
    expect_drawn(live, "loss")
    expect_drawn(live, "acc")
    # the kernel knows that the view is drawn here, and sends no chart beside it
    page.wait_for_function("() => Number(document.querySelector('.jp-torchdist-chart').dataset.points) > 100")
    assert page.evaluate("() => window.redrawn") == 0
    screenshot("running")

    # stop: the run ends, with every process of it
    folder = folder_of(live, stage)
    children = with_environment("TORCHELASTIC_RUN_ID", folder.name)
    ranks = [parent for child in children if (parent := child.parent()) is not None]
    assert len({rank.pid for rank in ranks}) == 4
    live.locator(".jp-torchdist-stop").click()
    expect(live).to_have_attribute("data-state", "stopped", timeout=_SOON)
    notebook.expect_finished(1)
    notebook.expect_kernel("idle")
    expect(live.locator(".jp-torchdist-stop")).to_be_hidden()
    expect(live.locator(".jp-torchdist-error")).to_be_hidden()
    expect(notebook.cell(1).locator(".jp-OutputArea")).to_contain_text("RunStopped: stopped after")
    expect(notebook.cell(1).locator(".jp-OutputArea")).not_to_contain_text("Traceback")
    assert record(folder)["state"] == "stopped"
    assert reports_of_rank_0(folder) == points(live, "loss") >= seen[-1]
    assert with_environment("TORCHELASTIC_RUN_ID", folder.name) == []
    assert psutil.wait_procs([*children, *ranks], timeout=5)[1] == []
    screenshot("stopped")

    # the next run works, and what it saved can be opened
    notebook.execute(2)
    finished = notebook.run_view(2)
    expect(finished).to_have_attribute("data-state", "finished", timeout=_START)
    notebook.expect_finished(2)
    assert points(finished, "loss") == points(finished, "acc") == 80
    artifact = finished.locator(".jp-torchdist-artifact", has_text="summary.txt")
    expect(artifact).to_be_visible()
    expect_drawn(finished, "acc")
    screenshot("finished")
    artifact.get_by_role("button").click()
    expect(page.locator(".jp-FileEditor .cm-content")).to_have_text("eighty steps done")
    screenshot("artifact")
    page.locator(".lm-TabBar-tab", has_text="live.ipynb").first.click()

    # an error says where it is
    notebook.execute(3)
    failed = notebook.run_view(3)
    expect(failed).to_have_attribute("data-state", "failed", timeout=_START)
    notebook.expect_finished(3)
    error = failed.locator(".jp-torchdist-error")
    expect(error).to_contain_text("ValueError")
    expect(error).to_contain_text("cell, line 3")
    expect(error).to_contain_text("the third line")
    error.scroll_into_view_if_needed()
    expect_drawn(failed, "loss")
    screenshot("error")

    # without a kernel the file is enough
    notebook.save()
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.goto("about:blank")
    page.route(re.compile(r"/api/(kernels|sessions)"), lambda route: route.fulfill(json=[]))
    notebook.open()
    for index, state, count in ((1, "stopped", reports_of_rank_0(folder)), (2, "finished", 80), (3, "failed", 1)):
        saved = notebook.run_view(index)
        expect(saved).to_have_attribute("data-state", state)
        expect(saved).to_have_attribute("data-connection", "saved")
        assert points(saved, "loss") == count
        expect_drawn(saved, "loss")
        screenshot(f"saved-{state}")


def test_the_saved_file_needs_no_extension(lab: Lab, page: Page, output_folder: Path) -> None:
    notebook = Notebook(lab, page, "saved.ipynb", [LOAD, SHORT])
    notebook.execute(0)
    notebook.expect_finished(0, _START)
    notebook.execute(1)
    notebook.expect_finished(1, _START)
    expect(notebook.run_view(1)).to_have_attribute("data-state", "finished")
    saved = notebook.save()
    [output] = [o for o in saved.cells[1].outputs if o.output_type in ("display_data", "execute_result")]
    assert set(output.data) == {RUN_MIME, PLOTLY_MIME, "text/html", "text/plain"}
    assert output.data[RUN_MIME]["status"]["state"] == "finished"
    assert {trace["meta"]["key"] for trace in output.data[PLOTLY_MIME]["data"]} == {"loss", "acc"}
    assert "<script" not in output.data["text/html"]
    assert "finished" in output.data["text/plain"]
    assert "widget-view" not in notebook.path.read_text()
    page.screenshot(path=output_folder / "finished.png")
