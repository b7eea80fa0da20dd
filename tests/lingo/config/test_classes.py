"""Claims about finding classes by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lingo.config.classes import (
    Classes,
    UnknownClass,
    inherits,
    is_configurable,
    label,
)
from lingo.config.importing import import_file, import_module
from lingo.config.params import ParamError, interface
from lingo.config.roots import roots

SOURCE = """
from lingo.config.params import Configurable
TEXT = '''
class Quoted(Configurable):
'''
class Ours(Configurable):
    pass
class Dropout(Configurable):
    pass
class Tuple(tuple):
    pass
"""


def test_a_class_is_imported_only_when_it_is_found(tmp_path: Path) -> None:
    (tmp_path / "found_classes.py").write_text(SOURCE)
    classes = Classes(roots.find([tmp_path]))
    assert "Ours" in classes.names()
    assert "params.found_classes" not in sys.modules
    assert classes.find("Ours") is sys.modules["params.found_classes"].Ours


def test_two_classes_of_one_name_need_their_module(tmp_path: Path) -> None:
    (tmp_path / "twin_classes.py").write_text(SOURCE)
    classes = Classes(roots.find([tmp_path]))
    message = "write lingo.layers.dropout:Dropout or params.twin_classes:Dropout"
    with pytest.raises(ParamError, match=message):
        classes.find("Dropout")
    assert classes.find("params.twin_classes:Dropout").__module__ == "params.twin_classes"
    found = classes.find("Dropout", lambda cls: "lingo" in cls.__module__)
    assert found.__module__ == "lingo.layers.dropout"


LOCAL = """
import pathlib
pathlib.Path(__file__).with_suffix(".ran").touch()
from lingo.config.params import Configurable
from lingo.layers.layer import Layer
class Dropout(Layer):
    pass
class {only}(Layer):
    pass
class Both(Layer):
    pass
class Plain(tuple):
    pass
"""


@pytest.fixture(name="local")
def _local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`params` of the working directory, with two files that show whether they were imported."""
    folder = tmp_path / "params"
    folder.mkdir()
    for only in ("First", "Second"):
        (folder / f"{tmp_path.name}_{only}.py").write_text(LOCAL.format(only=only))
    monkeypatch.chdir(tmp_path)
    return folder


def names_that_ran(folder: Path) -> list[str]:
    return sorted(file.stem.rpartition("_")[2] for file in folder.glob("*.ran"))


def test_only_the_file_whose_class_is_used_runs(local: Path) -> None:
    classes = Classes()
    assert classes.find("Dropout").__module__ == "lingo.layers.dropout"
    with pytest.raises(UnknownClass):
        classes.find("Plain")
    with pytest.raises(ParamError, match=r"name of 2 classes: write params.*:Both or "):
        classes.find("Both")
    assert classes.find("Dropout", lambda cls: False).__module__ == "lingo.layers.dropout"
    assert names_that_ran(local) == []
    found = classes.find("First")
    assert found.__module__ == f"params.{local.parent.name}_First"
    assert names_that_ran(local) == ["First"]
    assert classes.find(f"{found.__module__}:Both").__module__ == found.__module__
    assert names_that_ran(local) == ["First"]


def test_a_file_of_the_working_directory_that_may_not_be_imported_is_not(local: Path) -> None:
    classes = Classes(trust=[])
    with pytest.raises(ParamError, match=rf"First is a class of {local}.*--trust={local}"):
        classes.find("First")
    assert classes.find("Dropout").__module__ == "lingo.layers.dropout"
    assert names_that_ran(local) == []


@pytest.mark.parametrize(
    "name", ["Drpout", "nowhere:Dropout", "Tuple", "Quoted", "os:system", "", ":"]
)
def test_what_is_no_configurable_class_is_unknown(tmp_path: Path, name: str) -> None:
    (tmp_path / f"unknown_{tmp_path.name}.py").write_text(SOURCE)
    with pytest.raises(UnknownClass, match="There is no class"):
        Classes(roots.find([tmp_path])).find(name)


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownClass, match="Did you mean 'Dropout'"):
        Classes().find("Drpout")


