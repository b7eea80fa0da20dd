"""Beam search: an approximate search for the most probable texts of a model.

    live = one empty text                            # at most K, by log-probability
    finished = nothing                               # at most S, by score
    while a live text may still become one of the S best finished ones:
        candidates = the 2 K best extensions of live texts by one token
        finished = the S best of finished and of those of the first K candidates that end
        live = the K best candidates that do not end
        logits, caches = step(tokens of live, caches of the texts that they extend)

At most K of the 2 K candidates end, one for each live text, so K are left. A candidate that ends
is ignored unless it is among the first K: with one beam and no length penalty this is greedy
decoding.

Axes: B prompts, K beams, S texts of each prompt, J candidates or texts, C tokens that every prompt
has, R further tokens of the longest prompt, N new tokens of a text at most, T = R + N steps of the
loop, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.decode.caches import reorder_rows, repeat_rows
from lingo.decode.decoding import Caches, Decoding, Step, forced_tokens
from lingo.ops import random
from lingo.ops.shape import size_of, sizes_of

_NONE = -float("inf")  # the log-probability of an absent text


class Beam(Decoding):
    """Beam search with a length penalty (Wu et al. 2016, sec. 7).

    The score of a text of n tokens is its log-probability, including that of its end, divided by
    ((5 + n) / 6)^alpha (eq. 14). Finished texts are kept apart from live ones, best first. A text
    that is cut at `max_tokens` has a score, too. The search stops when no live text can become one
    of the best: more tokens never raise a log-probability, and the divisor is at most
    ((5 + N) / 6)^alpha. Unlike the paper it has no coverage penalty and no threshold below the
    best score.
    """

    num_beams: int = 4  # K, texts of a prompt that are computed at a time
    length_penalty: float = 0.0  # alpha: above 0, longer texts gain; the paper takes 0.6 to 0.7

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "num_beams")
        ranges.check_not_negative(p, "length_penalty")
        ranges.check_at_most(p, 10, "length_penalty")
        if p.num_samples > p.num_beams:
            raise ParamError(
                f"num_samples={p.num_samples} is more than num_beams={p.num_beams}: a search of so"
                " many texts at a time has no more to return; raise num_beams"
            )

    @property
    def rows_per_prompt(self) -> int:
        return self.p.num_beams

    def score(self, log_probs: Sequence[float]) -> float:
        return super().score(log_probs) / float(self._penalties()[len(log_probs)])

    def decode(
        self,
        step: Step,
        caches: Caches,
        batch: Mapping[str, tf.Tensor],
        key: random.Key,
        *,
        read: Step | None = None,
    ) -> dict[str, tf.Tensor]:
        del key  # beam search is deterministic
        start, plan = size_of(batch["prefix"], 1), self._plan(batch)
        logits, caches = (read or step)(batch["prefix"], tf.constant(0), caches)
        logits, caches = repeat_rows(logits, caches, self.p.num_beams)
        first, _ = self._turn(plan, tf.constant(0), plan.nothing, logits)  # of one empty text

        def advance(turn: tf.Tensor, found: _Found, caches: Caches) -> Any:
            tokens = tf.reshape(found.live.tokens[:, :, turn], [-1, 1])
            logits, stepped = step(tokens, start + turn, caches)
            found, parents = self._turn(plan, turn + 1, found, logits)
            return turn + 1, found, reorder_rows(stepped, parents, since=caches)

        state = (tf.constant(0), first, caches)
        _, found, _ = tf.while_loop(lambda _, now, *__: tf.reduce_any(~now.done), advance, state)
        return {"tokens": found.finished.tokens, "log_probs": found.finished.log_probs}

    def _penalties(self) -> np.ndarray:
        """Returns the divisors of the log-probability of 0, 1, ..., N tokens, float32 [N + 1]."""
        lengths = np.arange(self.p.max_tokens + 1)
        return (((5 + lengths) / 6) ** self.p.length_penalty).astype(np.float32)

    def _plan(self, batch: Mapping[str, tf.Tensor]) -> _Plan:
        forced = forced_tokens(batch, self)
        size, turns = size_of(forced, 0), size_of(forced, 1)

        def texts(num: int, values: list[float]) -> _Texts:
            ends = batch["end_id"][:, None, None] + tf.zeros([num, turns], tf.int32)
            value = tf.tile(tf.constant([values]), [size, 1])
            return _Texts(value, ends, value[:, :, None] + tf.zeros([turns]))

        live = texts(self.p.num_beams, [0.0] + [_NONE] * (self.p.num_beams - 1))
        finished = texts(self.p.num_samples, [_NONE] * self.p.num_samples)
        return _Plan(
            forced=tf.transpose(forced),
            first=batch["rest_length"],
            last=batch["rest_length"] + self.p.max_tokens - 1,
            end_id=batch["end_id"],
            nothing=_Found(live, finished, tf.zeros([size], tf.bool)),
        )

    def _turn(
        self, plan: _Plan, turn: tf.Tensor, found: _Found, logits: tf.Tensor
    ) -> tuple[_Found, tf.Tensor]:
        """Returns the texts after one more token, and the live text that each extends, [B, K]."""
        penalties, num_beams = tf.constant(self._penalties()), self.p.num_beams
        candidates, parents, token = _candidates(plan, turn, found.live, logits)
        ends = (token == plan.end_id[:, None]) & (turn >= plan.first)[:, None]
        ends |= (turn >= plan.last)[:, None]
        length = tf.clip_by_value(turn + 1 - plan.first, 0, self.p.max_tokens)
        scores = candidates.value / tf.gather(penalties, length)[:, None]
        ended = candidates._replace(value=tf.where(ends, scores, _NONE))
        finished, _ = _best(_join_texts(found.finished, ended, num_beams), self.p.num_samples)
        going = candidates._replace(value=tf.where(ends, _NONE, candidates.value))
        live, chosen = _best(going, num_beams)
        is_found = live.value[:, 0] / penalties[-1] <= finished.value[:, -1]
        found = _Found(live, finished, is_found | (turn >= plan.last))
        return found, tf.gather(parents, chosen, batch_dims=1)


class _Texts(NamedTuple):
    """Texts of each prompt.

    Attributes:
        value: float32 [B, J], the sort key: the log-probability of a live text, the score of a
            finished one; -inf for an absent text.
        tokens: int32 [B, J, T], from position C on; the end id where there is no token yet.
        log_probs: float32 [B, J, T], of each token; the initial `value` where there is none yet.
    """

    value: tf.Tensor
    tokens: tf.Tensor
    log_probs: tf.Tensor


class _Found(NamedTuple):
    """The state of a search: K live texts and S finished ones of each prompt, best first.

    Attributes:
        live: J = K texts that may grow.
        finished: J = S texts that have ended.
        done: bool [B], whether no live text can become one of the S best any more.
    """

    live: _Texts
    finished: _Texts
    done: tf.Tensor


class _Plan(NamedTuple):
    """Constants of the loop.

    Attributes:
        forced: int32 [T, B], tokens of longer prompts; -1 where the search chooses.
        first: int32 [B], the step of the loop at which each prompt has its first new token.
        last: int32 [B], the step at which it has its last.
        end_id: int32 [B], the token that ends a text.
        nothing: the state before the first step: one empty live text.
    """

    forced: tf.Tensor
    first: tf.Tensor
    last: tf.Tensor
    end_id: tf.Tensor
    nothing: _Found


def _candidates(
    plan: _Plan, turn: tf.Tensor, live: _Texts, logits: tf.Tensor
) -> tuple[_Texts, tf.Tensor, tf.Tensor]:
    """Returns the 2 K best texts with one more token, their parents and their last tokens.

    A prompt whose token is forced has one candidate, which extends its one live text.

    Args:
        plan: constants of the loop.
        turn: int32 scalar, the step of the loop.
        live: K texts of each prompt.
        logits: float32 [B*K, V], of the token that follows each.

    Returns:
        J candidates (2 K, or K if V is 1), best first; int32 [B, J], the index of the live text
        that each extends; int32 [B, J], its new token.
    """
    num_beams: Any = live.value.shape[1]
    vocab_size: Any = logits.shape[-1]
    log_probs = tf.reshape(tf.nn.log_softmax(logits), [-1, num_beams, vocab_size])
    values = tf.reshape(live.value[:, :, None] + log_probs, [-1, num_beams * vocab_size])
    value, place = tf.math.top_k(values, min(2, vocab_size) * num_beams)
    forced = plan.forced[turn][:, None]
    first = tf.one_hot([0], value.shape[1], on_value=0.0, off_value=_NONE)
    value, place = tf.where(forced < 0, value, first), tf.where(forced < 0, place, forced)
    parents, token = place // vocab_size, place % vocab_size
    log_prob = tf.gather(tf.reshape(log_probs, sizes_of(values)), place, batch_dims=1)
    is_now = tf.range(size_of(live.tokens, 2)) == turn

    def extended(texts: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return tf.where(is_now, new[:, :, None], tf.gather(texts, parents, batch_dims=1))

    tokens, log_probs = extended(live.tokens, token), extended(live.log_probs, log_prob)
    return _Texts(value, tokens, log_probs), parents, token


def _best(texts: _Texts, num: int) -> tuple[_Texts, tf.Tensor]:
    """Returns the `num` best texts, best first, and their indices, int32 [B, num]."""
    value, places = tf.math.top_k(texts.value, num)
    tokens, log_probs = (tf.gather(v, places, batch_dims=1) for v in texts[1:])
    return _Texts(value, tokens, log_probs), places


def _join_texts(texts: _Texts, others: _Texts, num: int) -> _Texts:
    """Concatenates texts and the first `num` of others."""
    pairs = zip(texts, others, strict=True)
    return _Texts(*(tf.concat([a, b[:, :num]], axis=1) for a, b in pairs))
