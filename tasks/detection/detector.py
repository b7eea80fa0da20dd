"""What tasks of detection share: levels of images, losses and metrics per image, pictures of boxes.

Axes: B batch, H height, W width, C channels, N true boxes, K classes, D detections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.learner.task import Batch, Task
from lingo.metrics.mean_average_precision import detection_table
from lingo.metrics.media import Media
from lingo.metrics.metric import weighted_mean
from lingo.metrics.sample_picture import Boxes, box_image
from lingo.ops.boxes import select_detections
from tasks.image.levels import Levels, check_levels, normalize_levels
from tasks.image.offers import check_images, check_offers


class Detector(Task, interface=True):
    """A model that finds objects in images. Subclasses define the three methods at the end.

    Levels of uint8 images are scaled to 0..1; then the model sees (image - mean) / std. Each loss
    term is a number for each image, averaged over images.
    """

    num_classes: int  # K, without the background; the input offers it
    image_shape: tuple[int, int, int]  # (H, W, C); the input offers it
    class_names: tuple[str, ...] = ()  # of the first classes, to show; the input may offer them
    mean: Levels = 0.0  # of pixels, scaled to 0..1; one number, or one per channel
    std: Levels = 1.0  # standard deviation of pixels; as `mean`
    min_score: float = 0.05  # probability of a class, below which no box is predicted
    max_overlap: float = 0.5  # intersection over union of two predictions of a class
    max_per_class: int = 200  # likeliest boxes of a class that are considered
    max_detections: int = 200  # D
    num_eval_images: int = 0  # at least the largest evaluation's, for average precisions; 0: none
    shown_score: float = 0.5  # predictions of at least this score are shown in TensorBoard

    def check(self) -> None:
        p = self.p
        ranges.check_fraction(p, "min_score")
        ranges.check_positive(p, "std", "max_per_class", "max_detections")
        ranges.check_not_negative(p, "num_eval_images")
        for field in ("max_overlap", "shown_score"):
            check_share(field, getattr(p, field))
        for field in ("mean", "std"):
            check_levels(field, getattr(p, field), p.image_shape)
        if len(p.class_names) > p.num_classes:
            raise ParamError(
                f"class_names has {len(p.class_names)} names, but num_classes={p.num_classes}"
            )

    def check_input(self, offers: Mapping[str, Any]) -> None:
        p, wanted = self.p, "GlyphSceneInput, or another with boxes"
        check_offers(offers, num_classes=p.num_classes, image_shape=p.image_shape, wanted=wanted)

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        weights = batch["weights"]
        return {
            term: tf.reduce_sum(losses * weights)
            for term, losses in self._losses(self._outputs(batch), batch).items()
        }

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        outputs, num_images = self._outputs(batch), self.p.num_eval_images
        states = {
            f"loss/{term}": weighted_mean(losses, batch["weights"])
            for term, losses in self._losses(outputs, batch).items()
        }
        if num_images:
            detections = self._detections(outputs)
            states["coco"] = detection_table(batch, detections, num_examples=num_images)
        return states

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics, with `coco/ap` and `coco/ap50` as `ap` and `ap50`, to be printed."""
        shown = {"coco/ap": "ap", "coco/ap50": "ap50"}
        return {shown.get(name, name): value for name, value in means.items()}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the objects found in `images`, the likeliest first, padded with zeros.

        `boxes`, float32 [B, D, 4], as in batches; `box_labels`, int32 [B, D]; `box_scores`, float32
        [B, D], the probabilities of the labels.
        """
        return self._detections(self._outputs(batch))

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        if batch["images"].shape[-1] not in (1, 3):
            return {}
        names = self._names()
        truths = [
            _objects(one, one["box_labels"] > 0, [names[label] for label in one["box_labels"]])
            for one in _examples(batch)
        ]
        guesses = []
        for one in _examples(predictions):
            labels, scores = one["box_labels"], one["box_scores"]
            texts = [f"{names[k]} {score:.0%}" for k, score in zip(labels, scores, strict=True)]
            guesses.append(_objects(one, (labels > 0) & (scores >= self.p.shown_score), texts))
        return {"boxes": box_image(batch["images"], truths=truths, predictions=guesses)}

    def _images(self, batch: Batch) -> tf.Tensor:
        """Returns the images as the model sees them, float32 [B, H, W, C]."""
        check_images(batch["images"], field="image_shape", shape=self.p.image_shape)
        return normalize_levels(batch["images"], mean=self.p.mean, std=self.p.std)

    def _names(self) -> list[str]:
        """Returns the names of all labels, or their numbers; "" for label 0, which is no object."""
        names = self.p.class_names
        return ["", *names, *map(str, range(len(names) + 1, self.p.num_classes + 1))]

    def _select(self, boxes: tf.Tensor, scores: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the likeliest boxes of all classes as `predict` does, {name: [B, D, ...]}.

        `boxes`, float32 [B, A, K, 4], or [B, A, 1, 4] for boxes of all classes, are clipped to the
        image; `scores` are float32 [B, A, K].
        """
        p = self.p
        found = select_detections(
            tf.clip_by_value(boxes, 0.0, 1.0),
            scores,
            min_score=p.min_score,
            max_overlap=p.max_overlap,
            max_per_class=p.max_per_class,
            max_detections=p.max_detections,
        )
        return {"boxes": found.boxes, "box_labels": found.labels, "box_scores": found.scores}

    # ---- for subclasses

    def _outputs(self, batch: Batch) -> Any:
        """Returns the model's results for all images, for losses and predictions."""
        raise self._missing_method("_outputs", "it returns the model's results for a batch")

    def _detections(self, outputs: Any) -> dict[str, tf.Tensor]:
        """Returns the predictions of `predict`, {name: [B, ...]}."""
        raise self._missing_method("_detections", "it returns predictions, {name: [B, ...]}")

    def _losses(self, outputs: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns name of a loss term -> its value for each image, float32 [B]."""
        raise self._missing_method("_losses", "it returns {term: float32 [B]}")


def _examples(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yields the arrays of the objects of each example, {name: [N, ...]}."""
    names = [name for name in ("boxes", "box_labels", "box_scores", "masks") if name in arrays]
    for rows in zip(*(arrays[name] for name in names), strict=True):
        yield dict(zip(names, rows, strict=True))


def _objects(arrays: Mapping[str, np.ndarray], shown: np.ndarray, texts: Sequence[str]) -> Boxes:
    """Returns the objects of an example that are `shown`, bool [N], with their texts, [N]."""
    masks = arrays["masks"][shown] if "masks" in arrays else None
    return Boxes(arrays["boxes"][shown], [texts[i] for i in np.flatnonzero(shown).tolist()], masks)


def true_labels(batch: Batch) -> tf.Tensor:
    """Returns the labels of a batch's boxes, int32 [B, N], with 0 for boxes around crowds."""
    labels = batch["box_labels"]
    return tf.where(batch["is_crowd"], 0, labels) if "is_crowd" in batch else labels


def check_share(field: str, value: float) -> None:
    """Raises ParamError unless the value of a field is in 0..1."""
    if not 0 <= value <= 1:
        raise ParamError(f"{field}={value} is not in 0..1")
