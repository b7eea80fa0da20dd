"""Ways to run an experiment on N devices: meshes, sharding rules, and options that save memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lingo.inspection.plan.workload import IMAGE_DIMS, SEQUENCE_DIMS, Workload
from lingo.mesh.pipeline import bubble_fraction
from lingo.mesh.rules import Recipe
from lingo.mesh.topology import AXES, Topology, topology

MICRO_BATCHES_PER_STAGE = (1, 2, 4, 8)
"""Numbers of micro-batches per pipeline stage that the search tries."""

ACCUMULATION_STEPS = (1, 2, 4, 8, 16, 32)

LONG = 4096
"""Examples with at least this many positions may be split over devices along their positions.

Shorter examples are split only if a batch has fewer examples than there are devices.
"""

REPEATS = (1, 2, 4)
"""Numbers of circular repeats that the search tries.

8 is not tried, since its predicted bytes were off by over 10 %.
"""


class Candidate(NamedTuple):
    """A way to run an experiment, whose memory and time can be estimated."""

    mesh: Topology
    rules: Recipe = "1d"
    shard_update: bool = False
    shard_weights: bool = False
    accumulation_steps: int = 1
    remat: bool = False  # whether gradients keep only the tensors between layers of the stack
    micro_batches: int = 1  # number of micro-batches of a pipeline, if the mesh has stages
    repeats: int = 1  # how often a micro-batch passes through all stages of a pipeline

    @property
    def num_stages(self) -> int:
        return self.mesh.size(["stage"])

    @property
    def bubble(self) -> float:
        """The share of time in which a pipeline's stages are idle, 0..1, if stages are equal."""
        return bubble_fraction(self.num_stages, self.micro_batches, self.repeats)

    def settings(self, workload: Workload, rules: Mapping[str, object]) -> list[str]:
        """Returns the overrides, as `--set` takes them, that make an experiment run in this way.

        `rules` has fields of the experiment's runtime that are kept: `weight_rules` and
        `activation_rules`.
        """
        fields: dict[str, object] = {axis: size for axis, size in self.mesh.sizes if size > 1}
        fields |= {"rules": self.rules} if self.rules != "1d" else {}
        fields |= {"shard_update": True} if self.shard_update else {}
        fields |= {"shard_weights": True} if self.shard_weights else {}
        fields |= {name: value for name, value in rules.items() if value}
        is_one = self.mesh.num_devices == 1
        texts = ["runtime=Local" if is_one else f"runtime=Mesh({_arguments(fields)})"]
        if self.accumulation_steps != workload.accumulation_steps:
            texts.append(f"accumulation_steps={self.accumulation_steps}")
        return [*texts, *self.model_settings(workload)]

    def model_settings(self, workload: Workload) -> list[str]:
        """Returns the overrides that change the model, for a pipeline or rematerialization."""
        texts: list[str] = []
        if self.num_stages > 1:
            fields: dict[str, object] = {
                "num_stages": self.num_stages,
                "num_micro_batches": self.micro_batches,
            }
            fields |= {"circular_repeats": self.repeats} if self.repeats > 1 else {}
            texts.append(f"{workload.stack}=Pipeline({_arguments(fields)})")
        elif workload.stack == "Pipeline":
            texts.append("Pipeline=Repeat")
        if self.remat and not workload.is_recomputed:
            if self.num_stages == 1 and workload.stack == "Stack":
                texts.append("Stack=Repeat")  # under XLA only a loop recomputes
            texts.append(f"{workload.layer}=Remat(layer=_)")
        return texts


def _arguments(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())


def candidates(workload: Workload, num_devices: int) -> Iterator[Candidate]:
    """Yields the ways to run a workload on a number of devices.

    Mesh axes are those that the model can use: `expert` if it has experts, `stage` if it has a
    single stack of layers, `sequence` if examples are long or few, `height` for images and volumes.
    Each axis is tried in all sizes that divide both the number of devices and the dim that the axis
    splits.
    """
    remats = (False, True) if workload.stack and not workload.is_recomputed else (False,)
    for sizes in meshes(workload, num_devices):
        mesh = topology(sizes)
        for (rules, update, weights), remat, counts in itertools.product(
            _splits(workload, mesh),
            remats if mesh.size(["stage"]) == 1 else (False,),  # a pipeline always recomputes
            _counts(workload, mesh),
        ):
            yield Candidate(mesh, rules, update, weights, counts[0], remat, *counts[1:])


