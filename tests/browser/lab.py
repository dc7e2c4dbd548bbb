"""A JupyterLab server of its own for tests: separate settings, a random token, ended with all that it started."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

_MARK = "LAB_UNDER_TEST"
_SETTINGS = {
    # no question to the user, and none to the network
    "@jupyterlab/apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
    # all cells are on the page, also those that are not on the screen
    "@jupyterlab/notebook-extension/tracker": '{"windowingMode": "none"}',
}


class Lab:
    """Runs from its making until ``stop``; ``root`` is what its file browser shows."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "notebooks"
        self.root.mkdir(parents=True)
        self._token = secrets.token_urlsafe(24)
        self._mark = secrets.token_hex(12)
        self._log = folder / "lab.log"
        self._address = f"http://127.0.0.1:{_free_port()}"
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "jupyterlab",
                    "--no-browser",
                    "--allow-root",
                    "--ip=127.0.0.1",
                    f"--port={self._address.rpartition(':')[2]}",
                    "--ServerApp.port_retries=0",
                    f"--ServerApp.root_dir={self.root}",
                    "--LabApp.expose_app_in_browser=True",
                ],
                cwd=self.root,
                env=self._environment(folder / "home"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_up(60)
        except BaseException:
            self.stop()
            raise

    def url(self, notebook: str) -> str:
        """Where a notebook opens, in a workspace that holds nothing else."""
        return f"{self._address}/lab/workspaces/{Path(notebook).stem}/tree/{notebook}?token={self._token}"

    def stop(self) -> list[str]:
        """Ends the server, and by force what outlives it; says what that was."""
        started = self._started()
        if self._server.poll() is None:
            self._server.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(started, timeout=30)
        left = {process.pid: process for process in [*alive, *self._started()]}
        names = []
        for process in left.values():
            try:
                names.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left.values(), timeout=10)
        self._server.wait(10)
        return names

    def _environment(self, home: Path) -> dict[str, str]:
        def folder(name: str) -> str:
            path = home / name
            path.mkdir(parents=True)
            return str(path)

        settings = Path(folder("settings"))
        for name, text in _SETTINGS.items():
            file = settings / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        foreign = ("JUPYTER", "JPY_", "IPYTHON", "RAY_", "TORCHDIST_", "MPLBACKEND")
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith(foreign)},
            "HOME": str(home),
            "JUPYTER_CONFIG_DIR": folder("config"),
            "JUPYTER_DATA_DIR": folder("data"),
            "JUPYTER_RUNTIME_DIR": folder("runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTERLAB_WORKSPACES_DIR": folder("workspaces"),
            "IPYTHONDIR": folder("ipython"),
            "JUPYTER_TOKEN": self._token,
            _MARK: self._mark,
        }

    def _wait_until_up(self, seconds: float) -> None:
        request = urllib.request.Request(
            f"{self._address}/api/status", headers={"Authorization": f"token {self._token}"}
        )
        deadline = time.monotonic() + seconds
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).close()
                return
            except (urllib.error.URLError, TimeoutError) as exc:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"JupyterLab did not start: {exc}\n{self._log.read_text()[-3000:]}") from exc
                time.sleep(0.1)

    def _started(self) -> list[psutil.Process]:
        """The server and everything that inherited its environment, whoever is its parent now."""
        return with_environment(_MARK, self._mark)


def with_environment(name: str, value: str) -> list[psutil.Process]:
    """The processes that were started with an environment variable of this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
