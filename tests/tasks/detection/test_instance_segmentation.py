"""Instance segmentation: its losses against slow loops, its predictions, and a step of training.

Axes: B batch, N true objects, R regions, K classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Conv2D, context
from lingo.learner.state import initial_value
from lingo.models import Backbone, MaskRcnn
from lingo.models.detection.heads import BoxOutputs
from lingo.models.detection.mask_rcnn import PyramidOutputs
from lingo.ops import random
from lingo.ops.boxes import encode_boxes
from lingo.ops.regions import BACKGROUND, match_regions
from lingo.ops.roi_align import crop_masks
from tasks.detection.instance_segmentation import InstanceSegmentation

B, N, K, M = 3, 3, 2, 4
DRAW = np.random.default_rng(0)


def random_boxes(*shape: int) -> np.ndarray:
    corner, size = DRAW.uniform(0, 0.5, [*shape, 2]), DRAW.uniform(0.2, 0.5, [*shape, 2])
    return np.concatenate([corner, corner + size], -1).astype("f")


BATCH = {
    "images": DRAW.integers(0, 256, [B, 16, 16, 1]).astype(np.uint8),
    "boxes": random_boxes(B, N),
    "box_labels": np.array([[1, 2, 1], [2, 0, 0], [0, 0, 0]], "i"),
    "masks": DRAW.integers(0, 2, [B, N, M, M]).astype(np.uint8),
    "weights": np.ones(B, "f"),
    "rows": np.arange(B, dtype="i"),
}


def task(**fields: Any) -> Params:
    layers = [Conv2D.params(dim=d, output_dim=4, stride=2) for d in (1, 4)]
    model = MaskRcnn.params(
        trunk=Backbone.params(layers=layers, first_level=1), anchor_scale=3.0, base_side=8.0
    )
    model.pyramid.output_dim = model.region_head.hidden_dim = 4
    model.box_head.set(size=2, hidden_dim=4)
    model.mask_head.set(size=2, hidden_dim=4, num_convs=1)
    sizes = {"num_anchors": 24, "max_per_level": 9, "num_proposals": 12, "num_regions": 8}
    sizes |= {"eval_max_per_level": 9, "eval_num_proposals": 12, "max_detections": 6}
    known = {"model": model, "num_classes": K, "image_shape": (16, 16, 1), **sizes}
    return InstanceSegmentation.params(**known | fields)


BUILT = task().build()
A = len(BUILT.model.anchors())
OUTPUTS = PyramidOutputs(
    maps=tuple(DRAW.normal(size=[B, n, n, 4]).astype("f") for n in (8, 4, 2)),
    codes=(0.3 * DRAW.normal(size=[B, A, 4])).astype("f"),
    logits=DRAW.normal(size=[B, A]).astype("f"),
)
WEIGHTS = {
    name: tf.constant(DRAW.normal(0, 0.3, spec.shape), tf.float32)
    for name, spec in BUILT.weights().items()
}


def call(method: str, *args: Any, training: bool = True, layer: Any = BUILT) -> Any:
    tensors = tf.nest.map_structure(tf.constant, args)
    key = random.root_key(3) if training else None
    fields = {"training": training, "key": key, "rows": tf.range(B)}
    return context.apply(layer, WEIGHTS, *tensors, method=method, call=fields)[0]


def keys() -> random.Key:
    return random.fold(random.root_key(0), tf.range(B))


def slow_huber(error: float, delta: float) -> float:
    return error**2 / 2 if abs(error) < delta else delta * (abs(error) - delta / 2)


def test_the_first_stage_learns_from_sampled_anchors_as_in_a_slow_loop() -> None:
    """Here all anchors that are not ignored are counted, so that no sample is needed."""
    built = task(num_anchors=2 * A).build()
    boxes, labels = BATCH["boxes"], BATCH["box_labels"]
    found = call("_first_losses", OUTPUTS, boxes, labels, keys(), layer=built)
    anchors = built.model.anchors()
    bounds = {"min_overlap": 0.7, "max_background": 0.3, "claims_best": True}
    objects = match_regions(*map(tf.constant, (anchors, boxes, labels)), **bounds).numpy()
    levels = np.repeat(np.arange(3), built.model.level_sizes())
    for i in range(B):
        nats = [
            np.log1p(np.exp(-logit if one >= 0 else logit))
            for logit, one in zip(OUTPUTS.logits[i], objects[i], strict=True)
            if one >= 0 or one == BACKGROUND
        ]
        np.testing.assert_allclose(found["objectness"][i], np.mean(nats), rtol=1e-5)
        expected = 0.0
        for level in range(3):
            errors = []
            for a in np.flatnonzero((objects[i] >= 0) & (levels == level)):
                low, high = anchors[a, :2], anchors[a, 2:]
                box = boxes[i, objects[i, a]]
                shift = ((box[:2] + box[2:]) - (low + high)) / 2 / (high - low)
                ratio = np.log((box[2:] - box[:2]) / (high - low))
                code = [*shift, *ratio]
                errors += [slow_huber(e, 1 / 9) for e in OUTPUTS.codes[i, a] - np.array(code, "f")]
            expected += np.mean(errors) if errors else 0.0
        np.testing.assert_allclose(found["anchors"][i], expected, rtol=1e-4, atol=1e-7)
    assert found["anchors"][0] > 0
    assert found["anchors"][2] == 0  # an image without objects


def second_stage(monkeypatch: pytest.MonkeyPatch, boxes: np.ndarray) -> tuple[Any, Any]:
    """Makes the second stage return random outputs for regions; returns them."""
    num = boxes.shape[1]
    outputs = BoxOutputs(
        DRAW.normal(size=[B, num, K + 1, 4]).astype("f"),
        DRAW.normal(size=[B, num, K + 1]).astype("f"),
    )
    masks = DRAW.normal(size=[B, num, M, M, K + 1]).astype("f")
    monkeypatch.setattr(MaskRcnn, "classify", lambda self, maps, boxes: outputs)
    monkeypatch.setattr(
        MaskRcnn, "segment", lambda self, maps, boxes: tf.constant(masks)[:, : boxes.shape[1]]
    )
    return outputs, masks


def test_the_second_stage_learns_from_regions_as_in_a_slow_loop(monkeypatch) -> None:
    regions = call("_sample", OUTPUTS, BATCH["boxes"], BATCH["box_labels"], keys())
    boxes, objects, labels, is_counted = (part.numpy() for part in regions)
    (codes, logits), masks = second_stage(monkeypatch, boxes)
    terms = call("_class_losses", OUTPUTS, regions, BATCH["boxes"])
    terms["masks"] = call("_mask_losses", OUTPUTS, regions, BATCH)
    targets = crop_masks(
        *(tf.constant(v) for v in (BATCH["masks"], BATCH["boxes"], objects, boxes)), size=M
    ).numpy()
    assert (labels > 0).sum(1).tolist() == [2, 1, 0]  # a quarter of 8; the true box; no object
    for i in range(B):
        nats, errors, pixels = [], [], []
        for r in np.flatnonzero(is_counted[i]):
            k = labels[i, r]
            nats.append(np.log(np.exp(logits[i, r]).sum()) - logits[i, r, k])
            if k == 0:
                continue
            truth = BATCH["boxes"][i, objects[i, r]]
            code = encode_boxes(tf.constant(truth[None]), tf.constant(boxes[i, r][None])).numpy()[0]
            errors += [slow_huber(e, 1.0) for e in codes[i, r, k] - code]
            z, y = masks[i, r, :, :, k], targets[i, r]
            pixels += [*np.log1p(np.exp(np.where(y > 0, -z, z))).flat]
        np.testing.assert_allclose(terms["classes"][i], np.mean(nats), rtol=1e-5)
        for name, each in (("boxes", errors), ("masks", pixels)):
            expected = np.mean(each) if each else 0.0
            np.testing.assert_allclose(terms[name][i], expected, rtol=1e-4, atol=1e-7)


def test_true_boxes_are_proposals_and_absent_ones_are_not() -> None:
    regions = call("_sample", OUTPUTS, BATCH["boxes"], BATCH["box_labels"], keys())
    boxes, objects, labels, is_counted = (part.numpy() for part in regions)
    for i in range(2):
        for r in np.flatnonzero(labels[i]):
            assert labels[i, r] == BATCH["box_labels"][i, objects[i, r]]
    assert any((boxes[1, r] == BATCH["boxes"][1, 0]).all() for r in np.flatnonzero(labels[1]))
    absent = BATCH["boxes"][2]
    assert not (boxes[2, is_counted[2]][:, None] == absent[None]).all(-1).any()


def test_crowds_are_background() -> None:
    changed = BATCH | {"is_crowd": BATCH["box_labels"] == 2}
    labels = np.where(changed["is_crowd"], 0, BATCH["box_labels"])
    first = call("_losses", OUTPUTS, changed)
    second = call("_losses", OUTPUTS, BATCH | {"box_labels": labels})
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)


def test_images_add_up_and_those_of_weight_zero_do_not_count() -> None:
    total = call("loss", BATCH)
    parts = [call("loss", BATCH | {"weights": np.eye(B, dtype="f")[i]}) for i in range(B)]
    for term, value in total.items():
        np.testing.assert_allclose(value, sum(part[term] for part in parts), rtol=1e-5)
    assert total.keys() == {"objectness", "anchors", "classes", "boxes", "masks"}


def test_outside_training_losses_are_the_same_each_time_whatever_the_batch() -> None:
    ids = {"example_id": np.array([7, 3, 9])}
    whole = call("_losses", OUTPUTS, BATCH | ids, training=False)
    again = call("_losses", OUTPUTS, BATCH | ids, training=False)
    tf.nest.map_structure(np.testing.assert_array_equal, whole, again)
    part = tf.nest.map_structure(lambda x: x[1:], (OUTPUTS, BATCH | ids))
    fewer = call("_losses", *part, training=False)
    for term, losses in whole.items():
        np.testing.assert_allclose(losses[1:], fewer[term], rtol=1e-5, atol=1e-7)


def test_predictions_are_the_boxes_and_masks_of_their_own_class(monkeypatch) -> None:
    built = task(eval_num_proposals=6, eval_max_per_level=4, max_detections=3).build()
    proposals = call("_propose", OUTPUTS, training=False, layer=built)
    boxes = proposals.boxes.numpy()
    (codes, logits), masks = second_stage(monkeypatch, boxes)
    logits[...], codes[...] = [9, 0, 0], 0
    logits[0, 4], codes[0, 4, 2] = [0, 0, 5], [1, 0, 0, 0]  # class 2: a tenth of the height down
    found = call("_detections", OUTPUTS, training=False, layer=built)
    assert found["box_labels"].numpy().tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 0]]
    box = boxes[0, 4] + 0.1 * (boxes[0, 4, 2] - boxes[0, 4, 0]) * np.array([1, 0, 1, 0])
    np.testing.assert_allclose(found["boxes"][0, 0], box.clip(0, 1), atol=1e-6)
    np.testing.assert_allclose(found["box_scores"][0, 0], np.exp(5) / (2 + np.exp(5)), rtol=1e-5)
    expected = 1 / (1 + np.exp(-masks[0, 0, :, :, 2]))
    np.testing.assert_allclose(found["masks"][0, 0], expected, rtol=1e-5)
    assert not found["masks"][1:].numpy().any()


def test_predictions_read_images_alone() -> None:
    found = call("predict", {"images": BATCH["images"], "rows": BATCH["rows"]}, training=False)
    assert found["masks"].shape == (B, int(found["boxes"].shape[1]), M, M)
    assert found.keys() == {"boxes", "box_labels", "box_scores", "masks"}


def test_a_program_for_batches_of_any_size_knows_all_other_sizes() -> None:
    def predict(images: tf.Tensor) -> Any:
        batch = {"images": images, "rows": tf.range(tf.shape(images)[0])}
        return context.apply(BUILT, WEIGHTS, batch, method="predict")[0]

    spec = tf.TensorSpec([None, 16, 16, 1], tf.uint8)
    found = tf.function(predict, autograph=False).get_concrete_function(spec).structured_outputs
    assert found["masks"].shape.as_list() == [None, 6, M, M]
    assert found["boxes"].shape.as_list() == [None, 6, 4]


def test_average_precisions_have_their_printed_names() -> None:
    means = {"coco/ap": 0.5, "coco/mask/ap": 0.25, "coco/mask/ap50": 0.75, "coco/ar1": 0.1}
    assert BUILT.results(means) == {"ap": 0.5, "mask_ap": 0.25, "mask_ap50": 0.75, "coco/ar1": 0.1}


def test_initial_weights_are_those_of_the_reference() -> None:
    specs = BUILT.weights()
    for name, stddev in (("logits", 0.01), ("codes", 0.001)):
        for head in ("region_head", "box_head"):
            values = initial_value(specs[f"model/{head}/{name}/w"], 0)
            assert 0.5 * stddev < np.std(values) < 1.5 * stddev
            assert not initial_value(specs[f"model/{head}/{name}/b"], 0).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"object_share": 1.5}, "object_share=1.5 is not in 0..1"),
        ({"object_share": 0.1}, "object_share=0.1 of num_regions=8 is less than one"),
        ({"max_background": 0.9}, "max_background=0.9 is above min_anchor_overlap=0.7"),
        ({"num_anchors": 0}, "num_anchors=0 is not positive"),
        ({"min_score": 1.0}, "min_score=1.0 is not in"),
    ],
)
def test_values_that_make_no_sense_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        task(**fields).build()
