"""The Jupyter server extension."""

from __future__ import annotations

from jupyter_server.extension.application import ExtensionApp

from jupyter_torchdist.server.handlers import RunsHandler

API = "jupyter-torchdist/api"


class TorchdistApp(ExtensionApp):
    """Serves the runs of stages below the server's root folder."""

    name = "jupyter_torchdist"
    extension_url = f"/{API}"

    def initialize_handlers(self) -> None:
        """Fill the route table."""
        self.handlers.append((rf"/{API}/runs", RunsHandler))
