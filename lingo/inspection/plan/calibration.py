"""Measures the devices of this machine, and describes them as hardware for plans.

All devices are measured at the same time, since virtual devices share a CPU. Times of exchanges are
fitted to the alpha-beta model: one switch, with a latency and a bandwidth, connects all devices.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lingo.inspection.memory import memory_bytes
from lingo.inspection.plan.hardware import Dimension, Hardware
from lingo.mesh.topology import topology
from lingo.runtimes.mesh import engine

_DTYPES = ("float32", "bfloat16")
_REPEATS = 5
_SMALL, _LARGE = 2**10, 2**20
"""Numbers of float32 elements per device in the exchanged tensors."""

_MEMORY_ELEMENTS = 2**22
_FLOAT_BYTES = 4


def calibrate(name: str, num_devices: int) -> Hardware:
    """Measures the `num_devices` devices of this process, which takes seconds."""
    with engine.explain_engine_errors():
        rates = {
            dtype: engine.matmul_flops_per_second(dtype, num_devices) / num_devices
            for dtype in _DTYPES
        }
        memory = _memory_bandwidth(num_devices)
        latency, bandwidth = _fit_exchanges(num_devices) if num_devices > 1 else (0.0, memory)
        return Hardware(
            name=name,
            memory_bytes=memory_bytes() / num_devices,
            flops_per_second=rates,
            memory_bandwidth=memory,
            matrix_tile=1,
            dimensions=(Dimension("switch", num_devices, bandwidth, latency),),
            torus=0,
            devices_per_host=num_devices,
            cores_per_host=len(os.sched_getaffinity(0)),
        )


def _memory_bandwidth(num_devices: int) -> float:
    """Returns the bytes per second, read and written, of each device's memory."""
    seconds = _time(lambda x: x + 1.0, num_devices, _MEMORY_ELEMENTS)
    return 2 * _FLOAT_BYTES * _MEMORY_ELEMENTS / seconds


def _fit_exchanges(num_devices: int) -> tuple[float, float]:
    """Returns the latency in seconds, and the bandwidth in bytes per second, of exchanges.

    Both are means over all-gather, all-reduce and all-to-all. The number of latencies and bytes in
    each of these collectives is the one that `Network` assumes.
    """
    jax = engine.engine()
    part = (num_devices - 1) / num_devices
    levels = math.log2(num_devices)
    forms: list[tuple[Callable[[Any], Any], float, float]] = [  # exchange, latencies, elements
        (lambda x: jax.lax.psum(x, "data"), 2 * levels, 2 * part),
        (lambda x: jax.lax.all_gather(x, "data"), levels, num_devices * part),
        (lambda x: jax.lax.all_to_all(x, "data", 0, 0, tiled=True), 1, part),
    ]
    latencies, rates = [], []
    for exchange, number, factor in forms:
        few, many = (_time(exchange, num_devices, size) for size in (_SMALL, _LARGE))
        sent = factor * _FLOAT_BYTES * (_LARGE - _SMALL)
        rates.append(max(many - few, 1e-9) / sent)
        latencies.append(few / number)
    return float(np.mean(latencies)), float(1 / np.mean(rates))


def _time(function: Callable[[Any], Any], num_devices: int, number: int) -> float:
    """Returns the shortest time of several calls of a function on all devices at once.

    Its input has `number` floats per device.
    """
    jax = engine.engine()
    mesh, split = engine.device_mesh(topology({"data": num_devices})), jax.sharding.PartitionSpec
    spec = split("data")
    compiled = jax.jit(
        functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(
            function
        )
    )
    x = jax.device_put(
        np.ones([num_devices * number], np.float32), jax.sharding.NamedSharding(mesh, spec)
    )
    jax.block_until_ready(compiled(x))  # the first call also compiles
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(x))
        seconds.append(time.perf_counter() - start)
    return min(seconds)
