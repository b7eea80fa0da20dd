"""A run is copied whole to a bucket and back, and nothing is overwritten."""

import pytest

from lingo.config.base.errors import ParamError
from lingo.storage.bucket import copy


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


def test_no_run_makes_no_folder(memory, tmp_path):
    with pytest.raises(ParamError, match="holds no run"):
        copy.fetch(memory.address, tmp_path / "back")
    assert [*tmp_path.iterdir()] == []
