"""Dispatches tokens to experts and combines the experts' outputs.

    ragged:  only the routed tokens, sorted by expert; each expert computes its own
    gather:  E * C slots per group, some of them empty; all experts are vectorized
    one_hot: the same slots, by products with one-hot tensors, which a mesh can shard
             (Lepikhin et al. 2020, algorithm 2)

All three compute the same. The first two move vectors by gathers, forward and backward: each slot
gathers the vector of its token, each token gathers those of its choices. With many choices per
token most are not routed; then a segment sum adds a token's vectors up.

Axes: G groups, S tokens per group, K choices per token, E experts, C slots per expert and group,
P = E * C slots per group, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.moe.routing import Routing
from lingo.ops.scope import gradient_scope
from lingo.ops.shape import size_of

Form = Literal["ragged", "gather", "one_hot"]
"""How tokens are dispatched to experts."""

Pieces = Callable[["list[tf.Tensor]", "list[tf.Tensor]"], "list[tf.Tensor]"]
"""Computes all experts on their tokens: from E tensors [n, 1, D], with any n >= 0 for each, and E
tensors int32 [n], the tokens' ids, to E tensors [n, 1, D]."""

Slots = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]
"""Computes all experts on their slots: from [E, G * C, 1, D] and int32 [E, G * C], the id of the
token in each slot, to [E, G * C, 1, D]."""

FEW = 4
"""Up to this many choices per token are gathered one by one, not by a segment sum."""


class Places(NamedTuple):
    """The slot of each choice, and the choice in each slot.

    Attributes:
        choice: int32 [G, P], the choice in each slot, as s * K + k; -1 in an empty slot.
        slot: int32 [G, S, K], the slot of each choice; 0 for a choice that is not routed.
        sent: bool [G, S, K], whether a choice is routed.
    """

    choice: tf.Tensor
    slot: tf.Tensor
    sent: tf.Tensor

    @property
    def token(self) -> tf.Tensor:
        """Returns the index in its group of the token in each slot, int32 [G, P]; 0 if empty."""
        return tf.maximum(self.choice, 0) // size_of(self.slot, -1)


def dispatch_ragged(
    x: tf.Tensor, numbers: tf.Tensor, routing: Routing, *, num_experts: int, experts: Pieces
) -> tf.Tensor:
    """Computes routed tokens only, so that shapes depend on the routing.

    Args:
        x: [G, S, D], any float type.
        numbers: int32 [G, S], the ids of the tokens, passed to the experts.
        routing: the choices of the tokens.
        num_experts: E.
        experts: computes all experts.

    Returns:
        [G, S, D], the type that experts return: the sum over choices of gate * output.
    """
    places, sizes = _without_gaps(_places(_as_one_group(routing), num_experts), num_experts)
    vectors = tf.expand_dims(_to_slots(_flat(x), places)[0], 1)
    pieces, tokens = (
        tf.split(value, tf.concat([sizes, [1]], axis=0), num=num_experts + 1)
        for value in (vectors, _lookup(_flat(numbers), places.token)[0])
    )
    outputs = experts(pieces[:-1], tokens[:-1])
    outputs = tf.concat([*outputs, tf.zeros([1, *outputs[0].shape[1:]], outputs[0].dtype)], axis=0)
    back = tf.reshape(outputs, [1, -1, x.shape[-1]])
    return tf.reshape(_to_tokens(back, _flat(routing.gate), places), tf.shape(x))


def dispatch_gather(
    x: tf.Tensor, numbers: tf.Tensor, routing: Routing, *, num_experts: int, experts: Slots
) -> tf.Tensor:
    """Computes every slot, full or empty, in vectorized experts.

    Args:
        x: [G, S, D], any float type.
        numbers: int32 [G, S], the ids of the tokens, passed to the experts.
        routing: the choices of the tokens.
        num_experts: E.
        experts: computes all experts.

    Returns:
        [G, S, D], as for `dispatch_ragged`.
    """
    places, shape = _places(routing, num_experts), (num_experts, routing.capacity)
    slots = _by_expert(_to_slots(x, places), *shape)
    tokens = _by_expert(_lookup(numbers, places.token), *shape)
    outputs = _on_slots(experts, slots, tokens)  # [E, G, C, D]
    outputs = tf.reshape(tf.transpose(outputs, [1, 0, 2, 3]), [size_of(x, 0), -1, x.shape[-1]])
    return _to_tokens(outputs, routing.gate, places)


