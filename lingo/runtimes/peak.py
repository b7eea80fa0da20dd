"""How fast a device multiplies: the peak that a training step is measured against.

A data sheet's figure says little about a virtual machine with two busy cores; a large matrix
product on the very device, just before training, says what could be had there.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

from lingo.config.lazy import tf

_SIZES = (512, 1024, 2048, 4096, 8192)
_ENOUGH_SECONDS = 0.01  # of one product: what it costs to start one no longer counts
_MEASURED_SECONDS = 0.25


@functools.cache
def matmul_flops_per_second(dtype: str, devices: tuple[str, ...] = ("",)) -> float:
    """Measures the product of two square matrices, once in a process: on all devices at a time.

    Takes 0.3 s. The fastest of several counts: others may be using the machine.

    Args:
        dtype: of the matrices.
        devices: that multiply; "" is the default one.

    Returns:
        Floating-point operations a second, a multiply-add as two.
    """
    return len(devices) * peak(lambda size: _time_product(size, dtype, devices))


def peak(timed_product: Callable[[int], Callable[[], float]]) -> float:
    """Returns how many operations a second a product of square matrices does at its fastest.

    Args:
        timed_product: given their size, it returns a function that multiplies once and returns the
            seconds that took.
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
    """Returns a function that multiplies two matrices on each device, and returns the seconds."""
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

    seconds()  # the first also traces, and makes room
    return seconds