def _splits(workload: Workload, mesh: Topology) -> Iterator[tuple[Recipe, bool, bool]]:
    """Yields triples to try: (recipe of sharding rules, shard_update, shard_weights).

    A recipe is left out if it would be the same as a simpler recipe. `2d_attempt_2` differs from
    `1d` only if the mesh has an axis `data`, and `2d_finalized` differs from `2d_attempt_2` only if
    it has an axis `model`. Both differ from `1d` only if a weight has the logical axis `embed`.
    `2d_attempt_1` is not tried, since the later recipes replaced it.
    """
    has_embed = any("embed" in one.axes for unit in workload.units for one in unit.matrices)
    has_batch = mesh.size(["data", "expert"]) > 1
    recipes: list[Recipe] = ["1d"]
    if has_embed and mesh.size(["data"]) > 1:
        recipes.append("2d_attempt_2")
    if has_embed and mesh.size(["model"]) > 1:
        recipes.append("2d_finalized")
    for rules in recipes:
        yield rules, False, False
        if has_batch:
            yield rules, True, False
        if has_batch and rules == "1d":  # the 2d recipes split weights already
            yield rules, True, True


def _counts(workload: Workload, mesh: Topology) -> list[tuple[int, int, int]]:
    """Returns triples to try: (accumulation steps, micro-batches, circular repeats).

    They divide the batch and the layers without remainder.
    """
    batch, stages = mesh.size(["data", "expert"]), mesh.size(["stage"])
    pipelines = [(1, 1)]
    if stages > 1:
        repeats = [n for n in REPEATS if workload.num_steps % (stages * n) == 0]
        numbers = [stages * n for n in MICRO_BATCHES_PER_STAGE]
        pipelines = list(itertools.product(numbers, repeats))
    counts = [
        (steps, number, repeats)
        for steps in ACCUMULATION_STEPS
        for number, repeats in pipelines
        if workload.batch_size % (steps * number * batch) == 0
    ]
    return counts if counts or stages > 1 else [(1, 1, 1)]


def meshes(workload: Workload, num_devices: int) -> Iterator[dict[str, int]]:
    """Yields all meshes, {axis: size}, that suit a workload and have this number of devices."""
    largest = limits(workload, num_devices)
    axes = [axis for axis in AXES if largest[axis] > 1]

    def divide(left: int, names: list[str]) -> Iterator[dict[str, int]]:
        if not names:
            if left == 1:
                yield {}
            return
        name, *others = names
        for size in _divisors(left):
            if size <= largest[name] and (name == "data" or largest[name] % size == 0):
                for rest in divide(left // size, others):
                    yield {name: size, **rest}

    for sizes in divide(num_devices, axes):
        # predictions for pipelines with split sequences were never compared with a program
        if min(sizes.get("stage", 1), sizes.get("sequence", 1)) == 1:
            yield sizes


def limits(workload: Workload, num_devices: int) -> dict[str, int]:
    """Returns the largest size of each mesh axis; 1 for an axis that has nothing to split."""
    sizes: dict[str, int] = {axis: 1 for axis in AXES}
    sizes["data"] = workload.batch_size
    is_of_images = 2 * workload.image_flops > workload.flops
    for unit in workload.units:
        sizes["expert"] = max(sizes["expert"], unit.num_experts)
        for matrix in unit.matrices:
            for size, axis in zip(matrix.shape, matrix.axes, strict=True):
                if axis in ("mlp", "heads"):
                    sizes["model"] = max(sizes["model"], size)
        is_long = unit.shape[1] >= LONG or workload.batch_size < num_devices
        if len(unit.shape) == SEQUENCE_DIMS and unit.num_experts == 1 and is_long:
            sizes["sequence"] = max(sizes["sequence"], unit.shape[1])
        if len(unit.shape) >= IMAGE_DIMS and is_of_images:
            height = unit.shape[-3]  # of images [B, H, W, C] and volumes [B, D, H, W, C]
            sizes["height"] = max(sizes["height"], height)
    if len(workload.stacks) == 1:
        sizes["stage"] = workload.num_steps
    return sizes


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
