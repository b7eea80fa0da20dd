"""Loss and metrics shared by all tasks that predict the next token.

Axes: B batch, T positions, C positions of a chunk, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Attention, Layer, LearnedPositions, Router
from lingo.learner.task import Batch, Task
from lingo.metrics.metric import bits, mean, perplexity, weighted_mean
from lingo.ops.losses import cross_entropy, log_probs, token_losses
from lingo.ops.shape import size_of
from tasks.tokens import score_in_chunks


class TokenPrediction(Task, interface=True):
    """Cross-entropy of tokens, averaged over the tokens of the whole batch.

    Padding (segment 0), examples of weight 0 and targets of weight 0 are ignored. Label smoothing
    and the z-loss affect training only. Metrics include the plain cross-entropy, and bits per byte
    if the batch has `bytes`, int32 [B], the number of bytes of each example's target text.

    Subclasses have a field `model`, and define `activations` and `decoder_stack`.
    """

    vocab_size: int  # number of token ids; the input offers it
    label_smoothing: float = 0.0  # part of a target's probability, spread evenly over all tokens
    z_loss: float = 0.0  # coefficient of (log Z)^2, which keeps logits from drifting; often 1e-4
    chunk_size: int | None = None  # positions per row with logits in memory at a time; None: all

    def check(self) -> None:
        p = self.p
        ranges.check_fraction(p, "label_smoothing")
        ranges.check_not_negative(p, "z_loss")
        ranges.check_positive(p, "chunk_size")

    def setup(self) -> None:
        self.model = self.p.model.build(vocab_size=self.p.vocab_size)
        for layer in self.decoder_stack.tree():
            if isinstance(layer, Attention) and not layer.mask.has_steps:
                raise ParamError(
                    f"{layer.path}: {type(layer.mask).__name__} shows later positions, including"
                    " the token to be predicted; take Causal, Prefix, or a LocalWindow with ahead=0"
                )
            if isinstance(layer, Router) and not layer.is_causal:
                raise ParamError(
                    f"{layer.path}: this {type(layer).__name__} routes a token by later tokens,"
                    " including the token to be predicted; take a router in which tokens choose,"
                    " with priority=position: the others are for encoders"
                )

    @property
    def decoder_stack(self) -> Layer:
        """The layer that must not see the token to be predicted."""
        raise NotImplementedError(f"{type(self).__name__} has no decoder_stack")

    def activations(self, batch: Batch) -> tf.Tensor:
        """Returns the input of the head for a batch, [B, T, D], any float type."""
        raise NotImplementedError(f"{type(self).__name__} has no activations")

    def check_input(self, offers: Mapping[str, Any]) -> None:
        if offers["vocab_size"] > self.p.vocab_size:
            raise ParamError(
                f"task.vocab_size={self.p.vocab_size}, but the input has"
                f" {offers['vocab_size']} token ids"
            )

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        tokens = tf.reduce_sum(token_weights(batch))
        return super().loss_denominators(batch) | dict.fromkeys(self._terms(), tokens)

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        def losses(logits: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
            terms = token_losses(logits, targets, label_smoothing=self.p.label_smoothing)
            return {term: getattr(terms, term) for term in self._terms()}

        weights = token_weights(batch)
        per_token = self._score(losses, batch)
        return {term: tf.reduce_sum(value * weights) for term, value in per_token.items()}

    def coefficients(self) -> dict[str, float]:
        return {"z_loss": self.p.z_loss}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        weights = token_weights(batch)
        per_token = self._score(_plain_scores, batch)
        states = {name: weighted_mean(value, weights) for name, value in per_token.items()}
        if self.has_answers(batch):
            right = per_token["accuracy"]
            states["exact_match"] = exact_match(right, batch["segments"], weights)
        if "bytes" in batch:
            size = weighted_mean(batch["bytes"], batch["weights"])["sum"]
            states["bits_per_byte"] = mean(bits(states["loss"]["sum"]), size)
        return states

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the likeliest token at each position, given the true tokens before it.

        These are `tokens`, int32 [B, T], and `log_probs`, float32 [B, T], their log-probabilities,
        in nats. If the batch has `targets`, `target_log_probs`, float32 [B, T], are the targets'
        log-probabilities. Values at padding are meaningless.
        """
        has_targets = "targets" in batch
        targets = batch["targets"] if has_targets else tf.zeros_like(batch["tokens"])
        x, chunk_size = self.activations(batch), self.p.chunk_size
        scores = score_in_chunks(self.model, _predictions, x, targets, chunk_size=chunk_size)
        scores["tokens"] = tf.cast(scores["tokens"], tf.int32)
        return scores if has_targets else {k: scores[k] for k in ("tokens", "log_probs")}

    def has_answers(self, batch: Batch) -> bool:
        """Returns whether `target_weights`, [B, T], mark answers, so that `exact_match` counts."""
        return "target_weights" in batch

    def results(self, means: dict[str, float]) -> dict[str, float]:
        return means | {"perplexity": perplexity(means["loss"])}

    def loss_metrics(self) -> dict[str, str]:
        return {} if self.p.label_smoothing else {"cross_entropy": "loss"}

    def check_positions(self, num_positions: int) -> None:
        for layer in self.model.tree():
            if isinstance(layer, LearnedPositions) and num_positions > layer.p.max_length:
                raise ParamError(
                    f"the texts take {num_positions} positions, but {layer.path} has"
                    f" max_length={layer.p.max_length}"
                )

    def _terms(self) -> tuple[str, ...]:
        return ("cross_entropy", "z_loss") if self.p.z_loss else ("cross_entropy",)

    def _score(self, function: Callable[..., Any], batch: Batch) -> Any:
        """Applies a function to the logits, [B, C, V], and targets, [B, C], of a batch."""
        x, chunk_size = self.activations(batch), self.p.chunk_size
        return score_in_chunks(self.model, function, x, batch["targets"], chunk_size=chunk_size)


