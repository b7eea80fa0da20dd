"""Beam search: an approximate search for the most probable texts of a model.

    live = one empty text                            # at most K, by log-probability
    complete = nothing                               # at most S, by score
    while a live text may still become one of the S best complete ones:
        candidates = the 2 K best extensions of live texts by one token
        complete = the S best of complete and the ended texts among the first K candidates
        live = the K best candidates that do not end
        logits, caches = step(tokens of live, caches of the texts that they extend)

At most K of the 2 K candidates end, one for each live text, so at least K candidates remain. A
candidate that ends is ignored unless it is among the first K. So with one beam and no length
penalty, beam search is greedy decoding.

Axes: B prompts, K beams, S texts per prompt, J candidates or texts, C tokens that every prompt has,
R further tokens of the longest prompt, at most N new tokens per text, T = R + N steps of the loop,
V vocabulary.
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
from lingo.layers import path
from lingo.ops import random
from lingo.ops.shape import size_of, sizes_of

_NONE = -float("inf")  # the log-probability of an absent text


class Beam(Decoding):
    """Beam search with a length penalty (Wu et al. 2016, sec. 7).

    The score of a text of n tokens is its log-probability, end token included, divided by
    ((5 + n) / 6)^alpha (eq. 14); a text that is cut at `max_tokens` has a score, too. The search
    stops when no live text can become one of the best: more tokens never raise a log-probability,
    and the divisor is at most ((5 + N) / 6)^alpha. Unlike the paper, it does not drop texts whose
    score is far below the best one.

    `coverage_penalty` (beta) lowers the score of a text whose attention covers positions of its
    source by less than 1 in all: it adds beta times the sum of log(min(coverage, 1)). It counts the
    layers that sum their attention weights in a cache `coverage`, float32 [source length].
    Positions with coverage 0, such as padding, add nothing, as in MLPerf's reference. `score`
    leaves the penalty out.
    """

    num_beams: int = 4  # K, texts per prompt that are computed at once
    length_penalty: float = 0.0  # alpha: above 0, longer texts gain; the paper has 0.6 to 0.7
    coverage_penalty: float = 0.0  # beta; the paper has 0.2, MLPerf's GNMT 0.1
    max_extra_tokens: int | None = None  # most tokens beyond the source's number; None: no limit

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "num_beams")
        ranges.check_not_negative(p, "length_penalty", "coverage_penalty", "max_extra_tokens")
        ranges.check_at_most(p, 10, "length_penalty")
        if p.num_samples > p.num_beams:
            raise ParamError(
                f"num_samples={p.num_samples} is more than num_beams={p.num_beams}: a search"
                " returns at most num_beams texts; raise num_beams"
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
        # the first tokens extend one empty text
        first, _ = self._extend(
            plan, tf.constant(0), plan.start, logits, self._coverage_scores(caches, batch)
        )

        def advance(index: tf.Tensor, search: Search, caches: Caches) -> Any:
            tokens = tf.reshape(search.live.tokens[:, :, index], [-1, 1])
            logits, new_caches = step(tokens, start + index, caches)
            coverage = self._coverage_scores(new_caches, batch)
            search, parents = self._extend(plan, index + 1, search, logits, coverage)
            return index + 1, search, reorder_rows(new_caches, parents, since=caches)

        state = (tf.constant(0), first, caches)
        _, search, _ = tf.while_loop(
            lambda _, search, *__: tf.reduce_any(~search.is_done), advance, state
        )
        return {"tokens": search.complete.tokens, "log_probs": search.complete.log_probs}

    def _penalties(self) -> np.ndarray:
        """Returns the divisors of the log-probabilities of 0, ..., N tokens, float32 [N + 1]."""
        lengths = np.arange(self.p.max_tokens + 1)
        return (((5 + lengths) / 6) ** self.p.length_penalty).astype(np.float32)

    def _plan(self, batch: Mapping[str, tf.Tensor]) -> BeamConstants:
        prompt_tokens = forced_tokens(batch, self)
        size, num_steps = size_of(prompt_tokens, 0), size_of(prompt_tokens, 1)

        def texts(num: int, values: list[float]) -> Texts:
            ends = batch["end_id"][:, None, None] + tf.zeros([num, num_steps], tf.int32)
            value = tf.tile(tf.constant([values]), [size, 1])
            return Texts(value, ends, value[:, :, None] + tf.zeros([num_steps]))

        live = texts(self.p.num_beams, [0.0] + [_NONE] * (self.p.num_beams - 1))
        complete = texts(self.p.num_samples, [_NONE] * self.p.num_samples)
        num_new = self._max_tokens(batch)
        return BeamConstants(
            prompt_tokens=tf.transpose(prompt_tokens),
            first=batch["rest_length"],
            last=batch["rest_length"] + num_new - 1,
            end_id=batch["end_id"],
            start=Search(live, complete, tf.zeros([size], tf.bool)),
        )

    def _max_tokens(self, batch: Mapping[str, tf.Tensor]) -> Any:
        """Returns the maximal number of new tokens per prompt, int32 [B], or one number for all."""
        if self.p.max_extra_tokens is None:
            return self.p.max_tokens
        if "source_segments" not in batch:
            raise ValueError(
                f"max_extra_tokens={self.p.max_extra_tokens} is for models that read a source and"
                " write a text; this model continues its prompt: set max_tokens alone"
            )
        is_token = tf.cast(batch["source_segments"] > 0, tf.int32)
        most = tf.reduce_sum(is_token, axis=1) + self.p.max_extra_tokens
        return tf.clip_by_value(most, 1, self.p.max_tokens)

    def _coverage_scores(self, caches: Caches, batch: Mapping[str, tf.Tensor]) -> tf.Tensor | None:
        """Returns the coverage penalty of each live text, float32 [B, K], at most 0.

        Returns None if `coverage_penalty` is 0. Raises ValueError if no layer has a cache
        `coverage`.
        """
        if not self.p.coverage_penalty:
            return None
        lost = 0.0
        for num_stacked, covered in self._coverage_sums(caches):
            logs = tf.math.log(tf.minimum(tf.where(covered > 0, covered, 1.0), 1.0))
            lost += tf.reduce_sum(logs, axis=[*range(num_stacked), -1])
        return self.p.coverage_penalty * tf.reshape(lost, [-1, self.p.num_beams])

    def _coverage_sums(self, caches: Caches) -> list[tuple[int, tf.Tensor]]:
        """Returns the number of stacked axes and the value of each cache `coverage`."""
        sums = [
            (len(path.stack_shape(name)), value)
            for name, value in caches.items()
            if name.rpartition("/")[2] == "coverage"
        ]
        if not sums:
            raise ValueError(
                f"coverage_penalty={self.p.coverage_penalty}, but no layer of the model adds up"
                " its attention weights in a cache `coverage`, as AdditiveAttention does: take 0"
            )
        return sums

    def _extend(
        self,
        plan: BeamConstants,
        index: tf.Tensor,
        search: Search,
        logits: tf.Tensor,
        coverage: tf.Tensor | None,
    ) -> tuple[Search, tf.Tensor]:
        """Returns the search after one more token, and each live text's parent, int32 [B, K]."""
        penalties, num_beams = tf.constant(self._penalties()), self.p.num_beams
        log_probs = token_log_probs(logits, self.p.num_beams)
        candidates, parents, token = find_candidates(plan, index, search.live, log_probs)
        ends = (token == plan.end_id[:, None]) & (index >= plan.first)[:, None]
        ends |= (index >= plan.last)[:, None]
        # At least 1, as texts of 0 tokens have no score; also, TensorFlow Lite would make a Relu6
        # of a clip to 0..6, even for integers.
        length = tf.clip_by_value(index + 1 - plan.first, 1, self.p.max_tokens)
        scores = candidates.value / tf.gather(penalties, length)[:, None]
        if coverage is not None:
            scores += tf.gather(coverage, parents, batch_dims=1)
        ends_now = candidates._replace(value=tf.where(ends, scores, _NONE))
        complete, _ = best_texts(
            join_texts(search.complete, ends_now, num_beams), self.p.num_samples
        )
        may_grow = candidates._replace(value=tf.where(ends, _NONE, candidates.value))
        live, indices = best_texts(may_grow, num_beams)
        is_done = live.value[:, 0] / penalties[-1] <= complete.value[:, -1]
        search = Search(live, complete, is_done | (index >= plan.last))
        return search, tf.gather(parents, indices, batch_dims=1)


