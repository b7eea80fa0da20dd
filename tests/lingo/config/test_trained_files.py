"""Claims about the files that a user has trained, and what that trusts."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lingo.config import registry, serial, source_files, text, trained_files
from lingo.config.base.errors import ParamError

OWN = """
from lingo.config.params import Configurable
from lingo.config.registry import experiment
from trained_helper_{number} import SIZE
class Tree(Configurable):
    size: int = SIZE  # of it
@experiment
def oak():
    return Tree.params()
"""


@pytest.fixture(name="own")
def _own(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A file of an experiment and one that it imports; modules stay imported, so names differ."""
    number = abs(hash(request.node.name))
    file, helper = tmp_path / f"trained_{number}.py", tmp_path / f"trained_helper_{number}.py"
    file.write_text(OWN.format(number=number))
    helper.write_text("SIZE = 3\n")
    return file, helper


def save_and_train(file: Path, *overrides: str) -> str:
    """Returns the configuration of the experiment, whose files are remembered."""
    chosen = registry.get(f"{file}:oak", overrides)
    source = source_files.find_user_files(chosen.params, chosen.origin.file)
    trained_files.remember(source.values())
    return serial.dump(chosen.params, chosen.origin, text.digest(text.resolve(chosen.params)))


def test_a_file_that_was_trained_is_trusted_while_it_is_the_same(own):
    file, _ = own
    config = save_and_train(file)
    assert serial.load(config).params.size == 3
    before = file.read_text()
    file.write_text(f"{before}# one comment more\n")
    with pytest.raises(ParamError, match=f"which was trained, but has changed since.*: {file}"):
        serial.load(config)
    file.write_text(before)
    assert serial.load(config).params.size == 3


def test_so_is_the_file_of_a_class_that_an_override_names(own, tmp_path):
    other = tmp_path / f"other_{own[0].name}"
    other.write_text(f"from {own[0].stem} import Tree\nclass Bush(Tree):\n    pass\n")
    config = save_and_train(own[0], f"Tree={other}:Bush", f"{other}:Bush.size=5")
    saved = serial.load(config).params
    assert (saved.cls.__name__, saved.size) == ("Bush", 5)
    other.write_text(f"{other.read_text()}# changed\n")
    with pytest.raises(ParamError, match=f"which was trained, but has changed since.*: {other}"):
        serial.load(config)


def test_so_is_what_it_imports(own):
    file, helper = own
    config = save_and_train(file)
    helper.write_text("SIZE = 4\n")
    with pytest.raises(ParamError, match=rf"changed since then: {helper}\. .* --trust={file}"):
        serial.load(config)
    file.unlink()
    with pytest.raises(ParamError, match=r"outside the trusted places.* It is no longer there"):
        serial.load(config)


def test_the_same_content_elsewhere_is_not_trusted(own):
    file, _ = own
    config = save_and_train(file)
    copy = file.rename(file.with_name(f"again_{file.name}"))
    with pytest.raises(ParamError, match="outside the trusted places"):
        serial.load(config.replace(str(file), str(copy)))


def test_no_more_than_so_many_files_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(trained_files, "MAX_FILES", 3)
    files = [tmp_path / f"file_{i}.py" for i in range(5)]
    for i, file in enumerate(files):
        file.write_text("")
        trained_files.remember([source_files.read(file)])
        entry = trained_files._place(str(file))
        os.utime(entry, (i, i))
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    trusted = [trained_files.is_trusted(file, ()) for file in files]
    assert trusted == [False, False, True, True, True]
    assert len([*trained_files._folder().iterdir()]) == 3


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_not_a_path_is_never_the_working_directory(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    monkeypatch.setenv("HOME", "relative")
    file = tmp_path / "homeless.py"
    file.write_text("")
    with pytest.raises(OSError, match="there is no home directory"):
        trained_files.remember([source_files.read(file)])
    assert not trained_files.is_trusted(file, ())
    assert [*tmp_path.iterdir()] == [file]


def test_what_cannot_be_read_is_not_trusted(own):
    file, _ = own
    config = save_and_train(file)
    trained_files._place(str(file)).write_bytes(b"\xff garbage")
    with pytest.raises(ParamError, match="which was trained, but has changed"):
        serial.load(config)
    trained_files._place(str(file)).unlink()
    trained_files._place(str(file)).mkdir()
    with pytest.raises(ParamError, match="outside the trusted places"):
        serial.load(config)