def dispatch_one_hot(
    x: tf.Tensor, numbers: tf.Tensor, routing: Routing, *, num_experts: int, experts: Slots
) -> tf.Tensor:
    """Computes every slot, moving tokens by products with one-hot tensors.

    Args:
        x: [G, S, D], any float type.
        numbers: int32 [G, S], the ids of the tokens, passed to the experts.
        routing: the choices of the tokens.
        num_experts: E.
        experts: computes all experts.

    Returns:
        [G, S, D], as for `dispatch_ragged`.
    """
    expert = tf.one_hot(routing.expert, num_experts, dtype=x.dtype)
    slot = tf.one_hot(routing.slot, routing.capacity, dtype=x.dtype)  # of -1: zeros
    is_in = _annotate_weights(tf.einsum("gske,gskc->gsec", expert, slot))
    slots = tf.einsum("gsec,gsd->egcd", is_in, x)
    tokens = tf.where(is_in > 0, numbers[:, :, None, None], 0)
    tokens = tf.transpose(tf.reduce_max(tokens, axis=1), [1, 0, 2])
    outputs = _on_slots(experts, slots, tokens)
    gate, expert, slot = (tf.cast(v, outputs.dtype) for v in (routing.gate, expert, slot))
    weights = _annotate_weights(tf.einsum("gsk,gske,gskc->gsec", gate, expert, slot))
    return tf.einsum("gsec,egcd->gsd", weights, outputs)


# ---- slots ---------------------------------------------------------------------------------------


