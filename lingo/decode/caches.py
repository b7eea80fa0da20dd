"""Steps of a decoder as functions of its caches, such as the keys and values of earlier tokens.

Caches are a dict, path -> tensor [stacked axes, rows, ...], with stacked layers as one tensor. They
have a row per prompt at first, and later a row per text.

Axes: B prompts, K texts per prompt, B*K rows (a prompt's rows are adjacent), C new positions, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lingo.config.lazy import tf
from lingo.decode.decoding import Caches, Decoding, Step
from lingo.layers import context, path
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.quantization.fold import fold_weights
from lingo.layers.recomputed_step import recompute_step
from lingo.layers.wrap.wrapper import wrapped_class
from lingo.ops.shape import size_of, sizes_of


def empty_caches(
    model: Layer, batch: Mapping[str, tf.Tensor], decoding: Decoding
) -> dict[str, tf.Tensor]:
    """Returns caches {path: zeros [stacked axes, B, ...]} with room for prompts and new tokens.

    `batch` comes from `lingo.decode.text.prompt_batch`.
    """
    length = _length(batch, decoding)
    return model.empty_caches(batch_size=size_of(batch["prefix"], 0), length=length)


def stepper(model: Layer, batch: Mapping[str, tf.Tensor], decoding: Decoding) -> Step:
    """Returns the step function of a model for these prompts, to use within the current call.

    It maps (tokens int32 [rows, C], index int32 scalar, caches) to float32 logits [rows, V] and
    caches, and passes `inputs` to `next_logits`. A first step may need inputs, as in `partial(step,
    inputs=CallInputs(memory=...))`; later steps read the memory from the caches.

    A model without `next_logits`, or whose class redefines `activations` but not `next_logits`,
    recomputes the `activations` of all tokens so far, from (tokens, inputs) to [rows, T, D], and
    the `logits` of the last position. Its activations must not depend on later tokens.
    """
    outer = context.current()
    call = fold_weights(model, outer).derive(decode_length=_length(batch, decoding))

    def step(
        tokens: tf.Tensor, index: tf.Tensor, caches: Caches, *, inputs: CallInputs = NO_INPUTS
    ) -> tuple[tf.Tensor, Caches]:
        inner = call.derive(caches=caches)
        with context.enter_call(inner):
            logits = _next_logits(model, tokens, index, inputs)
        for where, value in inner.sides.is_causal.items():  # only the first step, outside loops
            stacked = list(range(len(path.stack_shape(where))))
            outer.sides.is_causal[where] = tf.reduce_min(value, axis=stacked)
        return logits, {**caches, **inner.sides.caches}

    return step


def _next_logits(model: Any, tokens: tf.Tensor, index: tf.Tensor, inputs: CallInputs) -> tf.Tensor:
    definitions = (vars(cls) for cls in wrapped_class(model).__mro__)
    nearest = next((d for d in definitions if "next_logits" in d or "activations" in d), {})
    if "next_logits" in nearest:
        return model.next_logits(tokens, index, inputs=inputs)
    x = recompute_step(model, tokens, index, inputs, compute=model.activations)
    return model.logits(x[:, -1:])[:, 0]


def _length(batch: Mapping[str, tf.Tensor], decoding: Decoding) -> Any:
    """Returns how many positions prompts and new tokens take; the last token takes none."""
    return size_of(batch["prefix"], 1) + size_of(batch["rest"], 1) + decoding.p.max_tokens - 1


def repeat_rows(logits: tf.Tensor, caches: Caches, num: int) -> tuple[tf.Tensor, Caches]:
    """Repeats each row of logits, float32 [B, V], and of caches K times, to B*K rows."""
    if num == 1:
        return logits, caches
    return tf.repeat(logits, num, axis=0), {
        where: tf.repeat(value, num, axis=len(path.stack_shape(where)))
        for where, value in caches.items()
    }


def reorder_rows(caches: Caches, parents: tf.Tensor, *, since: Caches) -> Caches:
    """Replaces each of B*K rows of the caches by row `parents`, int32 [B, K], of the same prompt.

    Tensors that the step did not replace (the same objects as in `since`, the older caches),
    such as the memory of an encoder, are equal in all rows of a prompt and stay as they are.
    """

    def reorder(where: str, value: tf.Tensor) -> tf.Tensor:
        stacked, (batch, num) = path.stack_shape(where), sizes_of(parents)
        count = len(stacked)
        rows = tf.reshape(value, [*stacked, batch, num, *sizes_of(value)[count + 1 :]])
        indices = tf.broadcast_to(parents, [*stacked, batch, num])
        rows = tf.gather(rows, indices, axis=count + 1, batch_dims=count + 1)
        return tf.ensure_shape(tf.reshape(rows, sizes_of(value)), value.shape)

    return {k: v if v is since[k] else reorder(k, v) for k, v in caches.items()}
