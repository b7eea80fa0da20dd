"""Image classification: one of several classes for each image.

Axes: B batch, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers.layer import Layer
from lingo.learner.task import Batch, Task
from lingo.metrics.metric import weighted_mean
from lingo.ops.losses import cross_entropy, token_losses


class ImageClassification(Task):
    """Cross-entropy of the class of an image, averaged over the images of the whole batch.

    Images of weight 0 are ignored. Label smoothing affects training only (Szegedy et al. 2016, sec.
    7). Metrics are the plain cross-entropy and the accuracy: the fraction of images whose largest
    logit is that of the right class.

    Batches: `images`, [B, H, W, C]; `labels`, int [B], in 0..K-1; `weights`, float32 [B].
    """

    model: Layer  # from images [B, H, W, C] to logits [B, K], with `output_shape`
    num_classes: int  # K; the input offers it
    image_shape: tuple[int, int, int]  # (H, W, C); the input offers it
    label_smoothing: float = 0.0  # part of a label's probability that goes to all classes alike

    def check(self) -> None:
        ranges.check_fraction(self.p, "label_smoothing")

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build()
        if not self.model.declares_late:
            self._check_logits(self.model.output_shape([1, *p.image_shape]))

    def check_input(self, offers: Mapping[str, Any]) -> None:
        if "image_shape" not in offers:
            raise ParamError("the input has no images: take ImageInput, or another with images")
        if offers["num_classes"] > self.p.num_classes:
            raise ParamError(
                f"task.num_classes={self.p.num_classes}, but the input has"
                f" {offers['num_classes']} classes"
            )
        if tuple(offers["image_shape"]) != self.p.image_shape:
            raise ParamError(
                f"task.image_shape={self.p.image_shape}, but the input has images of"
                f" {tuple(offers['image_shape'])}"
            )

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        return super().loss_denominators(batch) | {"cross_entropy": tf.reduce_sum(batch["weights"])}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        logits, labels = self._logits(batch), batch["labels"]
        losses = token_losses(
            logits[:, None], labels[:, None], label_smoothing=self.p.label_smoothing
        )
        return {"cross_entropy": tf.reduce_sum(losses.cross_entropy[:, 0] * batch["weights"])}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        logits, labels = self._logits(batch), batch["labels"]
        right = tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels)
        return {
            "loss": weighted_mean(cross_entropy(logits, labels), batch["weights"]),
            "accuracy": weighted_mean(right, batch["weights"]),
        }

    def loss_metrics(self) -> dict[str, str]:
        return {} if self.p.label_smoothing else {"cross_entropy": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `logits`, float32 [B, K], and the likeliest `labels`, int32 [B], of `images`."""
        logits = tf.cast(self._logits(batch), tf.float32)
        return {"logits": logits, "labels": tf.argmax(logits, axis=-1, output_type=tf.int32)}

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["images"]
        return self.model.flops(shape)

    def _logits(self, batch: Batch) -> tf.Tensor:
        """Returns the logits of a batch's images, [B, K], any float type."""
        logits = self.model(batch["images"])
        self._check_logits(logits.shape)
        return logits

    def _check_logits(self, shape: Sequence[int | None]) -> None:
        """Raises ParamError unless the shape is [B, K]."""
        if list(shape[1:]) != [self.p.num_classes]:
            raise ParamError(
                f"the model makes {list(shape)} of an image, not a logit for each of"
                f" num_classes={self.p.num_classes}"
            )