def _on_slots(experts: Slots, slots: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the experts' outputs [E, G, C, D] for slots [E, G, C, D] and ids int32 [E, G, C]."""
    slots = annotate(slots, None, "batch", None, "embed")  # first sharded as the tokens are
    slots = annotate(slots, "expert", "group", None, "embed")
    num_experts, groups, capacity, dim = (size_of(slots, i) for i in range(4))
    outputs = experts(
        tf.reshape(slots, [num_experts, groups * capacity, 1, dim]),
        tf.reshape(tokens, [num_experts, groups * capacity]),
    )
    outputs = tf.reshape(outputs, [num_experts, groups, capacity, dim])
    outputs = annotate(outputs, "expert", "group", None, "embed")
    return annotate(outputs, None, "batch", None, "embed")


def _annotate_weights(weights: tf.Tensor) -> tf.Tensor:
    return annotate(weights, "batch", None, None, None)


def _by_expert(x: tf.Tensor, num_experts: int, capacity: Any) -> tf.Tensor:
    """Returns slots [G, E * C, ...] as [E, G, C, ...]."""
    x = tf.reshape(x, [size_of(x, 0), num_experts, capacity, *x.shape[2:]])
    return tf.transpose(x, [1, 0, *range(2, len(x.shape))])


def _places(routing: Routing, num_experts: int) -> Places:
    """Returns the slots of choices among the E * C of a group, which are ordered by expert."""
    groups, sent = size_of(routing.slot, 0), routing.slot >= 0
    slot = tf.where(sent, routing.expert * routing.capacity + routing.slot, 0)
    # one more column, for choices that are not routed
    num_slots = num_experts * routing.capacity
    column = tf.reshape(tf.where(sent, slot, num_slots), [groups, -1])
    row = tf.zeros_like(column) + tf.range(groups)[:, None]
    number = tf.zeros_like(column) + tf.range(1, size_of(column, 1) + 1)
    table = tf.zeros([groups, num_slots + 1], number.dtype)
    table = tf.tensor_scatter_nd_update(table, tf.stack([row, column], axis=-1), number)
    return Places(table[:, :-1] - 1, slot, sent)


def _as_one_group(routing: Routing) -> Routing:
    """Returns the routing with all groups merged to one, where each expert has G * C slots."""
    groups, capacity = size_of(routing.slot, 0), routing.capacity
    slot = routing.slot + capacity * tf.range(groups)[:, None, None]
    slot = tf.where(routing.slot >= 0, slot, -1)
    return Routing(_flat(routing.expert), _flat(slot), _flat(routing.gate), groups * capacity)


def _flat(x: tf.Tensor) -> tf.Tensor:
    """Returns [G, S, ...] as [1, G * S, ...]."""
    return tf.reshape(x, [1, -1, *x.shape[2:]])


def _without_gaps(places: Places, num_experts: int) -> tuple[Places, tf.Tensor]:
    """Removes empty slots of a single group; also returns int32 [E], the slots left per expert.

    One empty slot is appended, so that there is at least one slot.
    """
    full = places.choice >= 0  # [1, E * C]
    choice = tf.concat([tf.boolean_mask(places.choice, full), [-1]], axis=0)
    slot = _lookup(tf.cumsum(tf.cast(full, tf.int32), axis=1, exclusive=True), places.slot)
    sizes = tf.reduce_sum(tf.reshape(tf.cast(full, tf.int32), [num_experts, -1]), axis=1)
    return Places(choice[None], tf.where(places.sent, slot, 0), places.sent), sizes


# ---- between tokens and slots --------------------------------------------------------------------


def _to_slots(x: tf.Tensor, places: Places) -> tf.Tensor:
    """Returns the vector of the token in each slot, [G, P, D]; an arbitrary one in empty slots.

    Args:
        x: [G, S, D], any float type.
        places: slots of the choices; gradients of empty slots are dropped.
    """

    @tf.custom_gradient
    def moved(x: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(gradient: tf.Tensor) -> tf.Tensor:
            with tf.name_scope(scope):
                return _sums(gradient, tf.cast(places.sent, gradient.dtype), places)

        return _lookup(x, places.token), backward

    return moved(x)


def _to_tokens(y: tf.Tensor, gate: tf.Tensor, places: Places) -> tf.Tensor:
    """Returns the sum of gate times vector over the choices of each token, [G, S, D].

    Args:
        y: [G, P, D], any float type.
        gate: float32 [G, S, K].
        places: slots of the choices.
    """

    @tf.custom_gradient
    def moved(y: tf.Tensor, gate: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(gradient: tf.Tensor) -> Any:
            with tf.name_scope(scope):
                at_slots = _lookup(gradient, places.token)
                weight = tf.expand_dims(_at_slots(gate, places), -1)
                products = tf.reduce_sum(tf.cast(at_slots * y, gate.dtype), axis=-1)
                of_gate = tf.where(places.sent, _lookup(products, places.slot), 0.0)
                return at_slots * tf.cast(weight, y.dtype), of_gate

        return _sums(y, tf.where(places.sent, gate, 0.0), places), backward

    return moved(y, gate)


def _sums(y: tf.Tensor, weight: tf.Tensor, places: Places) -> tf.Tensor:
    """Returns the sum of weight times vector over the choices of each token, [G, S, D].

    Args:
        y: [G, P, D], any float type.
        weight: [G, S, K], any float type; 0 for a choice that is not routed.
        places: slots of the choices.
    """
    weight = tf.cast(weight, y.dtype)
    if size_of(weight, -1) > FEW:
        y *= tf.expand_dims(_at_slots(weight, places), -1)
        groups, size = size_of(weight, 0), size_of(weight, 1)
        token = places.token + size * tf.range(groups)[:, None]
        y = tf.reshape(y, [-1, y.shape[-1]])
        y = tf.math.unsorted_segment_sum(y, tf.reshape(token, [-1]), groups * size)
        return tf.reshape(y, [groups, size, y.shape[-1]])
    choices = zip(tf.unstack(weight, axis=-1), tf.unstack(places.slot, axis=-1), strict=True)
    return tf.add_n([tf.expand_dims(w, -1) * _lookup(y, slot) for w, slot in choices])


def _at_slots(weight: tf.Tensor, places: Places) -> tf.Tensor:
    """Returns weights [G, S, K] of choices by slot, [G, P]; 0 in an empty slot."""
    weight = tf.reshape(weight, [size_of(weight, 0), -1])
    found = _lookup(weight, tf.maximum(places.choice, 0))
    return tf.where(places.choice >= 0, found, tf.zeros([], weight.dtype))


def _lookup(x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Gathers within each group: [G, ..., D] from [G, N, D] by int32 [G, ...]."""
    return tf.gather(x, index, batch_dims=1)


FORMS = {"ragged": dispatch_ragged, "gather": dispatch_gather, "one_hot": dispatch_one_hot}
"""The function for each form of dispatch."""
