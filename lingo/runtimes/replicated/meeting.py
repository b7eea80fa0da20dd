"""Processes wait for each other before they start TensorFlow's servers, which block signals.

A starting server holds Python's lock until every worker has started one. If a worker never came,
the others would wait for ever and ignore signals. So they first meet at the leader's address:

    worker: connects, repeatedly, and sends its number     -> leader: waits for all workers
    worker: starts its server                              <- leader: sends "go", starts its own
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Iterator

from lingo.processes.processes import Cluster, LostWorker

MEET_SECONDS = 300.0

_POLL_SECONDS = 0.2
_HELLO = b"lingo worker "
_GO = b"go"


def meet(cluster: Cluster, *, timeout_seconds: float = MEET_SECONDS) -> None:
    """Waits until all processes of a cluster have called this.

    Raises LostWorker if one does not connect in time, or the leader cannot listen at its address.
    """
    deadline = time.monotonic() + timeout_seconds
    if cluster.index == 0:
        _lead(cluster, deadline)
    else:
        _follow(cluster, deadline)


def _lead(cluster: Cluster, deadline: float) -> None:
    expected = range(1, len(cluster.workers))
    with contextlib.ExitStack() as stack, _listen(cluster, deadline) as server:
        came: dict[int, socket.socket] = {}
        while missing := set(expected) - came.keys():
            _check(cluster, min(missing), deadline)
            with contextlib.suppress(OSError, ValueError):  # not a worker, or no connection yet
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(_POLL_SECONDS)
                index = int(connection.recv(64).removeprefix(_HELLO))
                came |= {index: connection} if index in expected else {}
            came = {i: connection for i, connection in came.items() if _is_waiting(connection)}
        for connection in came.values():
            with contextlib.suppress(OSError):
                connection.sendall(_GO)


def _is_waiting(connection: socket.socket) -> bool:
    """Returns whether a worker is still connected: it may have been killed, and restarted."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(64))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _follow(cluster: Cluster, deadline: float) -> None:
    hello = _HELLO + str(cluster.index).encode()
    while True:
        _check(cluster, 0, deadline)
        try:
            with socket.create_connection(_place(cluster), timeout=_POLL_SECONDS) as connection:
                connection.sendall(hello)
                if _answer(cluster, connection, deadline) == _GO:
                    return
        except OSError:
            time.sleep(_POLL_SECONDS)


def _answer(cluster: Cluster, connection: socket.socket, deadline: float) -> bytes:
    """Returns the leader's message; b"" if it has closed the connection."""
    while True:
        try:
            return connection.recv(64)
        except TimeoutError:
            _check(cluster, 0, deadline)


@contextlib.contextmanager
def _listen(cluster: Cluster, deadline: float) -> Iterator[socket.socket]:
    """Yields a server socket at the leader's address; retries while a killed run still uses it."""
    # The machine may know itself by other addresses than the workers do: it listens at all.
    host, port = _place(cluster)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        try:
            server = socket.create_server((host if _is_local(host) else "", port), family=family)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                who = cluster.name(0)
                raise LostWorker(0, f"{who} cannot listen at its address: {error}") from None
            time.sleep(_POLL_SECONDS)
    with server:
        server.settimeout(_POLL_SECONDS)
        yield server


def _place(cluster: Cluster) -> tuple[str, int]:
    """Returns host and port of the leader."""
    host, _, port = cluster.workers[0].rpartition(":")
    return host.strip("[]"), int(port)


def _is_local(host: str) -> bool:
    """Returns whether a host name or address is that of the loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(cluster: Cluster, index: int, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise LostWorker(index, f"{cluster.name(index)} did not come within the time to meet")
