"""Distillation: a small encoder-decoder learns from the predictions of a larger one.

Axes: B batch, T target positions, V vocabulary.
"""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import CallInputs
from lingo.layers.context import current, enter_call
from lingo.learner.task import Batch
from lingo.ops.losses import token_losses
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence
from tasks.token_prediction import token_weights


class Distillation(SequenceToSequence):
    """Cross-entropy of the target's tokens, mixed with cross-entropy to a teacher's probabilities.

    (Hinton et al. 2015.) Fedus et al. 2022, sec. 4.1, give the teacher a share of 0.25. The teacher
    predicts as in evaluation, without dropout. Its weights are named `teacher/...`: the experiment
    reads them by `init_from`, and freezes them by `ByPath` with `Frozen`. Metrics, answers and
    FLOPs are the student's, `model`.
    """

    teacher: EncoderDecoder  # gives each token a probability; has the same vocabulary
    teacher_share: float = 0.25  # of the loss; the rest is for the targets

    def check(self) -> None:
        super().check()
        if not 0 <= self.p.teacher_share <= 1:
            raise ParamError(f"teacher_share={self.p.teacher_share} is not in [0, 1]")
        if self.p.chunk_size is not None:
            raise ParamError(
                f"chunk_size={self.p.chunk_size}, but distillation needs all positions' logits at"
                " once: leave it None"
            )

    def setup(self) -> None:
        super().setup()
        self.teacher = self.p.teacher.build(vocab_size=self.p.vocab_size)

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        logits, weights = self.model.logits(self.activations(batch)), token_weights(batch)
        hard = token_losses(logits, batch["targets"], label_smoothing=self.p.label_smoothing)
        per_token = hard._asdict() | {
            "distillation": tf.nn.softmax_cross_entropy_with_logits(
                self._teacher_probabilities(batch), logits
            )
        }
        return {term: tf.reduce_sum(per_token[term] * weights) for term in self._terms()}

    def coefficients(self) -> dict[str, float]:
        share = self.p.teacher_share
        return super().coefficients() | {"cross_entropy": 1.0 - share, "distillation": share}

    def _terms(self) -> tuple[str, ...]:
        return (*super()._terms(), "distillation")

    def _teacher_probabilities(self, batch: Batch) -> tf.Tensor:
        """Returns the teacher's probability of each token, float32 [B, T, V]."""
        with enter_call(current().derive(training=False)):  # its side losses are dropped
            logits = self.teacher(
                batch["tokens"],
                source_tokens=batch["source_tokens"],
                source_inputs=CallInputs(
                    segments=batch["source_segments"], position_ids=batch["source_positions"]
                ),
                inputs=CallInputs(segments=batch["segments"], position_ids=batch["positions"]),
            )
        return tf.stop_gradient(tf.nn.softmax(logits))
