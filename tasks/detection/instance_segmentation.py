"""Instance segmentation: the class, the box and the mask of each object of an image.

Axes: B batch, H height, W width, C channels, N true objects, A anchors, R regions, S sampled
regions, K classes, D detections, L levels of the pyramid, M bins of a mask along each side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers import context
from lingo.learner.task import Batch
from lingo.models.detection.mask_rcnn import MaskRcnn, PyramidOutputs
from lingo.ops import random
from lingo.ops.boxes import decode_boxes, encode_boxes
from lingo.ops.losses import cross_entropy, huber
from lingo.ops.regions import (
    IGNORED,
    Proposals,
    match_regions,
    propose_regions,
    sample_regions,
)
from lingo.ops.roi_align import crop_masks
from lingo.ops.shape import size_of
from tasks.detection.detector import Detector, check_share, true_labels

ANCHOR_VARIANCES = (1.0, 1.0)  # of the codes of anchors
MAX_LOG_RATIO = math.log(1000 / 16)  # of a box's side to its anchor's or region's, as in Detectron
ANCHOR_DELTA, REGION_DELTA = 1 / 9, 1.0  # bounds of the Huber loss
_UNIT = (0.0, 0.0, 1.0, 1.0)


class Regions(NamedTuple):
    """A sample of regions of each image, matched with objects; those with an object come first."""

    boxes: tf.Tensor  # float32 [B, S, 4]
    objects: tf.Tensor  # int32 [B, S], 0..N - 1; 0 where there is no object
    labels: tf.Tensor  # int32 [B, S]; 0: background
    is_counted: tf.Tensor  # bool [B, S], whether there is a region at this place


class InstanceSegmentation(Detector):
    """Mask R-CNN's losses and detections (He et al. 2017), with the settings of Google's code.

    The first stage learns from `num_anchors` anchors of each image, at most half of them with an
    object. An anchor has an object if both overlap by `min_anchor_overlap`, or if no other anchor
    overlaps the object more. It is background if it overlaps every object by less than
    `max_background`. Proposals are the true boxes, and the likeliest regions that do not overlap
    likelier ones of their level by more than `proposal_overlap`. The second stage learns from
    `num_regions` proposals. At most `object_share` of these have an object, which they overlap by
    at least `min_overlap`.

    Each loss term is a mean over an image's sample, then over images. `objectness` is the
    cross-entropy of the first stage's logits. `anchors` is the Huber loss (delta 1/9) of its codes:
    a mean for each level, and the sum of the levels. `classes` is the second stage's cross-entropy,
    `boxes` the Huber loss (delta 1) of the true class's code, `masks` the binary cross-entropy of
    the true class's mask. `anchors`, `boxes` and `masks` are 0 in an image without objects.
    Google's code averages over the objects of a whole batch instead of an image.

    Samples depend on the seed, the step and the example, not on devices. In an evaluation they are
    the same each time.

    Predictions and metrics are `ObjectDetection`'s, with a mask for each box. Each class has its
    own box. `results` names the average precisions of boxes and masks `ap` and `mask_ap`.

    Batches: as for `ObjectDetection`, and `masks`, uint8 [B, N, M', M'], 0 or 1: each object's mask
    inside its box.
    """

    model: MaskRcnn
    min_anchor_overlap: float = 0.7  # intersection over union of an anchor and its object
    max_background: float = 0.3  # a background anchor overlaps every object by less
    num_anchors: int = 256  # in the first stage's loss of an image
    max_per_level: int = 2000  # likeliest anchors of a level that are considered
    num_proposals: int = 1000  # of an image, in training
    eval_max_per_level: int = 1000  # as `max_per_level`, outside training
    eval_num_proposals: int = 1000  # as `num_proposals`, outside training
    proposal_overlap: float = 0.7  # largest intersection over union of two proposals of a level
    num_regions: int = 512  # S, in the second stage's loss of an image
    object_share: float = 0.25  # the largest share of these regions that have an object
    min_overlap: float = 0.5  # intersection over union of a region and its object
    max_per_class: int = 1000  # likeliest boxes of a class that are considered
    max_detections: int = 100  # D
    # average precisions of boxes and of masks to reach; None: `results` has no `target_share`
    targets: tuple[float, float] | None = None

    def check(self) -> None:
        super().check()
        p = self.p
        counts = ("max_per_level", "num_proposals", "eval_max_per_level", "eval_num_proposals")
        ranges.check_positive(p, *counts, "num_anchors", "num_regions")
        ranges.check_positive(p, "min_anchor_overlap", "min_overlap", "targets")
        shares = ("min_anchor_overlap", "max_background", "proposal_overlap", "min_overlap")
        for field in (*shares, "object_share"):
            check_share(field, getattr(p, field))
        if p.max_background > p.min_anchor_overlap:
            raise ParamError(
                f"max_background={p.max_background} is above"
                f" min_anchor_overlap={p.min_anchor_overlap}: an anchor would be both"
            )
        if self._max_objects() < 1:
            raise ParamError(
                f"object_share={p.object_share} of num_regions={p.num_regions} is less than one"
                " region: take more"
            )

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build(image_shape=p.image_shape, num_classes=p.num_classes)

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["images"]
        # calls are recorded in the order of the step: the heads' are not part of the model's
        first = self.model.flops(shape)
        return first + self.model.region_flops(
            shape[0], num_boxes=self.p.num_regions, num_masks=self._max_objects()
        )

    def _max_objects(self) -> int:
        return int(self.p.num_regions * self.p.object_share)

    def _outputs(self, batch: Batch) -> PyramidOutputs:
        maps, codes, logits = self.model(self._images(batch))
        return PyramidOutputs(maps, tf.cast(codes, tf.float32), tf.cast(logits, tf.float32))

    # ---- losses

    def _losses(self, outputs: PyramidOutputs, batch: Batch) -> dict[str, tf.Tensor]:
        labels, keys = true_labels(batch), self._keys(batch)
        terms = self._first_losses(outputs, batch["boxes"], labels, random.fold(keys, 0))
        regions = self._sample(outputs, batch["boxes"], labels, random.fold(keys, 1))
        terms |= self._class_losses(outputs, regions, batch["boxes"])
        return terms | {"masks": self._mask_losses(outputs, regions, batch)}

    def _keys(self, batch: Batch) -> random.Key:
        """Returns the key of each example's samples, [B]."""
        call = context.current()
        if call.key is not None:
            return random.fold(self.random_key("sample"), call.rows)
        ids = batch["example_id"] if "example_id" in batch else batch["rows"]
        return random.fold(random.root_key(0), tf.cast(ids, tf.int32))

    def _first_losses(
        self, outputs: PyramidOutputs, boxes: tf.Tensor, labels: tf.Tensor, keys: random.Key
    ) -> dict[str, tf.Tensor]:
        """Returns the terms of the first stage, each float32 [B]."""
        p, anchors = self.p, tf.constant(self.model.anchors())
        objects = match_regions(
            anchors,
            boxes,
            labels,
            min_overlap=p.min_anchor_overlap,
            max_background=p.max_background,
            claims_best=True,
        )
        sample = sample_regions(objects, keys, num=p.num_anchors, max_objects=p.num_anchors // 2)
        logits, codes, own = (
            tf.gather(values, sample.indices, batch_dims=1)
            for values in (outputs.logits, outputs.codes, objects)
        )
        nats = tf.nn.sigmoid_cross_entropy_with_logits(
            tf.cast(sample.is_object, tf.float32), logits
        )
        targets = _targets(
            tf.gather(boxes, tf.maximum(own, 0), batch_dims=1),
            tf.gather(anchors, sample.indices),
            sample.is_object,
            variances=ANCHOR_VARIANCES,
        )
        errors = tf.reduce_mean(huber(codes - targets, delta=ANCHOR_DELTA), -1)
        ends = np.cumsum(self.model.level_sizes())
        level = tf.reduce_sum(tf.cast(tf.expand_dims(sample.indices, -1) >= ends, tf.int32), -1)
        of_level = tf.equal(tf.expand_dims(level, -1), tf.range(len(ends)))  # [B, S, L]
        is_counted = tf.expand_dims(sample.is_object, -1) & of_level
        by_level = _mean(tf.expand_dims(errors, -1), is_counted)
        return {
            "objectness": _mean(nats, sample.is_counted),
            "anchors": tf.reduce_sum(by_level, -1),
        }

    def _propose(self, outputs: PyramidOutputs) -> Proposals:
        """Returns the first stage's proposals, which have no gradient."""
        p = self.p
        if context.current().training:
            limits = {"max_per_level": p.max_per_level, "num": p.num_proposals}
        else:
            limits = {"max_per_level": p.eval_max_per_level, "num": p.eval_num_proposals}
        boxes = decode_boxes(
            tf.stop_gradient(outputs.codes),
            tf.constant(self.model.anchors()),
            variances=ANCHOR_VARIANCES,
            max_log_ratio=MAX_LOG_RATIO,
        )
        return propose_regions(
            tf.clip_by_value(boxes, 0.0, 1.0),
            tf.stop_gradient(outputs.logits),
            level_sizes=self.model.level_sizes(),
            max_overlap=p.proposal_overlap,
            **limits,
        )

    def _sample(
        self, outputs: PyramidOutputs, boxes: tf.Tensor, labels: tf.Tensor, keys: random.Key
    ) -> Regions:
        """Returns the regions that the second stage learns from."""
        p, proposals = self.p, self._propose(outputs)
        regions = tf.concat([proposals.boxes, boxes], 1)
        is_found = tf.concat([proposals.is_found, labels > 0], 1)
        objects = match_regions(
            regions,
            boxes,
            labels,
            min_overlap=p.min_overlap,
            max_background=p.min_overlap,
            claims_best=False,
        )
        objects = tf.where(is_found, objects, IGNORED)
        sample = sample_regions(objects, keys, num=p.num_regions, max_objects=self._max_objects())
        own = tf.maximum(tf.gather(objects, sample.indices, batch_dims=1), 0)
        own = tf.where(sample.is_object, own, 0)
        return Regions(
            tf.gather(regions, sample.indices, batch_dims=1),
            own,
            tf.where(sample.is_object, tf.gather(labels, own, batch_dims=1), 0),
            sample.is_counted,
        )

    def _class_losses(
        self, outputs: PyramidOutputs, regions: Regions, boxes: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns the terms of classes and boxes, each float32 [B]."""
        codes, logits = self.model.classify(outputs.maps, regions.boxes)
        nats = cross_entropy(logits, regions.labels)
        own = _of_class(tf.cast(codes, tf.float32), regions.labels, self.p.num_classes)
        is_object = regions.labels > 0
        truths = tf.gather(boxes, regions.objects, batch_dims=1)
        errors = huber(own - _targets(truths, regions.boxes, is_object), delta=REGION_DELTA)
        return {
            "classes": _mean(nats, regions.is_counted),
            "boxes": _mean(tf.reduce_mean(errors, -1), is_object),
        }

    def _mask_losses(self, outputs: PyramidOutputs, regions: Regions, batch: Batch) -> tf.Tensor:
        """Returns the term of masks, float32 [B]."""
        num = min(self._max_objects(), size_of(regions.boxes, 1))
        boxes, objects, labels = (part[:, :num] for part in regions[:3])
        logits = self._mask_logits(outputs, boxes, labels)
        size = size_of(logits, -1)
        targets = crop_masks(batch["masks"], batch["boxes"], objects, boxes, size=size)
        nats = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        return _mean(tf.reduce_mean(nats, [-2, -1]), labels > 0)

    # ---- predictions

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics, with `coco/ap` and `coco/mask/ap` as `ap` and `mask_ap`, and so on.

        So `ap`, `ap50`, `mask_ap` and `mask_ap50` are printed. With `targets`, `target_share` is
        the smaller ratio of an average precision to its target.
        """
        shown = {"coco/mask/ap": "mask_ap", "coco/mask/ap50": "mask_ap50"}
        found = {shown.get(name, name): v for name, v in super().results(means).items()}
        if self.p.targets is not None and "mask_ap" in found:
            values = zip((found["ap"], found["mask_ap"]), self.p.targets, strict=True)
            found["target_share"] = min(value / target for value, target in values)
        return found

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the objects found in `images`, the likeliest first, padded with zeros.

        `boxes`, float32 [B, D, 4], as in batches; `box_labels`, int32 [B, D]; `box_scores`, float32
        [B, D], the probabilities of the labels; `masks`, float32 [B, D, M, M], for each bin of the
        box the probability that it belongs to the object.
        """
        return self._detections(self._outputs(batch))

    def _detections(self, outputs: PyramidOutputs) -> dict[str, tf.Tensor]:
        proposals = self._propose(outputs)
        codes, logits = self.model.classify(outputs.maps, proposals.boxes)
        boxes = decode_boxes(
            tf.cast(codes[:, :, 1:], tf.float32),
            tf.expand_dims(proposals.boxes, 2),
            max_log_ratio=MAX_LOG_RATIO,
        )
        scores = tf.nn.softmax(tf.cast(logits, tf.float32))[:, :, 1:]
        found = self._select(boxes, tf.where(tf.expand_dims(proposals.is_found, -1), scores, 0.0))
        labels = found["box_labels"]
        masks = tf.sigmoid(self._mask_logits(outputs, found["boxes"], labels))
        is_found = tf.reshape(labels > 0, [-1, size_of(masks, 1), 1, 1])
        return {**found, "masks": tf.where(is_found, masks, 0.0)}

    def _mask_logits(
        self, outputs: PyramidOutputs, boxes: tf.Tensor, labels: tf.Tensor
    ) -> tf.Tensor:
        """Returns the logits of the masks of regions' own classes, float32 [B, R, M, M]."""
        logits = tf.cast(self.model.segment(outputs.maps, boxes), tf.float32)
        of_class = tf.one_hot(labels, self.p.num_classes + 1)
        return tf.einsum("brhwk,brk->brhw", logits, of_class)


def _of_class(codes: tf.Tensor, labels: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Returns the codes [B, R, 4] of each region's own class; `codes` are [B, R, K + 1, 4]."""
    return tf.einsum("brkc,brk->brc", codes, tf.one_hot(labels, num_classes + 1))


def _targets(
    truths: tf.Tensor, references: tf.Tensor, is_object: tf.Tensor, **variances: Any
) -> tf.Tensor:
    """Returns the codes of true boxes relative to references, [B, S, 4]; 0 without an object.

    Boxes are float32 [B, S, 4]; `is_object` is bool [B, S].
    """
    # boxes without an object may be empty, and a code would not be finite
    mask, unit = tf.expand_dims(is_object, -1), tf.constant(_UNIT)
    own = tf.where(mask, references, unit)
    return tf.stop_gradient(encode_boxes(tf.where(mask, truths, unit), own, **variances))


def _mean(losses: tf.Tensor, is_counted: tf.Tensor) -> tf.Tensor:
    """Returns the mean of counted losses over axis 1, 0 if there is none; both are [B, S, ...]."""
    total = tf.reduce_sum(tf.where(is_counted, losses, 0.0), 1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(is_counted, tf.float32), 1))
