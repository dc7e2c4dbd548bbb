"""What the tests share: one cluster, one shell, a stage for each test."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytest_jupyter.jupyter_server"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CI = bool(os.environ.get("CI"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and this machine has none"))
        if item.get_closest_marker("browser") and CHROMIUM is None and not CI:
            item.add_marker(pytest.mark.skip(reason="needs chromium (apt-get install chromium)"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """The embedded local cluster, one for all tests of the session."""
    from jupyter_torchdist.driver import cluster as module
    from jupyter_torchdist.driver.distributor import connect

    yield connect()
    module.shutdown()


@pytest.fixture(scope="session")
def session_shell(cluster: Any) -> Any:
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    shell = TerminalInteractiveShell.instance(colors="nocolor")
    shell.run_line_magic("load_ext", "jupyter_torchdist")
    return shell


@pytest.fixture
def shell(session_shell: Any) -> Iterator[Any]:
    """A real IPython shell with the extension loaded and a namespace of its own."""
    before = dict(session_shell.user_ns)
    folder = Path.cwd()
    yield session_shell
    os.chdir(folder)
    session_shell.user_ns.clear()
    session_shell.user_ns.update(before)


class Cell:
    """``cell(flags, body)`` runs a ``%%torchdist`` cell in the shell with a stage of its own.

    After it ``cell.result`` is the result, ``cell.logs`` the output by rank, ``cell.text`` what the user saw.
    """

    def __init__(self, shell: Any, stage: Path, capture: Callable[[], Any]) -> None:
        self.shell = shell
        self.stage = stage
        self._capture = capture
        self.text = ""
        self.execution: Any = None
        self.result: Any = None

    def __call__(self, flags: str, body: str) -> Any:
        place = "" if "--stage" in flags else f" --stage '{self.stage}'"
        before = set(self.folders)
        self.shell.user_ns.pop("_outcome", None)
        self._capture()
        self.execution = self.shell.run_cell(f"%%torchdist {flags}{place} --out _outcome\n{body}")
        captured = self._capture()
        self.text = captured.out + captured.err
        self.result = self.shell.user_ns.get("_outcome")
        self.new_folders = [f for f in self.folders if f not in before]
        return self.result

    @property
    def error(self) -> BaseException | None:
        """What the cell raised."""
        return self.execution.error_in_exec or self.execution.error_before_exec

    @property
    def folders(self) -> list[Path]:
        """The run folders of the stage, oldest first."""
        return sorted(p for p in self.stage.iterdir() if p.is_dir()) if self.stage.is_dir() else []

    @property
    def logs(self) -> dict[int, str]:
        """Output of the newest run by rank."""
        files = (self.new_folders[-1] / "logs").glob("rank-*.log")
        return {int(f.stem.split("-")[1]): f.read_text("utf-8", "replace") for f in files}


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A stage that no other test uses."""
    return tmp_path / "stage"


@pytest.fixture
def cell(shell: Any, stage: Path, capsys: pytest.CaptureFixture[str]) -> Cell:
    return Cell(shell, stage, capsys.readouterr)


@pytest.fixture
def begin(cluster: Any, stage: Path) -> Iterator[Callable[..., Any]]:
    """Starts a train function, on two ranks unless told otherwise; what still runs at the test's end is stopped."""
    from jupyter_torchdist import PyTorchDistributor, PyTorchScalingConfig

    handles = []

    def begin(function: Any, scaling: Any = None, **options: Any) -> Any:
        handle = PyTorchDistributor(function, scaling or PyTorchScalingConfig(1, 2)).start(
            artifact_stage_location=str(stage), display="none", **options
        )
        handles.append(handle)
        return handle

    yield begin
    for handle in handles:
        handle.stop(force=True)
        handle.wait()


def until(condition: Callable[[], Any]) -> Any:
    """Waits for what another process does; the test's own time limit is the bound."""
    while not (found := condition()):
        time.sleep(0.01)
    return found


@pytest.fixture
def output_folder(request: pytest.FixtureRequest) -> Path:
    """Where a test leaves what a person should look at."""
    folder = Path(__file__).parent.parent / "test-output" / request.node.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
