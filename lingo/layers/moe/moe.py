"""A mixture of experts: many feed-forward networks, but only a few of them compute each token.

    routing = router(x)                       # the experts of each token, and their gates
    y[token] = sum of gate * expert(x[token]) over the token's choices

An expert takes at most C tokens of a group. If all experts of a token's choices are full, the
token's result is zero, and the residual connection around the mixture passes the token on
unchanged.

Axes: B batch, T positions, D model width, G groups, S tokens per group, K choices per token,
E experts, C slots per expert and group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.context import annotate
from lingo.layers.feed_forward import FeedForward
from lingo.layers.inputs import NO_INPUTS, BatchRequirements, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.moe import dispatch
from lingo.layers.moe.router import Router, Routing, Tokens
from lingo.layers.moe.token_choice import SwitchRouter
from lingo.layers.residual import Residual, ResidualCall
from lingo.layers.stacks.lift import call_copies, one_of, vmap_layer
from lingo.ops.routing import group_tokens
from lingo.ops.scan import scan
from lingo.ops.shape import size_of, sizes_of

UNROLLED = 64
"""Up to this many experts, `dispatch="auto"` gives each expert its own computation in the program;
more experts are vectorized."""


class MoE(Layer):
    """Experts in place of one feed-forward network (Shazeer et al. 2017; Lepikhin et al. 2020).

    An expert takes at most C of the S tokens of a group. C is S * capacity_factor / E, rounded
    down, but at least `min_capacity` and at most S. C does not depend on the number of choices per
    token; GShard's C = 2S / E is a `capacity_factor` of 2. In decoding no token is dropped.
    """

    dim: int  # width of the input and of the output
    expert: FeedForward = FeedForward  # one expert; there are num_experts copies of it
    num_experts: int  # E
    router: Router = SwitchRouter  # decides which experts compute a token
    capacity_factor: float = 1.25  # C is this times S / E
    # capacity_factor outside training; None: as in training
    eval_capacity_factor: float | None = None
    min_capacity: int = 4  # C is at least this, if a group has that many tokens
    # S, the tokens of a group: a divisor of an example's length, or a multiple of it, for groups of
    # several neighbouring examples; None: an example is a group
    group_size: int | None = None
    # V: evaluations count how often each expert computes each token id below V; None: no counts
    count_tokens: int | None = None
    dispatch: Literal["auto", "ragged", "gather", "one_hot"] = (
        "auto"  # how tokens get to experts; auto: the form that suits the devices
    )

    def check(self) -> None:
        p = self.p
        ranges.check_positive(p, "num_experts", "min_capacity", "group_size", "count_tokens")
        ranges.check_positive(p, "capacity_factor", "eval_capacity_factor")

    def setup(self) -> None:
        p = self.p
        self.router = p.router.build(dim=p.dim, num_experts=p.num_experts, dtype="float32")
        expert = p.expert.build(dim=p.dim)
        self.experts = self.copies("experts", expert, p.num_experts, axis="expert")

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Computes each token by the experts that the router chooses.

        Raises ParamError if the tokens cannot be divided into whole groups.

        Args:
            x: [B, T, D], any float type.
            inputs: `segments`, which marks padding that is not routed, and `token_ids`.

        Returns:
            [B, T, D], in the layer's dtype.
        """
        # in decoding, this is called only if a layer around this one uses `recompute_step`
        if context.current().decode_length is not None:
            return self.step(x, tf.constant(0), inputs=inputs)
        segments = inputs.segments
        valid = tf.ones(sizes_of(x)[:2], tf.bool) if segments is None else segments > 0
        size, training = self._group_size(x), context.current().training
        routing = self.router(
            x,
            tokens=Tokens(valid, inputs.token_ids, size),
            capacity=self._capacity(size, training=training),
        )
        if self.p.count_tokens and not training and inputs.token_ids is not None:
            self._count_tokens(routing, group_tokens(inputs.token_ids, size))
        return self._mix_experts(x, routing, size)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Computes the next positions, [B, C, D], like `__call__` without dropped tokens.

        Raises ParamError if the router depends on later tokens.
        """
        del index
        if self.router.looks_ahead:
            raise ParamError(
                f"{self._name}: where {type(self.router).__name__} sends a token depends on later"
                " tokens, so it cannot decode: take another router, or no prompts"
            )
        valid, size = tf.ones(sizes_of(x)[:2], tf.bool), size_of(x, 1)
        routing = self.router(x, tokens=Tokens(valid, inputs.token_ids, size), capacity=size)
        choices = routing.expert.shape.num_elements()
        few = choices is not None and choices < self.p.num_experts
        if few and self._form() != "one_hot":
            return self._one_by_one(x, routing)
        return self._mix_experts(x, routing, size)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations of the router and of all experts on slots that tokens can fill."""
        size = self.p.group_size or shape[1]
        room = self.p.num_experts * self._capacity(size, training=True)
        computed = math.prod(shape[:2]) * min(size * self.router.max_choices(), room) // size
        return self.router.flops(shape) + self.experts.flops([computed, 1, shape[2]])

    def num_slots(self, shape: Sequence[int]) -> int:
        """Returns the number of slots in training, G * E * C, for an input of shape [B, T, D]."""
        size = self.p.group_size or shape[1]
        groups = math.prod(shape[:2]) // size
        return groups * self.p.num_experts * self._capacity(size, training=True)

    def batch_requirements(self, shape: Sequence[int | None] = (None, None)) -> BatchRequirements:
        size = self.p.group_size or 1
        return BatchRequirements(
            examples_together=max(1, size // (shape[1] or 1)),
            token_ids=self.p.count_tokens is not None,
        )

    def _count_tokens(self, routing: Routing, token_ids: tf.Tensor) -> None:
        """Adds a metric of how often each expert computes each token id; ids are int32 [G, S]."""
        num_ids, ids = self.p.count_tokens, tf.expand_dims(token_ids, -1)
        is_counted = (routing.slot >= 0) & (ids < num_ids)
        place = routing.expert * num_ids + ids
        total = tf.math.unsorted_segment_sum(
            tf.ones_like(routing.gate),
            tf.where(is_counted, place, -1),
            self.p.num_experts * num_ids,
        )
        counts = tf.reshape(total, [self.p.num_experts, num_ids])
        name = self.path.replace("/", ".") or "moe"
        self.side_metric(f"experts/{name}", {"expert_tokens": counts})

    def _group_size(self, x: tf.Tensor) -> Any:
        """Returns S, the tokens per group, for x [B, T, D].

        It is an int if `group_size` is set or T is known, else an int32 scalar.
        """
        size, (batch, length) = self.p.group_size, sizes_of(x)[:2]
        if size is None:
            return length
        if type(length) is int and size % length and length % size:
            raise ParamError(
                f"{self._name}: group_size={size} neither divides a row of {length} tokens nor is a"
                " multiple of it"
            )
        if type(length) is type(batch) is int and batch * length % size:
            raise ParamError(
                f"{self._name}: {batch} rows of {length} tokens are not whole groups of"
                f" group_size={size}: each replica, and each part of its batch, needs whole groups"
            )
        return size

    def _capacity(self, size: Any, *, training: bool) -> Any:
        """Returns C, the tokens that an expert takes of a group of `size` tokens.

        It is an int or an int32 scalar, like `size`.
        """
        p, factor = self.p, self.p.capacity_factor
        if not training and p.eval_capacity_factor is not None:
            factor = p.eval_capacity_factor
        if isinstance(size, int):
            return min(size, max(p.min_capacity, int(size * factor / p.num_experts)))
        share = tf.cast(tf.cast(size, tf.float64) * factor / p.num_experts, tf.int32)
        return tf.minimum(size, tf.maximum(p.min_capacity, share))

    def _form(self) -> dispatch.Form:
        call, p = context.current(), self.p
        fixed = call.compiled or call.mapped_axes  # all shapes must be static
        if p.dispatch == "ragged" and fixed:
            why = "copies of the mixture are vectorized" if call.mapped_axes else "XLA compiles"
            raise ParamError(
                f"{self._name}: dispatch='ragged' makes tensors of unknown size, but {why} here:"
                " take auto, gather or one_hot"
            )
        if p.dispatch != "auto":
            return p.dispatch
        if call.rules is not None and call.rules.parts("expert") > 1:
            return "one_hot"
        return "gather" if fixed or p.num_experts > UNROLLED else "ragged"

    def _mix_experts(self, x: tf.Tensor, routing: Routing, size: Any) -> tf.Tensor:
        """Dispatches x [B, T, D] to experts in groups of `size`; returns [B, T, D]."""
        shape, call = sizes_of(x), context.current()
        # Experts draw random numbers only in training. In decoding the context's `rows` do not
        # count the examples of x, since an example has several samples.
        rows = call.rows if call.training else None
        rows = tf.range(shape[0]) if rows is None else rows
        example_ids = rows[:, None] * shape[1] + tf.range(shape[1])
        group = "length" if self.p.group_size in (None, x.shape[1]) else None
        x = tf.reshape(tf.cast(x, self.p.dtype), [-1, size, shape[2]])
        x = annotate(x, "batch", group, "embed")
        form = self._form()
        y = dispatch.FORMS[form](
            x,
            tf.reshape(example_ids, [-1, size]),
            routing,
            num_experts=self.p.num_experts,
            experts=self._pieces if form == "ragged" else self._slots,
        )
        y = tf.reshape(tf.cast(y, self.p.dtype), shape)
        return annotate(y, "batch", "length", "embed")

    def _pieces(self, pieces: list[tf.Tensor], rows: list[tf.Tensor]) -> list[tf.Tensor]:
        return call_copies(self.experts, pieces, rows=rows)

    def _slots(self, slots: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return vmap_layer(self.experts, self.p.num_experts, slots, axis="expert", rows=rows)

    def _one_by_one(self, x: tf.Tensor, routing: Routing) -> tf.Tensor:
        """Computes tokens [B, T, D] one choice at a time, for short steps of decoding.

        This reads only the weights of the chosen experts.
        """
        shape, num_choices = sizes_of(x), routing.expert.shape[-1]
        vectors = tf.reshape(tf.cast(x, self.p.dtype), [-1, 1, 1, shape[2]])
        choices = {
            "x": tf.repeat(vectors, num_choices, axis=0),
            "expert": tf.reshape(routing.expert, [-1]),
        }

        def compute(i: tf.Tensor, carry: Any, choice: Any) -> Any:
            del i
            return carry, one_of(self.experts, choice["expert"], choice["x"])

        _, outputs = scan(compute, (), choices, choices["expert"].shape[0])
        gates = tf.cast(tf.reshape(routing.gate, [-1, num_choices, 1]), self.p.dtype)
        outputs = tf.reshape(tf.cast(outputs, self.p.dtype), [-1, num_choices, shape[2]])
        return tf.reshape(tf.reduce_sum(gates * outputs, axis=1), shape)

    @property
    def _name(self) -> str:
        return self.path or type(self).__name__

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        """Returns the experts' inputs and results, and the one-hot tensors of the dispatch."""
        slots, group = self.num_slots(call.shape), self.p.group_size or call.shape[1]
        tokens = Residual(1, (slots, group), ("batch", None), for_axis="expert")
        return [
            Residual(2, (slots, call.shape[-1]), ("batch", "embed")),
            tokens,
            tokens._replace(is_elementwise=True),  # one-hot tensors times gates
        ]
