"""Beam search: the texts that a model finds most probable, as far as a few at a time tell.

    live = one empty text                            # K of them, by log-probability
    finished = nothing                               # S of them, by score
    while a live text may still come among the finished:
        candidates = the 2 K best of live texts with one more token
        finished = the best of these and of the first K candidates, those that end
        live = the K best candidates that do not
        logits, caches = step(tokens of live, caches of the texts they go on from)

Of 2 K candidates at most K end, one for each live text: K are left. An end that is not among the
first K does not count: with one beam and no length penalty this is greedy decoding.

Axes: B prompts, K beams, S texts of each prompt, J candidates or texts, C tokens that every prompt
has, R further tokens of the longest prompt, N new tokens of a text at most, T = R + N turns, V
vocabulary.
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

_NONE = -float("inf")  # the log-probability of a text that is not there


class Beam(Decoding):
    """Beam search with a length penalty (Wu et al. 2016, sec. 7).

    A text's score is its log-probability, that of its end included, over ((5 + n) / 6)^alpha for n
    tokens (eq. 14); finished texts, the best first, are kept apart from live ones. A text that is
    cut at `max_tokens` has a score, too. The search stops when no live text can come among the
    best: more tokens never raise a log-probability, and divide it by ((5 + N) / 6)^alpha at most.
    Departs from the paper: neither a coverage penalty nor a threshold below the best.
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
        del key  # nothing is drawn
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
        """Returns what the log-probability of a text of 0, 1, ..., N tokens is divided by."""
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
        """Returns what is found with one more token, and which text each live one goes on from."""
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
        value: float32 [B, J], by which they compare: the log-probability of a live text, the score
            of a finished one; -inf: there is none.
        tokens: int32 [B, J, T], from position C on; the end id where there is none yet.
        log_probs: float32 [B, J, T], of each token; the first value where there is none yet.
    """

    value: tf.Tensor
    tokens: tf.Tensor
    log_probs: tf.Tensor


class _Found(NamedTuple):
    """What a search has found: K live texts and S finished ones of each prompt, best first.

    Attributes:
        done: bool [B], whether no live text can come among the finished any more.
    """

    live: _Texts
    finished: _Texts
    done: tf.Tensor


class _Plan(NamedTuple):
    """What is known before the loop.

    Attributes:
        forced: int32 [T, B], tokens of longer prompts; -1 where a row chooses.
        first: int32 [B], the turn of each prompt's first new token.
        last: int32 [B], that of its last.
        end_id: int32 [B], the token that ends a text.
        nothing: what is found before the first turn: one live text, empty.
    """

    forced: tf.Tensor
    first: tf.Tensor
    last: tf.Tensor
    end_id: tf.Tensor
    nothing: _Found


def _candidates(
    plan: _Plan, turn: tf.Tensor, live: _Texts, logits: tf.Tensor
) -> tuple[_Texts, tf.Tensor, tf.Tensor]:
    """Returns the best texts with one more token; whose text each goes on from; the tokens.

    A prompt whose token is forced has one candidate, which goes on from its one live text.

    Args:
        plan: of the search.
        turn: int32 scalar.
        live: K texts.
        logits: float32 [B*K, V], of the token that follows each.
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
    """Returns the best so many texts, best first, and their places; of equal ones the first."""
    value, places = tf.math.top_k(texts.value, num)
    tokens, log_probs = (tf.gather(v, places, batch_dims=1) for v in texts[1:])
    return _Texts(value, tokens, log_probs), places


def _join_texts(texts: _Texts, others: _Texts, num: int) -> _Texts:
    """Returns texts, then the first so many others."""
    pairs = zip(texts, others, strict=True)
    return _Texts(*(tf.concat([a, b[:, :num]], axis=1) for a, b in pairs))
