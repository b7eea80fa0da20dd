"""Lingvo's beam search, which ends when all live texts are far behind the best complete one.

    live = one empty text                               # at most K, by log-probability
    complete = nothing                                  # at most S, by score
    until all live texts are `beam_size` behind the likeliest complete text:
        complete = the S best of complete and the live texts whose end is likely enough
        live = the K best extensions of live texts by another token than the end
        logits, caches = step(tokens of live, caches of the texts that they extend)

Axes: B prompts, K beams, S texts per prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.decode.beam import (
    Beam,
    BeamConstants,
    Texts,
    best_texts,
    find_candidates,
    join_texts,
    token_log_probs,
)
from lingo.decode.decoding import Caches
from lingo.ops.shape import size_of

_NONE = -float("inf")  # the log-probability of an absent text
_COVERED = (0.001, 0.5)  # coverage is clipped to this range


class PrunedBeam(Beam):
    """Beam search with options of Lingvo's `BeamSearchHelper`, and its defaults.

    Only the default of `terminate_beams_independently` is another. The search differs from `Beam`
    in these ways. A text may end at any step if its end is among its K + 1 likeliest tokens and
    passes both thresholds; its other extensions stay live. The search ends by the gap `beam_size`,
    whether or not a live text could still win. A text that has not ended after `max_tokens` is no
    result, unless `force_end` is set (Lingvo's `force_eos_in_last_step`); a prompt may have fewer
    than `num_samples` texts, or none. Lingvo's `ensure_full_beam` and `target_seq_length_ratio` do
    not exist here: no experiment in Lingvo's tree sets them.

    The likeliest text need not be the best one. A log-probability only falls from token to token,
    so a model that is unsure where texts end has short texts first. `coverage_penalty` and
    `length_penalty` help; a large `coverage_penalty` makes texts go on after their end.

    The score of a text of n tokens is its log-probability, end token included, divided by
    ((n + 5) / 5)^`length_penalty`, plus `coverage_penalty` times the sum of log(coverage) over the
    positions of the source, where coverage is the sum of a position's attention weights, clipped
    to 0.001..0.5.
    """

    num_beams: int = 8  # K, texts per prompt that are computed at once; Lingvo's num_hyps_per_beam
    num_samples: int = 8  # S, texts of a result
    # gap of log-probability behind the likeliest complete text at which live texts are given up
    beam_size: float = 3.0
    # a text may end if this token is at most this far behind its likeliest one, in log-probability
    valid_eos_max_logit_delta: float = 5.0
    local_eos_threshold: float = -100.0  # least log-probability of the token that ends a text
    # whether each prompt's search stops when it is done; False, Lingvo's default: it goes on while
    # another prompt's does, and may find more, so that results depend on the batch
    terminate_beams_independently: bool = True
    force_end: bool = False  # whether all live texts end at `max_tokens`

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "beam_size")
        ranges.check_not_negative(self.p, "valid_eos_max_logit_delta")

    def _penalties(self) -> np.ndarray:
        lengths = np.arange(self.p.max_tokens + 1)
        return (((5 + lengths) / 5) ** self.p.length_penalty).astype(np.float32)

    def _plan(self, batch: Mapping[str, tf.Tensor]) -> BeamConstants:
        plan = super()._plan(batch)
        least = tf.fill([size_of(batch["prefix"], 0)], _NONE)
        start: Any = _PrunedSearch(*plan.start, likeliest=least)
        return plan._replace(start=start)

    def _coverage_scores(self, caches: Caches, batch: Mapping[str, tf.Tensor]) -> tf.Tensor | None:
        if not self.p.coverage_penalty:
            return None
        if "source_segments" not in batch:
            raise ValueError(
                f"coverage_penalty={self.p.coverage_penalty} is for models that read a source and"
                " write a text; this model continues its prompt: take 0"
            )
        is_source = tf.repeat(batch["source_segments"] > 0, self.p.num_beams, axis=0)
        lost = 0.0
        for num_stacked, covered in self._coverage_sums(caches):
            logs = tf.where(is_source, tf.math.log(tf.clip_by_value(covered, *_COVERED)), 0.0)
            lost += tf.reduce_sum(logs, axis=[*range(num_stacked), -1])
        return self.p.coverage_penalty * tf.reshape(lost, [-1, self.p.num_beams])

    def _extend(
        self,
        plan: BeamConstants,
        index: tf.Tensor,
        search: Any,
        logits: tf.Tensor,
        coverage: tf.Tensor | None,
    ) -> tuple[Any, tf.Tensor]:
        num_beams = self.p.num_beams
        log_probs = token_log_probs(logits, num_beams)
        is_new = index >= plan.first
        ended, likeliest = self._end_texts(plan, index, search.live, log_probs, coverage)
        complete, _ = best_texts(join_texts(search.complete, ended, num_beams), self.p.num_samples)
        is_end = tf.range(size_of(log_probs, 2)) == plan.end_id[:, None]
        is_end &= is_new[:, None]
        longer = tf.where(is_end[:, None], _NONE, log_probs)
        candidates, parents, _ = find_candidates(plan, index, search.live, longer)
        live, kept = best_texts(candidates, num_beams)
        parents = tf.gather(parents, kept, batch_dims=1)
        likeliest = tf.maximum(search.likeliest, likeliest)
        is_behind = live.value[:, 0] <= likeliest - self.p.beam_size
        is_done = search.is_done | is_behind | (index >= plan.last)
        new = _PrunedSearch(live, complete, is_done, likeliest)
        if not self.p.terminate_beams_independently:
            return new, parents
        return _freeze(search.is_done, search, new), parents

    def _end_texts(
        self,
        plan: BeamConstants,
        index: tf.Tensor,
        live: Texts,
        log_probs: tf.Tensor,
        coverage: tf.Tensor | None,
    ) -> tuple[Texts, tf.Tensor]:
        """Returns each live text with its end, absent if it may not end, and a log-probability.

        The texts' values are scores. The log-probability, float32 [B], is of the likeliest of these
        texts.
        """
        is_end = tf.range(size_of(log_probs, 2)) == plan.end_id[:, None, None]
        end = tf.reduce_max(tf.where(is_end, log_probs, _NONE), axis=2)
        num_likelier = tf.reduce_sum(tf.cast(log_probs > end[:, :, None], tf.int32), axis=2)
        best = tf.reduce_max(log_probs, axis=2)
        may_end = end > best - self.p.valid_eos_max_logit_delta
        may_end &= (end > self.p.local_eos_threshold) & (num_likelier <= self.p.num_beams)
        if self.p.force_end:
            may_end |= (index >= plan.last)[:, None]
        may_end &= (index >= plan.first)[:, None]
        value = tf.where(may_end, live.value + end, _NONE)
        length = tf.clip_by_value(index + 1 - plan.first, 1, self.p.max_tokens)
        scores = value / tf.gather(tf.constant(self._penalties()), length)[:, None]
        if coverage is not None:
            scores += coverage
        is_now = tf.range(size_of(live.log_probs, 2)) == index
        every = tf.where(is_now, end[:, :, None], live.log_probs)
        return Texts(scores, live.tokens, every), tf.reduce_max(value, axis=1)


class _PrunedSearch(NamedTuple):
    """The state of a search, as `Search`, and the log-probability that decides when it ends."""

    live: Texts
    complete: Texts
    is_done: tf.Tensor  # bool [B]
    likeliest: tf.Tensor  # float32 [B], greatest log-probability of a complete text


def _freeze(is_done: tf.Tensor, old: _PrunedSearch, new: _PrunedSearch) -> _PrunedSearch:
    """Returns the old state of prompts where `is_done`, bool [B], and the new state of others."""

    def choose(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.reshape(is_done, [-1] + [1] * (len(a.shape) - 1)), a, b)

    return tf.nest.map_structure(choose, old, new)
