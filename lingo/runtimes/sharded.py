"""The fields that all mesh runtimes share: the size of the mesh, and how tensors are split over it.

Every weight, and every activation that a layer annotates, has logical axes; rules map these to mesh
axes. So layers do not depend on devices, nor rules on layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from lingo.config import ranges
from lingo.config.params import ParamError, suggest
from lingo.learner.placement import Placement
from lingo.learner.state import Learner
from lingo.learner.step import step_graph
from lingo.mesh.rules import RECIPES, Recipe, Rules
from lingo.mesh.topology import AXES, Topology, topology
from lingo.runtimes.layout import (
    GatherDtype,
    Layout,
    batch_axes,
    check_gather_dtype,
    layout,
)
from lingo.runtimes.runtime import Runtime


class Sharded(Runtime):
    """A runtime on a mesh of devices, the product of its seven axes."""

    data: int = 1  # devices along which a batch is split
    model: int = 1  # devices along which a layer is split: its heads, hidden width, vocabulary
    expert: int = 1  # devices along which experts are split; a batch is split along it, too
    sequence: int = 1  # devices along which the positions of an example are split
    height: int = 1  # devices along which the rows of an image are split
    width: int = 1  # devices along which the columns of an image are split
    stage: int = 1  # devices along which the stages of a pipeline are split
    rules: Recipe = "1d"  # maps logical axes to these mesh axes
    weight_rules: dict[str, list[str]] = {}  # replace the recipe's rules for weights: {"mlp": []}
    activation_rules: dict[str, list[str]] = {}  # replace the recipe's rules for activations
    shard_update: bool = False  # a device updates, and keeps slots for, only its part of a weight
    shard_weights: bool = False  # a device keeps only that part; layers gather what they read
    gather_dtype: GatherDtype = "float32"  # of weight copies that devices gather with shard_update
    uneven: bool = True  # allows sizes that do not divide; then the last part is padded

    def check(self) -> None:
        ranges.check_positive(self.p, *AXES)
        self._check_gather_dtype()
        for field in ("weight_rules", "activation_rules"):
            for name, axes in getattr(self.p, field).items():
                for axis in axes:
                    if axis not in AXES:
                        raise ParamError(
                            f"{field}[{name!r}]: {axis!r} is not an axis of a mesh:"
                            f" {', '.join(AXES)}.{suggest(axis, AXES)}"
                        )

    def _check_gather_dtype(self) -> None:
        p, mesh = self.p, self.topology()
        check_gather_dtype(p.gather_dtype, shard_update=p.shard_update)
        if p.gather_dtype == "float32":
            return
        if p.shard_weights:
            raise ParamError(
                f"gather_dtype={p.gather_dtype!r} and shard_weights=True, with which layers gather"
                " weights where they read them: take one of the two"
            )
        if not batch_axes(self.axis_rules(), mesh):
            raise ParamError(
                f"gather_dtype={p.gather_dtype!r}: no devices share a batch ({mesh}), so none"
                " gathers weights"
            )

    def topology(self) -> Topology:
        """Returns the shape of the mesh."""
        return topology({axis: getattr(self.p, axis) for axis in AXES})

    def axis_rules(self) -> Rules:
        """Returns the rules of the recipe, with `weight_rules` and `activation_rules` applied."""
        recipe, p = RECIPES[self.p.rules], self.p
        return Rules(
            {**recipe.weights, **{name: tuple(axes) for name, axes in p.weight_rules.items()}},
            {
                **recipe.activations,
                **{name: tuple(axes) for name, axes in p.activation_rules.items()},
            },
        )

    def layout(self, learner: Learner) -> Layout:
        return layout(
            learner,
            self.topology(),
            self.axis_rules(),
            shard_update=self.p.shard_update,
            shard_weights=self.p.shard_weights,
            uneven=self.p.uneven,
            keep_parts=self.p.gather_dtype != "float32",
        )

    def check_learner(self, learner: Learner) -> None:
        layout = self.layout(learner)
        specs = learner.task.weights().values()
        axes = {axis for spec in specs for axis in spec.stack_axes + spec.axes if axis}
        recipe = RECIPES[self.p.rules]
        _check_names(
            "weight_rules", self.p.weight_rules, recipe.weights.keys() | axes, "no weight has"
        )
        known = recipe.activations.keys() | axes
        if self.p.activation_rules.keys() - known and learner.specs:
            known |= _activation_axes(learner)  # a trace takes time: only where a name may be wrong
            _check_names("activation_rules", self.p.activation_rules, known, "no layer names")
        if not self.p.uneven and learner.specs:
            _check_rows(learner, layout)


def _check_names(field: str, rules: Iterable[str], known: Set[str], why: str) -> None:
    """Raises ParamError for a rule whose axis is not known."""
    for name in rules:
        if name not in known:
            raise ParamError(
                f"runtime: {field}[{name!r}]: {why} such an axis.{suggest(name, known)}", "runtime"
            )


class _AxisNames(Placement):
    """Splits nothing, but collects the logical axes that layers name."""

    def __init__(self) -> None:
        super().__init__(compiled=True)
        self.rules, self.names = self, set[str | None]()

    def activation(self, x: Any, axes: tuple[str | None, ...]) -> Any:
        self.names.update(axes)
        return x

    weight = activation

    def parts(self, axis: str) -> int:
        return 1

    def copies(self, axes: Iterable[str]) -> int:
        return 1


def _activation_axes(learner: Learner) -> Set[str]:
    """Returns the logical axes that layers name in a training step, which is traced."""
    collector = _AxisNames()
    step_graph(learner, learner.specs, collector)
    return set(filter(None, collector.names))


def _check_rows(learner: Learner, layout: Layout) -> None:
    """Raises ParamError if devices would get unequal numbers of examples of a (micro-)batch."""
    size, parts = learner.specs["rows"][0][0], learner.accumulation_steps
    num = layout.mesh.size(batch_axes(layout.rules, layout.mesh))
    if size % (num * parts):
        raise ParamError(
            f"runtime: train_input.batch_size={size} does not divide into {num * parts} equal"
            f" parts, for {num} devices along the batch and accumulation_steps={parts}: take a"
            " multiple, or uneven=True",
            "runtime",
        )
