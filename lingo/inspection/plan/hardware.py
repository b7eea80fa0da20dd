"""What plans know of hardware: memory, arithmetic and network of its devices.

A device is what lingo's mesh counts: a core of a TPU v3, a chip of later TPUs, a GPU, a processor's
virtual device. Devices form a network of dimensions, innermost first: the cores of a chip, then the
sides of a torus of chips; or the GPUs of a machine, then the machines.

    read("tpu_v3").arrange(64)          # 2 cores x 8 chips x 4 chips
    read("measured.json")               # a file that `lingo plan --calibrate` wrote

`calibrate` measures the devices of this machine. All of them work at the same time, since virtual
devices share a processor. Exchanges are fitted by the alpha-beta model: a latency for each and a
bandwidth, of a switch between all devices.
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.params import ParamError, suggest
from lingo.inspection.memory import memory_bytes
from lingo.mesh.topology import topology
from lingo.runtimes.mesh import engine


class Dimension(NamedTuple):
    """Devices along one dimension of a network."""

    # "ring": each is connected to the two beside it, the last one to the first if `wraps`.
    # "switch": each is connected to all others, and has one link.
    kind: Literal["ring", "switch"]
    size: int
    bandwidth: float  # of a link in one direction, bytes a second
    latency: float  # of a message from one device to the next, seconds
    wraps: bool = True


class Hardware(NamedTuple):
    """A kind of device and its network. Rates are those of one device."""

    name: str
    memory_bytes: float
    flops_per_second: dict[str, float]  # of matrix products, by type; a multiply-add is two
    memory_bandwidth: float  # bytes a second
    # Rows and columns of the unit that multiplies: a matrix takes as long as one padded to it.
    matrix_tile: int
    dimensions: tuple[Dimension, ...]  # innermost first, each of its largest size
    torus: int  # how many of the dimensions are sides of a torus, which `arrange` chooses
    devices_per_host: int
    cores_per_host: int  # that make examples
    # Up to how many the compiler combines tensors into one collective; 0: each is one.
    combined_bytes: float = 0.0

    def arrange(self, num_devices: int) -> tuple[Dimension, ...]:
        """Returns the dimensions of a network of so many devices.

        Devices fill inner switches first, as far as each has as many: 6 GPUs are in one machine of
        8, 12 in two. A torus is the one whose sides are most alike, the longest first, and wraps
        along sides that are multiples of 4, as slices of TPUs do. Raises ParamError if no network
        has so many.
        """
        if num_devices > self.max_devices:
            raise ParamError(self._limit_message(num_devices))
        found: list[Dimension] = []
        for dimension in self.dimensions[: len(self.dimensions) - self.torus]:
            is_last = self.torus == 0 and dimension is self.dimensions[-1]
            size = num_devices if is_last else _largest_divisor(num_devices, dimension.size)
            if size > dimension.size:
                raise ParamError(
                    self._limit_message(num_devices * math.prod(one.size for one in found))
                )
            found.append(dimension._replace(size=size))
            num_devices //= size
        if self.torus:
            sides = _sides(num_devices, [d.size for d in self.dimensions[-self.torus :]])
            if sides is None:
                raise ParamError(
                    f"devices: {num_devices} chips of {self.name} are no torus within"
                    f" {' x '.join(str(d.size) for d in self.dimensions[-self.torus :])}"
                )
            for dimension, side in zip(self.dimensions[-self.torus :], sides, strict=True):
                wraps = dimension.wraps and side % 4 == 0
                found.append(dimension._replace(size=side, wraps=wraps))
        return tuple(found)

    def _limit_message(self, num_devices: int) -> str:
        return (
            f"devices: {self.name} has {self.max_devices:,} devices at most, and {num_devices:,}"
            " are asked for"
        )

    def num_hosts(self, num_devices: int) -> int:
        """Returns how many hosts so many devices have."""
        return -(-num_devices // self.devices_per_host)

    @property
    def max_devices(self) -> int:
        """The most devices of a network."""
        return math.prod(dimension.size for dimension in self.dimensions)

    def rate(self, dtype: str) -> float:
        """Returns the FLOPs a second of products of a type, or of the next one that it has."""
        rates = self.flops_per_second
        return rates.get(dtype) or rates.get("bfloat16") or next(iter(rates.values()))


COMBINED_BYTES = 30.0 * 2**20
"""The default of XLA's combiners of collectives (`xla/service/collective_utils.h`).

