"""Where a stage is, and the run folder."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_torchdist.errors import ConfigError
from jupyter_torchdist.run_folder import RunFolder, contained, find_run, new_run_id, run_folders, write_atomic
from jupyter_torchdist.stage import checkpoints
from jupyter_torchdist.stage.checkpoints import Manifest
from jupyter_torchdist.stage.location import resolve_stage


def test_places_count_from_the_notebooks_folder(tmp_path):
    assert resolve_stage(None, tmp_path) == tmp_path / "stage"
    assert resolve_stage("runs/x/", tmp_path) == tmp_path / "runs/x"
    assert resolve_stage("./x", tmp_path) == tmp_path / "x"
    assert resolve_stage("/abs/x", tmp_path) == Path("/abs/x")
    assert resolve_stage("~/x", tmp_path) == Path.home() / "x"
    assert resolve_stage("@team/run", tmp_path) == tmp_path / "stage/team/run"
    assert resolve_stage("DB.SCHEMA.STAGE", tmp_path) == tmp_path / "stage/DB.SCHEMA.STAGE"
    assert resolve_stage("file:///a%20b", tmp_path) == Path("/a b")


@pytest.mark.parametrize(
    "place", ["s3://bucket/x", "gs://b", "", "  ", "a\0b", "@../x", "@a/../../x", 5, "~nosuchuser0/x"]
)
def test_a_place_that_can_not_be_is_refused(place, tmp_path):
    with pytest.raises(ConfigError):
        resolve_stage(place, tmp_path)


def test_a_stage_that_can_not_be_written_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can not be written"):
        RunFolder.create(tmp_path / "file" / "stage", new_run_id(None))


@given(st.text(max_size=40))
def test_no_relative_name_leads_out_of_its_folder(name):
    root = Path("/tmp/torchdist-root")
    try:
        path = contained(root, name)
    except ConfigError:
        return
    assert path == root.resolve() or root.resolve() in path.parents


def test_a_sibling_with_the_same_beginning_and_a_link_are_outside(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a-evil").mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a-evil")
    for name in ("../a-evil", "link/x", "/etc/passwd", "x/../../a-evil", "a\0"):
        with pytest.raises(ConfigError):
            contained(tmp_path / "a", name)


def test_run_ids_are_new_each_time_and_find_their_runs(tmp_path):
    ids = {new_run_id("my run/é") for _ in range(200)}
    assert len(ids) == 200
    first = RunFolder.create(tmp_path, "20260101-000000-a-000001")
    second = RunFolder.create(tmp_path, "20260102-000000-b-000002")
    second.write_run({"name": "b"})
    (tmp_path / "not a run").mkdir()
    assert [f.run_id for f in run_folders(tmp_path)] == [second.run_id, first.run_id]
    assert find_run(tmp_path, "last") == second
    assert find_run(tmp_path, "20260101") == first
    assert find_run(tmp_path, "b") == second
    with pytest.raises(ConfigError, match="2 runs"):
        find_run(tmp_path, "2026")
    with pytest.raises(ConfigError, match="no run 'zzz'"):
        find_run(tmp_path, "zzz")
    with pytest.raises(ConfigError):
        RunFolder.create(tmp_path, first.run_id)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "run.json"
    write_atomic(file, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(file, b"new")
    assert file.read_bytes() == b"old" and os.listdir(tmp_path) == ["run.json"]


def test_a_publication_is_whole_or_not_there_and_never_replaces_another(tmp_path):
    source = tmp_path / "net.pt"
    source.write_bytes(b"1" * 1000)
    stage = tmp_path / "checkpoints"
    for content in (b"1", b"2"):
        source.write_bytes(content)
        partial = checkpoints.snapshot(source, stage)
        source.write_bytes(b"changed after the snapshot")
        assert checkpoints.published(stage) == [] or len(checkpoints.published(stage)) == 1
        checkpoints.publish(partial, Manifest("net", "artifact", None, 1.0, 0))
    names = {p.path.name: p.content.read_bytes() for p in checkpoints.published(stage)}
    assert names == {"net": b"1", "net@2": b"2"}
    manifest = json.loads((stage / "net" / checkpoints.MANIFEST).read_text())
    assert manifest["files"]["net.pt"][0] == 1
    (stage / "net" / "net.pt").write_bytes(b"")  # truncated
    assert [p.path.name for p in checkpoints.published(stage)] == ["net@2"]


def test_latest_is_the_highest_step_and_best_ignores_nan(tmp_path):
    file = tmp_path / "f"
    file.write_text("x")
    for step, loss in ((1, 0.5), (3, float("nan")), (2, 0.2)):
        partial = checkpoints.snapshot(file, tmp_path / "c")
        checkpoints.publish(
            partial, Manifest(checkpoints.checkpoint_name(step), "checkpoint", step, float(step), 0, {"loss": loss})
        )
    items = checkpoints.published(tmp_path / "c")
    assert checkpoints.latest(items).manifest.step == 3
    assert checkpoints.best(items, "loss", "min").manifest.step == 2
    assert checkpoints.best(items, "loss", "max").manifest.step == 1
    assert checkpoints.best(items, "acc", "max") is None
    with pytest.raises(ConfigError):
        checkpoints.best(items, "loss", "lowest")


def test_a_folder_with_a_link_out_of_it_is_not_published(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "link").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError):
        checkpoints.snapshot(source, tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []
