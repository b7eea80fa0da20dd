"""The engine of a mesh: JAX, used for its runtime PJRT and its partitioner; imported lazily.

Only the code around the step uses JAX: the scan over steps, and the sharded arrays of the state.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.mesh.topology import Topology
from lingo.runtimes.devices import advise_devices, check_devices, list_gpus
from lingo.runtimes.program import ProgramError
from lingo.runtimes.runtime import peak

# JAX loads `libtpu` where it is installed. Only its compiler is wanted: it must not ask a metadata
# server for chips, write logs, or lock out other processes.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def engine() -> Any:
    """Returns the module `jax`; raises ParamError if it is not installed."""
    for name, value in _NO_TPU.items():
        os.environ.setdefault(name, value)
    # XLA warns for every program that it will drop this partitioner some day.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or it takes most GPU memory
    try:
        import jax
    except ImportError as error:
        raise ParamError(
            f"runtime=Mesh computes through JAX: pip install 'lingo-tf[mesh]' ({error})"
        ) from None
    return jax


def make_devices(num_devices: int) -> None:
    """Splits the CPU into virtual devices, before JAX counts its devices.

    Raises ParamError if JAX has already started with another number of devices.
    """
    jax = engine()
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
        jax.config.update("jax_platforms", "cpu")
    except RuntimeError:
        check_devices("JAX", num_devices, jax.local_device_count())


def device_mesh(topology: Topology) -> Any:
    """Returns the `jax.sharding.Mesh` of a topology, over the devices of all processes in order.

    GPUs are hidden from TensorFlow, which only traces. Raises ParamError if there are too few
    devices, if several processes have too many, or if JAX does not see the machine's GPUs.
    """
    jax = engine()
    devices, wanted = jax.devices(), topology.num_devices
    if devices[0].platform == "cpu" and jax.config.jax_platforms != "cpu":
        _check_no_gpus()
    tf.config.set_visible_devices([], "GPU")
    if len(devices) < wanted:
        here = f"{len(devices)} {'is' if len(devices) == 1 else 'are'} here"
        if devices[0].platform == "cpu":
            each = -(-wanted // jax.process_count())
            here += f": {advise_devices(each)}"
            here += " of each worker" if jax.process_count() > 1 else ""
        raise ParamError(f"the mesh has {wanted} devices, {here}", "runtime")
    if len(devices) > wanted and jax.process_count() > 1:
        raise ParamError(
            f"the mesh has {wanted} devices, but {jax.process_count()} workers have {len(devices)}:"
            " the mesh has to use every device",
            "runtime",
        )
    return jax.sharding.Mesh(np.array(devices[:wanted]).reshape(topology.shape), topology.axes)


def peak_memory_bytes() -> int:
    """Returns the peak memory so far of any one of this process's JAX devices, in bytes.

    It is 0 if the devices do not report it, as CPUs do not.
    """
    statistics = [device.memory_stats() or {} for device in engine().local_devices()]
    return max(device.get("peak_bytes_in_use", 0) for device in statistics)


def _check_no_gpus() -> None:
    """Raises ParamError if there are GPUs, which a JAX without CUDA would leave idle."""
    if num := len(list_gpus()):
        gpus = "1 GPU" if num == 1 else f"{num} GPUs"
        raise ParamError(
            f"a mesh computes through JAX, which sees only the CPU; {gpus} that TensorFlow sees"
            " would be idle: pip install 'lingo-tf[mesh-gpu]'. To compute on the CPU: --devices=1,"
            " or as many as the mesh has",
            "runtime",
        )


def scan(step: Callable[[Any, Any], tuple[Any, Any]], state: Any, batches: Any) -> tuple[Any, Any]:
    """Calls a step on each of K batches in turn; returns the last state, and all reports.

    It replaces `jax.lax.scan`, whose loop counter has 64 bits if 64-bit types are enabled. A TPU
    counts in 32 bits, so its compiler would not find the length of the loop.

    Args:
        step: (state, batch) -> (state, report), trees of arrays.
        state: a tree of arrays.
        batches: a tree of arrays [K, ...].
    """
    jax = engine()
    num, take = jax.tree.leaves(batches)[0].shape[0], jax.lax.dynamic_index_in_dim

    def body(carry: Any) -> Any:
        index, state, reports = carry
        batch = jax.tree.map(lambda array: take(array, index, keepdims=False), batches)
        state, report = step(state, batch)
        update = functools.partial(jax.lax.dynamic_update_index_in_dim, index=index, axis=0)
        return index + np.int32(1), state, jax.tree.map(update, reports, report)

    first = jax.tree.map(lambda array: array[0], batches)
    shapes = jax.eval_shape(step, state, first)[1]
    empty = jax.tree.map(lambda spec: jax.numpy.zeros((num, *spec.shape), spec.dtype), shapes)
    carry = (np.int32(0), state, empty)
    return jax.lax.while_loop(lambda carry: carry[0] < np.int32(num), body, carry)[1:]


@contextlib.contextmanager
def explain_engine_errors() -> Iterator[None]:
    """Turns JAX's errors into ProgramErrors, and enables 64-bit types, as in TensorFlow."""
    jax = engine()
    try:
        with jax.enable_x64(True):
            yield
    except jax.errors.JaxRuntimeError as error:
        raise ProgramError(" ".join(str(error).split())) from error


@functools.cache
def matmul_flops_per_second(dtype: str, num_devices: int) -> float:
    """Returns the FLOP/s of all devices of a mesh, measured once per process.

    The devices of this process compute at the same time: virtual devices share a CPU, so one device
    alone would seem too fast. Other processes are assumed to be as fast as this one.
    """
    here = min(num_devices, engine().local_device_count())
    return num_devices * peak(lambda size: _time_products(size, dtype, here))


def _time_products(size: int, dtype: str, num_devices: int) -> Callable[[], float]:
    jax = engine()
    matrices = [
        jax.device_put(jax.numpy.ones([size, size], dtype), device)
        for device in jax.local_devices()[:num_devices]
    ]
    multiply = jax.jit(jax.numpy.matmul)

    def products() -> float:
        start = time.perf_counter()
        jax.block_until_ready([multiply(matrix, matrix) for matrix in matrices])
        return time.perf_counter() - start

    products()  # the first call also compiles
    return products
