"""The inputs of a layer besides its activations, which a stack passes on to all of its layers.

`layer(x, segments=segments)` is short for `layer(x, inputs=CallInputs(segments=segments))`. A
method that does not need them has no parameter `inputs`.

Axes: B batch, T positions, S memory positions, N heads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lingo.layers.layer import Layer


class CallInputs(NamedTuple):
    """The inputs of a call besides x, [B, T, ...]; None: not given.

    Attributes:
        memory: [B, S, width of the memory], any float type: `CrossAttention` attends to it. In
            decoding, only the first step gets it.
        memory_segments: int32 [B, S], the document id of each position of the memory (0: padding);
            None: one document. Decoding needs it in every step.
        position_table: float32 [num_buckets, N], the table of `RelativeBias(shared=True)`.
        position_ids: int32 [B, T], the index of each position in its document; None: 0, 1, 2, ...,
            in decoding counted on from the positions computed before.
        prefix: bool [B, T], the positions that the mask `Prefix` shows to all of the document (in
            decoding: to all of the chunk); None: no position.
        segments: int32 [B, T], the document id of each position (0: padding); None: one document.
        token_ids: int32 [B, T], for layers whose `batch_requirements` ask for them.
    """

    memory: Any = None
    memory_segments: Any = None
    position_table: Any = None
    position_ids: Any = None
    prefix: Any = None
    segments: Any = None
    token_ids: Any = None

    def by_name(self) -> dict[str, Any]:
        """Returns the inputs that are not None."""
        return {name: value for name, value in self._asdict().items() if value is not None}


NO_INPUTS = CallInputs()


class BatchRequirements(NamedTuple):
    """A layer's requirements on its batches."""

    # Number of neighbouring examples that are computed as one group; the largest possible if sizes
    # are unknown. Cutting a batch between groups changes no result.
    examples_together: int = 1
    # Group size of a layer whose statistics include padding (examples of weight 0). 0: the whole
    # call is one group. None: no such layer.
    examples_counted: int | None = None
    token_ids: bool = False  # whether it needs `CallInputs.token_ids`


def needs_token_ids(layer: Layer) -> bool:
    """Returns whether a layer of the tree needs the input `token_ids`."""
    return any(inner.batch_requirements().token_ids for inner in layer.tree())


def accept_inputs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method to collect keywords into `inputs`, and to drop `inputs` if it takes none."""
    parameters = inspect.signature(method).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    is_taken = "inputs" in parameters or inspect.Parameter.VAR_KEYWORD in kinds
    names = [name for name in CallInputs._fields if name not in parameters]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        values = {name: keywords.pop(name) for name in names if name in keywords}
        if values:
            keywords["inputs"] = keywords.get("inputs", NO_INPUTS)._replace(**values)
        if not is_taken:
            keywords.pop("inputs", None)
        return method(self, *args, **keywords)

    return call
