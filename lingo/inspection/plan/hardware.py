"""Describes hardware for plans: the memory, arithmetic and network of its devices.

A device is an element of lingo's mesh: a core of a TPU v3, a chip of later TPUs, a GPU, or a
virtual device of a CPU. Devices form a network with several dimensions, innermost first. For TPUs
they are the cores of a chip, then the sides of a torus of chips. For GPUs they are the GPUs of a
machine, then the machines.

    read("tpu_v3").arrange(64)          # 2 cores x 8 chips x 4 chips
    read("measured.json")               # a file that `lingo plan --calibrate` wrote
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lingo.config.params import ParamError, suggest
from lingo.runtimes.mesh.tpu_compiler import GENERATIONS


class Dimension(NamedTuple):
    """One dimension of a network: how devices along it are connected."""

    # "ring": each device has links to its two neighbours; if `wraps`, the last and the first device
    # are neighbours. "switch": each device has one link, to a switch that connects all devices.
    kind: Literal["ring", "switch"]
    size: int  # number of devices along the dimension
    bandwidth: float  # bytes per second of a link, in one direction
    latency: float  # seconds of a message from one device to the next, without its bytes
    wraps: bool = True


class Hardware(NamedTuple):
    """A kind of device, its network and its hosts. Sizes and rates are per device.

    A host is a machine with some of the devices and with CPU cores.
    """

    name: str
    memory_bytes: float
    flops_per_second: dict[str, float]  # dtype -> peak of matrix products; a multiply-add is two
    memory_bandwidth: float  # bytes per second
    # Rows and columns of the matrix unit. A product takes as long as if its matrices were padded to
    # multiples of this.
    matrix_tile: int
    dimensions: tuple[Dimension, ...]  # innermost first, each with its largest size
    torus: int  # number of the last dimensions that form a torus; `arrange` chooses its sides
    devices_per_host: int
    cores_per_host: int  # CPU cores that can make examples
    # The compiler combines tensors into collectives of up to this size; 0: it combines nothing.
    combined_bytes: float = 0.0
    closed_sides: int = 4  # a side of a torus is a closed ring if its size is a multiple of this
    is_tpu: bool = False  # whether XLA's compiler for TPUs compiles the programs

    def arrange(self, num_devices: int) -> tuple[Dimension, ...]:
        """Returns the dimensions of a network that has only `num_devices` devices.

        Devices fill inner switches first, with an equal number in each switch: 6 GPUs are in one
        machine of 8, and 12 GPUs in two machines. The torus is the most cubic one, with the longest
        side first. It wraps along sides that are multiples of `closed_sides`. Raises ParamError if
        no network has this number of devices.
        """
        if num_devices > self.max_devices:
            raise ParamError(self._limit_message(num_devices))
        arranged: list[Dimension] = []
        for dimension in self.dimensions[: len(self.dimensions) - self.torus]:
            is_last = self.torus == 0 and dimension is self.dimensions[-1]
            size = num_devices if is_last else _largest_divisor(num_devices, dimension.size)
            if size > dimension.size:
                raise ParamError(
                    self._limit_message(num_devices * math.prod(inner.size for inner in arranged))
                )
            arranged.append(dimension._replace(size=size))
            num_devices //= size
        if self.torus:
            sides = _sides(num_devices, [d.size for d in self.dimensions[-self.torus :]])
            if sides is None:
                raise ParamError(
                    f"devices: {num_devices} chips of {self.name} form no torus within"
                    f" {' x '.join(str(d.size) for d in self.dimensions[-self.torus :])}"
                )
            for dimension, side in zip(self.dimensions[-self.torus :], sides, strict=True):
                wraps = dimension.wraps and side % self.closed_sides == 0
                arranged.append(dimension._replace(size=side, wraps=wraps))
        return tuple(arranged)

    def _limit_message(self, num_devices: int) -> str:
        return (
            f"devices: {self.name} has {self.max_devices:,} devices at most, and {num_devices:,}"
            " are asked for"
        )

    def num_hosts(self, num_devices: int) -> int:
        """Returns the number of hosts (machines) that `num_devices` devices need."""
        return -(-num_devices // self.devices_per_host)

    @property
    def max_devices(self) -> int:
        """The largest number of devices that the network can connect."""
        return math.prod(dimension.size for dimension in self.dimensions)

    def rate(self, dtype: str) -> float:
        """Returns the peak FLOPs per second of matrix products in a dtype.

        If it is not known for this dtype, it is that of bfloat16, or else of the first known dtype.
        """
        rates = self.flops_per_second
        return rates.get(dtype) or rates.get("bfloat16") or next(iter(rates.values()))


COMBINED_BYTES = 30.0 * 2**20
"""Bytes up to which XLA by default combines collectives (`xla/service/collective_utils.h`).

