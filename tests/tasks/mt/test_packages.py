"""Packages: a list that pins them, and what is fetched is what it pins."""

from __future__ import annotations

import hashlib
import pathlib
import re
import shutil
import subprocess

import pytest

from lingo.data.files import DataError
from tasks.mt import packages
from tasks.mt.packages import Package, fetch, read_list
from tasks.mt.translations import Translations
from tests.tasks.mt.catalog_files import compiled_catalog, wheel, write

WHEEL = wheel({"app/locale/de/LC_MESSAGES/x.mo": compiled_catalog({"Open": "Öffnen"})})
APP = Package("pypi", "app", "1.0", hashlib.sha256(WHEEL).hexdigest())


@pytest.fixture
def index(monkeypatch):
    """Stands for pip and apt-get: files that they put into the folder, and what was asked for."""
    files: dict[str, bytes] = {"app-1.0-py3-none-any.whl": WHEEL}
    asked: list[str] = []

    def run(command, *, cwd, **options):
        asked.append(command[-1])
        write(pathlib.Path(cwd), files)

    monkeypatch.setattr(subprocess, "run", run)
    return files, asked


def test_the_list_of_the_studies_pins_each_package_once():
    listed = read_list()
    assert len({package.folder_name for package in listed}) == len(listed) > 10
    assert {package.registry for package in listed} == {"pypi", "debian"}


def test_a_wheel_is_fetched_once_and_read(tmp_path, index):
    assert fetch([APP], tmp_path) == [APP]
    assert fetch([APP], tmp_path) == []
    assert index[1] == ["app==1.0"]
    assert Translations.params(pattern=str(tmp_path), min_words=1).build().places()


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="Debian's dpkg-deb is not here")
def test_of_a_debian_package_the_catalogs_are_kept(tmp_path, monkeypatch):
    name = "usr/share/locale/de/LC_MESSAGES/x.mo"
    control = "Package: x\nVersion: 1:2-3\nArchitecture: all\nMaintainer: m\nDescription: d\n"
    tree = {"DEBIAN/control": control, name: compiled_catalog({"a": "b"}), "usr/share/x.po": "d"}
    write(tmp_path / "tree", tree)
    command = ["dpkg-deb", "--build", str(tmp_path / "tree"), str(tmp_path / "x.deb")]
    subprocess.run(command, check=True, capture_output=True)
    data = (tmp_path / "x.deb").read_bytes()
    monkeypatch.setattr(packages, "_run", lambda p, c, f: write(pathlib.Path(f), {"x.deb": data}))
    package = Package("debian", "x", "1:2-3", hashlib.sha256(data).hexdigest())
    fetch([package], tmp_path / "out")
    found = [
        str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()
    ]
    assert found == [f"x-1.2-3/{name}"]


def test_another_file_than_the_pinned_one_is_refused_and_leaves_nothing(tmp_path, index):
    with pytest.raises(DataError, match=r"app 1\.0: its SHA-256 is .* it is another file\."):
        fetch([APP._replace(sha256="0" * 64)], tmp_path)
    assert list(tmp_path.iterdir()) == []
    index[0]["more.whl"] = b""
    with pytest.raises(DataError, match="fetched 2 files, not one"):
        fetch([APP], tmp_path)


def test_what_the_list_does_not_name_is_refused(tmp_path, index):
    write(tmp_path, {"other-2/de.po": ""})
    with pytest.raises(DataError, match="has 'other-2', which is not in the list: remove it"):
        fetch([APP], tmp_path)
    assert index[1] == []


def test_a_client_that_fails_or_is_missing_is_one_sentence(tmp_path, monkeypatch):
    def fail(command, **options):
        raise subprocess.CalledProcessError(1, command, stderr="long\nERROR: no such version\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(
        DataError, match=r"^app 1\.0 cannot be fetched by .*: ERROR: no such version$"
    ):
        fetch([APP], tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"^app 1\.0 needs apt-get to be fetched: No such file"):
        fetch([APP._replace(registry="debian")], tmp_path)


def test_a_damaged_deb_is_one_sentence(tmp_path, index):
    index[0].clear()
    index[0]["x.deb"] = b"no archive"
    package = Package("debian", "x", "1", hashlib.sha256(b"no archive").hexdigest())
    with pytest.raises(DataError, match=r"^x\.deb cannot be unpacked by dpkg-deb: "):
        fetch([package], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_line_that_pins_nothing_is_named(tmp_path):
    path = tmp_path / "list"
    path.write_text(f"# a comment\n\npypi app 1.0 {'0' * 64}  # why\n")
    assert read_list(path) == [APP._replace(sha256="0" * 64)]
    for line in (
        "pypi app 1.0",
        f"npm app 1.0 {'0' * 64}",
        f"pypi --app 1 {'0' * 64}",
        "pypi a 1 0",
    ):
        path.write_text(f"\n{line}\n")
        with pytest.raises(DataError, match=re.escape(f"list, line 2: {line!r} is not a registry")):
            read_list(path)


def test_the_program_says_what_it_did(tmp_path, index, monkeypatch, capsys):
    monkeypatch.setattr(packages, "read_list", lambda: [APP])
    assert packages.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path} has 1 packages; 1 were fetched now.\n"
    assert packages.main(["--help"]) == 2
    assert "python -m tasks.mt.packages [FOLDER]" in capsys.readouterr().err
    write(tmp_path, {"other/x": ""})
    assert packages.main([str(tmp_path)]) == 5
    assert "remove it" in capsys.readouterr().err
