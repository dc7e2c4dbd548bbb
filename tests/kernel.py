"""A real kernel for tests: executes cells and keeps what it sent for each."""

from __future__ import annotations

import json
import queue
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from jupyter_client.manager import start_new_kernel

RUN_MIME = "application/vnd.jupyter-torchdist.run.v1+json"
PLOTLY_MIME = "application/vnd.plotly.v1+json"


@contextmanager
def running_kernel(folder: Path) -> Iterator[Kernel]:
    """A kernel in ``folder`` with the extension loaded; ended with what it started."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(folder))
    # the embedded cluster is ended with the kernel, which can take longer than a kernel is usually given
    manager.shutdown_wait_time = 30.0
    kernel = Kernel(manager, client, folder)
    try:
        kernel("%load_ext jupyter_torchdist")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


class Kernel:
    """``kernel(source)`` executes a cell and returns what it ``Sent``."""

    def __init__(self, manager, client, folder):
        self.manager = manager
        self.client = client
        self.folder = folder
        self.notebook = nbformat.v4.new_notebook()
        self._subshell = None

    def __call__(self, source, timeout=120):
        return self.finish(self.begin(source), source, timeout)

    def begin(self, source):
        """Executes a cell and does not wait for it."""
        return Sent(self.client.execute(source))

    def take(self, sent, timeout=120):
        """The next message that is told to a begun cell."""
        message = self.client.get_iopub_msg(timeout=timeout)
        sent.add(message)
        return message

    def finish(self, sent, source="", timeout=120):
        """Waits until a begun cell is done."""
        while True:
            message = self.take(sent, timeout)
            if message["parent_header"].get("msg_id") != sent.id:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        reply = self.client.get_shell_msg(timeout=timeout)
        sent.reply = reply["content"]
        cell = nbformat.v4.new_code_cell(source)
        cell.outputs = sent.outputs()
        self.notebook.cells.append(cell)
        return sent

    def send(self, comm_id, data):
        """What a browser sends over a comm: on a subshell, as JupyterLab does, so that it arrives while a cell runs."""
        if self._subshell is None:
            request = self.client.session.msg("create_subshell_request", {})
            self.client.control_channel.send(request)
            self._subshell = self.client.get_control_msg(timeout=30)["content"]["subshell_id"]
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        message["header"]["subshell_id"] = self._subshell
        self.client.shell_channel.send(message)

    def drain(self):
        """What comes after the end of a cell."""
        late = []
        while True:
            try:
                late.append(self.client.get_iopub_msg(timeout=0.2))
            except queue.Empty:
                return late


class Sent:
    """The messages of one cell, and what a frontend makes of them."""

    def __init__(self, message_id):
        self.id = message_id
        self.messages = []
        self.reply = None

    def add(self, message):
        self.messages.append(message)

    def of(self, *types):
        return [m for m in self.messages if m["msg_type"] in types]

    @property
    def updates(self):
        return [m for m in self.of("comm_msg") if m["content"]["data"].get("kind") == "update"]

    @property
    def text(self):
        return "".join(m["content"]["text"] for m in self.of("stream"))

    @property
    def shown(self):
        """The plain text of all outputs."""
        parts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in self.outputs()]
        parts += ["\n".join(o["traceback"]) for o in self.outputs() if o["output_type"] == "error"]
        return "\n".join(parts)

    @property
    def bytes(self):
        """Of everything that the run sent: content and buffers."""
        return sum(
            len(json.dumps(m["content"])) + sum(len(b) for b in m["buffers"])
            for m in self.of("comm_open", "comm_msg", "comm_close", "display_data", "update_display_data")
        )

    def outputs(self):
        """The cell's outputs as a notebook saves them."""
        outputs, by_id = [], {}
        for message in self.messages:
            kind = message["msg_type"]
            if kind == "update_display_data":
                for output in by_id.get(message["content"]["transient"]["display_id"], ()):
                    output["data"] = nbformat.from_dict(message["content"]["data"])
            elif kind in ("display_data", "execute_result", "stream", "error"):
                output = nbformat.v4.output_from_msg(message)
                outputs.append(output)
                display_id = message["content"].get("transient", {}).get("display_id")
                if display_id:
                    by_id.setdefault(display_id, []).append(output)
        return outputs

    @property
    def bundle(self):
        (found,) = [o["data"] for o in self.outputs() if RUN_MIME in o.get("data", {})]
        return found

    def drawn(self):
        """The series as a browser has them after all updates, and the numbers of the last status."""
        series, status = {}, None
        for message in self.updates:
            data, buffers = message["content"]["data"], [bytes(b) for b in message["buffers"]]
            strict(json.dumps(data))
            assert len(buffers) == 2 * len(data["series"])
            for index, one in enumerate(data["series"]):
                parts = [struct.unpack(f"<{one['count']}d", b) for b in buffers[2 * index : 2 * index + 2]]
                steps, values = ([], []) if one["reset"] else series.get(one["key"], ([], []))
                series[one["key"]] = ([*steps, *parts[0]], [*values, *parts[1]])
            status = data["status"] or status
        return series, status


def strict(text):
    """JSON without Python's additions. Raises ``ValueError``."""

    def refuse(name):
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)