That of its compiler for TPUs, whose flag is `xla_jf_crs_combiner_threshold_in_bytes`, is not
published; it is taken to be the same.
"""


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def _sides(num_chips: int, largest: list[int]) -> tuple[int, ...] | None:
    """Returns the sides of the most cubic torus of so many chips, the longest first."""
    if len(largest) == 1:
        return (num_chips,) if num_chips <= largest[0] else None
    best: tuple[int, ...] | None = None
    for side in range(1, min(num_chips, largest[-1]) + 1):
        if num_chips % side == 0:
            rest = _sides(num_chips // side, largest[:-1])
            if rest is not None and rest[-1] >= side and (best is None or max(best) > rest[0]):
                best = (*rest, side)
    return best


def _tpu(name: str, memory: float, bandwidth: float, bfloat16: float, **network: Any) -> Hardware:
    """Returns a TPU: by default XLA rounds operands of float32 products to bfloat16."""
    rates = {"bfloat16": bfloat16, "float16": bfloat16, "float32": bfloat16}
    return Hardware(name, memory, rates, bandwidth, 128, combined_bytes=COMBINED_BYTES, **network)


def _gpu(
    name: str,
    memory: float,
    bandwidth: float,
    link: float,
    wire: float,
    *,
    bfloat16: float,
    float32: float,
    cores: int,
) -> Hardware:
    rates = {"bfloat16": bfloat16, "float16": bfloat16, "float32": float32}
    dimensions = (
        Dimension("switch", 8, link, 3e-6),
        Dimension("switch", 2**20, wire, 1e-5),
    )
    return Hardware(
        name,
        memory,
        rates,
        bandwidth,
        64,
        dimensions,
        0,
        devices_per_host=8,
        cores_per_host=cores,
        combined_bytes=COMBINED_BYTES,
    )


def _ring(size: int, bandwidth: float) -> Dimension:
    return Dimension("ring", size, bandwidth, 1e-6)


_GIB = 2.0**30

HARDWARE: dict[str, Hardware] = {
    "tpu_v3": _tpu(
        "tpu_v3",
        16 * _GIB,
        450e9,
        61.5e12,
        dimensions=(Dimension("switch", 2, 450e9, 1e-7), _ring(128, 70e9), _ring(32, 70e9)),
        torus=2,
        devices_per_host=8,
        cores_per_host=48,
    ),
    "tpu_v4": _tpu(
        "tpu_v4",
        32 * _GIB,
        1228e9,
        275e12,
        dimensions=(_ring(16, 50e9), _ring(16, 50e9), _ring(16, 50e9)),
        torus=3,
        devices_per_host=4,
        cores_per_host=120,
    ),
    "tpu_v5p": _tpu(
        "tpu_v5p",
        95 * _GIB,
        2765e9,
        459e12,
        dimensions=(_ring(28, 100e9), _ring(20, 100e9), _ring(16, 100e9)),
        torus=3,
        devices_per_host=4,
        cores_per_host=104,
    ),
    "a100": _gpu("a100", 80e9, 2039e9, 300e9, 25e9, bfloat16=312e12, float32=156e12, cores=128),
    "h100": _gpu("h100", 80e9, 3350e9, 450e9, 50e9, bfloat16=989e12, float32=494e12, cores=112),
    "h200": _gpu("h200", 141e9, 4800e9, 450e9, 50e9, bfloat16=989e12, float32=494e12, cores=112),
}
"""Hardware by name, from data sheets.

TPU v3 and v4: Jouppi et al. 2023 (TPU v4), table 4. A core of v3 has half of its chip; the torus of
a multipod has up to 128 x 32 chips (Kumar et al. 2021). v5p: Google Cloud's page of it. GPUs:
NVIDIA's data sheets, of SXM, without sparsity, float32 as TF32; eight in a machine, each with a
network card of 200 (A100) or 400 Gbit/s. Cores of a host are those of NVIDIA's DGX machines, and
half of the virtual ones of Google Cloud's machines of TPUs (96, 240 and 208). Latencies are not
from data sheets: they are orders of magnitude, and a file of measurements replaces them.
"""


def read(name: str) -> Hardware:
    """Returns hardware by its name, or from a JSON file, which `write` made.

    Raises ParamError for an unknown name, and for a file that is missing or is not of hardware.
    """
    if name in HARDWARE:
        return HARDWARE[name]
    path = Path(name)
    if path.suffix != ".json":
        raise ParamError(
            f"hardware: {name!r} is none of {', '.join(HARDWARE)}, nor a file that ends in"
            f" .json, as `lingo plan --calibrate` writes it.{suggest(name, HARDWARE)}"
        )
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ParamError(f"hardware: {name} cannot be read: {reason}") from None
    try:
        return _parse(json.loads(text))
    except ValueError as error:
        raise ParamError(
            f"hardware: {name} is not a file of hardware: {error} (`lingo plan"
            " --calibrate=FILE` writes one with all fields)"
        ) from None


def _parse(values: Any) -> Hardware:
    """Returns hardware of JSON values; raises ValueError for fields that are wrong or missing."""
    _check_fields(values, Hardware, "it")
    if not isinstance(values["dimensions"], list):
        raise ValueError("dimensions is not a list")
    for i, one in enumerate(values["dimensions"]):
        _check_fields(one, Dimension, f"dimensions[{i}]")
    rates = values["flops_per_second"]
    if not isinstance(rates, dict):
        raise ValueError('flops_per_second is not of the form {"bfloat16": 1e14}')
    dimensions = tuple(Dimension(**one) for one in values["dimensions"])
    hardware = Hardware(**values | {"dimensions": dimensions})
    _check(hardware)
    return hardware


def _check_fields(values: Any, kind: Any, where: str) -> None:
    """Raises ValueError if values are not {field: value} with all fields of a NamedTuple."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} is not of the form {{field: value}}")
    if unknown := values.keys() - set(kind._fields):
        name = min(unknown)
        raise ValueError(f"{where} has no field {name!r}{suggest(name, kind._fields)}")
    if missing := [f for f in kind._fields if f not in values and f not in kind._field_defaults]:
        raise ValueError(f"{where} lacks {', '.join(missing)}")


