"""TensorFlow's workers: a server in each process, collectives, and the coordination service.

A starting server blocks signals: it holds Python's lock until every worker has started one. If a
worker never came, the others would wait for ever. So they first meet at the leader's address:

    worker: connects, repeatedly, and sends its number     -> leader: waits for all workers
    worker: starts its server                              <- leader: sends "go", starts its own
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.processes.group import Group
from lingo.processes.processes import Cluster, LostWorker, cluster
from lingo.processes.signals import restore_handlers

_T = TypeVar("_T")

MEET_SECONDS = 300.0  # until all processes have connected
_START_SECONDS = 120  # for all servers to find each other, once all processes have met
# Longer than the limit of `Pulse`, so that `Pulse` comes first: it names the lost process.
_SILENCE_SECONDS = 600
_JOB = "worker"
_POLL_SECONDS = 0.2
_HELLO = b"lingo worker "
_GO = b"go"


class Workers(NamedTuple):
    """The processes that compute together."""

    strategy: tf.distribute.Strategy  # over the replicas of all of them
    group: Group  # agrees through the coordination service


def workers() -> Workers | None:
    """Connects to the workers that `TF_CONFIG` names, once per process; None for fewer than two.

    Raises ParamError if `TF_CONFIG` is invalid or TensorFlow has already computed something, and
    LostWorker if the workers do not connect in time.
    """
    several = cluster(os.environ)
    return None if several is None else _start(several)


class Service:
    """TensorFlow's coordination service, as `KeyValues`."""

    def put(self, key: str, value: str) -> None:
        try:
            _ask(lambda: _context().set_config_key_value(key, value))
        except FileExistsError:  # the service does not overwrite values
            self.delete(key)
            _ask(lambda: _context().set_config_key_value(key, value))

    def get(self, key: str, *, timeout_seconds: float) -> str | None:
        milliseconds = max(1, int(1000 * timeout_seconds))  # 0 would be no limit
        try:
            return _ask(lambda: _context().get_config_key_value(key, milliseconds))
        except TimeoutError:
            return None

    def delete(self, key: str) -> None:
        _ask(lambda: _context().delete_config_key_value(key))

    def abort(self, reason: str) -> None:
        _context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)


def meet(cluster: Cluster, *, timeout_seconds: float = MEET_SECONDS) -> None:
    """Waits until all processes of a cluster have called this.

    Raises LostWorker if a process does not connect in time, or the leader cannot listen.
    """
    deadline = time.monotonic() + timeout_seconds
    if cluster.index == 0:
        _lead(cluster, deadline)
    else:
        _follow(cluster, deadline)


@functools.cache
def _start(several: Cluster) -> Workers:
    _check_devices()
    meet(several)
    _configure_service(len(several.workers))
    faulthandler.dump_traceback_later(_START_SECONDS, exit=True)  # the start holds Python's lock
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(_resolver(several))
    except RuntimeError as error:
        raise ParamError(
            f"several workers: TensorFlow has already computed something ({error}); workers connect"
            " once per process, before that"
        ) from None
    except tf.errors.OpError as error:
        message = f"{several.name(several.index)}, this process, cannot meet the others"
        raise LostWorker(several.index, f"{message}: {error.message:.300}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        restore_handlers()  # TensorFlow's service has installed a SIGTERM handler of its own
    return Workers(strategy, Group(several, Service()))


def _check_devices() -> None:
    """Raises ParamError if this process has several virtual CPU devices: it may have just one."""
    processors = tf.config.get_logical_device_configuration(*tf.config.list_physical_devices("CPU"))
    if len(processors or [0]) > 1 and not tf.config.list_physical_devices("GPU"):
        raise ParamError(
            f"--devices made {len(processors)} devices of this worker's CPU, but with several"
            " workers (TF_CONFIG) each CPU is one replica: start more workers, or leave it out"
        )


def _configure_service(num_workers: int) -> None:
    """Configures TensorFlow's coordination service, which runs in the leader."""
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2

    config: Any = coordination_config_pb2  # its names are made when it is imported
    job = config.CoordinatedJob(name=_JOB, num_tasks=num_workers)
    _context().configure_coordination_service(
        "standalone",
        service_leader=f"/job:{_JOB}/replica:0/task:0",
        coordinated_jobs=[job],
        cluster_register_timeout_in_ms=1000 * _START_SECONDS,
        heartbeat_timeout_in_ms=1000 * _SILENCE_SECONDS,
    )


def _resolver(several: Cluster) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({_JOB: list(several.workers)}),
        task_type=_JOB,
        task_id=several.index,
        num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
        rpc_layer="grpc",
    )


def _ask(question: Callable[[], _T]) -> _T:
    """Returns the service's answer; TensorFlow's errors become Python's."""
    try:
        return question()
    except tf.errors.DeadlineExceededError as error:
        raise TimeoutError from error
    except tf.errors.AlreadyExistsError as error:
        raise FileExistsError from error
    except tf.errors.OpError as error:
        raise ConnectionError(error.message) from error


def _context() -> Any:
    from tensorflow.python.eager import context  # the service has no public name

    return context.context()


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
    # Workers may reach this machine by an address that it does not know, so it listens at all.
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
    """Returns whether a host name or address is the loopback interface's."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(cluster: Cluster, index: int, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise LostWorker(index, f"{cluster.name(index)} did not connect in time")
