"""export.json: it has a digest of its own, and names every file that is served."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lingo.checkpoints.manifest import render
from lingo.config.params import ParamError
from lingo.export.check import ExportError
from lingo.export.manifest import MANIFEST, read_manifest, verify_export, write_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns an export of one version."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "saved_model.pb").write_bytes(b"model")
    (tmp_path / "7" / "weights").write_bytes(b"weights")
    write_manifest(tmp_path, {"format": "savedmodel", "step": 7})
    return tmp_path


def test_what_was_written_is_read_and_verified(folder: Path) -> None:
    content = verify_export(folder)
    assert content == read_manifest(folder)
    assert (content["format"], content["step"]) == ("savedmodel", 7)
    assert [*content["files"]] == ["7/saved_model.pb", "7/weights"]


def test_a_changed_manifest_is_refused(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"step": 7', '"step": 8'))
    with pytest.raises(ParamError, match=r"export\.json is not what lingo wrote: its bytes"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"files": 1}', json.dumps({"format": "savedmodel", "files": {}})]
)
def test_a_manifest_without_a_digest_is_refused(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(ParamError, match=r"export\.json is not what lingo wrote"):
        read_manifest(folder)


def test_a_manifest_100_000_deep_is_refused(folder: Path) -> None:
    deep = '{"files": ' + "[" * 100_000 + "]" * 100_000 + ',\n "sha256": "' + "0" * 64 + '"\n}'
    (folder / MANIFEST).write_text(deep)
    with pytest.raises(ParamError, match=r"export\.json is not what lingo wrote"):
        read_manifest(folder)


def test_a_manifest_of_no_files_verifies_nothing(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"format": "savedmodel"})
    with pytest.raises(ExportError, match="names no files"):
        verify_export(tmp_path)


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "7/../../outside", "", "a\0b", "a" * 300]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(folder, name, monkeypatch) -> None:
    seal = {"size": 1, "sha256": "0" * 64}
    monkeypatch.setattr("lingo.export.manifest.parse", lambda text: {"files": {name: seal}})
    with pytest.raises(ParamError, match="is not the name of a file in the folder"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"files": {"a": {"size": "1", "sha256": "0" * 64}}, "step": 7}, "of the wrong type"),
        ({"files": {"a": {"size": 1, "sha256": "0" * 64}}}, "it has no step"),
    ],
)
def test_a_manifest_of_other_types_is_not_what_lingo_wrote(folder, content, reason) -> None:
    (folder / MANIFEST).write_bytes(render(content))
    with pytest.raises((ParamError, ExportError), match=reason):
        verify_export(folder)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_manifest(tmp_path: Path, make) -> None:
    make(tmp_path / MANIFEST)
    with pytest.raises(ParamError, match=r"export\.json is not what lingo wrote"):
        read_manifest(tmp_path)


def test_a_version_that_is_not_named_is_found(folder: Path) -> None:
    (folder / "8").mkdir()
    (folder / "8" / "saved_model.pb").write_bytes(b"other")
    with pytest.raises(ExportError, match=r"8/saved_model\.pb \(not exported\)"):
        verify_export(folder)


@pytest.mark.parametrize("name", ["7", "7/weights"])
def test_a_link_is_not_what_was_written(folder: Path, name: str) -> None:
    outside = folder.parent / f"outside of {folder.name}"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(ExportError, match="7/weights"):
        verify_export(folder)
