"""A TPU's compiler without a TPU: the package `libtpu` compiles a mesh's programs ahead of time.

    lowered = lower(functions.train, arguments, "v5e:4x4", donate=True)

TensorFlow without TPU kernels cannot lower its operations for a TPU. So the function is lowered for
the CPU (StableHLO, with the same shardings), exported, and called inside a function that is lowered
for the topology's devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.base.errors import check_package
from lingo.config.params import ParamError
from lingo.runtimes.mesh.engine import engine


class Generation(NamedTuple):
    """A generation of TPUs, as the compiler and the report need it."""

    devices_per_chip: int  # a v3's two cores are two devices; a later chip is one
    num_sides: int  # of the torus of chips
    max_devices: int
    clock: float  # cycles per second
    flops_per_second: float  # per device, in bfloat16


GENERATIONS = {
    "v3": Generation(2, 2, 2048, 0.94e9, 61.5e12),
    "v4": Generation(1, 3, 4096, 1.05e9, 275e12),
    "v5e": Generation(1, 2, 512, 1.5e9, 197e12),
    "v5p": Generation(1, 3, 8192, 1.75e9, 459e12),
    "v6e": Generation(1, 2, 512, 1.75e9, 918e12),
}
"""Name of a generation that the compiler accepts -> its properties."""

_HOST_CHIPS = 4


def generation(topology: str) -> Generation:
    """Returns the generation of a topology's name; raises ParamError for an unknown one."""
    name = topology.partition(":")[0]
    if name not in GENERATIONS:
        raise ParamError(f"the TPU compiler has no generation {name!r}: {', '.join(GENERATIONS)}")
    return GENERATIONS[name]


def topology_name(name: str, num_devices: int) -> str:
    """Returns the name of a generation's topology with enough devices, "v5e:4x4".

    Its sides are as equal as possible. It has whole hosts of four chips; a mesh with fewer devices
    uses the topology's first ones. Raises ParamError if there is no topology of this size.
    """
    tpus = generation(name)
    if num_devices > tpus.max_devices:
        raise ParamError(
            f"{num_devices} devices: the TPU compiler has at most {tpus.max_devices} of {name}"
        )
    hosts = -(-num_devices // (_HOST_CHIPS * tpus.devices_per_chip))
    shapes = _factorizations(hosts * _HOST_CHIPS, tpus.num_sides)
    # A host is 2 x 2 chips of the first two sides.
    even = [sides for sides in shapes if sum(side % 2 == 0 for side in sides) >= 2]
    sides = sorted(min(even, key=sum), key=lambda side: (side % 2, side))
    return f"{name}:{'x'.join(map(str, sides))}"


def _factorizations(number: int, num_factors: int) -> list[tuple[int, ...]]:
    """Returns the ascending tuples of `num_factors` factors whose product is a number."""
    if num_factors == 1:
        return [(number,)]
    return [
        (first, *rest)
        for first in range(1, math.isqrt(number) + 1)
        if number % first == 0
        for rest in _factorizations(number // first, num_factors - 1)
        if first <= rest[0]
    ]


def lower(function: Any, arguments: Sequence[Any], topology: str, *, donate: bool) -> Any:
    """Returns a function lowered for a topology: a `jax.stages.Lowered`, which `compile`s.

    Raises ParamError if the topology is unknown, or has fewer devices than the function's mesh.

    Args:
        function: a `jax.jit` function on a mesh of CPU devices, no more than the topology has.
        arguments: abstract arrays (`jax.ShapeDtypeStruct`) in trees, or static values.
        topology: a name such as "v5e:4x4".
        donate: whether the program may reuse the memory of the first argument.
    """
    jax, tpus = engine(), _devices(topology)

    def place(array: Any) -> Any:
        mesh, split = array.sharding.mesh, array.sharding.spec
        if mesh.devices.size > len(tpus):
            raise ParamError(
                f"topology {topology} has {len(tpus)} devices, the mesh {mesh.devices.size}"
            )
        devices = np.array(tpus[: mesh.devices.size]).reshape(mesh.devices.shape)
        sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, mesh.axis_names), split)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    call = export_call(function, arguments)
    arrays = [value for value in arguments if not isinstance(value, int | str)]
    program = jax.jit(call, donate_argnums=(0,) if donate else ())
    return program.trace(*jax.tree.map(place, arrays)).lower(lowering_platforms=("tpu",))


def export_call(function: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
    """Returns the program that `function` lowers to, as a function of the arrays in `arguments`.

    The program is lowered for the CPU, but any platform may compile it.
    """
    engine()
    from jax import export

    checks = [export.DisabledSafetyCheck.platform()]
    return export.export(function, platforms=("cpu",), disabled_checks=checks)(*arguments).call


def _devices(topology: str) -> list[Any]:
    """Returns the devices of a topology; raises ParamError if the compiler does not know it."""
    check_package("libtpu", "compiling for a TPU", extra="tpu-compiler")
    from jax.experimental import topologies

    try:
        # Both cores of a v4 are one device, as JAX and TensorFlow run them.
        options = {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}
        found = topologies.get_topology_desc(topology, "tpu", **options)
    except (ValueError, RuntimeError) as error:
        raise ParamError(f"{topology!r} is no topology of the TPU compiler: {error}") from None
    return list(found.devices)
