"""Decoding: prompts are read at once, then tokens follow one by one, in one loop of the program.

    logits, caches = step(prefix, 0, caches)         # what every prompt has, in one chunk
    while not all rows are done:
        logits, caches = step(token, index, caches)  # one position of every row

A prompt that is longer than the shortest has its further tokens forced while others choose. What a
row becomes does not depend on the rows beside it: the random numbers are a function of the key, the
number of the prompt, that of the sample and the position.

Axes: B prompts, S samples of each, B*S rows, C tokens that every prompt has, R further tokens of
the longest prompt, N new tokens of a row at most, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lingo.decode.sampling import Sampling, log_prob
from lingo.layers import context, path
from lingo.layers.layer import Layer
from lingo.lazy import tf
from lingo.ops import random

Caches = Mapping[str, Any]
"""Program path -> [stacked axes, B, ...] tensor."""

Step = Callable[[Any, Any, Caches], tuple[Any, Caches]]
"""(tokens int32 [B, C], index int32 scalar, caches) -> float32 logits [B, C, V], new caches."""


def decode(
    step: Step,
    caches: Caches,
    batch: Mapping[str, tf.Tensor],
    sampling: Sampling,
    key: random.Key,
) -> dict[str, tf.Tensor]:
    """Continues prompts.

    Args:
        step: computes the next positions from the caches of those before.
        caches: of B rows before the first position, as `empty_caches` makes them.
        batch: prompts, as `lingo.decode.text.prompt_batch` makes them.
        sampling: how tokens are chosen, how many, and how often.
        key: of all that is drawn.

    Returns:
        `tokens`: int32 [B, S, R + N], those of each row from position C on, its end id once it is
            done;
        `log_probs`: float32 [B, S, R + N], the log-probability of each until then, under the model
            itself: at temperature 1, among all tokens.
    """
    num_samples, start = sampling.p.num_samples, _size(batch["prefix"], 1)
    logits, caches = step(batch["prefix"], tf.constant(0), caches)
    logits, caches = _repeated(logits[:, -1], caches, num_samples)
    plan = _plan(batch, sampling, key)

    def pick(turn: tf.Tensor, logits: tf.Tensor, done: tf.Tensor) -> _Picked:
        forced = plan.forced[turn]
        is_new = forced < 0
        chosen = sampling.choose(logits, plan.uniform[turn])
        token = tf.where(done, plan.end_id, tf.where(is_new, chosen, forced))
        ends = (is_new & (token == plan.end_id)) | (turn >= plan.last)
        return _Picked(token, log_prob(logits, token), done | ends)

    def advance(turn: tf.Tensor, now: _Picked, caches: Caches, kept: Any) -> Any:
        logits, caches = step(now.token[:, None], start + turn, caches)
        now = pick(turn + 1, logits[:, 0], now.done)
        return turn + 1, now, caches, _write(kept, turn + 1, now)

    first = pick(tf.constant(0), logits, tf.zeros_like(plan.last, tf.bool))
    size = tf.shape(plan.forced)[0]
    kept = [tf.TensorArray(v.dtype, size, element_shape=v.shape) for v in first[:2]]
    state = (tf.constant(0), first, caches, _write(kept, 0, first))
    turn, _, _, kept = tf.while_loop(lambda _, now, *__: ~tf.reduce_all(now.done), advance, state)
    tokens, log_probs = (tf.transpose(array.stack()) for array in kept)
    tokens = tf.where(tf.range(size) > turn, plan.end_id[:, None], tokens)
    return {
        "tokens": tf.reshape(tokens, [-1, num_samples, size]),
        "log_probs": tf.reshape(log_probs, [-1, num_samples, size]),
    }


def empty_caches(
    model: Layer, batch: Mapping[str, tf.Tensor], sampling: Sampling
) -> dict[str, tf.Tensor]:
    """Returns the caches of a model before it reads prompts, with room for what follows them."""
    size, length = _size(batch["prefix"], 0), num_positions(batch, sampling)
    return model.empty_caches(batch_size=size, length=length)


def num_positions(batch: Mapping[str, tf.Tensor], sampling: Sampling) -> Any:
    """Returns how many positions a decoding computes at most; the last token needs none.

    An int if the shapes are known, else an int32 scalar.
    """
    return _size(batch["prefix"], 1) + _size(batch["rest"], 1) + sampling.p.max_tokens - 1


def stepper(model: Layer) -> Step:
    """Returns the step of a model in the call in progress, as a function of its caches."""
    call = context.current()

    def step(tokens: tf.Tensor, index: tf.Tensor, caches: Caches) -> tuple[tf.Tensor, Caches]:
        inner = call.derive(caches=caches)
        with context.entered(inner):
            logits = model.step(tokens, index)
        return logits, {**caches, **inner.sides.caches}

    return step


class _Picked(NamedTuple):
    """What was decided at a position: int32 [B*S], float32 [B*S], bool [B*S]."""

    token: tf.Tensor
    log_prob: tf.Tensor
    done: tf.Tensor


class _Plan(NamedTuple):
    """What is known before the loop, of positions from C on.

    Attributes:
        forced: int32 [R + N, B*S], tokens of longer prompts; -1 where a row chooses.
        uniform: float32 [R + N, B*S], what the choices are drawn with.
        last: int32 [B*S], the turn of each row's last token.
        end_id: int32 [B*S], the token that ends a row.
    """

    forced: tf.Tensor
    uniform: tf.Tensor
    last: tf.Tensor
    end_id: tf.Tensor


def _plan(batch: Mapping[str, tf.Tensor], sampling: Sampling, key: random.Key) -> _Plan:
    num_samples, max_tokens = sampling.p.num_samples, sampling.p.max_tokens
    rest, lengths, start = batch["rest"], batch["rest_length"], _size(batch["prefix"], 1)
    is_forced = tf.range(_size(rest, 1)) < lengths[:, None]
    forced = tf.pad(tf.where(is_forced, rest, -1), [[0, 0], [0, max_tokens]], constant_values=-1)
    keys = random.fold(key, batch["rows"])
    keys = random.Key(keys.high[:, None], keys.low[:, None])
    keys = random.fold(keys, tf.range(num_samples))
    keys = random.Key(tf.reshape(keys.high, [-1]), tf.reshape(keys.low, [-1]))
    uniform = random.uniform(keys, start + _size(forced, 1))[:, start:]

    def for_samples(value: tf.Tensor) -> tf.Tensor:
        return tf.repeat(value, num_samples, axis=0)

    return _Plan(
        forced=tf.transpose(for_samples(forced)),
        uniform=tf.transpose(uniform),
        last=for_samples(lengths + max_tokens - 1),
        end_id=for_samples(batch["end_id"]),
    )


def _repeated(logits: tf.Tensor, caches: Caches, num: int) -> tuple[tf.Tensor, Caches]:
    """Returns each row `num` times: prompts are read once, whatever the number of samples."""
    if num == 1:
        return logits, caches
    return tf.repeat(logits, num, axis=0), {
        where: tf.repeat(value, num, axis=len(path.stack_shape(where)))
        for where, value in caches.items()
    }


def _write(kept: list[tf.TensorArray], turn: Any, now: _Picked) -> list[tf.TensorArray]:
    return [array.write(turn, value) for array, value in zip(kept, now[:2], strict=True)]


def _size(x: tf.Tensor, axis: int) -> Any:
    """Returns the size of an axis: an int if it is known, else an int32 scalar."""
    return x.shape[axis] if x.shape[axis] is not None else tf.shape(x)[axis]
