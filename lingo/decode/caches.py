"""A model as a function of its caches, and their rows: one a prompt, then one a text.

Axes: B prompts, K texts of each, B*K rows, those of a prompt one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lingo.config.lazy import tf
from lingo.decode.decoding import Caches, Decoding, Step, num_positions
from lingo.layers import context, path
from lingo.layers.layer import Layer
from lingo.layers.wrap.fold import fold_weights
from lingo.ops.shape import size_of, sizes_of


def empty_caches(
    model: Layer, batch: Mapping[str, tf.Tensor], decoding: Decoding
) -> dict[str, tf.Tensor]:
    """Returns the caches of a model before it reads prompts, with room for what follows them."""
    size, length = size_of(batch["prefix"], 0), num_positions(batch, decoding)
    return model.empty_caches(batch_size=size, length=length)


def stepper(model: Layer) -> Step:
    """Returns the step of a model in the call in progress, as a function of its caches.

    It takes further inputs of `next_logits` by name: `partial(step, memory=...)` is a first step
    that is given what later ones remember.

    Args:
        model: has `next_logits(tokens, index)`.
    """
    call = fold_weights(model, context.current())

    def step(
        tokens: tf.Tensor, index: tf.Tensor, caches: Caches, **inputs: Any
    ) -> tuple[tf.Tensor, Caches]:
        inner = call.derive(caches=caches)
        with context.enter_call(inner):
            logits = model.next_logits(tokens, index, **inputs)
        return logits, {**caches, **inner.sides.caches}

    return step


def repeat_rows(logits: tf.Tensor, caches: Caches, num: int) -> tuple[tf.Tensor, Caches]:
    """Returns each row `num` times: prompts are read once, whatever the number of texts."""
    if num == 1:
        return logits, caches
    return tf.repeat(logits, num, axis=0), {
        where: tf.repeat(value, num, axis=len(path.stack_shape(where)))
        for where, value in caches.items()
    }


def reorder_rows(caches: Caches, parents: tf.Tensor, *, since: Caches) -> Caches:
    """Returns caches whose rows go on from others of the same prompt.

    What a step leaves alone, such as the memory of an encoder, is that of the prompt, the same in
    all of its rows: it stays where it is.

    Args:
        caches: of B*K rows.
        parents: int32 [B, K], which of the prompt's rows each takes over.
        since: what the step that made the caches started from.
    """

    def taken(where: str, value: tf.Tensor) -> tf.Tensor:
        stacked, (batch, num) = path.stack_shape(where), sizes_of(parents)
        count = len(stacked)
        rows = tf.reshape(value, [*stacked, batch, num, *sizes_of(value)[count + 1 :]])
        chosen = tf.broadcast_to(parents, [*stacked, batch, num])
        rows = tf.gather(rows, chosen, axis=count + 1, batch_dims=count + 1)
        return tf.ensure_shape(tf.reshape(rows, sizes_of(value)), value.shape)

    return {k: v if v is since[k] else taken(k, v) for k, v in caches.items()}
