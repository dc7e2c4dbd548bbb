"""The server half, over real HTTP."""

import json
import os
import threading
from pathlib import Path

import pytest
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import JupyterServerAuthWarning
from tornado import web
from tornado.httpclient import HTTPClientError

from jupyter_torchdist.run_folder import RunFolder
from jupyter_torchdist.server import catalog
from jupyter_torchdist.server.app import API
from jupyter_torchdist.server.handlers import RunsHandler


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


async def _refused(jp_fetch, **params):
    """The status and the JSON of a request that must fail."""
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch(API, "runs", params=params)
    return caught.value.code, json.loads(caught.value.response.body)


@pytest.fixture
def outside(jp_root_dir, tmp_path_factory):
    """A stage that the server must not show, with a link to it from within the root."""
    folder = tmp_path_factory.mktemp("outside")
    run = RunFolder.create(folder, "20260101-000000-000001")
    run.write_run({"name": "secret", "state": "finished"})
    (Path(jp_root_dir) / "link").symlink_to(folder)
    return run


@pytest.mark.parametrize(
    "stage", ["..", "../x", "/etc", "a/../../x", "link", "link/.", "..\0", "stage\0", "100%/../.."]
)
async def test_a_stage_outside_of_the_root_is_not_found(jp_fetch, outside, monkeypatch, stage):
    monkeypatch.setattr(RunFolder, "read_run", _never)
    monkeypatch.setattr(catalog, "run_folders", _never)
    status, answer = await _refused(jp_fetch, stage=stage)
    assert status == 404
    assert answer["message"].startswith(f"{stage!r} is not a stage below the server's folder")


def _never(*args):
    raise AssertionError(f"read {args}")


@pytest.mark.parametrize("absolute", [True, False])
async def test_the_true_place_of_a_stage_outside_is_not_found_either(jp_fetch, jp_root_dir, outside, absolute):
    folder = outside.path.parent
    stage = str(folder) if absolute else os.path.relpath(folder, jp_root_dir)
    status, answer = await _refused(jp_fetch, stage=stage)
    assert status == 404 and "secret" not in str(answer) and outside.run_id not in str(answer)


@pytest.mark.parametrize("stage", ["%2e%2e", "..%2f..", "%00"])
async def test_a_stage_encoded_twice_is_only_a_strange_name(jp_fetch, outside, stage):
    found = json.loads((await jp_fetch(API, "runs", params={"stage": stage})).body)
    assert found == {"stage": stage, "total": 0, "runs": []}


async def test_links_among_the_runs_are_not_followed(jp_fetch, jp_root_dir, outside):
    stage = Path(jp_root_dir) / "stage"
    run = RunFolder.create(stage, "20260102-000000-000002")
    run.run_json.symlink_to(outside.run_json)
    (stage / outside.run_id).symlink_to(outside.path)
    answer = await jp_fetch(API, "runs")
    (row,) = json.loads(answer.body)["runs"]
    assert row["run_id"] == run.run_id and row["name"] is None and b"secret" not in answer.body


async def test_a_circle_of_links_is_no_server_error(jp_fetch, jp_root_dir):
    (Path(jp_root_dir) / "circle").symlink_to("circle")
    try:
        answer = await jp_fetch(API, "runs", params={"stage": "circle"})
    except HTTPClientError as error:
        assert error.code == 404
    else:
        assert json.loads(answer.body)["runs"] == []


async def test_bytes_that_are_no_text_are_a_bad_request(http_server_client, jp_base_url, jp_auth_header):
    path = f"{jp_base_url}{API}/runs?stage=%ff"
    with pytest.raises(HTTPClientError) as caught:
        await http_server_client.fetch(path, headers=jp_auth_header)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("name", "text", "bounds"),
    [
        ("limit", "0", "from 1 to 500"),
        ("limit", "x", "from 1 to 500"),
        ("limit", "501", "from 1 to 500"),
        ("limit", "", "from 1 to 500"),
        ("limit", "1.0", "from 1 to 500"),
        ("limit", "1\0", "from 1 to 500"),
        ("limit", "٣", "from 1 to 500"),
        ("limit", "9" * 5000, "from 1 to 500"),
        ("offset", "-1", "from 0 to 10000000"),
        ("offset", "10000001", "from 0 to 10000000"),
    ],
)
async def test_a_bad_number_is_a_bad_request(jp_fetch, name, text, bounds):
    status, answer = await _refused(jp_fetch, **{name: text})
    assert status == 400
    assert answer["message"].startswith(f"{name} is ") and bounds in answer["message"]


async def test_folders_are_read_off_the_loop(jp_fetch, monkeypatch):
    threads = []
    monkeypatch.setattr(catalog, "run_folders", lambda stage: threads.append(threading.current_thread()) or [])
    await jp_fetch(API, "runs")
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


async def test_no_route_answers_without_authentication(recwarn, jp_serverapp, http_server_client):
    assert jp_serverapp.allow_unauthenticated_access is False
    routes = [(rule.matcher.regex.pattern.removesuffix("$"), rule.target) for rule in _rules(jp_serverapp)]
    assert len(routes) == 1
    for path, handler in routes:
        assert _own_verbs(handler), path
        for verb in _own_verbs(handler):
            await _check_forbidden(http_server_client, path, verb)
    assert [str(w.message) for w in recwarn if _is_about_us(w)] == []


async def test_every_verb_is_authenticated_by_itself(jp_serverapp, http_server_client):
    # the server refuses on behalf of a handler that forgot; with that taken away, our own decorators must refuse
    jp_serverapp.web_app.settings["allow_unauthenticated_access"] = True
    for rule in _rules(jp_serverapp):
        assert jp_serverapp.web_app._check_handler_auth(rule.matcher, rule.target) == []
        for verb in _own_verbs(rule.target):
            await _check_forbidden(http_server_client, rule.matcher.regex.pattern.removesuffix("$"), verb)


def test_the_walk_sees_a_verb_that_forgot_its_authentication(jp_serverapp):
    class Forgetful(RunsHandler):
        def post(self):
            self.finish("{}")

    assert _own_verbs(Forgetful) == ["GET", "POST"]
    assert jp_serverapp.web_app._check_handler_auth("/x", Forgetful) == ["- POST of Forgetful registered for /x"]


async def test_a_user_without_the_right_to_read_is_refused(jp_serverapp, jp_fetch, monkeypatch):
    asked = []
    refuse = lambda handler, user, action, resource: asked.append((action, resource))  # noqa: E731
    monkeypatch.setattr(jp_serverapp.authorizer, "is_authorized", refuse)
    status, _ = await _refused(jp_fetch)
    assert status == 403 and asked == [("read", "contents")]


async def _check_forbidden(client, path, verb):
    body = b"" if verb in ("POST", "PUT", "PATCH") else None
    with pytest.raises(HTTPClientError) as caught:
        await client.fetch(path, method=verb, body=body)
    assert caught.value.code == 403, (verb, path)


def _own_verbs(handler):
    """The verbs that a handler answers, without the preflight OPTIONS of every Jupyter handler, which tells nothing."""
    inherited = {"OPTIONS": APIHandler.options}
    methods = {verb: getattr(handler, verb.lower()) for verb in handler.SUPPORTED_METHODS}
    silent = (web.RequestHandler._unimplemented_method,)
    return sorted(v for v, method in methods.items() if method not in silent and method is not inherited.get(v))


def _is_about_us(warning):
    return issubclass(warning.category, JupyterServerAuthWarning) and API in str(warning.message)


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
