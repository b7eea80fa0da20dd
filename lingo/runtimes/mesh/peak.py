"""Measures the peak FLOP/s of the devices of a mesh, all computing at the same time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from lingo.runtimes.mesh.engine import engine
from lingo.runtimes.peak import peak


@functools.cache
def matmul_flops_per_second(dtype: str, num_devices: int) -> float:
    """Measures products of square matrices on the devices of this process, once per process.

    Virtual devices share a CPU, so one alone would seem too fast. Other processes are assumed to be
    as fast as this one.

    Args:
        dtype: of the matrices.
        num_devices: number of devices of the mesh.

    Returns:
        Floating-point operations per second of all devices together; a multiply-add is two.
    """
    here = min(num_devices, engine().local_device_count())
    return num_devices * peak(lambda size: _time_products(size, dtype, here))


def _time_products(size: int, dtype: str, num_devices: int) -> Callable[[], float]:
    """Returns a function that multiplies on each device and returns the seconds that this took."""
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
