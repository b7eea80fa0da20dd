"""Object detection: the classes and boxes of an image's objects.

Axes: B batch, H height, W width, C channels, N true boxes, A anchors, K classes, D detections.
"""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.learner.task import Batch
from lingo.models.detection.ssd import AnchorOutputs, Ssd
from lingo.ops.boxes import decode_boxes, encode_boxes, hard_negatives, match_anchors
from lingo.ops.losses import cross_entropy, smooth_l1
from tasks.detection.detector import Detector, check_share, true_labels


class ObjectDetection(Detector):
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
    min_overlap: float = 0.5  # intersection over union of an anchor and its object
    negatives: float = 3.0  # unmatched anchors in the loss for each matched one

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "negatives")
        ranges.check_positive(self.p, "min_overlap")
        check_share("min_overlap", self.p.min_overlap)

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build(image_shape=p.image_shape, num_classes=p.num_classes)

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["images"]
        return self.model.flops(shape)

    def _outputs(self, batch: Batch) -> AnchorOutputs:
        """Returns codes, float32 [B, A, 4], and logits, float32 [B, A, K + 1], of the images."""
        outputs = self.model(self._images(batch))
        return AnchorOutputs(*(tf.cast(output, tf.float32) for output in outputs))

    def _detections(self, outputs: AnchorOutputs) -> dict[str, tf.Tensor]:
        boxes = decode_boxes(outputs.codes, self._anchors())
        return self._select(tf.expand_dims(boxes, 2), tf.nn.softmax(outputs.logits)[:, :, 1:])

    def _losses(self, outputs: AnchorOutputs, batch: Batch) -> dict[str, tf.Tensor]:
        p, labels, anchors = self.p, true_labels(batch), self._anchors()
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
