"""Object detection: the classes and boxes of an image's objects.

Axes: B batch, H height, W width, C channels, N true boxes, A anchors, K classes, D detections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.learner.task import Batch, Task
from lingo.metrics.mean_average_precision import detection_table
from lingo.metrics.media import Media
from lingo.metrics.metric import weighted_mean
from lingo.metrics.sample_picture import Boxes, box_image
from lingo.models.detection.ssd import AnchorOutputs, Ssd
from lingo.ops.boxes import (
    decode_boxes,
    encode_boxes,
    hard_negatives,
    match_anchors,
    select_detections,
)
from lingo.ops.losses import cross_entropy, smooth_l1
from tasks.image.levels import Levels, check_levels, normalize_levels
from tasks.image.offers import check_images, check_offers


class ObjectDetection(Task):
    """The loss of SSD (Liu et al. 2016, eq. 1) and its detections, as in MLPerf's reference.

    Levels of uint8 images are scaled to 0..1; then the model sees (image - mean) / std.

    Each object is matched with the anchor that overlaps it most. Any other anchor is matched with
    an object that it overlaps by at least `min_overlap`. The loss has two terms, `boxes` and
    `classes`: sums over an image's anchors, divided by its number of matched anchors, then averaged
    over images. An image without an object has a loss of 0. `boxes` is the smooth L1 loss of the
    matched anchors' codes. `classes` is the cross-entropy of the matched anchors and of hard
    negatives: for each matched anchor, `negatives` unmatched anchors of largest cross-entropy.

    Predictions are boxes with a score above `min_score`, except those that overlap a likelier box
    of their class by more than `max_overlap`. Metrics are the terms of the loss and, if
    `num_eval_images` is set, COCO's average precisions and recalls: `ap`, `ap50` and ten more in
    `coco/`. They need `pip install 'lingo-tf[detection]'`. Each evaluation shows some images with
    their boxes.

    Batches: `images`, uint8, or any float type, [B, H, W, C]; `boxes`, float32 [B, N, 4], as (top,
    left, bottom, right) in parts of the image; `box_labels`, int32 [B, N], 1..K, and 0 for absent
    boxes; `weights`, float32 [B]; and perhaps `is_crowd`, bool [B, N], True for boxes around
    crowds, which match no anchor: to the loss they are background.
    """

    model: Ssd
    num_classes: int  # K, without the background; the input offers it
    image_shape: tuple[int, int, int]  # (H, W, C); the input offers it
    class_names: tuple[str, ...] = ()  # of the first classes, to show; the input may offer them
    mean: Levels = 0.0  # of pixels, scaled to 0..1; one number, or one per channel
    std: Levels = 1.0  # standard deviation of pixels; as `mean`
    min_overlap: float = 0.5  # intersection over union of an anchor and its object
    negatives: float = 3.0  # unmatched anchors in the loss for each matched one
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
        ranges.check_not_negative(p, "negatives", "num_eval_images")
        ranges.check_positive(p, "min_overlap")
        for field in ("min_overlap", "max_overlap", "shown_score"):
            if not 0 <= getattr(p, field) <= 1:
                raise ParamError(f"{field}={getattr(p, field)} is not in 0..1")
        for field in ("mean", "std"):
            check_levels(field, getattr(p, field), p.image_shape)
        if len(p.class_names) > p.num_classes:
            raise ParamError(
                f"class_names has {len(p.class_names)} names, but num_classes={p.num_classes}"
            )

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build(image_shape=p.image_shape, num_classes=p.num_classes)

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
            Boxes(boxes[labels > 0], [names[label] for label in labels[labels > 0]])
            for boxes, labels in zip(batch["boxes"], batch["box_labels"], strict=True)
        ]
        arrays = [predictions[name] for name in ("boxes", "box_labels", "box_scores")]
        guesses = []
        for boxes, labels, scores in zip(*arrays, strict=True):
            shown = (labels > 0) & (scores >= self.p.shown_score)
            texts = [
                f"{names[label]} {score:.0%}"
                for label, score in zip(labels[shown], scores[shown], strict=True)
            ]
            guesses.append(Boxes(boxes[shown], texts))
        return {"boxes": box_image(batch["images"], truths=truths, predictions=guesses)}

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["images"]
        return self.model.flops(shape)

    def _outputs(self, batch: Batch) -> AnchorOutputs:
        """Returns codes, float32 [B, A, 4], and logits, float32 [B, A, K + 1], of the images."""
        check_images(batch["images"], field="image_shape", shape=self.p.image_shape)
        images = normalize_levels(batch["images"], mean=self.p.mean, std=self.p.std)
        return AnchorOutputs(*(tf.cast(output, tf.float32) for output in self.model(images)))

    def _detections(self, outputs: AnchorOutputs) -> dict[str, tf.Tensor]:
        """Returns the predictions for a [B, ...] batch, as `predict` does."""
        p = self.p
        found = select_detections(
            tf.clip_by_value(decode_boxes(outputs.codes, self._anchors()), 0.0, 1.0),
            tf.nn.softmax(outputs.logits)[:, :, 1:],
            min_score=p.min_score,
            max_overlap=p.max_overlap,
            max_per_class=p.max_per_class,
            max_detections=p.max_detections,
        )
        return {"boxes": found.boxes, "box_labels": found.labels, "box_scores": found.scores}

    def _losses(self, outputs: AnchorOutputs, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns name of a loss term -> its value for each image, float32 [B]."""
        p, labels = self.p, batch["box_labels"]
        if "is_crowd" in batch:
            labels = tf.where(batch["is_crowd"], 0, labels)
        anchors = self._anchors()
        matches = match_anchors(batch["boxes"], labels, anchors, min_overlap=p.min_overlap)
        is_object = matches.labels > 0
        errors = outputs.codes - encode_boxes(matches.boxes, anchors)
        boxes = tf.reduce_sum(smooth_l1(errors), axis=-1)
        classes = cross_entropy(outputs.logits, matches.labels)
        negatives = hard_negatives(classes, is_object, per_object=p.negatives)
        num_objects = tf.reduce_sum(tf.cast(is_object, tf.float32), axis=1)

        def mean(losses: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
            total = tf.reduce_sum(tf.where(counted, losses, 0.0), axis=1)
            return tf.math.divide_no_nan(total, num_objects)

        return {"boxes": mean(boxes, is_object), "classes": mean(classes, is_object | negatives)}

    def _anchors(self) -> tf.Tensor:
        return tf.constant(self.model.anchors())

    def _names(self) -> list[str]:
        """Returns the names of all labels, or their numbers; "" for label 0, which is no object."""
        names = self.p.class_names
        return ["", *names, *map(str, range(len(names) + 1, self.p.num_classes + 1))]
