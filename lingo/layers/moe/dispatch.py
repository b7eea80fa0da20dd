"""Dispatches tokens to experts and combines the experts' outputs.

    ragged:  sorts the routed tokens by expert; each expert computes only its own tokens
    gather:  fills E * C slots per group, where some may stay empty; all experts are vectorized
    one_hot: fills the same slots by products with one-hot tensors, which a mesh can shard
             (Lepikhin et al. 2020, algorithm 2)

All three compute the same result. `ragged` and `gather` move vectors by gathers, in the forward and
in the backward pass: each slot gathers its token's vector, and each token gathers the vectors of
its choices. With many choices per token, most choices are not routed; then a segment sum adds up a
token's vectors instead.

Axes: G groups, S tokens per group, K choices per token, E experts, C slots per expert and group,
P = E * C slots per group, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.moe.router import Routing
from lingo.ops.scope import gradient_scope
from lingo.ops.shape import size_of

Form = Literal["ragged", "gather", "one_hot"]
"""How tokens are dispatched to experts."""

Pieces = Callable[["list[tf.Tensor]", "list[tf.Tensor]"], "list[tf.Tensor]"]
"""Computes each expert on its own tokens. Maps a list of E tensors [n, 1, D], one per expert with
its own n >= 0, and a list of E tensors int32 [n], the tokens' ids, to E tensors [n, 1, D]."""

Slots = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]
"""Computes all experts on their slots. Maps vectors [E, G * C, 1, D] and int32 [E, G * C], the id
of the token in each slot, to vectors [E, G * C, 1, D]."""

FEW = 4
"""Up to this many choices per token, a token gathers each choice's vector; else a segment sum
adds them."""


class SlotAssignment(NamedTuple):
    """Which slot each choice (a token and one of its experts) has, and which choice each slot."""

    # int32 [G, P], the choice in each slot: s * K + k for choice k of token s; -1: an empty slot
    choice: tf.Tensor
    slot: tf.Tensor  # int32 [G, S, K], the slot of each choice; 0 for a choice that is not routed
    is_routed: tf.Tensor  # bool [G, S, K], whether a choice is routed

    @property
    def token(self) -> tf.Tensor:
        """The token in each slot, as its index in its group, int32 [G, P]; 0 for an empty slot."""
        return tf.maximum(self.choice, 0) // size_of(self.slot, -1)


def dispatch_ragged(
    x: tf.Tensor, example_ids: tf.Tensor, routing: Routing, *, num_experts: int, experts: Pieces
) -> tf.Tensor:
    """Dispatches tokens to experts that compute only them, so shapes depend on the routing.

    x is [G, S, D], of any float type. `example_ids`, int32 [G, S], has an id for each token, which
    experts get as the context's `rows`. Returns for each token the sum of gate * expert's output
    over its choices, [G, S, D], in the experts' dtype.
    """
    assignment = _assign_slots(_as_one_group(routing), num_experts)
    assignment, sizes = _drop_empty_slots(assignment, num_experts)
    vectors = tf.expand_dims(_to_slots(_merge_groups(x), assignment)[0], 1)
    pieces, tokens = (
        tf.split(value, tf.concat([sizes, [1]], axis=0), num=num_experts + 1)
        for value in (vectors, _gather(_merge_groups(example_ids), assignment.token)[0])
    )
    outputs = experts(pieces[:-1], tokens[:-1])
    outputs = tf.concat([*outputs, tf.zeros([1, *outputs[0].shape[1:]], outputs[0].dtype)], axis=0)
    back = tf.reshape(outputs, [1, -1, x.shape[-1]])
    return tf.reshape(_to_tokens(back, _merge_groups(routing.gate), assignment), tf.shape(x))


def dispatch_gather(
    x: tf.Tensor, example_ids: tf.Tensor, routing: Routing, *, num_experts: int, experts: Slots
) -> tf.Tensor:
    """Dispatches tokens [G, S, D] to slots, which experts compute even if they are empty.

    Arguments and results are as for `dispatch_ragged`.
    """
    assignment, shape = _assign_slots(routing, num_experts), (num_experts, routing.capacity)
    slots = _by_expert(_to_slots(x, assignment), *shape)
    tokens = _by_expert(_gather(example_ids, assignment.token), *shape)
    outputs = _compute_slots(experts, slots, tokens)  # [E, G, C, D]
    outputs = tf.reshape(tf.transpose(outputs, [1, 0, 2, 3]), [size_of(x, 0), -1, x.shape[-1]])
    return _to_tokens(outputs, routing.gate, assignment)


