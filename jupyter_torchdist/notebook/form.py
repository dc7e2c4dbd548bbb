"""The config form: the world, the stage and the hyper-parameters as widgets, with what they mean as code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from jupyter_torchdist.config import BACKENDS, PyTorchScalingConfig, RunOptions, WorkerResourceConfig
from jupyter_torchdist.driver import cluster
from jupyter_torchdist.driver.distributor import PyTorchDistributor, check_train_function, connect
from jupyter_torchdist.driver.handle import RunHandle
from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.notebook.options import literal

_DEFAULTS: dict[str, Any] = {
    "nodes": 1,
    "workers": 1,
    "gpus": 0,
    "cpus": 1.0,
    "backend": "auto",
    "stage": "",
    "name": "",
    "hyper_params": None,
}
_MAX_NODES = 64
_MAX_WORKERS = 64


def form(train_func: Any, **defaults: Any) -> ConfigForm:
    """A form that runs ``train_func``.

    ``defaults``: ``nodes``, ``workers`` (per node), ``gpus`` and ``cpus`` (per worker), ``backend``, ``stage``,
    ``name``, ``hyper_params`` (a flat dict; each becomes a field). Raises ``ConfigError`` for anything else.
    """
    return ConfigForm(train_func, **defaults)


class ConfigForm:
    """Widgets for one train function; ``run()`` and ``stop()`` are what its buttons do, ``handle`` its newest run."""

    def __init__(self, train_func: Any, **defaults: Any) -> None:
        import ipywidgets as widgets

        check_train_function(train_func)
        unknown = sorted(set(defaults) - set(_DEFAULTS))
        if unknown:
            raise ConfigError(f"form() has no field {unknown[0]!r}; there are {', '.join(_DEFAULTS)}.")
        values = {**_DEFAULTS, **defaults}
        each = WorkerResourceConfig(values["cpus"], values["gpus"])
        PyTorchScalingConfig(values["nodes"], values["workers"], each)
        RunOptions(name=values["name"] or None, backend=values["backend"])
        self._function = train_func
        self.handle: RunHandle | None = None
        connect()
        limits = cluster.resources()
        wide = {"style": {"description_width": "110px"}, "layout": widgets.Layout(width="320px")}
        gpus = int(limits.get("GPU", 0))
        self.nodes = widgets.BoundedIntText(
            values["nodes"], min=1, max=max(_MAX_NODES, values["nodes"]), description="nodes", **wide
        )
        self.workers = widgets.BoundedIntText(
            values["workers"], min=1, max=max(_MAX_WORKERS, values["workers"]), description="workers / node", **wide
        )
        self.gpus = widgets.BoundedIntText(
            min(values["gpus"], gpus), min=0, max=gpus, description="GPUs / worker", disabled=not gpus, **wide
        )
        self.cpus = widgets.BoundedFloatText(
            values["cpus"],
            min=0,
            max=max(limits.get("CPU", 1.0), values["cpus"]),
            step=0.5,
            description="CPUs / worker",
            **wide,
        )
        self.backend = widgets.Dropdown(options=BACKENDS, value=values["backend"], description="backend", **wide)
        self.stage = widgets.Text(values["stage"], placeholder="./stage", description="stage", **wide)
        self.name = widgets.Text(values["name"], placeholder="optional", description="name", **wide)
        self.hyper_params = _fields(widgets, values["hyper_params"], wide)
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.message = widgets.HTML()
        self.code = widgets.HTML()
        self.output = widgets.Output()
        self.run_button.on_click(lambda _: self._pressed())
        self.stop_button.on_click(lambda _: self.stop())
        for field in self._fields():
            field.observe(lambda _: self._changed(), names="value")
        self._changed()
        if values["gpus"] > gpus:
            self._say(f"gpus={values['gpus']} is more than the {gpus} of the cluster")
        world = widgets.VBox([self.nodes, self.workers, self.gpus, self.cpus, self.backend, self.stage, self.name])
        params = widgets.VBox([widgets.HTML("<b>hyper-parameters</b>"), *self.hyper_params.values()])
        columns = [world, params] if self.hyper_params else [world]
        self.widget = widgets.VBox(
            [
                widgets.HBox(columns, layout=widgets.Layout(flex_flow="row wrap")),
                widgets.HBox([self.run_button, self.stop_button]),
                self.message,
                self.code,
                self.output,
            ]
        )

    def _fields(self) -> list[Any]:
        own = [self.nodes, self.workers, self.gpus, self.cpus, self.backend, self.stage, self.name]
        return own + list(self.hyper_params.values())

    @property
    def scaling(self) -> PyTorchScalingConfig:
        """The world that the fields describe."""
        resources = WorkerResourceConfig(num_cpus=self.cpus.value, num_gpus=self.gpus.value)
        return PyTorchScalingConfig(self.nodes.value, self.workers.value, resources)

    @property
    def values(self) -> dict[str, Any] | None:
        """The hyper-parameters of the fields; None where the form has none."""
        return {key: _value(field) for key, field in self.hyper_params.items()} or None

    def magic(self) -> str:
        """The equivalent first line of a cell."""
        words = ["%%torchdist", "--nodes", str(self.nodes.value), "--workers", str(self.workers.value)]
        if self.gpus.value:
            words += ["--gpus", str(self.gpus.value)]
        if self.cpus.value != 1:
            words += ["--cpus", f"{self.cpus.value:g}"]
        if self.backend.value != "auto":
            words += ["--backend", self.backend.value]
        for option, field in (("--stage", self.stage), ("--name", self.name)):
            if field.value.strip():
                words += [option, shlex.quote(field.value.strip())]
        for key, value in (self.values or {}).items():
            words += ["--hp", shlex.quote(f"{key}={value}")]
        return " ".join(words)

    def python(self) -> str:
        """The equivalent Python."""
        resources = []
        if self.cpus.value != 1:
            resources.append(f"num_cpus={self.cpus.value:g}")
        if self.gpus.value:
            resources.append(f"num_gpus={self.gpus.value}")
        scaling = f"PyTorchScalingConfig({self.nodes.value}, {self.workers.value}"
        scaling += f", WorkerResourceConfig({', '.join(resources)}))" if resources else ")"
        arguments = ", ".join(f"{key}={value!r}" for key, value in self._options().items())
        name = getattr(self._function, "__name__", "train_func")
        return f"PyTorchDistributor({name}, {scaling}).run({arguments})"

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.values is not None:
            options["hyper_params"] = self.values
        if self.stage.value.strip():
            options["artifact_stage_location"] = self.stage.value.strip()
        if self.name.value.strip():
            options["name"] = self.name.value.strip()
        if self.backend.value != "auto":
            options["backend"] = self.backend.value
        return options

    def run(self) -> RunHandle:
        """Starts a run with what the fields say; the kernel stays free. Raises what ``start`` raises."""
        handle = PyTorchDistributor(self._function, self.scaling).start(**self._options())
        self.handle = handle
        self.run_button.disabled, self.stop_button.disabled = True, False
        handle.listen(self._moved)
        if handle.wait(0):  # it ended before the listener was there
            self._moved(handle)
        return handle

    def stop(self) -> None:
        """Asks the newest run to end; a second time at once."""
        if self.handle is not None:
            self.handle.stop(force=self.handle.state == "stopping")

    def _pressed(self) -> None:
        self.message.value = ""
        self.output.clear_output()
        with self.output:
            try:
                self.run()
            except Exception as exc:
                self._say(f"{type(exc).__name__}: {exc}")

    def _moved(self, handle: RunHandle) -> None:
        if handle.status.state.final:
            self.run_button.disabled, self.stop_button.disabled = False, True

    def _changed(self) -> None:
        import html

        self.code.value = f"<pre>{html.escape(self.magic())}\n\n{html.escape(self.python())}</pre>"

    def _say(self, text: str) -> None:
        import html

        self.message.value = f'<span style="color:var(--jp-error-color1,#b00)">{html.escape(text)}</span>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"{self.magic()}\n{self.python()}"


def _fields(widgets: Any, values: Mapping[str, Any] | None, wide: dict[str, Any]) -> dict[str, Any]:
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(f"hyper_params is {values!r}; the form needs a dict of names to values.")
    fields = {}
    for key, value in (values or {}).items():
        if isinstance(value, bool):
            fields[key] = widgets.Checkbox(value, description=str(key), **wide)
        elif isinstance(value, int):
            fields[key] = widgets.IntText(value, description=str(key), **wide)
        elif isinstance(value, float):
            fields[key] = widgets.FloatText(value, description=str(key), **wide)
        else:
            field = widgets.Text(value if isinstance(value, str) else repr(value), description=str(key), **wide)
            field.is_text = isinstance(value, str)
            fields[key] = field
    return fields


def _value(field: Any) -> Any:
    """A text field that began as text stays text; one that began as anything else is read as a Python literal."""
    return field.value if getattr(field, "is_text", True) else literal(field.value)
