"""Buckets in this process: fsspec's in memory, and moto's server, which answers as S3 does."""

import uuid

import pytest

from lingo.storage.bucket.bucket import Bucket
from tests.stand_ins.buckets import BUCKET, memory_bucket, s3_server


@pytest.fixture(scope="session")
def server():
    """The address of a server that answers as S3 does."""
    with s3_server() as server:
        yield server


@pytest.fixture(params=["memory", "s3"])
def address(request, monkeypatch):
    """An address of each kind with nothing below it."""
    if request.param == "memory":
        return f"memory://{memory_bucket()}/run"
    server = request.getfixturevalue("server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def memory():
    """A bucket in memory with nothing in it."""
    return Bucket(f"memory://{memory_bucket()}/run")


@pytest.fixture
def bucket(address):
    """A bucket of each kind with nothing in it."""
    return Bucket(address, patience_seconds=5)
