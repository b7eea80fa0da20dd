"""TensorFlow's workers: a server in each process, collectives, and the coordination service."""

from __future__ import annotations

import faulthandler
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.processes.group import Group
from lingo.processes.processes import Cluster, LostWorker, cluster
from lingo.processes.signals import restore_handlers
from lingo.runtimes.replicated.meeting import meet

_T = TypeVar("_T")

_START_SECONDS = 120  # for all servers to find each other, once all processes have met
# TensorFlow's own limit is longer than that of `Pulse`, which names the lost process.
_SILENCE_SECONDS = 600
_JOB = "worker"


class Workers(NamedTuple):
    """The processes that compute together."""

    strategy: tf.distribute.Strategy  # over the replicas of all of them
    group: Group  # agrees through the coordination service


def workers() -> Workers | None:
    """Connects to the workers that `TF_CONFIG` names, once per process; None if it names no two.

    Raises ParamError if `TF_CONFIG` is invalid or TensorFlow has already computed something, and
    LostWorker if the workers do not connect in time.
    """
    several = cluster(os.environ)
    return None if several is None else _start(several)


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
            f"several workers: TensorFlow has already computed something ({error}); they meet once"
            " a process, before that"
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
            f"{len(processors)} devices of one processor, but TF_CONFIG names several workers, each"
            " of which is one replica there: start more workers, or leave out --devices"
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