def dispatch_one_hot(
    x: tf.Tensor, example_ids: tf.Tensor, routing: Routing, *, num_experts: int, experts: Slots
) -> tf.Tensor:
    """Dispatches tokens [G, S, D] to slots by products with one-hot tensors, for meshes.

    Arguments and results are as for `dispatch_ragged`.
    """
    expert = tf.one_hot(routing.expert, num_experts, dtype=x.dtype)
    slot = tf.one_hot(routing.slot, routing.capacity, dtype=x.dtype)  # -1 gives zeros
    is_in = _annotate_weights(tf.einsum("gske,gskc->gsec", expert, slot))
    slots = tf.einsum("gsec,gsd->egcd", is_in, x)
    tokens = tf.where(is_in > 0, example_ids[:, :, None, None], 0)
    tokens = tf.transpose(tf.reduce_max(tokens, axis=1), [1, 0, 2])
    outputs = _compute_slots(experts, slots, tokens)
    gate, expert, slot = (tf.cast(v, outputs.dtype) for v in (routing.gate, expert, slot))
    weights = _annotate_weights(tf.einsum("gsk,gske,gskc->gsec", gate, expert, slot))
    return tf.einsum("gsec,egcd->gsd", weights, outputs)


def _compute_slots(experts: Slots, slots: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the experts' outputs for the vectors in all slots, both [E, G, C, D].

    `tokens`, int32 [E, G, C], has the id of the token in each slot.
    """
    slots = annotate(slots, None, "batch", None, "embed")  # sharded like the tokens, then by expert
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
    """Reshapes and transposes slots [G, E * C, ...] to [E, G, C, ...]."""
    x = tf.reshape(x, [size_of(x, 0), num_experts, capacity, *x.shape[2:]])
    return tf.transpose(x, [1, 0, *range(2, len(x.shape))])


def _assign_slots(routing: Routing, num_experts: int) -> SlotAssignment:
    """Returns the slot of each choice, and the choice in each slot.

    The E * C slots of a group are ordered by expert.
    """
    groups, is_routed = size_of(routing.slot, 0), routing.slot >= 0
    slot = tf.where(is_routed, routing.expert * routing.capacity + routing.slot, 0)
    # one more column, for choices that are not routed
    num_slots = num_experts * routing.capacity
    column = tf.reshape(tf.where(is_routed, slot, num_slots), [groups, -1])
    row = tf.zeros_like(column) + tf.range(groups)[:, None]
    number = tf.zeros_like(column) + tf.range(1, size_of(column, 1) + 1)
    table = tf.zeros([groups, num_slots + 1], number.dtype)
    table = tf.tensor_scatter_nd_update(table, tf.stack([row, column], axis=-1), number)
    return SlotAssignment(table[:, :-1] - 1, slot, is_routed)


def _as_one_group(routing: Routing) -> Routing:
    """Returns the same routing with all groups merged into one.

    Each expert has G * C slots in the merged group.
    """
    groups, capacity = size_of(routing.slot, 0), routing.capacity
    slot = routing.slot + capacity * tf.range(groups)[:, None, None]
    slot = tf.where(routing.slot >= 0, slot, -1)
    expert, slot, gate = map(_merge_groups, (routing.expert, slot, routing.gate))
    return Routing(expert, slot, gate, groups * capacity)


def _merge_groups(x: tf.Tensor) -> tf.Tensor:
    """Reshapes [G, S, ...] to [1, G * S, ...], a single group."""
    return tf.reshape(x, [1, -1, *x.shape[2:]])


def _drop_empty_slots(
    assignment: SlotAssignment, num_experts: int
) -> tuple[SlotAssignment, tf.Tensor]:
    """Removes the empty slots of a single group.

    Returns the new assignment and int32 [E], the number of slots left per expert. One empty slot is
    appended after all experts' slots, so that there is at least one slot.
    """
    full = assignment.choice >= 0  # [1, E * C]
    choice = tf.concat([tf.boolean_mask(assignment.choice, full), [-1]], axis=0)
    slot = _gather(tf.cumsum(tf.cast(full, tf.int32), axis=1, exclusive=True), assignment.slot)
    sizes = tf.reduce_sum(tf.reshape(tf.cast(full, tf.int32), [num_experts, -1]), axis=1)
    slot = tf.where(assignment.is_routed, slot, 0)
    return assignment._replace(choice=choice[None], slot=slot), sizes


def _to_slots(x: tf.Tensor, assignment: SlotAssignment) -> tf.Tensor:
    """Returns the vector of the token in each slot, [G, P, D], from the tokens' x [G, S, D].

    An empty slot gets an arbitrary token's vector, and its gradient is dropped.
    """

    @tf.custom_gradient
    def gather(x: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(gradient: tf.Tensor) -> tf.Tensor:
            with tf.name_scope(scope):
                weight = tf.cast(assignment.is_routed, gradient.dtype)
                return _sum_choices(gradient, weight, assignment)

        return _gather(x, assignment.token), backward

    return gather(x)


def _to_tokens(y: tf.Tensor, gate: tf.Tensor, assignment: SlotAssignment) -> tf.Tensor:
    """Combines the experts' outputs y [G, P, D], one vector per slot, to tokens [G, S, D].

    A token's result is the sum of gate * output over its choices; `gate` is [G, S, K].
    """

    @tf.custom_gradient
    def combine(y: tf.Tensor, gate: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(gradient: tf.Tensor) -> Any:
            with tf.name_scope(scope):
                at_slots = _gather(gradient, assignment.token)
                weight = tf.expand_dims(_weights_by_slot(gate, assignment), -1)
                products = tf.reduce_sum(tf.cast(at_slots * y, gate.dtype), axis=-1)
                of_gate = tf.where(assignment.is_routed, _gather(products, assignment.slot), 0.0)
                return at_slots * tf.cast(weight, y.dtype), of_gate

        return _sum_choices(y, tf.where(assignment.is_routed, gate, 0.0), assignment), backward

    return combine(y, gate)


def _sum_choices(y: tf.Tensor, weight: tf.Tensor, assignment: SlotAssignment) -> tf.Tensor:
    """Returns for each token the weighted sum of its choices' vectors, [G, S, D].

    y, [G, P, D], has a vector per slot. `weight`, [G, S, K], is the factor of each choice; it must
    be 0 for a choice that is not routed.
    """
    weight = tf.cast(weight, y.dtype)
    if size_of(weight, -1) > FEW:
        y *= tf.expand_dims(_weights_by_slot(weight, assignment), -1)
        groups, size = size_of(weight, 0), size_of(weight, 1)
        token = assignment.token + size * tf.range(groups)[:, None]
        y = tf.reshape(y, [-1, y.shape[-1]])
        y = tf.math.unsorted_segment_sum(y, tf.reshape(token, [-1]), groups * size)
        return tf.reshape(y, [groups, size, y.shape[-1]])
    choices = zip(tf.unstack(weight, axis=-1), tf.unstack(assignment.slot, axis=-1), strict=True)
    return tf.add_n([tf.expand_dims(w, -1) * _gather(y, slot) for w, slot in choices])


def _weights_by_slot(weight: tf.Tensor, assignment: SlotAssignment) -> tf.Tensor:
    """Moves a weight per choice, [G, S, K], to the choices' slots, [G, P]; 0 in an empty slot."""
    weight = tf.reshape(weight, [size_of(weight, 0), -1])
    weights = _gather(weight, tf.maximum(assignment.choice, 0))
    return tf.where(assignment.choice >= 0, weights, tf.zeros([], weight.dtype))


def _gather(x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Gathers within each group: [G, ..., D] from [G, N, D] by int32 [G, ...]."""
    return tf.gather(x, index, batch_dims=1)


FORMS = {"ragged": dispatch_ragged, "gather": dispatch_gather, "one_hot": dispatch_one_hot}
"""The function for each form of dispatch."""
