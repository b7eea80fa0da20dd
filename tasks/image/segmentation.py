"""Segmentation: one of several classes for each voxel of a volume.

Axes: B batch, D depth, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers.layer import Layer
from lingo.layers.window import annotate_image
from lingo.learner.task import Batch, Task
from lingo.metrics.metric import weighted_mean
from tasks.image.offers import check_images


class Segmentation(Task):
    """Cross-entropy of each voxel's class, averaged over the voxels of the whole batch.

    Metrics are the loss; the accuracy (the fraction of voxels whose right class has the largest
    logit); and `dice`, the Dice coefficient over all volumes. For `dice`, a voxel of class 1 and
    above is an object and class 0 is background: 2 |predicted and true| / (|predicted| + |true|).

    Batches: `images`, any float type, [B, D, H, W, C]; `labels`, int32 [B, D, H, W], in 0..K-1;
    `weights`, float32 [B]. A label out of range makes the loss NaN, so that the step is skipped and
    reported.
    """

    model: Layer  # from volumes [B, D, H, W, C] to logits [B, D, H, W, K], with `output_shape`
    num_classes: int  # K; the input offers it
    volume_shape: tuple[int, int, int, int]  # (D, H, W, C); the input offers it

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build()
        shape = (1, *p.volume_shape[:-1], p.num_classes)
        if (output := self.model.output_shape([1, *p.volume_shape])) != shape:
            raise ParamError(f"the model makes {list(output)} of a volume, not {list(shape)}")

    def check_input(self, offers: Mapping[str, Any]) -> None:
        if not offers:  # arrays: their shapes are known when they are read
            return
        for name in ("volume_shape", "num_classes"):
            mine = getattr(self.p, name)
            if name not in offers or offers[name] != mine:
                raise ParamError(f"task.{name}={mine}, but the input has {offers.get(name)}")

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        return super().loss_denominators(batch) | {
            "cross_entropy": tf.reduce_sum(batch["weights"]) * self._voxels()
        }

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        losses = self._losses(self._logits(batch), batch)
        return {"cross_entropy": tf.reduce_sum(losses * batch["weights"]) * self._voxels()}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        logits, weights = self._logits(batch), batch["weights"]
        guesses = tf.argmax(logits, axis=-1, output_type=tf.int32)
        right = tf.equal(guesses, batch["labels"])
        predicted, true = (tf.cast(x > 0, tf.float32) for x in (guesses, batch["labels"]))
        both = _sum_volumes(predicted * true)
        size = _sum_volumes(predicted + true)
        return {
            "loss": weighted_mean(self._losses(logits, batch), weights),
            "accuracy": weighted_mean(_sum_volumes(right) / self._voxels(), weights),
            "dice": {
                "sum": tf.reduce_sum(2 * both * weights),
                "weight": tf.reduce_sum(size * weights),
            },
        }

    def loss_metrics(self) -> dict[str, str]:
        return {"cross_entropy": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the likeliest `labels`, int32 [B, D, H, W], of `images`."""
        return {"labels": tf.argmax(self._logits(batch), axis=-1, output_type=tf.int32)}

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["images"]
        return self.model.flops(shape)

    def _voxels(self) -> float:
        depth, height, width, _ = self.p.volume_shape
        return float(depth * height * width)

    def _logits(self, batch: Batch) -> tf.Tensor:
        """Returns the logits of a batch's volumes, float32 [B, D, H, W, K]."""
        return tf.cast(self.model(annotate_image(batch["images"])), tf.float32)

    def _losses(self, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the mean cross-entropy of the voxels of each volume, float32 [B]."""
        check_images(batch["images"], field="volume_shape", shape=self.p.volume_shape)
        # TensorFlow's op flattens logits: devices with parts of them would gather all.
        right = tf.reduce_sum(logits * tf.one_hot(batch["labels"], self.p.num_classes), axis=-1)
        losses = tf.reduce_logsumexp(logits, axis=-1) - right
        is_class = (batch["labels"] >= 0) & (batch["labels"] < self.p.num_classes)
        return _sum_volumes(tf.where(is_class, losses, np.nan)) / self._voxels()


def _sum_volumes(x: tf.Tensor) -> tf.Tensor:
    """Sums x, [B, D, H, W] of any type, over each volume; returns float32 [B]."""
    return tf.reduce_sum(tf.cast(x, tf.float32), axis=[1, 2, 3])
