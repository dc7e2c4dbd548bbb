"""HTTP in, HTTP out; the catalog decides."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from jupyter_torchdist.server.catalog import MAX_LIMIT, NoSuchStage, list_runs


class RunsHandler(APIHandler):  # type: ignore[misc]
    """``GET …/jupyter-torchdist/api/runs?stage=stage&limit=100&offset=0``."""

    auth_resource = "contents"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """The runs of a stage below the server's root, newest first."""
        stage = self.get_query_argument("stage", "stage", strip=False)
        limit = self._number("limit", 100, 1, MAX_LIMIT)
        offset = self._number("offset", 0, 0, 10_000_000)
        root = Path(self.serverapp.root_dir)
        loop = asyncio.get_running_loop()
        try:
            # folders may be on a slow disk: the server's loop never waits for one
            found = await loop.run_in_executor(None, list_runs, root, stage, limit, offset)
        except NoSuchStage as exc:
            raise web.HTTPError(404, str(exc)) from exc
        self.finish(json.dumps(found))

    def _number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.get_query_argument(name, str(default))
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise web.HTTPError(400, f"{name} is {text!r}; it must be a whole number from {least} to {most}.")
        return int(text)
