"""The server half, over real HTTP."""

import json
from pathlib import Path

import pytest
from tornado.httpclient import HTTPClientError

from jupyter_torchdist.run_folder import RunFolder
from jupyter_torchdist.server.app import API


@pytest.fixture
def jp_server_config():
    return {
        "ServerApp": {"jpserver_extensions": {"jupyter_torchdist": True}, "allow_unauthenticated_access": False},
    }


@pytest.fixture
def runs(jp_root_dir):
    for number in (1, 2, 3):
        folder = RunFolder.create(Path(jp_root_dir) / "my stage", f"2026010{number}-000000-run-00000{number}")
        folder.write_run({"name": "run", "state": "finished", "started": number, "duration": 1.5, "reports": 4})


async def test_the_runs_of_a_stage_come_newest_first(jp_fetch, runs):
    answer = await jp_fetch(API, "runs", params={"stage": "my stage", "limit": "2"})
    found = json.loads(answer.body)
    assert [r["run_id"][-1] for r in found["runs"]] == ["3", "2"] and found["total"] == 3
    assert found["runs"][0] == {
        "run_id": "20260103-000000-run-000003", "path": "my stage/20260103-000000-run-000003", "name": "run",
        "state": "finished", "started": 3, "duration": 1.5, "reports": 4,
    }  # fmt: skip
    rest = json.loads((await jp_fetch(API, "runs", params={"stage": "my stage", "offset": "2"})).body)
    assert len(rest["runs"]) == 1
    assert json.loads((await jp_fetch(API, "runs")).body)["runs"] == []


@pytest.mark.parametrize("stage", ["..", "../x", "/etc", "a/../../x", "link", "%2e%2e/x/../../.."])
async def test_a_stage_outside_of_the_root_is_not_found(jp_fetch, jp_root_dir, tmp_path_factory, stage):
    outside = tmp_path_factory.mktemp("outside")
    RunFolder.create(outside, "20260101-000000-000001")
    (Path(jp_root_dir) / "link").symlink_to(outside)
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch(API, "runs", params={"stage": stage})
    assert caught.value.code == 404 and b"20260101" not in caught.value.response.body


@pytest.mark.parametrize("params", [{"limit": "0"}, {"limit": "x"}, {"limit": "501"}, {"offset": "-1"}, {"limit": "٣"}])
async def test_a_bad_number_is_a_bad_request(jp_fetch, params):
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch(API, "runs", params=params)
    assert caught.value.code == 400


async def test_no_route_answers_without_authentication(jp_serverapp, http_server_client):
    # jp_server_config refuses unauthenticated access, so the server itself has checked every handler at its start
    assert jp_serverapp.allow_unauthenticated_access is False
    routes = [rule.matcher.regex.pattern for rule in _rules(jp_serverapp)]
    assert len(routes) == 1
    for pattern in routes:
        path = pattern.strip("$").lstrip("^")
        with pytest.raises(HTTPClientError) as caught:
            await http_server_client.fetch(path)
        assert caught.value.code == 403, path


def _rules(serverapp):
    """The rules of the whole server whose handler is ours."""
    found, queue = [], list(serverapp.web_app.default_router.rules)
    while queue:
        rule = queue.pop()
        if hasattr(rule.target, "rules"):
            queue += rule.target.rules
        elif isinstance(rule.target, type) and rule.target.__module__.startswith("jupyter_torchdist"):
            found.append(rule)
    return found
