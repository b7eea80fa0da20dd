"""The inputs of a layer besides its activations, such as segments and the memory of attention.

A stack passes these inputs on to all of its layers. `layer(x, segments=segments)` is short for
`layer(x, inputs=CallInputs(segments=segments))`. The `__call__` or `step` of a layer that does not
need them has no parameter `inputs`.

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
    """The inputs of a call besides x, [B, T, ...]; an input that is not given is None.

    Attributes:
        memory: [B, S, width of the memory], any float type, the tensor that `CrossAttention`
            attends to. In decoding, only the first step gets it.
        memory_segments: int32 [B, S], the document id of each position of the memory (0: padding);
            None: one document. Decoding needs it in every step.
        position_table: float32 [num_buckets, N], the table of `RelativeBias(shared=True)`.
        position_ids: int32 [B, T], the index of each position in its document. None: 0, 1, 2, ...;
            a decoding step goes on from the last position of the step before.
        prefix: bool [B, T], true at positions that, with the mask `Prefix`, all positions of the
            document see (in decoding: all positions of the chunk); None: no such position.
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
        """Returns name -> value of the inputs that are not None."""
        return {name: value for name, value in self._asdict().items() if value is not None}


NO_INPUTS = CallInputs()


class BatchRequirements(NamedTuple):
    """A layer's requirements on its batches: how they may be split, and what they must contain."""

    # Number of neighbouring examples that are computed as one group; the largest possible number if
    # sizes are unknown. A batch may be split between groups without a change of any result.
    examples_together: int = 1
    # Group size of a layer whose statistics include padding (examples of weight 0). 0: the whole
    # call is one group. None: no such layer.
    examples_counted: int | None = None
    token_ids: bool = False  # whether the layer needs `CallInputs.token_ids`


def needs_token_ids(layer: Layer) -> bool:
    """Returns whether a layer, or a layer inside it, needs the input `token_ids`."""
    return any(inner.batch_requirements().token_ids for inner in layer.tree())


def accept_inputs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a layer's method, so that a caller may pass each of `CallInputs` by its own name.

    The wrapper collects such keywords into the argument `inputs`. If the method has no parameter
    `inputs`, the wrapper drops them.
    """
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
