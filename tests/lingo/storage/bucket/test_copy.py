"""A run is copied whole to a bucket and back, and nothing is overwritten."""

import pytest

from lingo.config.base.errors import ParamError
from lingo.storage.bucket import copy, mirror, table


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    for path in ("config.json", "source/a.py", "train/events", "checkpoints/step_00000002/data"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


def test_there_and_back_every_byte_is_the_same(memory, folder, tmp_path):
    copy.send(folder, memory.address)
    copy.fetch(memory.address, tmp_path / "back")
    assert content(tmp_path / "back") == content(folder)


def test_a_run_that_is_there_stays(memory, folder):
    copy.send(folder, memory.address)
    before = memory.names()
    with pytest.raises(ParamError, match="holds a run already: name another address"):
        copy.send(folder, memory.address)
    assert {*before} <= {*memory.names()}


def test_a_folder_that_is_there_stays(memory, folder):
    copy.send(folder, memory.address)
    before = content(folder)
    with pytest.raises(ParamError, match="exists: name another folder"):
        copy.fetch(memory.address, folder)
    assert content(folder) == before


def test_a_run_that_goes_on_meanwhile_is_copied_as_it_is_then(
    memory, folder, tmp_path, monkeypatch
):
    one = mirror.Mirror(folder, memory.address)
    one.open()
    one.upload()
    one.wait()
    restore, rounds = table.restore, []

    def slow(*args, **options):  # between the reader's commit and its objects
        rounds.append(1)
        if len(rounds) == 1:
            (folder / "config.json").write_text("later")
            one.upload()
            one.wait()
        restore(*args, **options)

    monkeypatch.setattr(table, "restore", slow)
    copy.fetch(memory.address, tmp_path / "back")
    one.close(is_sound=True)
    assert len(rounds) == 2
    assert (tmp_path / "back/config.json").read_text() == "later"
    assert not (tmp_path / "back" / mirror.STATE).exists()


def test_no_run_makes_no_folder(memory, tmp_path):
    with pytest.raises(ParamError, match="holds no run"):
        copy.fetch(memory.address, tmp_path / "back")
    assert [*tmp_path.iterdir()] == []
