"""Claims about which files of the user's own an experiment uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lingo.config import registry, source_files, source_record
from lingo.config.source_files import SourceFile, find_user_files

CLASS = """
from lingo.config.params import Configurable
class {name}(Configurable):
    size: int = 1  # of it
"""
FUNCTION = """
from lingo.config.registry import experiment
@experiment
def mine():
    return {name}.params()
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def used(form: str) -> dict[str, SourceFile]:
    chosen = registry.get(form)
    return find_user_files(chosen.params, chosen.origin.file)


def test_the_files_of_an_experiment_are_its_own_and_what_they_import_beside_them(tmp_path):
    tree = "from ..leaf import size\n" + CLASS.format(name="Tree")
    start = "import json, numpy\nfrom source_package.layers.tree import Tree\nimport source_never\n"
    write(
        tmp_path,
        {
            "source_first.py": start + FUNCTION.format(name="Tree"),
            "source_package/__init__.py": "",
            "source_package/layers/tree.py": tree,
            "source_package/leaf.py": "def size():\n    from . import late\n    return late.x\n",
            "source_package/late.py": "x = 1",
            "source_package/unused.py": "",
            "__init__.py": "raise RuntimeError",
            "source_never.py": "raise_nothing = 1",
            "numpy.py": "raise RuntimeError",
        },
    )
    found = used(f"{tmp_path}/source_first.py:mine")
    assert [*found] == [
        "source_first.py",
        "source_never.py",
        "source_package/__init__.py",
        "source_package/late.py",
        "source_package/layers/tree.py",
        "source_package/leaf.py",
    ]
    for name, file in found.items():
        assert file.path == str(tmp_path / name)
        assert file.content == (tmp_path / name).read_bytes()


def test_the_bases_of_a_class_count_and_the_file_of_a_function_that_was_not_imported_does_not(
    tmp_path,
):
    child = "from source_base import Base\nclass Child(Base):\n    pass\n"
    write(
        tmp_path,
        {
            "source_child.py": child + FUNCTION.format(name="Child"),
            "source_base.py": CLASS.format(name="Base"),
        },
    )
    chosen = registry.get(f"{tmp_path}/source_child.py:mine")
    names = ["source_base.py", "source_child.py"]
    assert [*find_user_files(chosen.params)] == names
    assert [*find_user_files(chosen.params, "/etc/passwd")] == names


def test_files_of_lingo_are_not_the_users() -> None:
    chosen = registry.get("lm.source.tiny")
    assert find_user_files(chosen.params, chosen.origin.file) == {}


def test_no_name_leads_out_and_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path, {f"{folder}/..my model.py": CLASS.format(name="X")})
    files = [tmp_path / folder / "..my model.py" for folder in ("a", "b")]
    found = source_files._read_all(source_files._Module(f, f"..my model ({f})") for f in files)
    assert [*found] == ["__my_model.py", "__my_model~2.py"]
    assert source_record.from_json(source_record.to_json(found)) == {
        name: file._replace(content=None) for name, file in found.items()
    }


def test_a_link_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    write(
        tmp_path, {"elsewhere/source_real.py": CLASS.format(name="X") + FUNCTION.format(name="X")}
    )
    (tmp_path / "source_link.py").symlink_to(tmp_path / "elsewhere/source_real.py")
    (file,) = used(f"{tmp_path}/source_link.py:mine").values()
    assert file.path == str(tmp_path / "elsewhere/source_real.py")


def test_a_file_that_is_too_large_has_a_digest_and_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(source_files.roots_, "MAX_BYTES", 100)
    write(tmp_path, {"large.py": "x" * 101, "small.py": "x" * 100})
    large, small = (source_files.read(tmp_path / name) for name in ("large.py", "small.py"))
    assert (large.content, small.content) == (None, b"x" * 100)
    assert large.sha256 != small.sha256


@pytest.mark.parametrize("wrong", [None, 5, {"../x.py": {}}, {"x.py": {"path": 5, "sha256": ""}}])
def test_a_record_of_another_form_is_left_out(wrong: object) -> None:
    assert source_record.from_json(wrong) == {}


def record(**digests: str) -> dict[str, SourceFile]:
    return {
        f"{name.replace('_', '/')}.py": SourceFile(f"/{name}.py", digest)
        for name, digest in digests.items()
    }


def test_a_file_is_compared_by_path_or_else_by_name() -> None:
    before = record(a="1", b="1", pack_c="1")
    assert source_record.changed_names(before, before) == []
    assert source_record.changed_names(before, record(a="2", d="1")) == [("a.py", "a.py")]
    moved = {name: file._replace(path=f"/new{file.path}") for name, file in before.items()}
    assert source_record.changed_names(before, moved) == []
    alone = {"c.py": SourceFile("/new/pack_c.py", "2")}
    assert source_record.changed_names(before, alone) == [("pack/c.py", "c.py")]
    assert [*source_record.merge(before, alone)] == ["a.py", "b.py", "c.py"]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(source_files.ParamError, match="a named pipe, not a file"):
        source_files.read(tmp_path / "pipe.py")


def test_a_directory_of_experiments_may_have_any_name(tmp_path, monkeypatch):
    own = CLASS.format(name="Named") + FUNCTION.format(name="Named")
    helper = "from params.source_helper import x\nfrom .source_other import y\n"
    values = {"source_helper.py": "x = 1", "source_other.py": "y = 1"}
    files = {"source_named.py": helper + own, **values}
    write(tmp_path / "mine", files)
    monkeypatch.setenv("LINGO_PARAMS", str(tmp_path / "mine"))
    found = used("source_named.mine")
    assert [*found] == [f"params/{name}" for name in sorted(files)]
    assert {file.path for file in found.values()} == {str(tmp_path / "mine" / n) for n in files}