def _check(hardware: Hardware) -> None:
    """Raises ValueError for a field that is no possible value."""
    numbers = {name: getattr(hardware, name) for name in (*_POSITIVE, *_COUNTS)}
    numbers |= {f"flops_per_second.{k}": v for k, v in hardware.flops_per_second.items()}
    counts = {name: numbers[name] for name in _COUNTS}
    for i, dimension in enumerate(hardware.dimensions):
        if dimension.kind not in ("ring", "switch"):
            raise ValueError(f"dimensions[{i}].kind={dimension.kind!r} is neither ring nor switch")
        numbers[f"dimensions[{i}].bandwidth"] = dimension.bandwidth
        numbers[f"dimensions[{i}].size"] = counts[f"dimensions[{i}].size"] = dimension.size
        if not (_is_number(dimension.latency) and 0 <= dimension.latency < math.inf):
            raise ValueError(
                f"dimensions[{i}].latency={dimension.latency!r} is not a finite number of 0 or more"
            )
        if not isinstance(dimension.wraps, bool):
            raise ValueError(f"dimensions[{i}].wraps={dimension.wraps!r} is not true or false")
    for name, value in numbers.items():
        if not (_is_number(value) and 0 < value < math.inf):
            raise ValueError(f"{name}={value!r} is not a number above 0")
    for name, value in counts.items():
        if not isinstance(value, int):
            raise ValueError(f"{name}={value!r} is not a whole number")
    if not (hardware.dimensions and hardware.flops_per_second):
        raise ValueError("dimensions and flops_per_second need an entry each")
    if not (_is_number(hardware.combined_bytes) and 0 <= hardware.combined_bytes < math.inf):
        raise ValueError(f"combined_bytes={hardware.combined_bytes!r} is not 0 or above and finite")
    is_count = isinstance(hardware.torus, int) and _is_number(hardware.torus)
    if not is_count or hardware.torus not in range(len(hardware.dimensions) + 1):
        raise ValueError(f"torus={hardware.torus!r} is not a number of its dimensions")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_POSITIVE = ("memory_bytes", "memory_bandwidth")
_COUNTS = ("matrix_tile", "devices_per_host", "cores_per_host")


def write(hardware: Hardware, path: Path) -> None:
    """Writes hardware as a JSON file."""
    fields = hardware._asdict() | {"dimensions": [one._asdict() for one in hardware.dimensions]}
    path.write_text(f"{json.dumps(fields, indent=2)}\n")


# ---- hardware of this machine --------------------------------------------------------------------


_DTYPES = ("float32", "bfloat16")
_REPEATS = 5
_SMALL, _LARGE = 2**10, 2**20
"""Elements on a device of the tensors that are exchanged, float32."""

_MEMORY_ELEMENTS = 2**22
_FLOAT_BYTES = 4


def calibrate(name: str, num_devices: int) -> Hardware:
    """Returns the hardware that is here; the process has so many devices. It takes seconds."""
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
    """Returns the bytes a second that each device reads and writes."""
    seconds = _time(lambda x: x + 1.0, num_devices, _MEMORY_ELEMENTS)
    return 2 * _FLOAT_BYTES * _MEMORY_ELEMENTS / seconds


def _fit_exchanges(num_devices: int) -> tuple[float, float]:
    """Returns the latency in seconds, and the bandwidth in bytes a second, of exchanges.

    They are means over all-gather, all-reduce and all-to-all, as `Network` counts latencies and
    bytes of each.
    """
    jax = engine.engine()
    part = (num_devices - 1) / num_devices
    levels = math.log2(num_devices)
    forms: list[tuple[Callable[[Any], Any], float, float]] = [  # with latencies, and elements
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
    """Returns the least seconds of a function of `number` floats on each device at once."""
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
