"""Sampling: each token is the most likely token, or is drawn among the likely tokens.

The random numbers depend only on the key, the id of the prompt, the index of the sample and the
position. So a text does not depend on the other texts of its batch.

Axes: B prompts, S samples per prompt, B*S rows, C tokens that every prompt has, R further tokens of
the longest prompt, at most N new tokens per row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.decode.caches import repeat_rows
from lingo.decode.decoding import Caches, Decoding, Step, forced_tokens
from lingo.ops import random
from lingo.ops.losses import cross_entropy
from lingo.ops.shape import size_of


class Sampling(Decoding):
    """Draws texts token by token.

    It divides the logits by the temperature and keeps the `top_k` most likely tokens, then the
    nucleus of these: the fewest whose total probability reaches `top_p` (Holtzman et al. 2020,
    sec. 3.1). The next token is drawn from the nucleus.
    """

    temperature: float = 0.8  # below 1: likely tokens gain; 0: always the most likely token
    top_k: int | None = None  # number of most likely tokens to draw among; None: all
    top_p: float | None = None  # total probability of the tokens to draw among; None: all tokens

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "top_k")
        if p.temperature < 0:
            raise ParamError(f"temperature={p.temperature} is negative; 0 takes the likeliest")
        if p.top_p is not None and not 0 < p.top_p <= 1:
            raise ParamError(f"top_p={p.top_p} is not in (0, 1]")

    def choose(self, logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Returns the next token of each row, int32 [B*S], by logits, float32 [B*S, V].

        `uniform`, float32 [B*S], are random numbers as for `draw`.
        """
        p = self.p
        if p.temperature == 0:
            return tf.argmax(logits, axis=-1, output_type=tf.int32)
        # the largest logit becomes 0, at any temperature: nothing overflows
        logits -= tf.reduce_max(logits, axis=-1, keepdims=True)
        logits *= min(1 / p.temperature, 1e30)
        if p.top_k is None and p.top_p is None:
            return draw(logits, uniform)
        size: Any = logits.shape[-1]
        likely, tokens = tf.math.top_k(logits, k=min(p.top_k or size, size))
        if p.top_p is not None:
            likely = nucleus(likely, p.top_p)
        return tf.gather(tokens, draw(likely, uniform), batch_dims=1)

    def decode(
        self,
        step: Step,
        caches: Caches,
        batch: Mapping[str, tf.Tensor],
        key: random.Key,
        *,
        read: Step | None = None,
    ) -> dict[str, tf.Tensor]:
        start = size_of(batch["prefix"], 1)
        logits, caches = (read or step)(batch["prefix"], tf.constant(0), caches)
        logits, caches = repeat_rows(logits, caches, self.p.num_samples)
        plan = self._plan(batch, key)

        def choose_tokens(index: tf.Tensor, logits: tf.Tensor, is_done: tf.Tensor) -> _NextTokens:
            prompt_token = plan.prompt_tokens[index]
            is_new = prompt_token < 0
            choice = self.choose(logits, plan.uniform[index])
            token = tf.where(is_done, plan.end_id, tf.where(is_new, choice, prompt_token))
            ends = (is_new & (token == plan.end_id)) | (index >= plan.last)
            is_done = self.follow(batch, token, is_done | ends)
            return _NextTokens(token, -cross_entropy(logits, token), is_done)

        def advance(index: tf.Tensor, now: _NextTokens, caches: Caches, arrays: Any) -> Any:
            logits, caches = step(now.token[:, None], start + index, caches)
            now = choose_tokens(index + 1, logits, now.is_done)
            return index + 1, now, caches, _write(arrays, index + 1, now)

        first = choose_tokens(tf.constant(0), logits, tf.zeros_like(plan.last, tf.bool))
        size = size_of(plan.prompt_tokens, 0)
        arrays = [tf.TensorArray(v.dtype, size, element_shape=v.shape) for v in first[:2]]
        state = (tf.constant(0), first, caches, _write(arrays, 0, first))
        index, _, _, arrays = tf.while_loop(
            lambda _, now, *__: ~tf.reduce_all(now.is_done), advance, state
        )
        tokens, log_probs = (tf.transpose(array.stack()) for array in arrays)
        tokens = tf.where(tf.range(size) > index, plan.end_id[:, None], tokens)
        # the shape is static if the sizes of the batch are
        shape = [size_of(batch["rows"], 0), self.p.num_samples, size]
        return {"tokens": tf.reshape(tokens, shape), "log_probs": tf.reshape(log_probs, shape)}

    def follow(
        self, batch: Mapping[str, tf.Tensor], token: tf.Tensor, is_done: tf.Tensor
    ) -> tf.Tensor:
        """Returns whether each row is done, bool [B*S], after its next token, int32 [B*S].

        By default this is `is_done`. A subclass may look at the tokens and end rows.
        """
        del batch, token
        return is_done

    def _plan(self, batch: Mapping[str, tf.Tensor], key: random.Key) -> _LoopConstants:
        num_samples, start = self.p.num_samples, size_of(batch["prefix"], 1)
        prompt_tokens = forced_tokens(batch, self)
        keys = random.fold(key, batch["rows"])
        keys = random.Key(keys.high[:, None], keys.low[:, None])
        keys = random.fold(keys, tf.range(num_samples))
        keys = random.Key(tf.reshape(keys.high, [-1]), tf.reshape(keys.low, [-1]))
        uniform = random.uniform(keys, start + size_of(prompt_tokens, 1))[:, start:]

        def repeat(value: tf.Tensor) -> tf.Tensor:
            return tf.repeat(value, num_samples, axis=0)

        return _LoopConstants(
            prompt_tokens=tf.transpose(repeat(prompt_tokens)),
            uniform=tf.transpose(uniform),
            last=repeat(batch["rest_length"] + self.p.max_tokens - 1),
            end_id=repeat(batch["end_id"]),
        )


