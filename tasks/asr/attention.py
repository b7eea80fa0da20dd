"""Speech recognition by attention: Listen, Attend and Spell (LAS, Chan et al. 2016).

Axes: B utterances, T frames, T' frames of the encoder, U labels of an utterance, N = U + 1 tokens
with the end, K hypotheses, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.decode.caches import empty_caches, stepper
from lingo.decode.decoding import Decoding
from lingo.decode.pruned_beam import PrunedBeam
from lingo.layers.inputs import CallInputs
from lingo.learner.task import Batch
from lingo.metrics.metric import weighted_mean
from lingo.models.speech.las import LasDecoder
from lingo.ops import random
from lingo.ops.losses import token_losses
from lingo.ops.shape import size_of
from lingo.ops.speech.ctc import BLANK
from tasks.asr.recognition import Encoded, Recognition

_ABSENT = -1e30  # log-probability of an absent hypothesis


class AttentionRecognition(Recognition):
    """A decoder that attends to the frames of an encoder and writes the labels, then the end.

    The loss is the cross-entropy of each label and the end, given the true labels before it
    (teacher forcing), averaged over these tokens of the whole batch. An utterance without frames is
    not feasible. `decoding` finds the predictions: `PrunedBeam`, Lingvo's beam search, or
    `Sampling` with temperature 0, which is greedy. Metrics are `loss`, without label smoothing;
    `accuracy`, the share of tokens that are the likeliest ones after the true labels before them;
    and `feasible`. There is no `label_error_rate`.
    """

    decoder: LasDecoder = LasDecoder  # from labels and frames to logits
    decoding: Decoding = PrunedBeam  # finds the hypotheses; it may write U labels and the end
    label_smoothing: float = 0.0  # part of a target's probability, spread evenly over all tokens
    vocab_size: int  # V, at least the number of ids of the input, which offers it
    start_id: int = 2  # the id before a text; no label may have it
    end_id: int = 1  # the id after a text; no label may have it

    TERM = "cross_entropy"

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_fraction(p, "label_smoothing")
        for name in ("start_id", "end_id"):
            if not 0 <= getattr(p, name) < p.vocab_size:
                raise ParamError(
                    f"{name}={getattr(p, name)} is not in 0..{p.vocab_size - 1}, the ids of"
                    f" vocab_size={p.vocab_size}"
                )

    def setup(self) -> None:
        super().setup()
        p = self.p
        sizes = {"vocab_size": p.vocab_size, "memory_dim": self.encoder_dim}
        self.decoder = p.decoder.build(**sizes)
        self.decoding = p.decoding.build(max_tokens=p.max_labels + 1)

    def check_input(self, offers: Mapping[str, Any]) -> None:
        given = offers.get("vocab_size", 0)
        if given > self.p.vocab_size:
            raise ParamError(
                f"task.vocab_size={self.p.vocab_size}, but the input has {given} token ids"
            )
        super().check_input({**offers, "vocab_size": self.p.vocab_size} if given else offers)

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        encoded = self.encode(batch)
        logits, targets, is_target = self._logits(encoded, batch)
        losses = tf.reduce_sum(token_losses(logits, targets).cross_entropy * is_target, axis=1)
        right = tf.argmax(logits, axis=-1, output_type=tf.int32) == targets
        is_feasible = self.is_feasible(batch)
        weights = batch["weights"] * tf.cast(is_feasible, tf.float32)
        return {
            "loss": self.mean_loss(losses, batch),
            "accuracy": weighted_mean(right, is_target * weights[:, None]),
            "feasible": weighted_mean(is_feasible, batch["weights"]),
        }

    def loss_metrics(self) -> dict[str, str]:
        return {} if self.p.label_smoothing else super().loss_metrics()

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns hypotheses, the best first; without [K] and scores if there is only one.

        These are `labels`, int32 [B, K, U], padded with 0; `num_labels`, int32 [B, K], 0 for an
        absent hypothesis; and `scores`, float32 [B, K], their log-probabilities in nats, the end
        included; -1e30 for an absent hypothesis.
        """
        found = self.search(self.encode(batch))
        tokens, most = found["tokens"], self.p.max_labels
        before_end = tf.cumsum(tf.cast(tokens == self.p.end_id, tf.int32), axis=2) == 0
        scores = tf.maximum(tf.reduce_sum(found["log_probs"], axis=2), _ABSENT)
        before_end &= (scores > _ABSENT)[:, :, None]
        labels = tf.where(before_end, tokens, BLANK)[:, :, :most]
        counts = tf.reduce_sum(tf.cast(before_end, tf.int32), axis=2)
        results = {"labels": labels, "num_labels": tf.minimum(counts, most)}
        if self.decoding.p.num_samples == 1:
            return {name: value[:, 0] for name, value in results.items()}
        return results | {"scores": scores}

    def search(self, encoded: Encoded) -> dict[str, tf.Tensor]:
        """Returns `tokens`, int32 [B, K, N], and `log_probs`, float32 [B, K, N], of hypotheses.

        They are as `Decoding.decode` returns them.
        """
        size = size_of(encoded.frames, 0)
        zeros = tf.zeros([size], tf.int32)
        batch = {
            "prefix": tf.fill([size, 1], self.p.start_id),
            "rest": tf.zeros([size, 0], tf.int32),
            "rest_length": zeros,
            "rows": tf.range(size),
            "end_id": zeros + self.p.end_id,
            "source_segments": encoded.segments,
        }
        step: Any = stepper(self.decoder, batch, self.decoding)
        inputs = CallInputs(memory=encoded.frames, memory_segments=encoded.segments)
        caches = empty_caches(self.decoder, batch, self.decoding)
        read, key = partial(step, inputs=inputs), random.root_key(0)
        return self.decoding.decode(step, caches, batch, key, read=read)

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["features"]
        memory = self.encoder.output_shape(shape)
        tokens = (shape[0], self.p.max_labels + 1)
        return self.encoder.flops(shape) + self.decoder.flops(tokens, memory_length=memory[1])

    def losses(self, encoded: Encoded, batch: Batch) -> tf.Tensor:
        logits, targets, is_target = self._logits(encoded, batch)
        terms = token_losses(logits, targets, label_smoothing=self.p.label_smoothing)
        return tf.reduce_sum(terms.cross_entropy * is_target, axis=1)

    def num_targets(self, batch: Batch) -> tf.Tensor:
        """Returns the number of labels and the end, int32 [B]."""
        return batch["num_labels"] + 1

    def _logits(self, encoded: Encoded, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns logits [B, N, V], targets int32 [B, N], and which count, float32 [B, N]."""
        labels, num_labels = batch["labels"], batch["num_labels"]
        tokens = tf.pad(labels, [[0, 0], [1, 0]], constant_values=self.p.start_id)
        place = tf.range(size_of(tokens, 1))
        is_end = place == num_labels[:, None]
        targets = tf.where(is_end, self.p.end_id, tf.pad(labels, [[0, 0], [0, 1]]))
        inputs = CallInputs(memory=encoded.frames, memory_segments=encoded.segments)
        logits = self.decoder(tokens, inputs=inputs)
        return logits, targets, tf.cast(place <= num_labels[:, None], tf.float32)