def test_a_class_is_found_by_the_path_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = (tmp_path / folder / f"named_{tmp_path.name}.py" for folder in ("a", "b"))
    for path in (file, other):
        path.parent.mkdir()
        path.write_text(SOURCE)
    monkeypatch.chdir(file.parent)
    found = Classes().find(f"{file.name}:Dropout")
    assert sys.modules[found.__module__].__file__ == str(file)
    assert Classes().find(f"./{file.name}:Dropout") is Classes().find(f"{file}:Dropout") is found
    assert Classes().find(f"../b/{file.name}:Dropout") is not found
    with pytest.raises(UnknownClass, match=r"'Dropot' to configure in .*Did you mean 'Dropout'"):
        Classes().find(f"{file.name}:Dropot")
    plain = tmp_path / f"plain_{tmp_path.name}.py"
    plain.write_text("class Plain(dict):\n    pass\n")
    with pytest.raises(UnknownClass, match=r"'Plain' in .* is not a class of lingo's"):
        Classes().find(f"{plain}:Plain")
    with pytest.raises(UnknownClass, match=r"'Dropout' to configure in no\.py, which is not there"):
        Classes().find("no.py:Dropout")


def test_a_path_that_is_also_the_name_of_the_experiments_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / folder / f"twice_{tmp_path.name}.py" for folder in ("a", "b")]
    for path in files:
        path.parent.mkdir()
        path.write_text(SOURCE)
    own = import_file(files[0], roots.find())
    monkeypatch.chdir(files[1].parent)
    with pytest.raises(ParamError, match=f"write {files[0]}:Ours or {files[1]}:Ours"):
        Classes(modules=[own]).find(f"{files[0].name}:Ours")
    assert Classes(modules=[own]).find(f"{files[0]}:Ours") is own.Ours


def test_a_file_that_does_not_define_the_class_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / f"not_run_{tmp_path.name}.py"
    file.write_text(LOCAL.format(only="Third"))
    with pytest.raises(UnknownClass):
        Classes().find(f"{file}:Fourth")
    assert not file.with_suffix(".ran").exists()
    Classes().find(f"{file}:Third")
    assert file.with_suffix(".ran").exists()


def test_classes_of_further_modules_are_found(toys: Any) -> None:
    classes = Classes(modules=[toys])
    assert classes.find("Funnel") is toys.Funnel
    assert classes.find("conftest.py:Norm") is toys.Norm
    assert label(toys.Norm) == "conftest.py:Norm"


def test_files_are_read_once_for_classes_and_for_those_with_more_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours.py").write_text(SOURCE)
    read: list[Path] = []
    monkeypatch.setattr(roots, "source", lambda file: read.append(file) or file.read_bytes())
    classes = Classes(roots.find([tmp_path]))
    more = classes.with_modules([sys.modules[__name__]])
    assert "Ours" in more.places
    assert read
    assert len(read) == len({*read})
    again = len(read)
    assert more.places is classes.places is classes.with_modules([]).places
    assert len(read) == again


def test_no_two_classes_of_lingo_and_tasks_have_one_name_and_kind() -> None:
    """Texts name them without their module, and a field takes one kind."""
    places = roots.find()
    for name, found in Classes(places).places.items():
        own = [p for p in found if p.module.partition(".")[0] in ("lingo", "tasks")]
        if len(own) > 1:
            classes = [getattr(import_module(p.module, p.file, places), name) for p in own]
            kinds = [interface(cls) for cls in classes if is_configurable(cls)]
            assert len(kinds) == len(set(kinds)), own


@pytest.mark.parametrize(
    "code",
    [
        "from lingo.layers.linear import Linear\nclass X(Linear):\n    pass\n",
        "import lingo.layers.linear\nclass X(lingo.layers.linear.Linear):\n    pass\n",
        "import lingo.layers.linear as l\nclass X(l.Linear):\n    pass\n",
        "from lingo.layers import linear\nclass X(linear.Linear):\n    pass\n",
        "from .serial_base import Base\nclass X(Base):\n    pass\n",
        "from . import serial_base as b\nclass X(b.Base):\n    pass\n",
        "from params.serial_base import Linear\nclass X(Linear):\n    pass\n",
        "from tensorboard.serial import Y\nclass X(Y):\n    pass\n",
    ],
)
def test_bases_are_followed_as_they_are_written(code: str, tmp_path: Path) -> None:
    (tmp_path / "serial_base.py").write_text(
        "from lingo.layers.linear import Linear\nclass Base(Linear):\n    pass\n"
    )
    file = tmp_path / "serial_x.py"
    file.write_text(code)
    places = roots.find([tmp_path])
    assert inherits("params.serial_x", file, "X", places)
