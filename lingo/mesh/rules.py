"""Rules from logical axes to mesh axes: one table for weights, one for activations.

    rules = RECIPES["2d_finalized"]
    rules.weights["embed"], rules.activations["embed"]         # ("data",), ("model",)
    split([1024, 4096], ("embed", "mlp"), rules.weights, mesh)  # [data, model]

A layer names its axes by what they mean; only these tables assign them to mesh axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from lingo.config.params import ParamError, suggest
from lingo.mesh.split import Axes, Split
from lingo.mesh.topology import Topology

Recipe = Literal["1d", "2d_attempt_1", "2d_attempt_2", "2d_finalized"]
"""A name in RECIPES."""

Table = Mapping[str, Axes]
"""Logical axis -> mesh axes, outermost first; () for an axis that is not split."""


class Rules(NamedTuple):
    """The two tables that map logical axes to mesh axes."""

    weights: Table  # for weights, gradients and slots
    activations: Table  # for everything else


_WEIGHTS: Table = {
    "layer": (),  # a scan reads one layer after the other
    "stage": ("stage",),
    "expert": ("expert",),
    "embed": (),
    "mlp": ("model",),
    "heads": ("model",),
    "kv_heads": ("model",),
    "head_dim": (),
    "vocab": ("model",),
}
_ACTIVATIONS: Table = {
    **_WEIGHTS,
    "batch": ("data", "expert"),
    "group": ("data",),  # in activations that are split along "expert" already
    "length": ("sequence",),
    "depth": (),  # of volumes
    "height": ("height",),  # of images and volumes
    "width": ("width",),
    "channels": (),
}
_2D_WEIGHTS: Table = {**_WEIGHTS, "embed": ("data",)}

RECIPES: Mapping[Recipe, Rules] = {
    "1d": Rules(_WEIGHTS, _ACTIVATIONS),
    "2d_attempt_1": Rules(
        _2D_WEIGHTS, {**_ACTIVATIONS, "batch": ("expert",), "group": (), "embed": ("data",)}
    ),
    "2d_attempt_2": Rules(_2D_WEIGHTS, _ACTIVATIONS),
    "2d_finalized": Rules(_2D_WEIGHTS, {**_ACTIVATIONS, "embed": ("model",)}),
}
"""Rules by name. `1d` is data parallelism times the tensor parallelism of Shoeybi et al. 2019.

The others are from Xu et al. 2021 (GSPMD, sec. 5.1), for a Transformer on a mesh [X, Y], which is
[data, model] here: B batch, S length, M embed, H mlp, N heads, D head_dim.

    recipe        weights MH, HM      MND      BSM       BSH       BSND
    2d_attempt_1  [X,Y], [Y,X]   [X,Y,-]   [-,-,X]   [-,-,Y]   [-,-,Y,-]
    2d_attempt_2   the same      the same  [X,-,-]   [X,-,Y]   [X,-,Y,-]
    2d_finalized   the same      the same  [X,-,Y]   [X,-,Y]   [X,-,Y,-]

Attempt 1 moves no weight, but the long-lived activation BSM is split along X alone. Attempt 2
gathers each weight along X where it is used, as if X split only the batch. Finalized splits BSM
along Y, too: every long-lived tensor is in X * Y parts. Lingvo's `DenseBuilder` splits the same
tensors in this way: BSM as attempt 2 by default, and as finalized in its 8B, 128B and 1T models.
The rest is our choice: scales, biases and tables of positions follow their axes. The embedding is
[Y, X], while Lingvo splits M alone; logits are [X, -, Y] as in Lingvo.
"""


def check_name(name: str) -> None:
    """Raises ParamError for a logical axis with a known axis's letters in wrong order, like "mpl".

    Other unknown names are the user's own; the user gives the mesh rules for them.
    """
    known = {axis for rules in RECIPES.values() for table in rules for axis in table}
    nearest = [axis for axis in known if sorted(axis) == sorted(name)]
    if name not in known and nearest:
        raise ParamError(
            f"the logical axis {name!r} is in no table of rules, so no mesh would split it."
            f" Did you mean {nearest[0]!r}? An axis that is never split is named None."
        )


def split(
    shape: Sequence[int],
    logical: Sequence[str | None],
    table: Table,
    mesh: Topology,
    *,
    uneven: bool = False,
    num_mapped: int = 0,
) -> Split:
    """Returns the split of a tensor by rules; mesh axes of size 1 are left out.

    `logical` has the name of each axis, or None. With `uneven` a size need not be a multiple of
    the number of its parts. The first `num_mapped` axes, which vectorization adds, hold copies of
    the tensor: a mesh axis that splits one of them does not split the axes after them.

    Raises ParamError for a logical axis without a rule, a mesh axis that would split a tensor twice
    or is not an axis of the mesh, or a size that is not a multiple of its number of parts.
    """
    tensor = f"{list(shape)} ({', '.join(name or '-' for name in logical)})"
    axes = [_mesh_axes(name, table, mesh, tensor) for name in logical]
    taken = {axis for mapped in axes[:num_mapped] for axis in mapped}
    own = [tuple(axis for axis in cuts if axis not in taken) for cuts in axes[num_mapped:]]
    cut = Split((*axes[:num_mapped], *own))
    _check_once(cut, logical, mesh, tensor)
    if not uneven:
        _check_even(cut, shape, logical, mesh, tensor)
    return cut


def parts(name: str, table: Table, mesh: Topology) -> int:
    """Returns the number of parts into which rules split a logical axis; raises as `split` does."""
    return mesh.size(_mesh_axes(name, table, mesh, name))


def _mesh_axes(name: str | None, table: Table, mesh: Topology, tensor: str) -> Axes:
    """Returns the mesh axes with several devices that split a logical axis."""
    if name is None:
        return ()
    if name not in table:
        raise ParamError(
            f"no rule for the logical axis {name!r} of {tensor}: add it to weight_rules or, for"
            f" activations, to activation_rules; [] leaves it whole.{suggest(name, table)}"
        )
    sizes = dict(mesh.sizes)
    if unknown := [axis for axis in table[name] if axis not in sizes]:
        raise ParamError(
            f"the rule of {name!r} names {unknown[0]!r}, which is not an axis of the mesh:"
            f" {', '.join(sizes)}.{suggest(unknown[0], sizes)}"
        )
    return tuple(axis for axis in table[name] if sizes[axis] > 1)


def _check_once(cut: Split, logical: Sequence[str | None], mesh: Topology, tensor: str) -> None:
    for axis in sorted(cut.used_axes()):
        names = [
            name for name, axes in zip(logical, cut.axes, strict=True) for a in axes if a == axis
        ]
        if len(names) > 1:
            raise ParamError(
                f"the mesh axis {axis!r} of {mesh.size([axis])} devices would cut {tensor} twice,"
                f" by the rules of {names[0]!r} and {names[1]!r}: give one rule another axis"
            )


def _check_even(
    cut: Split, shape: Sequence[int], logical: Sequence[str | None], mesh: Topology, tensor: str
) -> None:
    for size, name, axes in zip(shape, logical, cut.axes, strict=True):
        if size % (parts := mesh.size(axes)):
            raise ParamError(
                f"{name!r} of {size} does not divide into {parts} equal parts, along the mesh axis"
                f" {' * '.join(axes)}, in {tensor}: take another mesh, other rules, or uneven=True"
            )
