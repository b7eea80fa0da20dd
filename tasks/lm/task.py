"""Language modelling: each token from those before it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lingo.config.params import ParamError
from lingo.lazy import tf
from lingo.metrics.metric import perplexity
from lingo.ops.losses import cross_entropy
from lingo.train.task import Batch, Task
from tasks.lm.model import LanguageModel


class LanguageModeling(Task):
    """Cross-entropy of the next token, averaged over the tokens of the whole batch.

    Padding (segment 0) and examples of weight 0 count nowhere.
    """

    vocab_size: int  # number of token ids; the input offers it
    model: LanguageModel = LanguageModel  # from tokens to logits

    def setup(self) -> None:
        self.model = self.p.model.build(vocab_size=self.p.vocab_size)

    def check_input(self, offers: Mapping[str, Any]) -> None:
        if offers["vocab_size"] > self.p.vocab_size:
            raise ParamError(
                f"task.vocab_size={self.p.vocab_size}, but the input has"
                f" {offers['vocab_size']} token ids"
            )

    def norms(self, batch: Batch) -> dict[str, tf.Tensor]:
        return super().norms(batch) | {"cross_entropy": tf.reduce_sum(_token_weights(batch))}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        losses = cross_entropy(self._logits(batch), batch["targets"])
        return {"cross_entropy": tf.reduce_sum(losses * _token_weights(batch))}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        logits, weights = self._logits(batch), _token_weights(batch)
        right = tf.argmax(logits, axis=-1, output_type=tf.int32) == batch["targets"]
        per_token = {
            "loss": cross_entropy(logits, batch["targets"]),
            "accuracy": tf.cast(right, tf.float32),
        }
        weight = tf.reduce_sum(weights)
        return {
            name: {"sum": tf.reduce_sum(value * weights), "weight": weight}
            for name, value in per_token.items()
        }

    def results(self, means: dict[str, float]) -> dict[str, float]:
        return means | {"perplexity": perplexity(means["loss"])}

    def flops(self, shape: Any) -> int:
        return self.model.flops(shape)

    def _logits(self, batch: Batch) -> tf.Tensor:
        return self.model(batch["tokens"], segments=batch["segments"], positions=batch["positions"])


def _token_weights(batch: Batch) -> tf.Tensor:
    """Returns float32 [B, T]: the weight of each token in the loss."""
    return tf.cast(batch["segments"] > 0, tf.float32) * batch["weights"][:, None]
