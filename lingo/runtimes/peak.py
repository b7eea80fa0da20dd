"""Measures the peak FLOP/s of a device, against which a training step is compared.

A data sheet says little about a virtual machine with two busy cores. A large matrix product on the
same device, just before training, shows what it can reach.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

from lingo.config.lazy import tf

_SIZES = (512, 1024, 2048, 4096, 8192)
_ENOUGH_SECONDS = 0.01  # time of one product that makes its launch overhead negligible
_MEASURED_SECONDS = 0.25


@functools.cache
def matmul_flops_per_second(dtype: str, devices: tuple[str, ...] = ("",)) -> float:
    """Measures products of square matrices on all devices at the same time, once per process.

    The measurement takes 0.3 s. The fastest of several products counts, because others may be using
    the machine.

    Args:
        dtype: of the matrices.
        devices: names of the devices; "" is the default device.

    Returns:
        Floating-point operations per second of all devices together; a multiply-add is two.
    """
    return len(devices) * peak(lambda size: _time_product(size, dtype, devices))


def peak(timed_product: Callable[[int], Callable[[], float]]) -> float:
    """Returns the operations per second of the fastest product of two square matrices.

    Args:
        timed_product: takes the size of the matrices; returns a function that multiplies them once
            and returns the seconds that this took.
    """
    for size in _SIZES:
        product = timed_product(size)
        if product() >= _ENOUGH_SECONDS:
            break
    deadline, fastest = time.perf_counter() + _MEASURED_SECONDS, math.inf
    while time.perf_counter() < deadline:
        fastest = min(fastest, product())
    return 2 * size**3 / fastest


def _time_product(size: int, dtype: str, devices: tuple[str, ...]) -> Callable[[], float]:
    """Returns a function that multiplies on each device and returns the seconds that this took."""
    matrices: list[tf.Tensor] = []
    for device in devices:
        with tf.device(device):
            matrices.append(tf.cast(tf.random.stateless_uniform([size, size], (0, 0)), dtype))

    def products() -> list[tf.Tensor]:
        found: list[tf.Tensor] = []
        for device, matrix in zip(devices, matrices, strict=True):
            with tf.device(device):
                found.append(tf.matmul(matrix, matrix)[0, 0])
        return found

    compute = tf.function(products, autograph=False)

    def seconds() -> float:
        start = time.perf_counter()
        for value in compute():
            value.numpy()  # waits for the device
        return time.perf_counter() - start

    seconds()  # the first call also traces, and allocates memory
    return seconds
