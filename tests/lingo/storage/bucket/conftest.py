"""Buckets in this process: fsspec's in memory, and moto's server, which answers as S3 does."""

import uuid

import pytest

from lingo.storage.bucket.bucket import Bucket
from tests.stand_ins.buckets import BUCKET, gcs_server, memory_bucket, s3_server


@pytest.fixture(scope="session")
def server():
    """The address of a server that answers as S3 does."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def google_server():
    """The address of a server that answers as Google's storage does."""
    with gcs_server() as server:
        yield server


@pytest.fixture(params=["memory", "s3", "gs"])
def address(request, monkeypatch):
    """An address of each kind with nothing below it."""
    if request.param == "memory":
        return f"memory://{memory_bucket()}/run"
    server = request.getfixturevalue("server" if request.param == "s3" else "google_server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{request.param}://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def memory():
    """A bucket in memory with nothing in it."""
    return Bucket(f"memory://{memory_bucket()}/run")


@pytest.fixture
def bucket(address):
    """A bucket of each kind with nothing in it."""
    return Bucket(address, patience_seconds=5)


@pytest.fixture
def folder(tmp_path):
    """A folder that is mirrored, not there yet."""
    return tmp_path / "here"


@pytest.fixture
def elsewhere(tmp_path):
    """Another machine's copy of it."""
    return tmp_path / "elsewhere"