The default of XLA's compiler for TPUs (flag `xla_jf_crs_combiner_threshold_in_bytes`) is not
published, and is assumed to be the same.
"""


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def _sides(num_chips: int, largest: list[int]) -> tuple[int, ...] | None:
    """Returns the sides of the most cubic torus of `num_chips` chips, the longest side first.

    `largest` has the largest size of each side. None: no torus has this number of chips.
    """
    if len(largest) == 1:
        return (num_chips,) if num_chips <= largest[0] else None
    best: tuple[int, ...] | None = None
    for side in range(1, min(num_chips, largest[-1]) + 1):
        if num_chips % side == 0:
            rest = _sides(num_chips // side, largest[:-1])
            if rest is not None and rest[-1] >= side and (best is None or max(best) > rest[0]):
                best = (*rest, side)
    return best


def _tpu(
    name: str,
    memory: float,
    bandwidth: float,
    *dimensions: Dimension,
    cores: int,
    tile: int = 128,
    devices_per_host: int = 4,
    closed_sides: int = 4,
) -> Hardware:
    """Returns the description of a TPU.

    Its float32 products are as fast as bfloat16 ones, since by default XLA rounds their operands to
    bfloat16.
    """
    peak = GENERATIONS[name].flops_per_second
    return Hardware(
        f"tpu_{name}",
        memory,
        {"bfloat16": peak, "float16": peak, "float32": peak},
        bandwidth,
        tile,
        dimensions,
        sum(one.kind == "ring" for one in dimensions),
        devices_per_host=devices_per_host,
        cores_per_host=cores,
        combined_bytes=COMBINED_BYTES,
        closed_sides=closed_sides,
        is_tpu=True,
    )


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
    devices_per_host: int = 8,
) -> Hardware:
    return Hardware(
        name,
        memory,
        {"bfloat16": bfloat16, "float16": bfloat16, "float32": float32},
        bandwidth,
        64,
        (
            Dimension("switch", devices_per_host, link, 3e-6),
            Dimension("switch", 2**20, wire, 1e-5),
        ),
        0,
        devices_per_host=devices_per_host,
        cores_per_host=cores,
        combined_bytes=COMBINED_BYTES,
    )


def _ring(size: int, bandwidth: float) -> Dimension:
    return Dimension("ring", size, bandwidth, 1e-6)


_GIB = 2.0**30

_HARDWARE = (
    _tpu(
        *("v3", 16 * _GIB, 450e9),
        *(Dimension("switch", 2, 450e9, 1e-7), _ring(128, 70e9), _ring(32, 70e9)),
        cores=48,
        devices_per_host=8,
    ),
    _tpu("v4", 32 * _GIB, 1228e9, *(_ring(16, 50e9),) * 3, cores=120),
    _tpu("v5e", 16 * _GIB, 819e9, *(_ring(16, 50e9),) * 2, cores=56, closed_sides=16),
    _tpu(
        *("v5p", 95 * _GIB, 2765e9),
        *(_ring(28, 100e9), _ring(20, 100e9), _ring(16, 100e9)),
        cores=104,
    ),
    _tpu(
        *("v6e", 32 * _GIB, 1640e9),
        *(_ring(16, 100e9), _ring(16, 100e9)),
        cores=90,
        tile=256,
        closed_sides=16,
    ),
    _gpu("a100", 80e9, 2039e9, 300e9, 25e9, bfloat16=312e12, float32=156e12, cores=128),
    _gpu("h100", 80e9, 3350e9, 450e9, 50e9, bfloat16=989e12, float32=494e12, cores=112),
    _gpu("h200", 141e9, 4800e9, 450e9, 50e9, bfloat16=989e12, float32=494e12, cores=112),
    _gpu("b200", 180e9, 8000e9, 900e9, 50e9, bfloat16=2250e12, float32=1100e12, cores=112),
    _gpu("l4", 24e9, 300e9, 32e9, 12.5e9 / 8, bfloat16=121e12, float32=60e12, cores=48),
    _gpu(
        "a10",
        24e9,
        600e9,
        32e9,
        12.5e9 / 4,
        bfloat16=125e12,
        float32=62.5e12,
        cores=64,
        devices_per_host=4,
    ),
    _gpu(
        "p100",
        16e9,
        732e9,
        40e9,
        12.5e9 / 4,
        bfloat16=10.6e12,
        float32=10.6e12,
        cores=20,
        devices_per_host=4,
    )._replace(flops_per_second={"float32": 10.6e12, "float16": 21.2e12}),
)
HARDWARE: dict[str, Hardware] = {one.name: one for one in _HARDWARE}
"""Hardware by name; the numbers are from data sheets.

