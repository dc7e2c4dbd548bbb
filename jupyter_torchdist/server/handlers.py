"""HTTP in, HTTP out; the catalog decides."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from jupyter_torchdist.server.catalog import BadNumberError, NoSuchStageError, RunsQuery, list_runs


class RunsHandler(APIHandler):
    """``GET …/jupyter-torchdist/api/runs?stage=stage&limit=100&offset=0``."""

    auth_resource = "contents"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the runs of a stage below the server's root, newest first."""
        loop = asyncio.get_running_loop()
        try:
            query = RunsQuery.parse(self._texts())
            # folders may be on a slow disk: the server's loop never waits for one
            found = await loop.run_in_executor(None, list_runs, self._root(), query)
        except BadNumberError as exc:
            self._refuse(400, exc)
        except NoSuchStageError as exc:
            self._refuse(404, exc)
        else:
            self.finish(json.dumps(found))

    def _texts(self) -> dict[str, str]:
        # not get_query_argument: it makes spaces of control characters, so that a NUL would name another folder
        return {name: self.decode_argument(values[-1], name) for name, values in self.request.query_arguments.items()}

    def _root(self) -> Path:
        assert self.serverapp is not None, "a handler of a running server has its app"
        return Path(self.serverapp.root_dir)

    def _refuse(self, status: int, error: Exception) -> None:
        # not HTTPError: it takes the message for a format and doubles each percent sign
        self.set_status(status)
        self.finish(json.dumps({"message": str(error), "reason": None}))
