"""What an import costs: the modules that a fresh interpreter has loaded."""

import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "ray",
    "pandas",
    "pyarrow",
    "numpy",
    "plotly",
    "ipywidgets",
    "IPython",
    "jupyter_server",
    "cloudpickle",
}
ALLOWED = {
    "jupyter_torchdist": set(),
    "jupyter_torchdist.errors": set(),
    "jupyter_torchdist.config": set(),
    "jupyter_torchdist.records": set(),
    "jupyter_torchdist.run_folder": set(),
    "jupyter_torchdist.stage.location": set(),
    "jupyter_torchdist.stage.checkpoints": set(),
    "jupyter_torchdist.data.connector": set(),
    "jupyter_torchdist.worker.context": set(),
    "jupyter_torchdist.worker.reporter": set(),
    "jupyter_torchdist.worker.rank": set(),
    "jupyter_torchdist.worker.cell": set(),
    "jupyter_torchdist.agent.forkserver": set(),
    "jupyter_torchdist.coordinator.machine": set(),
    "jupyter_torchdist.coordinator.failures": set(),
    "jupyter_torchdist.driver.cluster": set(),
    "jupyter_torchdist.driver.handle": set(),
    "jupyter_torchdist.driver.result": set(),
    "jupyter_torchdist.driver.distributor": {"cloudpickle"},
    "jupyter_torchdist.notebook.extension": {"cloudpickle", "IPython"},
    "jupyter_torchdist.server.app": {"jupyter_server"},
}


@pytest.mark.parametrize("module", ALLOWED)
def test_a_module_loads_nothing_heavy_that_is_not_its_business(module):
    code = f"import {module}, sys; print(' '.join(sorted({{n.split('.')[0] for n in sys.modules}})))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) & HEAVY <= ALLOWED[module]


def test_every_public_name_is_there_and_dir_lists_it():
    code = (
        "import jupyter_torchdist as t\n"
        "missing = [n for n in t.__all__ if getattr(t, n, None) is None or n not in dir(t)]\n"
        "assert not missing, missing\n"
        "try: t.nope\nexcept AttributeError as e: assert 'nope' in str(e)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
