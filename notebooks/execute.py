"""Executes a notebook in a real kernel, with progress: ``python -m notebooks.execute notebooks/quickstart.ipynb``."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

PLAIN = "text/plain"


def first_line(cell: nbformat.NotebookNode) -> str:
    return cell.source.strip().splitlines()[0][:90] if cell.source.strip() else ""


def plain_outputs(cell: nbformat.NotebookNode) -> str:
    """What a cell printed or showed, as text."""
    parts = []
    for output in cell.get("outputs", []):
        text = output.get("text") or output.get("data", {}).get(PLAIN, "")
        if text and not text.startswith("Figure("):
            parts.append(text.rstrip())
    return "\n".join(parts)


class Progress:
    """Prints each cell as it begins and ends."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._began = 0.0

    def begin(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        if cell.cell_type == "code":
            self._began = time.monotonic()
            print(f"[{cell_index + 1}/{self._cells}] {first_line(cell)} …", flush=True)

    def end(self, cell: nbformat.NotebookNode, cell_index: int, execute_reply: object) -> None:
        seconds = time.monotonic() - self._began
        text = re.sub(r"^", "      ", plain_outputs(cell), flags=re.MULTILINE)
        print(f"{text}\n      done in {seconds:.1f} s" if text.strip() else f"      done in {seconds:.1f} s", flush=True)


def execute(path: Path) -> nbformat.NotebookNode:
    """Runs all cells in the notebook's folder; the file is not changed. Raises ``CellExecutionError``."""
    notebook = nbformat.read(path, as_version=4)
    progress = Progress(len(notebook.cells))
    client = NotebookClient(
        notebook,
        timeout=600,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=progress.begin,
        on_cell_executed=progress.end,
    )
    # the embedded cluster is ended with the kernel, which can take longer than a kernel is usually given
    client.create_kernel_manager().shutdown_wait_time = 30.0
    client.execute()
    return notebook


def main(arguments: list[str]) -> int:
    path = Path(arguments[0])
    try:
        execute(path)
    except CellExecutionError as exc:
        print(exc, file=sys.stderr)
        return 1
    from jupyter_torchdist.run_folder import run_folders

    stage = path.parent / "stage"
    newest = run_folders(stage)
    print(f"\n{len(newest)} runs in {stage}; the newest:\n{newest[0].tree()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
