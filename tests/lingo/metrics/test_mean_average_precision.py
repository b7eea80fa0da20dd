"""Average precision is what pycocotools computes of JSON files, and does not depend on parts."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from lingo.config.base.errors import MissingPackage
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.metrics.mask import MAX_COUNT, paste_mask, run_lengths
from lingo.metrics.mean_average_precision import (
    _LEVELS,
    _RUNS,
    RESULTS,
    _pack,
    _pack_masks,
    _unpack,
    coco_detections,
    detection_results,
    detection_table,
)
from lingo.metrics.metric import Accumulator
from lingo.metrics.results import read_state

N, M, D, K = 40, 5, 12, 3


def draw_boxes(draw, *shape):
    """Returns boxes of all sizes, float32 [*shape, 4]."""
    sides = np.exp(draw.uniform(np.log(0.02), np.log(0.9), [*shape, 2]))
    corner = draw.uniform(size=[*shape, 2]) * (1 - sides)
    return np.concatenate([corner, corner + sides], -1).astype("f")


def examples(num=N):
    """Returns a pass of images with crowds and holes, and detections near true boxes and others."""
    draw = np.random.default_rng(0)
    boxes, labels = draw_boxes(draw, num, M), draw.integers(0, K + 1, [num, M]).astype(np.int32)
    labels[-1] = 0  # an image of nothing
    sizes = draw.integers(50, 400, [num, 2]).astype(np.int32)
    sides = (boxes[..., 2:] - boxes[..., :2]) * sizes[:, None]
    batch = {
        "images": np.zeros([num, 8, 8, 3], np.uint8),
        "boxes": boxes,
        "box_labels": labels,
        "is_crowd": draw.uniform(size=[num, M]) < 0.2,
        "areas": (draw.uniform(0.5, 1, [num, M]) * sides.prod(-1)).astype("f"),
        "image_ids": draw.permutation(1000)[:num].astype(np.int64),
        "image_sizes": sizes,
        "example_id": np.arange(num),
        "weights": np.ones(num, np.float32),
    }
    near = np.repeat(boxes, 2, 1) + draw.normal(size=[num, 2 * M, 4]) * 0.02
    found = np.concatenate([near, draw_boxes(draw, num, D - 2 * M)], 1).clip(0, 1).astype("f")
    guesses = np.concatenate([np.repeat(labels, 2, 1), np.ones([num, D - 2 * M], int)], 1)
    return batch, {
        "boxes": found,
        "box_labels": guesses.astype(np.int32),
        "box_scores": draw.uniform(size=[num, D]).astype("f").round(2),  # with ties
    }


def run(batch, predictions, size, *, num=N):
    """Returns the results of a pass in batches of a size, the last one padded with rubbish."""
    total = Accumulator()
    for start in range(0, num, size):
        rows = (start + np.arange(size)) % num
        part, found = ({k: v[rows] for k, v in one.items()} for one in (batch, predictions))
        part["example_id"] = start + np.arange(size)
        part["weights"] = (part["example_id"] < num).astype("f")
        tensors = [{k: tf.constant(v) for k, v in one.items()} for one in (part, found)]
        total.add({"coco": detection_table(*tensors, num_examples=num)})
    return read_state("coco", total.states["coco"])


def run_by_hand(batch, predictions, folder):
    """Returns what pycocotools computes of JSON files that a slow loop writes."""
    images, truths, found = [], [], []
    for i, number in enumerate(batch["image_ids"].tolist()):
        height, width = batch["image_sizes"][i].tolist()
        images.append({"id": number, "height": height, "width": width})
        for j in range(M):
            top, left, bottom, right = batch["boxes"][i, j].tolist()
            box = [left * width, top * height, (right - left) * width, (bottom - top) * height]
            if batch["box_labels"][i, j]:
                truths.append(
                    {
                        "id": len(truths) + 1,
                        "image_id": number,
                        "category_id": int(batch["box_labels"][i, j]),
                        "bbox": box,
                        "area": float(batch["areas"][i, j]),
                        "iscrowd": int(batch["is_crowd"][i, j]),
                    }
                )
        for j in range(D):
            top, left, bottom, right = predictions["boxes"][i, j].tolist()
            box = [left * width, top * height, (right - left) * width, (bottom - top) * height]
            if predictions["box_labels"][i, j]:
                one = {"image_id": number, "category_id": int(predictions["box_labels"][i, j])}
                found.append(one | {"bbox": box, "score": float(predictions["box_scores"][i, j])})
    classes = [{"id": k, "name": str(k)} for k in range(1, K + 1)]
    annotations = {"images": images, "categories": classes, "annotations": truths}
    (folder / "truths.json").write_text(json.dumps(annotations))
    (folder / "found.json").write_text(json.dumps(found))
    truth = COCO(str(folder / "truths.json"))
    evaluation = COCOeval(truth, truth.loadRes(str(folder / "found.json")), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation.stats


def test_results_are_those_of_pycocotools_driven_by_hand(tmp_path):
    batch, predictions = examples()
    results = run(batch, predictions, N)
    assert [*results] == [f"coco/{name}" for name in RESULTS]
    stats = run_by_hand(batch, predictions, tmp_path)
    np.testing.assert_allclose([*results.values()], stats, rtol=0, atol=1e-12)
    assert (np.array(stats) > 0.01).all()  # there are boxes of each size
    assert len({*stats.round(6)}) == 11  # no image has more than 10 detections of a class


@pytest.mark.parametrize("size", [1, 5, 7, 64])
def test_sizes_of_batches_and_padding_change_nothing(size):
    batch, predictions = examples()
    assert run(batch, predictions, size) == run(batch, predictions, N)


def test_perfect_detections_have_an_average_precision_of_1_and_none_has_0():
    batch, _ = examples()
    perfect = {"boxes": batch["boxes"], "box_labels": batch["box_labels"]}
    perfect["box_scores"] = np.ones([N, M], np.float32)
    assert run(batch, perfect, N)["coco/ap"] == pytest.approx(1)
    nothing = perfect | {"box_labels": np.zeros([N, M], np.int32)}
    assert run(batch, nothing, N)["coco/ap"] == 0


def test_half_right_by_hand():
    """Two true boxes; the surest detection is wrong, the next right: precision and recall 1/2."""
    boxes = np.array([[[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]], "f")
    batch = {
        "images": np.zeros([1, 100, 100, 3], np.uint8),
        "boxes": boxes,
        "box_labels": np.array([[1, 1]]),
        "example_id": np.array([0]),
        "weights": np.ones(1, np.float32),
    }
    found = {
        "boxes": np.array([[[0, 0.5, 0.5, 1], [0, 0, 0.5, 0.5]]], "f"),
        "box_labels": np.array([[1, 1]]),
        "box_scores": np.array([[0.9, 0.8]], "f"),
    }
    results = run(batch, found, 1, num=1)
    assert results["coco/ap50"] == pytest.approx(51 / 101 * 0.5)  # at 0, 0.01, ..., 0.5 of 1
    assert results["coco/ap_medium"] == results["coco/ap"]  # of 50 x 50 pixels
    assert results["coco/ap_small"] == results["coco/ap_large"] == -1  # there is none


def test_without_areas_those_of_boxes_count_and_without_sizes_those_of_images():
    batch, predictions = examples()
    plain = {k: v for k, v in batch.items() if k not in ("areas", "image_sizes", "is_crowd")}
    sides = (plain["boxes"][..., 2:] - plain["boxes"][..., :2]).astype(np.float64) * 8
    spelled = plain | {
        "areas": sides.prod(-1),
        "image_sizes": np.full([N, 2], 8, np.int32),
        "is_crowd": np.zeros([N, M], bool),
    }
    assert run(plain, predictions, N) == run(spelled, predictions, N)


def test_a_state_of_no_image_has_the_same_names_and_stands_for_nothing():
    state = {"detections": np.full([2, 3, 6], 0.5), "truths": np.full([2, 3, 7], 0.5)}
    state |= {"images": np.full([2, 4], 0.5), "outside": np.array(0.5)}  # made up, as at the start
    assert detection_results(state) == dict.fromkeys(RESULTS, -1.0)


def test_more_images_than_slots_are_an_error():
    batch, predictions = examples()
    batch = {k: tf.constant(v) for k, v in batch.items()}
    state = detection_table(batch, predictions, num_examples=38)
    with pytest.raises(ParamError, match=r"2 images have no slot: num_examples=38 of"):
        detection_results({k: v.numpy() for k, v in state.items()})


def test_two_images_of_one_id_are_an_error():
    batch, predictions = examples()
    batch["image_ids"][:2] = 7
    with pytest.raises(ParamError, match="two images of a pass have the same id"):
        run(batch, predictions, N)


def test_a_state_is_float64_and_has_the_size_that_is_documented():
    batch, predictions = ({k: tf.constant(v) for k, v in one.items()} for one in examples())
    state = detection_table(batch, predictions, num_examples=N)
    assert {value.dtype for value in state.values()} == {tf.float64}
    size = sum(value.numpy().nbytes for name, value in state.items() if name != "outside")
    assert size == 8 * N * (6 * D + 7 * M + 4)


def test_detections_have_cocos_ids_and_boxes_in_pixels():
    batch, predictions = examples()
    found = coco_detections(
        predictions,
        image_ids=batch["image_ids"],
        image_sizes=batch["image_sizes"],
        category_ids=[3, 18, 90],
    )
    first = int(np.flatnonzero(predictions["box_labels"][0])[0])
    top, left, bottom, right = predictions["boxes"][0, first].astype(float)
    height, width = batch["image_sizes"][0]
    assert found[0]["image_id"] == batch["image_ids"][0]
    assert found[0]["category_id"] == [3, 18, 90][predictions["box_labels"][0, first] - 1]
    corner = np.array([left * width, top * height])
    sides = np.array([(right - left) * width, (bottom - top) * height])
    np.testing.assert_allclose(found[0]["bbox"], [*corner, *sides], atol=1e-9)
    assert len(found) == (predictions["box_labels"] > 0).sum()
    json.dumps(found)


def test_without_pycocotools_an_error_names_the_extra(monkeypatch):
    batch, predictions = examples(2)
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[detection\]'"):
        run(batch, predictions, 2, num=2)


# ---- masks ---------------------------------------------------------------------------------------

S = 5  # bins of a predicted mask


def masked_examples():
    """Returns a pass with true masks as run lengths, and predicted masks near them."""
    batch, predictions = examples()
    draw = np.random.default_rng(1)
    bins = (draw.uniform(size=[N, M, S, S]) < 0.7).astype("f")
    counts = np.zeros([N, M, 4000], np.int32)
    for i, j in np.argwhere(batch["box_labels"] > 0):
        size = tuple(batch["image_sizes"][i].tolist())
        runs = run_lengths(paste_mask(bins[i, j], batch["boxes"][i, j], size=size))
        counts[i, j, : len(runs)] = runs
        batch["areas"][i, j] = runs[1::2].sum()
    near = (np.repeat(bins, 2, 1) + draw.normal(size=[N, 2 * M, S, S]) * 0.3).clip(0, 1)
    found = np.concatenate([near, draw.uniform(size=[N, D - 2 * M, S, S])], 1)
    batch["mask_counts"] = counts[..., : int((counts.any((0, 1))).sum()) + 1]
    return batch, predictions | {"masks": np.rint(found * 255) / 255}


def run_masks_by_hand(batch, predictions, folder):
    """Returns what pycocotools computes of JSON files of masks that a slow loop writes."""
    images, truths, found = [], [], []
    for i, number in enumerate(batch["image_ids"].tolist()):
        height, width = size = tuple(batch["image_sizes"][i].tolist())
        images.append({"id": number, "height": height, "width": width})
        for j in np.flatnonzero(batch["box_labels"][i]):
            counts = np.trim_zeros(batch["mask_counts"][i, j], "b").tolist()
            truth = {"id": len(truths) + 1, "image_id": number, "bbox": [0, 0, 1, 1]}
            truth |= {"area": float(batch["areas"][i, j]), "iscrowd": int(batch["is_crowd"][i, j])}
            truth["category_id"] = int(batch["box_labels"][i, j])
            truth["segmentation"] = {"size": size, "counts": counts}
            truths.append(truth)
        for j in np.flatnonzero(predictions["box_labels"][i]):
            one = {"image_id": number, "category_id": int(predictions["box_labels"][i, j])}
            mask = paste_mask(predictions["masks"][i, j], predictions["boxes"][i, j], size=size)
            text = coco_masks.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
            one["segmentation"] = {"size": size, "counts": text}
            found.append(one | {"score": float(predictions["box_scores"][i, j])})
    classes = [{"id": k, "name": str(k)} for k in range(1, K + 1)]
    annotations = {"images": images, "categories": classes, "annotations": truths}
    (folder / "truths.json").write_text(json.dumps(annotations))
    (folder / "found.json").write_text(json.dumps(found))
    truth = COCO(str(folder / "truths.json"))
    evaluation = COCOeval(truth, truth.loadRes(str(folder / "found.json")), "segm")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation.stats


def test_results_of_masks_are_those_of_pycocotools_driven_by_hand_beside_those_of_boxes(tmp_path):
    batch, predictions = masked_examples()
    results = run(batch, predictions, N)
    names = [f"coco/{name}" for name in RESULTS] + [f"coco/mask/{name}" for name in RESULTS]
    assert [*results] == names
    stats = run_masks_by_hand(batch, predictions, tmp_path)
    np.testing.assert_allclose([*results.values()][12:], stats, rtol=0, atol=1e-12)
    assert (np.array(stats) > 0.01).all()
    boxes = {name: value for name, value in predictions.items() if name != "masks"}
    assert run(batch, boxes, N) == {name: results[name] for name in names[:12]}


@pytest.mark.parametrize("size", [7, 64])
def test_sizes_of_batches_and_padding_change_nothing_of_masks(size):
    batch, predictions = masked_examples()
    assert run(batch, predictions, size) == run(batch, predictions, N)


def test_masks_are_rounded_to_256_levels_and_integers_are_0_and_1():
    batch, predictions = masked_examples()
    near = predictions | {"masks": predictions["masks"] + 0.3 / 255}
    assert run(batch, near, N) == run(batch, predictions, N)
    ones = predictions["masks"] > 0.5
    found = [
        run(batch, predictions | {"masks": ones.astype(dtype)}, N) for dtype in ("u1", "f", "i8")
    ]
    assert found[0] == found[1] == found[2] != run(batch, predictions, N)


def test_states_of_masks_keep_all_digits_and_have_the_size_that_is_documented():
    draw = np.random.default_rng(2)
    levels = draw.integers(0, 256, [1, 2, S, S])
    packed = _pack_masks(tf.constant(levels / 255)).numpy()
    np.testing.assert_array_equal(
        _unpack(packed[0, 1, :-1], _LEVELS)[: S * S], levels[0, 1].ravel()
    )
    counts = draw.integers(0, MAX_COUNT, [1, 2, 7])
    counts[0, 0] = MAX_COUNT - 1
    packed = _pack(tf.constant(counts), _RUNS).numpy()
    for j in range(2):
        np.testing.assert_array_equal(_unpack(packed[0, j], _RUNS)[:7], counts[0, j])
    batch, predictions = ({k: tf.constant(v) for k, v in one.items()} for one in masked_examples())
    state = detection_table(batch, predictions, num_examples=N)
    assert {value.dtype for value in state.values()} == {tf.float64}
    runs = batch["mask_counts"].shape[-1]
    size = sum(state[name].numpy().nbytes for name in ("masks", "mask_counts"))
    assert size == 8 * N * (D * (math.ceil(S * S / 6) + 1) + M * math.ceil(runs / 2))


def test_without_areas_those_of_masks_count():
    batch, predictions = masked_examples()
    plain = {name: value for name, value in batch.items() if name != "areas"}
    assert run(plain, predictions, N) == run(batch, predictions, N)


def test_run_lengths_of_an_image_of_another_size_are_an_error():
    batch, predictions = masked_examples()
    batch["mask_counts"][0, np.flatnonzero(batch["box_labels"][0])[0], 0] += 3
    with pytest.raises(
        ParamError, match=r"mask_counts of an object are \d+ pixels, but image_size"
    ):
        run(batch, predictions, N)


def test_padded_images_give_the_results_of_whole_ones():
    batch, predictions = masked_examples()
    canvas = (batch["image_sizes"] * [1.5, 1.25]).astype("f")
    scale = np.tile(batch["image_sizes"] / canvas, 2)[:, None]
    padded = batch | {"canvas_sizes": canvas, "boxes": (batch["boxes"] * scale).astype("f")}
    found = predictions | {"boxes": (predictions["boxes"] * scale).astype("f")}
    results, expected = run(padded, found, N), run(batch, predictions, N)
    for name, value in expected.items():
        assert results[name] == pytest.approx(value, abs=2e-3), name
    whole = {"image_ids": batch["image_ids"], "image_sizes": batch["image_sizes"]}
    entries, wanted = (
        coco_detections(found, **whole, canvas_sizes=canvas),
        coco_detections(predictions, **whole),
    )
    np.testing.assert_allclose(
        [one["bbox"] for one in entries], [one["bbox"] for one in wanted], atol=1e-3
    )
    for one, other in zip(entries, wanted, strict=True):
        areas = [int(coco_masks.area(entry["segmentation"])) for entry in (one, other)]
        assert areas[0] == pytest.approx(areas[1], abs=5)


def test_entries_of_result_files_have_masks_that_pycocotools_reads():
    batch, predictions = masked_examples()
    found = coco_detections(
        predictions, image_ids=batch["image_ids"], image_sizes=batch["image_sizes"]
    )
    first = int(np.flatnonzero(predictions["box_labels"][0])[0])
    size = tuple(batch["image_sizes"][0].tolist())
    mask = paste_mask(predictions["masks"][0, first], predictions["boxes"][0, first], size=size)
    assert coco_masks.area(found[0]["segmentation"]) == mask.sum()
    json.dumps(found)
