"""An address has one local copy, whose path names the address."""

import pathlib
import subprocess
import sys

import pytest

from lingo.config.base.errors import ParamError
from lingo.storage.bucket import cache


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("address", ["s3://b/a/run", "gs://b/run", "s3://b/a=1/x_2.3"])
def test_the_path_of_a_copy_names_its_address(address, folder):
    copy = cache.local_copy(address)
    assert copy == folder / address.replace("://", "/")
    assert cache.address_of(copy) == address
    assert cache.address_of(copy / "000-seed-1") == f"{address}/000-seed-1"


def test_a_path_object_of_an_address_is_the_address():
    assert cache.is_address(pathlib.Path("s3://b/run"))
    assert cache.local_copy(pathlib.Path("s3://b/run")) == cache.local_copy("s3://b/run/")


@pytest.mark.parametrize("path", ["runs/s3", "s3", "/s3/b", "hdfs://b/run", "xs3://b/run", ""])
def test_other_paths_are_no_addresses(path):
    assert not cache.is_address(path)


def test_the_folder_of_copies_itself_has_no_address(folder):
    assert cache.address_of(folder) is None
    assert cache.address_of(folder / "s3") is None
    assert cache.address_of(folder.parent) is None


@pytest.mark.parametrize(
    "address", ["s3://", "s3://b/../c", "s3://b//c", "s3://b/.git", "gs://b/a b"]
)
def test_an_address_that_would_lead_elsewhere_is_refused(address):
    with pytest.raises(ParamError, match="is not the address of a run: write gs://bucket/folder"):
        cache.local_copy(address)


def test_copies_are_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache.local_copy("s3://b/run") == tmp_path / "cache/lingo/buckets/s3/b/run"


def test_a_run_in_a_directory_needs_no_package_of_buckets(tmp_path):
    code = (
        "import sys; from lingo.trainer.directory.run_directory import RunDirectory\n"
        f"with RunDirectory({str(tmp_path / 'run')!r}).lock(): pass\n"
        "print({'fsspec', 's3fs', 'gcsfs', 'aiohttp'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
