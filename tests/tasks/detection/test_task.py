"""Detection: the loss of SSD and its predictions against slow NumPy, and a step of training.

Axes: B batch, N true boxes, A anchors, K classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Chain, Conv2D, ConvNorm, context
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.learner.step import train_step
from lingo.models import Ssd
from lingo.models.detection.ssd import AnchorOutputs
from lingo.ops.boxes import box_overlaps, encode_boxes, match_anchors
from lingo.optim.adam import Adam
from tasks.detection.task import ObjectDetection

B, N, K = 4, 3, 2
DRAW = np.random.default_rng(0)
MODEL = Ssd.params(
    trunk=Conv2D.params(dim=1, output_dim=4, stride=2), scales=(3.0, 6.0), ratios=((2.0,),)
)
A = 4 * 4 * 4


def random_boxes(*shape: int) -> np.ndarray:
    center, size = DRAW.uniform(0.2, 0.8, [*shape, 2]), DRAW.uniform(0.2, 0.6, [*shape, 2])
    return np.concatenate([center - size / 2, center + size / 2], -1).clip(0, 1).astype("f")


BATCH = {
    "images": DRAW.integers(0, 256, [B, 8, 8, 1]).astype(np.uint8),
    "boxes": random_boxes(B, N),
    "box_labels": np.array([[1, 2, 1], [2, 0, 0], [0, 0, 0], [1, 1, 0]], "i"),
    "weights": np.array([1, 1, 1, 0], "f"),
    "rows": np.arange(B, dtype="i"),
}


def task(**fields: Any) -> Params:
    known = {"model": MODEL, "num_classes": K, "image_shape": (8, 8, 1)}
    return ObjectDetection.params(**known | fields)


class Fixed(ObjectDetection):
    """What a model would say comes with the batch."""

    def _outputs(self, batch: Any) -> AnchorOutputs:
        return AnchorOutputs(batch["codes"], batch["logits"])


OUTPUTS = {
    "codes": DRAW.normal(size=[B, A, 4]).astype("f"),
    "logits": DRAW.normal(size=[B, A, K + 1]).astype("f"),
}


def call(method: str, changes: Any = None, **fields: Any) -> Any:
    params = Fixed.params(model=MODEL, num_classes=K, image_shape=(8, 8, 1), **fields)
    batch = {k: tf.constant(v) for k, v in (BATCH | OUTPUTS | (changes or {})).items()}
    return context.apply(params.build(), {}, batch, method=method)[0]


def anchors() -> np.ndarray:
    return task().build().model.anchors()


def slow_loss(labels: np.ndarray, boxes: np.ndarray, negatives: int = 3) -> tuple[float, float]:
    """Returns both terms for an image 0, of which the object of each anchor is given."""
    log_sum = np.log(np.exp(OUTPUTS["logits"][0]).sum(-1))
    nats = log_sum - OUTPUTS["logits"][0][np.arange(A), labels]
    positive = np.flatnonzero(labels)
    hardest = sorted(np.flatnonzero(labels == 0), key=lambda a: -nats[a])
    classes = nats[positive].sum() + nats[hardest[: negatives * len(positive)]].sum()
    total = 0.0
    for a in positive:
        top, left, bottom, right = anchors()[a]
        height, width = bottom - top, right - left
        box = boxes[labels[a]]
        code = [
            ((box[0] + box[2]) / 2 - (top + bottom) / 2) / height * 10,
            ((box[1] + box[3]) / 2 - (left + right) / 2) / width * 10,
            np.log((box[2] - box[0]) / height) * 5,
            np.log((box[3] - box[1]) / width) * 5,
        ]
        errors = np.abs(OUTPUTS["codes"][0][a] - code)
        total += np.where(errors < 1, errors**2 / 2, errors - 0.5).sum()
    return total / len(positive), classes / len(positive)


def test_the_loss_is_that_of_matched_anchors_and_three_hard_negatives_for_each() -> None:
    own = anchors()
    boxes = np.stack([np.zeros(4, "f"), own[9] + 0.01, own[40]]).astype("f")
    changes = {
        "boxes": np.broadcast_to(boxes, [B, N, 4]),
        "box_labels": np.array([[0, 1, 2]] * B, "i"),
        "weights": np.eye(B, dtype="f")[0],
    }
    truths, labels = (tf.constant(changes[name][:1]) for name in ("boxes", "box_labels"))
    labels = match_anchors(truths, labels, tf.constant(own)).labels.numpy()[0]
    assert labels[9] == 1
    assert labels[40] == 2
    terms = call("loss", changes)
    expected = slow_loss(labels, boxes)
    np.testing.assert_allclose([terms["boxes"], terms["classes"]], expected, rtol=1e-5)


def test_images_add_up_and_those_of_weight_zero_or_without_objects_do_not_count() -> None:
    total = call("loss")
    parts = [call("loss", {"weights": np.eye(B, dtype="f")[i]}) for i in range(B)]
    for term in ("boxes", "classes"):
        np.testing.assert_allclose(total[term], parts[0][term] + parts[1][term], rtol=1e-6)
        assert parts[2][term] == 0 < parts[3][term]
    assert call("loss_denominators")["examples"] == 3


def test_absent_boxes_and_crowds_change_nothing() -> None:
    first = call("loss")
    absent = BATCH["box_labels"] == 0
    other = np.where(absent[..., None], random_boxes(B, N), BATCH["boxes"]).astype("f")
    labels = np.where(absent, 1, BATCH["box_labels"]).astype("i")
    changes = {"boxes": other, "box_labels": labels, "is_crowd": absent}
    for changed in (call("loss", {"boxes": other}), call("loss", changes)):
        tf.nest.map_structure(np.testing.assert_array_equal, first, changed)


def test_predictions_are_boxes_of_anchors_in_the_image() -> None:
    logits = np.full([B, A, K + 1], -20, "f")
    logits[..., 0] = 20
    logits[0, 5], logits[0, 44] = [0, -20, 2], [0, 3, -20]
    codes = np.zeros([B, A, 4], "f")
    codes[0, 5] = [1, 0, 0, 0]  # a tenth of the height down
    found = call("predict", {"logits": logits, "codes": codes})
    five = anchors()[5] + 0.1 * (anchors()[5][2] - anchors()[5][0]) * np.array([1, 0, 1, 0])
    expected = np.stack([anchors()[44], five]).clip(0, 1)
    np.testing.assert_allclose(found["boxes"][0, :2], expected, atol=1e-6)
    assert found["box_labels"].numpy()[:, :3].tolist() == [[1, 2, 0]] + [[0, 0, 0]] * 3
    e = np.exp([3, 2])
    np.testing.assert_allclose(found["box_scores"][0, :3], [*e / (1 + e), 0], rtol=1e-5)
    assert not np.any(found["boxes"][1:])


def test_perfect_outputs_find_what_is_there() -> None:
    own = tf.constant(anchors())
    far = np.array([[[0, 0, 0.4, 0.4], [0.5, 0.5, 1, 1], [0, 0.6, 0.4, 1]]] * B, "f")
    matches = match_anchors(tf.constant(far), tf.constant(BATCH["box_labels"]), own)
    outputs = {
        "codes": encode_boxes(matches.boxes, own).numpy(),
        "logits": 20 * np.eye(K + 1, dtype="f")[matches.labels.numpy()],
    }
    found = call("predict", outputs)
    for i in range(B):
        present = BATCH["box_labels"][i] > 0
        num = present.sum()
        ours = sorted(zip(found["boxes"].numpy()[i, :num].round(3).tolist(), strict=True))
        assert ours == sorted(zip(far[i, present].round(3).tolist(), strict=True))
        assert not found["box_labels"][i, num:].numpy().any()


def test_each_evaluation_shows_both_kinds_of_boxes() -> None:
    built = task(class_names=("cat",)).build()
    predictions = {
        "boxes": BATCH["boxes"],
        "box_labels": np.array([[1, 2, 0]] * B, "i"),
        "box_scores": np.array([[0.9, 0.3, 0.0]] * B, "f"),
    }
    pixels = built.summaries(BATCH, predictions)["boxes"].pixels
    none = {k: np.zeros_like(v) for k, v in predictions.items()}
    assert (pixels != built.summaries(BATCH, none)["boxes"].pixels).any()
    two_channels = BATCH | {"images": np.zeros([B, 8, 8, 2], np.uint8)}
    assert built.summaries(two_channels, predictions) == {}


def test_the_loss_falls_and_the_boxes_are_found() -> None:
    """A square of one of two brightnesses in a dark image, learned in some steps."""
    images, boxes, labels = np.zeros([16, 16, 16, 1], "f"), np.zeros([16, 1, 4], "f"), []
    for i in range(16):
        top, left = DRAW.integers(0, 10, 2)
        images[i, top : top + 6, left : left + 6] = (0.5, 1.0)[i % 2]
        boxes[i, 0] = np.array([top, left, top + 6, left + 6]) / 16
        labels.append([1 + i % 2])
    batch = {
        "images": images,
        "boxes": boxes,
        "box_labels": np.array(labels, "i"),
        "weights": np.ones(16, "f"),
        "rows": np.arange(16, dtype="i"),
    }
    layers = [ConvNorm.params(dim=1, output_dim=16, stride=2), Conv2D.params(dim=16, output_dim=16)]
    model = Ssd.params(trunk=Chain.params(layers=layers), scales=(6.0, 8.0), ratios=((),))
    params = ObjectDetection.params(model=model, num_classes=2, image_shape=(16, 16, 1))
    learner = Learner(params.build(), Adam.params(learning_rate=0.01).build(), seed=0)
    state = tf.nest.map_structure(tf.constant, load_arrays(initial_state(learner)))
    tensors = {k: tf.constant(v) for k, v in batch.items()}
    step = tf.function(lambda s: train_step(learner, s, tensors), autograph=False)
    losses = []
    for _ in range(150):
        state, report = step(state)
        losses.append(float(report["scalars"]["loss/total"]))
    assert losses[-1] < losses[0] / 10
    task, call = learner.task, {"state": state.state}
    found, _ = context.apply(task, state.weights, tensors, method="predict", call=call)
    np.testing.assert_array_equal(found["box_labels"][:, :1], labels)
    assert np.all(box_overlaps(found["boxes"][:, :1], tensors["boxes"]) > 0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_overlap": 1.5}, "min_overlap=1.5 is not in 0..1"),
        ({"min_score": 1.0}, "min_score=1.0 is not in"),
        ({"negatives": -1.0}, "negatives=-1.0 is negative"),
        ({"max_detections": 0}, "max_detections=0 is not positive"),
        ({"mean": (0.1, 0.2)}, r"mean has 2 numbers, but image_shape=\(8, 8, 1\) has 1 channels"),
        ({"class_names": ("a", "b", "c")}, "class_names has 3 names, but num_classes=2"),
    ],
)
def test_values_that_make_no_sense_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        task(**fields).build()


@pytest.mark.parametrize(
    ("offers", "message"),
    [
        ({"vocab_size": 9}, "the input has no images"),
        ({"image_shape": (8, 8, 1), "num_classes": 3}, "but the input has 3 classes"),
        ({"image_shape": (9, 8, 1), "num_classes": 2}, r"but the input has images of \(9, 8, 1\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(offers: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        task().build().check_input(offers)


def test_average_precision_is_computed_of_the_predictions_where_it_is_asked_for() -> None:
    own = anchors()
    logits = np.full([B, A, K + 1], -20, "f")
    logits[..., 0] = 20
    logits[:, 5] = [-20, 20, -20]
    changes = {
        "codes": np.zeros([B, A, 4], "f"),
        "logits": logits,
        "boxes": np.broadcast_to(own[5].clip(0, 1), [B, 1, 4]),
        "box_labels": np.array([[1], [1], [1], [2]], "i"),
        "example_id": np.arange(B),
    }
    states = call("metrics", changes, num_eval_images=B)
    built = task(num_eval_images=B).build()
    coco = {name: value.numpy() for name, value in states["coco"].items()}
    results = built.results(built.read_metric("coco", coco))
    assert results["ap"] == pytest.approx(1)  # the fourth image has weight 0
    assert results["ap50"] == pytest.approx(1)
    assert {"coco/ap75", "coco/ar100"} < results.keys()
    assert "coco" not in call("metrics")


def test_metrics_are_means_over_images_that_count() -> None:
    terms, states = call("loss"), call("metrics")
    for term in ("boxes", "classes"):
        state = states[f"loss/{term}"]
        np.testing.assert_allclose(state["sum"], terms[term], rtol=1e-6)
        assert state["weight"] == 3