def token_weights(batch: Batch) -> tf.Tensor:
    """Returns the weight of each target of a batch in the loss, float32 [B, T].

    It is 0 for padding (segment 0). `weights` are [B], `target_weights`, if any, [B, T].
    """
    weights = tf.cast(batch["segments"] > 0, tf.float32) * batch["weights"][:, None]
    return weights * batch["target_weights"] if "target_weights" in batch else weights


def exact_match(right: tf.Tensor, segments: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the state of the fraction of documents whose weighted targets are all right.

    `right`, float32 [B, T], is 1 where the prediction is right, else 0. `segments`, int32 [B, T],
    are the documents, each of consecutive positions. `weights`, float32 [B, T], belong to the
    targets; a document whose targets all have weight 0 is ignored.
    """
    batch, length = size_of(segments, 0), size_of(segments, 1)
    begins = tf.cast(tf.not_equal(segments[:, 1:], segments[:, :-1]), tf.int32)
    run = tf.pad(tf.cumsum(begins, axis=1), [[0, 0], [1, 0]])
    run += length * tf.range(batch)[:, None]
    counted = tf.cast(weights > 0, tf.float32)
    per_target = tf.stack([counted, counted * (1.0 - right)], axis=-1)
    sums = tf.math.unsorted_segment_sum(per_target, run, batch * length)
    return weighted_mean(sums[:, 1] == 0, sums[:, 0] > 0)


def _plain_scores(logits: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the per-token metrics, float32 [B, T], of logits [B, T, V], targets [B, T]."""
    right = tf.argmax(logits, axis=-1, output_type=tf.int32) == targets
    return {"loss": cross_entropy(logits, targets), "accuracy": tf.cast(right, tf.float32)}


def _predictions(logits: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the likeliest tokens, and log-probabilities of these and of the targets: [B, T].

    `logits` are [B, T, V], `targets` int32 [B, T]. All are float32, which is exact for token ids.
    """
    tokens = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
        "tokens": tf.cast(tokens, tf.float32),
        "log_probs": log_probs(logits, tokens),
        "target_log_probs": log_probs(logits, targets),
    }
