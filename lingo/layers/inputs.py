"""The inputs of a layer besides its activations, which a stack passes on to all of its layers.

A layer is called as `layer(x, inputs=CallInputs(segments=segments))`, which `Layer` also makes of
`layer(x, segments=segments)`. A method without the parameter `inputs` does not need them.

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
    """The inputs of a call besides x, [B, T, ...]; None for what is not given.

    Attributes:
        memory: [B, S, width of the memory], any float type, what `CrossAttention` attends to; in
            decoding, for the first step only.
        memory_segments: int32 [B, S], the document id of each position of the memory (0: padding);
            None: one document. Decoding needs it in every step.
        position_table: float32 [num_buckets, N], the table of `RelativeBias(shared=True)`.
        position_ids: int32 [B, T], the index of each position in its document; None: 0, 1, 2, ...
            or, in decoding, from the number of positions computed before.
        prefix: bool [B, T], the positions that the mask `Prefix` shows to all of the document (in
            decoding: of the chunk); None: none.
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
    """What a layer requires of the batches it computes."""

    # the number of neighbouring examples computed as one group, the largest if sizes are unknown; a
    # batch may be cut between groups without changing any result
    examples_together: int = 1
    # the number of examples in a group whose statistics count examples of weight 0, 0 for all of a
    # call; None: no statistics of the batch, or none that count examples of weight 0
    examples_counted: int | None = None
    token_ids: bool = False  # whether it needs `CallInputs.token_ids`


def needs_token_ids(layer: Layer) -> bool:
    """Returns whether a layer of the tree needs the input `token_ids`."""
    return any(inner.batch_requirements().token_ids for inner in layer.tree())


def accept_inputs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method to make `inputs` of keywords, and to drop `inputs` that it does not take."""
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
