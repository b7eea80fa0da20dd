"""Image classification: one of several classes for each image.

Axes: B batch, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.stacks.micro_batches import first_shape
from lingo.layers.window import annotate_image
from lingo.learner.task import Batch, Task
from lingo.metrics.class_names import name_classes
from lingo.metrics.classification import confusion, top_k_accuracy
from lingo.metrics.media import Media
from lingo.metrics.metric import weighted_mean
from lingo.metrics.results import state_summaries
from lingo.metrics.sample_picture import sample_image
from lingo.ops import random
from lingo.ops.losses import shares_cross_entropy, token_losses
from tasks.image.levels import Levels, check_levels, normalize_levels
from tasks.image.offers import check_images, check_offers

_RESIZE = (
    "resize them as the evaluation input does, or give the files, which are then resized so:"
    " --input=FOLDER or model.predict('cat.png')"
)
AUXILIARY = "auxiliary_cross_entropy"
"""The loss term of auxiliary heads."""


class ImageClassification(Task):
    """Cross-entropy of each image's class, averaged over the images of the whole batch.

    Levels of uint8 images are scaled to 0..1; then the model sees (image - mean) / std. Images of
    weight 0 are ignored. Label smoothing affects training only (Szegedy et al. 2016, sec. 7).
    Labels are class numbers, or, for mixed images, shares of classes, which are smoothed in the
    same way. A model may return a tuple: its logits, then the logits of auxiliary heads, whose
    cross-entropies are added in training.

    Metrics are the plain cross-entropy; the accuracy (the fraction of images whose right class has
    the largest logit); and, with more than 5 classes, `top5` (the fraction whose right class is
    among the five largest logits). The right class of a mixed image has the largest share. Each
    evaluation shows some images with label and prediction in TensorBoard.

    Batches: `images`, uint8, or any float type, [B, H, W, C]; `labels`, int [B], in 0..K-1, or
    float32 [B, K]; `weights`, float32 [B].
    """

    model: Layer  # from images [B, H, W, C] to logits [B, K], with `output_shape`
    num_classes: int  # K; the input offers it
    image_shape: tuple[int, int, int]  # (H, W, C); the input offers it
    class_names: tuple[str, ...] = ()  # of the first classes, to show; the input may offer them
    mean: Levels = 0.0  # of pixels, scaled to 0..1; one number, or one per channel
    std: Levels = 1.0  # standard deviation of pixels; as `mean`
    flip_rate: float = 0.0  # probability that a training step mirrors an image
    label_smoothing: float = 0.0  # part of a label's probability, spread evenly over all classes
    auxiliary_weight: float = 0.4  # of each auxiliary head's cross-entropy, if the model has some
    confusion: bool = False  # evaluations count (label, guess) pairs: precision, recall, a picture

    def check(self) -> None:
        p = self.p
        ranges.check_fraction(p, "label_smoothing", "flip_rate")
        ranges.check_positive(p, "std", "auxiliary_weight")
        for field in ("mean", "std"):
            check_levels(field, getattr(p, field), p.image_shape)
        if len(p.class_names) > p.num_classes:
            raise ParamError(
                f"class_names has {len(p.class_names)} names, but num_classes={p.num_classes}"
            )

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build()
        if not self.model.declares_late:
            self._check_logits(first_shape(self.model.output_shape([1, *p.image_shape])))

    def check_input(self, offers: Mapping[str, Any]) -> None:
        p, wanted = self.p, "ImageInput, or another with images"
        check_offers(offers, num_classes=p.num_classes, image_shape=p.image_shape, wanted=wanted)

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        return super().loss_denominators(batch) | {"cross_entropy": tf.reduce_sum(batch["weights"])}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        check_images(batch["images"], field="image_shape", shape=self.p.image_shape)

        def total(logits: tf.Tensor) -> tf.Tensor:
            smoothing = self.p.label_smoothing
            losses = self._cross_entropy(logits, batch["labels"], smoothing=smoothing)
            return tf.reduce_sum(losses * batch["weights"])

        logits, *others = self._all_logits(batch)
        auxiliary = {AUXILIARY: tf.add_n([total(other) for other in others])} if others else {}
        return {"cross_entropy": total(logits)} | auxiliary

    def coefficients(self) -> dict[str, float]:
        return {AUXILIARY: self.p.auxiliary_weight}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        check_images(batch["images"], field="image_shape", shape=self.p.image_shape)
        logits, weights = self._logits(batch), batch["weights"]
        losses = self._cross_entropy(logits, batch["labels"])
        labels = _right_classes(batch["labels"])
        guesses = tf.argmax(logits, axis=-1, output_type=labels.dtype)
        states = {
            "loss": weighted_mean(losses, weights),
            "accuracy": weighted_mean(tf.equal(guesses, labels), weights),
        }
        if self.p.num_classes > 5:
            states["top5"] = top_k_accuracy(logits, labels, weights, k=5)
        if self.p.confusion:
            num_classes = self.p.num_classes
            states["classes"] = confusion(labels, guesses, weights, num_classes=num_classes)
        return states

    def loss_metrics(self) -> dict[str, str]:
        return {} if self.p.label_smoothing else {"cross_entropy": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `logits`, float32 [B, K], and the likeliest `labels`, int32 [B], of `images`.

        Raises ParamError for images of another shape than `image_shape`.
        """
        check_images(batch["images"], field="image_shape", shape=self.p.image_shape, advice=_RESIZE)
        logits = tf.cast(self._logits(batch), tf.float32)
        return {"logits": logits, "labels": tf.argmax(logits, axis=-1, output_type=tf.int32)}

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        images, logits, guesses = batch["images"], predictions["logits"], predictions["labels"]
        if images.shape[-1] not in (1, 3):
            return {}
        labels = batch["labels"]
        labels = labels.argmax(-1) if labels.ndim == 2 else labels
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        shares = scores.max(-1) / scores.sum(-1)
        names = self._names()
        picture = sample_image(
            images,
            labels=[names[i] for i in labels],
            predictions=[f"{names[i]}  {s:.0%}" for i, s in zip(guesses, shares, strict=True)],
            is_right=labels == guesses,
        )
        return {"predictions": picture}

    def metric_summaries(
        self, name: str, state: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        return dict(state_summaries(name, state, class_names=self._names()))

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["images"]
        return self.model.flops(shape)

    def _cross_entropy(
        self, logits: tf.Tensor, labels: tf.Tensor, *, smoothing: float = 0.0
    ) -> tf.Tensor:
        """Returns each image's cross-entropy, float32 [B]; labels are numbers or class shares."""
        if labels.dtype.is_integer:
            losses = token_losses(logits[:, None], labels[:, None], label_smoothing=smoothing)
            return losses.cross_entropy[:, 0]
        if labels.shape[1:] != [self.p.num_classes]:
            raise ParamError(
                f"labels are shares, {labels.dtype.name} {list(labels.shape)}, but the task has"
                f" num_classes={self.p.num_classes}: set num_classes in the input that mixes images"
            )
        return shares_cross_entropy(logits, labels, label_smoothing=smoothing)

    def _logits(self, batch: Batch) -> tf.Tensor:
        """Returns the logits of a batch's images, [B, K], any float type."""
        return self._all_logits(batch)[0]

    def _all_logits(self, batch: Batch) -> list[tf.Tensor]:
        """Returns the logits of a batch's images, then each auxiliary head's: [B, K] each."""
        images = self._flip(batch["images"])
        images = normalize_levels(images, mean=self.p.mean, std=self.p.std)
        results = tf.nest.flatten(self.model(annotate_image(images)))
        for logits in results:
            self._check_logits(logits.shape)
        return results

    def _flip(self, images: tf.Tensor) -> tf.Tensor:
        """Returns images [B, H, W, C]; in training each may be mirrored, by its own random key."""
        call, rate = context.current(), self.p.flip_rate
        if not (call.training and rate):
            return images
        draws = random.uniform(random.fold(self.random_key("flip"), call.rows))
        return tf.where((draws < rate)[:, None, None, None], tf.reverse(images, [2]), images)

    def _names(self) -> list[str]:
        """Returns the names of all classes, or their numbers."""
        return name_classes(self.p.num_classes, self.p.class_names)

    def _check_logits(self, shape: Sequence[int | None]) -> None:
        """Raises ParamError unless the shape is [B, K]."""
        if list(shape[1:]) != [self.p.num_classes]:
            raise ParamError(
                f"the model makes {list(shape)} of an image, not a logit for each of"
                f" num_classes={self.p.num_classes}"
            )


def _right_classes(labels: tf.Tensor) -> tf.Tensor:
    """Returns the class of each image, int [B]; labels are numbers [B] or shares [B, K]."""
    if labels.dtype.is_integer:
        return labels
    return tf.argmax(labels, axis=-1, output_type=tf.int32)
