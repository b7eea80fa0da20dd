"""Language modelling: each token from those before it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.decode.loop import decode, empty_caches, stepper
from lingo.decode.sampling import Sampling
from lingo.layers.sequence.positions import LearnedPositions
from lingo.lazy import tf
from lingo.metrics.metric import bits, mean, perplexity, weighted_mean
from lingo.ops.losses import cross_entropy, token_losses
from lingo.train.task import Batch, Task
from tasks.lm.model import LanguageModel


class LanguageModeling(Task):
    """Cross-entropy of the next token, averaged over the tokens of the whole batch.

    Padding (segment 0) and examples of weight 0 count nowhere. Label smoothing and the z-loss are
    for training alone: metrics have the plain cross-entropy, and bits per byte where the batch
    says how many bytes of text its targets are.
    """

    vocab_size: int  # number of token ids; the input offers it
    model: LanguageModel = LanguageModel  # from tokens to logits
    label_smoothing: float = 0.0  # part of a target's probability that goes to all tokens alike
    z_loss: float = 0.0  # coefficient of (log Z)^2, which keeps logits from drifting; often 1e-4
    chunk_size: int | None = None  # positions of a row with logits in memory at a time; None: all

    def check(self) -> None:
        p = self.p
        ranges.check_fraction(p, "label_smoothing")
        ranges.check_not_negative(p, "z_loss")
        ranges.check_positive(p, "chunk_size")

    def setup(self) -> None:
        self.model = self.p.model.build(vocab_size=self.p.vocab_size)

    def check_input(self, offers: Mapping[str, Any]) -> None:
        if offers["vocab_size"] > self.p.vocab_size:
            raise ParamError(
                f"task.vocab_size={self.p.vocab_size}, but the input has"
                f" {offers['vocab_size']} token ids"
            )

    def norms(self, batch: Batch) -> dict[str, tf.Tensor]:
        tokens = tf.reduce_sum(_token_weights(batch))
        return super().norms(batch) | dict.fromkeys(self._terms(), tokens)

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        def losses(logits: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
            found = token_losses(logits, targets, label_smoothing=self.p.label_smoothing)
            return {term: getattr(found, term) for term in self._terms()}

        weights = _token_weights(batch)
        per_token = self._scored(losses, batch)
        return {term: tf.reduce_sum(value * weights) for term, value in per_token.items()}

    def coefficients(self) -> dict[str, float]:
        return {"z_loss": self.p.z_loss}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        weights = _token_weights(batch)
        per_token = self._scored(_plain_scores, batch)
        states = {name: weighted_mean(value, weights) for name, value in per_token.items()}
        if "bytes" in batch:
            size = weighted_mean(batch["bytes"], batch["weights"])["sum"]
            states["bits_per_byte"] = mean(bits(states["loss"]["sum"]), size)
        return states

    def results(self, means: dict[str, float]) -> dict[str, float]:
        return means | {"perplexity": perplexity(means["loss"])}

    def check_positions(self, num_positions: int) -> None:
        for layer in self.model.tree():
            if isinstance(layer, LearnedPositions) and num_positions > layer.p.max_length:
                raise ParamError(
                    f"they take {num_positions} positions, but {layer.path} has"
                    f" max_length={layer.p.max_length}"
                )

    def decode(self, batch: Batch, sampling: Sampling) -> dict[str, tf.Tensor]:
        caches = empty_caches(self.model, batch, sampling)
        return decode(stepper(self.model), caches, batch, sampling, self.random_key("decode"))

    def flops(self, shape: Any) -> int:
        return self.model.flops(shape)

    def batch_flops(self, specs: Mapping[str, tuple[tuple[int, ...], str]]) -> int:
        shape, _ = specs["tokens"]
        return self.flops(shape)

    def _terms(self) -> tuple[str, ...]:
        return ("cross_entropy", "z_loss") if self.p.z_loss else ("cross_entropy",)

    def _scored(self, function: Callable[..., Any], batch: Batch) -> Any:
        """Returns what a function makes of the logits and targets of a batch."""
        x = self.model.activations(
            batch["tokens"], segments=batch["segments"], positions=batch["positions"]
        )
        return self.model.score(function, x, batch["targets"], chunk_size=self.p.chunk_size)


def _plain_scores(logits: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns what is reported of each token, float32 [B, T]."""
    right = tf.argmax(logits, axis=-1, output_type=tf.int32) == targets
    return {"loss": cross_entropy(logits, targets), "accuracy": tf.cast(right, tf.float32)}


def _token_weights(batch: Batch) -> tf.Tensor:
    """Returns float32 [B, T]: the weight of each token in the loss."""
    return tf.cast(batch["segments"] > 0, tf.float32) * batch["weights"][:, None]