TPU v3 and v4: Jouppi et al. 2023 (TPU v4), table 4. A core of v3 has half of its chip's resources.
The torus of a v3 multipod has up to 128 x 32 chips (Kumar et al. 2021). v5e, v5p and v6e: Google
Cloud's pages. A torus of v5e or v6e is closed only along sides of 16 chips.

GPUs: NVIDIA's data sheets, without sparsity, float32 as TF32. A100, H100, H200 and B200 have the
form factor SXM, eight in a machine. Each of them has a network card of 200 (A100) or 400 Gbit/s. L4
and A10 exchange through PCIe 4.0 x16. The eight L4s of a Google `g2-standard-96` machine share 100
Gbit/s, and so do the four A10s of an Oracle `BM.GPU.A10.4` machine. P100: the four of an IBM
S822LC, each with two NVLinks to its neighbour, share 100 Gbit/s; all pairs count as neighbours. It
has no bfloat16, which counts as float32.

CPU cores per host: those of NVIDIA's DGX machines for GPUs, and of Oracle's machine for A10s. On
Google Cloud, half of the virtual cores count (v3: 96, v4: 240, v5e: 112, v5p: 208, v6e: 180, L4:
96). Latencies are not from data sheets. They are orders of magnitude, which a file of measurements
replaces.
"""


def read(name: str) -> Hardware:
    """Returns hardware by its name in `HARDWARE`, or from a JSON file that `write` made.

    Raises ParamError if the name is unknown, or the file is missing or does not describe hardware.
    """
    if name in HARDWARE:
        return HARDWARE[name]
    path = Path(name)
    if path.suffix != ".json":
        raise ParamError(
            f"hardware: {name!r} is not one of {', '.join(HARDWARE)}, and no .json file as"
            f" `lingo plan --calibrate` writes it.{suggest(name, HARDWARE)}"
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
    """Returns hardware from JSON values; raises ValueError for wrong or missing fields."""
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
    """Raises ValueError unless values are {field: value} with the fields of a NamedTuple.

    Fields with a default may be missing. `where` names the values in the error.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{where} is not of the form {{field: value}}")
    if unknown := values.keys() - set(kind._fields):
        name = min(unknown)
        raise ValueError(f"{where} has no field {name!r}{suggest(name, kind._fields)}")
    if missing := [f for f in kind._fields if f not in values and f not in kind._field_defaults]:
        raise ValueError(f"{where} lacks {', '.join(missing)}")


def _check(hardware: Hardware) -> None:
    """Raises ValueError if a field of hardware has an impossible value."""
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
_COUNTS = ("matrix_tile", "devices_per_host", "cores_per_host", "closed_sides")


def write(hardware: Hardware, path: Path) -> None:
    """Writes hardware as a JSON file."""
    fields = hardware._asdict() | {"dimensions": [one._asdict() for one in hardware.dimensions]}
    path.write_text(f"{json.dumps(fields, indent=2)}\n")