class Texts(NamedTuple):
    """Texts of each prompt.

    The sort key `value` is the log-probability of a live text and the score of a complete one; -inf
    for an absent text.
    """

    value: tf.Tensor  # float32 [B, J]
    tokens: tf.Tensor  # int32 [B, J, T], from position C on; the end id where no token is yet
    log_probs: tf.Tensor  # float32 [B, J, T]; the initial `value` where no token is yet


class Search(NamedTuple):
    """The state of a search: texts of each prompt, best first."""

    live: Texts  # J = K texts that may grow
    complete: Texts  # J = S texts that have ended
    is_done: tf.Tensor  # bool [B], whether no live text can become one of the S best any more


class BeamConstants(NamedTuple):
    """Constants of the search's loop."""

    prompt_tokens: tf.Tensor  # int32 [T, B], forced tokens; -1 where the search chooses
    first: tf.Tensor  # int32 [B], the step of the loop at which each prompt has its first new token
    last: tf.Tensor  # int32 [B], the step at which each prompt has its last new token
    end_id: tf.Tensor  # int32 [B], the token that ends a text
    start: Search  # the state before the first step: one empty live text


def token_log_probs(logits: tf.Tensor, num_beams: int) -> tf.Tensor:
    """Returns log-probabilities [B, K, V] of logits [B*K, V], both float32."""
    vocab_size: Any = logits.shape[-1]
    return tf.reshape(tf.nn.log_softmax(logits), [-1, num_beams, vocab_size])


