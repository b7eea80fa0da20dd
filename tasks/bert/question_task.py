"""Question answering: predicts the first and the last token of the answer in a text.

Axes: B batch, T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.layers.inputs import CallInputs
from lingo.layers.linear import Linear
from lingo.learner.task import Batch, Task
from lingo.metrics.metric import weighted_mean
from lingo.ops.losses import cross_entropy
from tasks.bert.model import DENSE, Bert, check_vocab_size

_PADDING_LOGIT = np.float32(-1e9)


class QuestionAnswering(Task):
    """Mean cross-entropy of the first and the last token of answers (Devlin et al. 2019, sec. 4.2).

    Metrics are `loss` (the cross-entropy) and `accuracy`, the fraction of rows whose likeliest
    first and last token are both right. `QuestionInput` adds exact match and F1 of whole questions.

    Batches: `tokens`, `types`, `segments`, int32 [B, T]; `starts`, `ends`, int32 [B]; `weights`,
    float32 [B].
    """

    model: Bert = Bert.params(pooler=None)  # from tokens to vectors
    vocab_size: int  # number of token ids; the input offers it
    head: Linear = DENSE  # from a token's vector to two logits: it is first, it is last

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build(vocab_size=p.vocab_size)
        self.head = p.head.build(dim=p.model.dim, output_dim=2)

    def check_input(self, offers: Mapping[str, Any]) -> None:
        check_vocab_size(self.p.vocab_size, offers)

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        return super().loss_denominators(batch) | {"cross_entropy": tf.reduce_sum(batch["weights"])}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        losses = _span_losses(self._logits(batch), batch)
        return {"cross_entropy": tf.reduce_sum(losses * batch["weights"])}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        logits = self._logits(batch)
        guesses = tf.argmax(logits, axis=-1, output_type=tf.int32)
        is_right = tf.reduce_all(tf.equal(guesses, _answer_spans(batch)), axis=-1)
        return {
            "loss": weighted_mean(_span_losses(logits, batch), batch["weights"]),
            "accuracy": weighted_mean(is_right, batch["weights"]),
        }

    def loss_metrics(self) -> dict[str, str]:
        return {"cross_entropy": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `start_logits` and `end_logits`, float32 [B, T]."""
        starts, ends = tf.unstack(self._logits(batch), axis=1)
        return {"start_logits": starts, "end_logits": ends}

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["tokens"]
        return self.model.flops(shape) + self.head.flops([*shape, self.p.model.dim])

    def _logits(self, batch: Batch) -> tf.Tensor:
        """Returns float32 logits [B, 2, T] of first and last tokens; padding has -1e9."""
        segments = batch["segments"]
        x = self.model(batch["tokens"], types=batch["types"], inputs=CallInputs(segments=segments))
        logits = tf.transpose(tf.cast(self.head(x), tf.float32), [0, 2, 1])
        return tf.where(segments[:, None] > 0, logits, _PADDING_LOGIT)


def _answer_spans(batch: Batch) -> tf.Tensor:
    """Returns the first and the last token of each answer, int32 [B, 2]."""
    return tf.stack([batch["starts"], batch["ends"]], axis=1)


def _span_losses(logits: tf.Tensor, batch: Batch) -> Any:
    """Returns each row's mean cross-entropy of first and last token, float32 [B].

    `logits` are [B, 2, T].
    """
    return tf.reduce_mean(cross_entropy(logits, _answer_spans(batch)), axis=-1)
