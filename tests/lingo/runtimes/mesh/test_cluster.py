"""Processes of a mesh: their service in words of lingo, and waiting that a lost one ends."""

import socket
import threading
import time
from typing import Any

import jax
import pytest

from lingo.processes.processes import Cluster
from lingo.runtimes.mesh.cluster import Members, One, Service
from lingo.runtimes.mesh.coordinator import num_connections
from lingo.runtimes.program import ProgramError


class Client:
    """JAX's client of a service that holds one value."""

    def __init__(self, said: str = "") -> None:
        self._said = said
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None:
        assert allow_overwrite
        self.values[key] = value

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        assert milliseconds == 1500
        if self._said:
            raise jax.errors.JaxRuntimeError(self._said)
        return self.values[key]

    def key_value_delete(self, key: str) -> None:
        del self.values[key]


def members(service: Service) -> Members:
    return Members(Cluster(("127.0.0.1:1", "127.0.0.1:2"), 1), service)


def test_a_value_is_put_read_and_removed_if_the_service_answers():
    client = Client()
    service = Service(client)
    service.put("key", "value")
    assert service.get("key", timeout_seconds=1.5) == "value"
    service.delete("key")
    assert not client.values
    late = Client("DEADLINE_EXCEEDED: GetKeyValue() timed out with key: key and duration: 1.5s")
    assert Service(late).get("key", timeout_seconds=1.5) is None
    gone = Client("UNAVAILABLE: failed to connect to all addresses")
    with pytest.raises(ConnectionError, match="failed to connect"):
        Service(gone).get("key", timeout_seconds=1.5)


def test_results_and_errors_are_waited_for():
    def failing() -> None:
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed")

    found: Any = members(Service(Client())).wait(jax.numpy.arange, 3)
    assert found.tolist() == [0, 1, 2]
    with pytest.raises(ProgramError, match="Gloo all-reduce failed"):
        members(Service(Client())).wait(failing)


def test_nobody_waits_for_what_a_lost_process_computes():
    service, never = Service(Client()), threading.Event()
    threading.Timer(0.1, service.abort, ["worker 0 is lost"]).start()
    start = time.monotonic()
    with pytest.raises(ProgramError, match="worker 0 is lost"):
        members(service).wait(never.wait, 60.0)
    assert time.monotonic() - start < 30
    never.set()


def test_one_process_is_all_there_are():
    assert One().gather(3) == [3]


def test_open_connections_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert num_connections(port) == 0
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            assert num_connections(port) == 1
