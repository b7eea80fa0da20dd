"""Servers that answer as buckets do, for tests; a proxy of one makes trouble."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

BUCKET = "bucket"


def memory_bucket() -> str:
    """Returns the name of a bucket in this process's memory that nothing has used."""
    return f"b{uuid.uuid4().hex}"


class Server(NamedTuple):
    """A server of buckets on this machine."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process finds the server, and is let in."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextlib.contextmanager
def s3_server() -> Iterator[Server]:
    """Yields moto's server with an empty `BUCKET`."""
    pytest.importorskip("s3fs", reason="needs s3fs and moto, of the extra dev")
    moto = pytest.importorskip("moto.server", reason="needs moto, of the extra dev")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        connection = http.client.HTTPConnection(host, port)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        yield Server(f"http://{host}:{port}")
    finally:
        server.stop()
