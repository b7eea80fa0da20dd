"""The cores of a TPU: how to connect to them, and which core is which device of a mesh."""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.mesh.topology import Topology
from lingo.mesh.torus import coordinates

_ANSWER_SECONDS = 30


class NoTpu(LingoError):
    """No TPU has the given address, or it does not answer."""

    exit_code: ClassVar[int] = 2


class Cores(NamedTuple):
    """The cores of a TPU, in the order of a mesh's devices."""

    strategy: tf.distribute.Strategy  # computes one replica on all cores
    devices: tuple[str, ...]  # TensorFlow's name of each core
    hosts: tuple[str, ...]  # name of the CPU device of each core's host


def connect(tpu: str, mesh: Topology) -> Cores:
    """Starts a TPU (its name, grpc:// address, or "local"), once per process; returns its cores.

    Raises NoTpu like `initialize`, and ParamError unless the TPU has as many cores as the mesh.
    """
    return cores(*initialize(tpu), mesh)


def cores(resolver: Any, torus: Any, mesh: Topology) -> Cores:
    """Returns the cores of a TPU that has been started; `initialize` returns resolver and torus."""
    of_one_replica = coordinates(mesh, torus.mesh_shape.tolist())[None].astype("int32")
    assignment = tf.tpu.experimental.DeviceAssignment(torus, of_one_replica)
    strategy = tf.distribute.TPUStrategy(
        resolver,
        experimental_device_assignment=assignment,
        experimental_spmd_xla_partitioning=True,
    )
    job = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0]).job
    numbers = range(mesh.num_devices)
    return Cores(
        strategy,
        tuple(assignment.tpu_device(logical_core=n, job=job) for n in numbers),
        tuple(assignment.host_device(logical_core=n, job=job) for n in numbers),
    )


@functools.cache
def initialize(tpu: str) -> tuple[Any, Any]:
    """Starts a TPU and returns its resolver and topology; once per process: a start clears memory.

    Raises NoTpu if there is no such TPU, or it does not answer.
    """
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        workers = resolver.cluster_spec().as_dict().get("worker", [])
        _check_answers(workers)
        if workers:
            tf.config.experimental_connect_to_cluster(resolver)
        return resolver, tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, OSError, RuntimeError, ValueError, ImportError) as error:
        where = "of this machine" if tpu == "local" else "of this name or address"
        message = " ".join(str(error).split()) or type(error).__name__
        raise NoTpu(
            f"runtime.tpu={tpu!r}: no TPU {where} answers ({message:.200}). Say where it is,"
            " --set=runtime.tpu=grpc://10.0.0.2:8470, or compute elsewhere: --set=runtime=Local"
        ) from None


def _check_answers(workers: Iterable[str]) -> None:
    """Raises OSError if a host does not answer: TensorFlow would wait for it for ever."""
    for address in workers:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            raise OSError(f"{address}: {error.strerror or error}") from None