class _NextTokens(NamedTuple):
    """The tokens of one position."""

    token: tf.Tensor  # int32 [B*S]
    log_prob: tf.Tensor  # float32 [B*S], the token's log-probability
    is_done: tf.Tensor  # bool [B*S], whether the text ends here or before


class _LoopConstants(NamedTuple):
    """Constants of the loop, whose step 0 is position C."""

    prompt_tokens: tf.Tensor  # int32 [R + N, B*S], forced tokens; -1 where a row chooses
    uniform: tf.Tensor  # float32 [R + N, B*S], the random numbers of the draws
    last: tf.Tensor  # int32 [B*S], the step of the loop at which each row has its last token
    end_id: tf.Tensor  # int32 [B*S], the token that ends a row


def _write(arrays: list[tf.TensorArray], index: Any, now: _NextTokens) -> list[tf.TensorArray]:
    return [array.write(index, value) for array, value in zip(arrays, now[:2], strict=True)]


def nucleus(logits: tf.Tensor, top_p: float) -> tf.Tensor:
    """Returns logits, float32 [B*S, K], largest first, with -inf outside the nucleus.

    The nucleus is the fewest tokens whose probability reaches `top_p`, in (0, 1].
    """
    before = tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True)
    return tf.where(before < top_p, logits, -float("inf"))


def draw(logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Draws an index per row, int32 [B*S], with probabilities softmax(logits), float32 [B*S, K].

    An index of probability 0 is never drawn. `uniform`, float32 [B*S] in [0, 1), has multiples of
    2**-24, so that its product with the sum of the probabilities is below this sum.
    """
    sums = tf.cumsum(tf.nn.softmax(logits), axis=-1)
    below = sums <= uniform[:, None] * sums[:, -1:]
    return tf.reduce_sum(tf.cast(below, tf.int32), axis=-1)
