"""The tree of layers: the layers inside each layer, and the paths of the tensors they declare.

A *program path* names a tensor of the program; layers that are stacked in one tensor have a slice
in place of an index: `stack/layers/[0:12]/ffn/w_in` (`lingo.layers.path`). A layer gets its final
path when the root of its tree is built. Until then, its paths start at the layer itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from lingo.config.params import Configurable, ParamError
from lingo.layers import path
from lingo.layers.initial import InitialValue

if TYPE_CHECKING:
    from lingo.layers.layer import Layer

MAX_TENSORS = 500_000
"""The largest number of weights of a tree, since each has its own name in checkpoints."""

_NOT_IN_SCOPES = re.compile(r"[^\w.\-/]")  # the brackets of a slice, among others


class ParamSpec(NamedTuple):
    """A tensor that a layer declares: a weight, a state or a cache."""

    path: str  # program path
    shape: tuple[int, ...]  # for one layer, without stacked axes; of a cache, for one example
    axes: tuple[str | None, ...]  # logical axis of each dim; None: the dim has no logical axis
    dtype: str  # dtype in which `self.w` is read; weights and states are stored as float32
    init: InitialValue  # distribution of the initial value
    fan_in: int  # number of inputs that each output sums
    decay: float | None = None  # decay per step of a moving statistic; None: a weight or a cache
    stack_axes: tuple[str, ...] = ()  # logical axes of the stacked axes, which come first
    per_position: bool = False  # whether a cache has an entry of this shape for each position
    position_axis: int = 0  # index in `shape` before which the axis of positions is inserted
    shown: bool = False  # whether TensorBoard shows a moving statistic over time
    sparse: bool = False  # whether a step updates only the rows of a table that it looked up

    @property
    def program_shape(self) -> tuple[int, ...]:
        """The shape of the tensor in the program, with the stacked axes first."""
        return path.stack_shape(self.path) + self.shape

    @property
    def num_stacked(self) -> int:
        """The number of leading axes along which the program stacks the weights of layers."""
        return len(path.stack_shape(self.path))

    @property
    def size(self) -> int:
        """The number of elements of the tensor in the program, all stacked layers together."""
        return math.prod(self.program_shape)


class _Child(NamedTuple):
    layer: Layer
    axis: str | None  # logical axis along which the child's weights are stacked; None: not stacked
    is_shared: bool = False  # whether another layer of the tree has the child, too, and its path


class LayerTree:
    """Base class of `Layer` with the tree of layers inside it."""

    path: ClassVar[str] = ""
    """The layer's program path from the root of its tree; "" for a root."""

    stack_axes: ClassVar[tuple[str, ...]] = ()
    """Logical axes along which the program stacks copies of the layer."""

    _wrapped: ClassVar[str | None]
    _sealed: ClassVar[bool] = False
    _scope: ClassVar[str] = ""
    _late: ClassVar[bool] = False  # whether `declare_late` declares anything

    @property
    def declares_late(self) -> bool:
        """Whether a layer of the tree cannot declare its weights in `setup`, as `Keras` cannot.

        Such weights are known only after TensorFlow has its devices.
        """
        return any(layer._late for layer in self.tree())

    def declare_late(self) -> None:
        """Declares weights and states that `setup` cannot know; called when they are listed."""

    def __str__(self) -> str:
        """Returns the layer's name for errors: path and class, or the class alone for a root."""
        name = type(self).__name__
        return f"{self.path} ({name})" if self.path else name

    def tree(self) -> Iterator[Layer]:
        """Yields every layer of the tree once, this layer first; stacked copies are one layer."""
        yield from self._visit(set())

    def inner_layers(self) -> Iterator[Layer]:
        """Yields the layers directly inside this one; stacked copies are one layer."""
        for child in self.__dict__.get("_children", {}).values():
            yield child.layer

    def weights(self) -> dict[str, ParamSpec]:
        """Returns program path -> declaration of every weight of the tree."""
        return self._collect_specs("weights")

    def states(self) -> dict[str, ParamSpec]:
        """Returns program path -> declaration of every state of the tree."""
        return self._collect_specs("state")

    def caches(self) -> dict[str, ParamSpec]:
        """Returns program path -> declaration of every cache of the tree."""
        return self._collect_specs("caches")

    def declarations(self) -> Iterator[ParamSpec]:
        """Yields the weights, states and caches that this layer itself declares.

        The `path` of each is its name in this layer.
        """
        for kind in ("weights", "state", "caches"):
            yield from self.__dict__.get(f"_{kind}", {}).values()

    def share(self, part: str, layer: Layer) -> None:
        """Puts another layer of the same tree in place of the child at the path part `part`.

        Both parents then call one layer, whose path and weights stay as they are. It is called
        before the root of the tree is complete.
        """
        children, name = self.__dict__["_children"], part or cast("str", self._wrapped)
        children[part] = _Child(layer, None, is_shared=True)
        attribute, _, key = name.partition("/")
        value = self.__dict__[attribute]
        if isinstance(value, LayerTree):
            self.__dict__[attribute] = layer
        elif isinstance(value, dict):
            self.__dict__[attribute] = value | {key: layer}
        else:
            items = list(value)
            items[int(key)] = layer
            self.__dict__[attribute] = items

    def shared_paths(self) -> list[str]:
        """Returns the paths of the layers in the tree that this layer shares with others."""
        return [
            child.layer.path
            for layer in self.tree()
            for child in layer.__dict__.get("_children", {}).values()
            if child.is_shared
        ]

    def copies(
        self,
        name: str,
        child: Layer,
        num: int,
        *,
        start: int = 0,
        step: int = 1,
        axis: str = "layer",
    ) -> Layer:
        """Declares copies of a child, whose weights the program stacks along a leading axis.

        The copies' paths are `<name>/<i>`, as for a list, with `num` indices i from `start` in
        steps of `step`. `axis` is the logical axis of the stack. Returns `child`.
        """
        part = path.slice_part(start, start + (num - 1) * step + 1, step)
        self._add_child(f"{name}/{part}", child, axis)
        return child

    def _visit(self, seen: set[int]) -> Iterator[Layer]:
        """Yields the layers of the tree whose ids are not in `seen`, and adds their ids to it."""
        if id(self) in seen:
            return
        seen.add(id(self))
        yield cast("Layer", self)
        for child in self.inner_layers():
            yield from child._visit(seen)

    def _add_children(self, name: str, value: Any) -> None:
        """Adds the layers that an attribute holds to the tree.

        `value` is a layer, or a list or dict of layers; any other value adds nothing.
        """
        children = {}
        if isinstance(value, LayerTree):
            children = {"" if name == self._wrapped else name: value}
        elif isinstance(value, (list, tuple)):
            children = {f"{name}/{i}": child for i, child in enumerate(value)}
        elif isinstance(value, dict):
            children = {f"{name}/{key}": child for key, child in value.items()}
        if all(isinstance(child, LayerTree) for child in children.values()):
            for part, child in children.items():
                self._add_child(part, child)

    def _add_child(self, part: str, child: Any, axis: str | None = None) -> None:
        children = self.__dict__.setdefault("_children", {})
        # by id, so that the check is fast for thousands of layers
        axes = self.__dict__.setdefault("_axes", {})
        if id(child) in axes:
            if axes[id(child)] is not None and axis is None:
                return  # the assignment in `self.layer = self.copies(...)`
            raise ParamError(
                f"{part!r} is a layer that {type(self).__name__} has already: build another"
            )
        if part in children:
            del axes[id(children[part].layer)]
        children[part], axes[id(child)] = _Child(child, axis), axis

    def _collect_specs(self, kind: str) -> dict[str, ParamSpec]:
        specs: dict[str, ParamSpec] = {}
        for layer in self.tree():
            layer.declare_late()
            for spec in layer.__dict__.get(f"_{kind}", {}).values():
                where = path.join(layer.path, spec.path)
                if where in specs:
                    raise ParamError(f"two layers declare {where}", layer.path)
                stack_axes = layer.stack_axes + spec.stack_axes
                specs[where] = spec._replace(path=where, stack_axes=stack_axes)
        if (number := sum(math.prod(path.stack_shape(where)) for where in specs)) > MAX_TENSORS:
            raise ParamError(
                f"{number:,} {kind} with separate names are more than {MAX_TENSORS:,}: take fewer"
                " layers"
            )
        return specs

    def _finish(self, parent: Configurable | None) -> None:
        """Checks, after `setup`, that an attribute holds each layer that was built in it.

        A root also seals its tree: its layers then refuse to set attributes.
        """
        axes = self.__dict__.pop("_axes", {})
        for child in self.__dict__.pop("_built", []):
            if id(child) not in axes:
                raise ParamError(
                    f"builds a {type(child).__name__} that no attribute holds: assign it in setup"
                )
        self._set_paths("", ())
        if isinstance(parent, LayerTree):
            parent.__dict__.setdefault("_built", []).append(self)
            return
        for layer in self.tree():
            layer.__dict__["_sealed"] = True

    def _set_paths(self, where: str, stack_axes: tuple[str, ...]) -> None:
        self.__dict__.update(path=where, stack_axes=stack_axes)
        for part, child in self.__dict__.get("_children", {}).items():
            if child.is_shared:
                continue
            axes = stack_axes + ((child.axis,) if child.axis else ())
            child.layer._set_paths(path.join(where, part), axes)
            child.layer.__dict__["_scope"] = scope_name(part)

    def _name_at_path(self) -> str:
        """Returns a name that is unique among the wrappers that share this wrapper's path.

        The name is the class, such as `Remat`; a `Remat` around another one is `Remat.1`.
        """
        inside, same = self.__dict__["_children"].get(""), 0
        while inside is not None:
            same += type(inside.layer) is type(self)
            inside = inside.layer.__dict__.get("_children", {}).get("")
        return type(self).__name__ + (f".{same}" if same else "")


def scope_name(part: str) -> str:
    """Returns a name scope for a path part; characters that TensorFlow refuses become `_`."""
    return _NOT_IN_SCOPES.sub("_", part)