def find_candidates(
    plan: BeamConstants, index: tf.Tensor, live: Texts, log_probs: tf.Tensor
) -> tuple[Texts, tf.Tensor, tf.Tensor]:
    """Returns the 2 K best texts with one more token, and their parents and last tokens.

    A prompt that still has tokens has one candidate, which extends its one live text. The
    log-probabilities, float32 [B, K, V], are for the token after each live text. There are J
    candidates (2 K, or K if V is 1), best first; parents and tokens are int32 [B, J].
    """
    num_beams: Any = live.value.shape[1]
    vocab_size: Any = log_probs.shape[-1]
    values = tf.reshape(live.value[:, :, None] + log_probs, [-1, num_beams * vocab_size])
    value, place = tf.math.top_k(values, min(2, vocab_size) * num_beams)
    prompt_token = plan.prompt_tokens[index][:, None]
    first = tf.one_hot([0], value.shape[1], on_value=0.0, off_value=_NONE)
    is_new = prompt_token < 0
    value, place = tf.where(is_new, value, first), tf.where(is_new, place, prompt_token)
    parents, token = place // vocab_size, place % vocab_size
    log_prob = tf.gather(tf.reshape(log_probs, sizes_of(values)), place, batch_dims=1)
    is_now = tf.range(size_of(live.tokens, 2)) == index

    def extend(texts: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return tf.where(is_now, new[:, :, None], tf.gather(texts, parents, batch_dims=1))

    tokens, log_probs = extend(live.tokens, token), extend(live.log_probs, log_prob)
    return Texts(value, tokens, log_probs), parents, token


def best_texts(texts: Texts, num: int) -> tuple[Texts, tf.Tensor]:
    """Returns the `num` best texts, best first, and their indices, int32 [B, num]."""
    value, places = tf.math.top_k(texts.value, num)
    tokens, log_probs = (tf.gather(v, places, batch_dims=1) for v in texts[1:])
    return Texts(value, tokens, log_probs), places


def join_texts(texts: Texts, others: Texts, num: int) -> Texts:
    """Returns, for each prompt, `texts` followed by the first `num` of `others`."""
    pairs = zip(texts, others, strict=True)
    return Texts(*(tf.concat([a, b[:, :num]], axis=1) for a, b in pairs))
