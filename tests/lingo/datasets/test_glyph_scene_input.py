"""Scenes of glyphs: every box is where its glyph is, and splits share nothing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.config.params import ParamError
from lingo.datasets import glyph_scene_input
from lingo.datasets.glyph_scene_input import GlyphSceneInput, LetterSceneInput
from lingo.datasets.photographs import read_photograph
from lingo.datasets.typeface import CLASSES
from lingo.metrics.mask import fill_run_lengths
from tests.lingo.data.documents import assert_starts_anywhere, specs_of


def scenes(**fields):
    return GlyphSceneInput.params(**{"batch_size": 4, "num_scenes": 64} | fields).build()


def pixel_boxes(data, boxes):
    """Returns the boxes of a scene in pixels, without absent ones, int [n, 4]."""
    sides = np.tile(data.offers()["image_shape"][:2], 2)
    return np.rint(boxes[boxes[:, 2] > 0] * sides).astype(int)


def test_a_glyph_that_is_wider_than_the_image_is_left_out() -> None:
    data = scenes(split="train", num_classes=47, max_height=0.7, batch_size=64)
    boxes = data.batch(0)["boxes"]
    assert boxes.min() >= 0
    assert boxes.max() <= 1


@pytest.fixture(scope="module", params=[None, 208, 80])
def some(request) -> tuple[GlyphSceneInput, dict[str, np.ndarray], np.ndarray]:
    """Returns an input of all classes, 64 scenes and their backgrounds."""
    data = scenes(split="train", num_classes=47, width=request.param)
    numbers = np.arange(64)
    grounds = [data._background(draws) for draws in data._draws(numbers)]
    return data, data.read_indices(numbers), np.stack(grounds)


def test_a_scene_is_its_background_outside_of_its_boxes_and_differs_at_each_of_their_rims(some):
    data, batch, grounds = some
    for image, ground, boxes in zip(batch["images"], grounds, batch["boxes"], strict=True):
        differs = (image != ground).any(axis=2)
        inside = np.zeros_like(differs)
        for top, left, bottom, right in pixel_boxes(data, boxes):
            inside[top:bottom, left:right] = True
            part = differs[top:bottom, left:right]
            assert part[0].any()
            assert part[-1].any()
            assert part[:, 0].any()
            assert part[:, -1].any()
        assert not (differs & ~inside).any()
        assert inside.any()


def test_boxes_are_inside_the_image_and_do_not_overlap(some):
    data, batch, _ = some
    for boxes in batch["boxes"]:
        height, width = batch["images"].shape[1:3]
        covered = np.zeros([height, width], int)
        for top, left, bottom, right in pixel_boxes(data, boxes):
            assert 0 <= top < bottom <= height
            assert 0 <= left < right <= width
            covered[top:bottom, left:right] += 1
        assert covered.max() == 1


def test_labels_count_from_1_and_absent_boxes_are_last_and_zero(some):
    _, batch, _ = some
    labels, boxes = batch["box_labels"], batch["boxes"]
    is_box = labels > 0
    assert (np.diff(is_box.astype(int), axis=1) <= 0).all()
    assert not boxes[~is_box].any()
    assert is_box[:, 0].all()
    assert set(is_box.sum(1)) == {1, 2, 3, 4, 5, 6}
    assert set(labels[is_box]) <= {*range(1, 48)}
    assert len(set(labels[is_box])) > 40


def test_heights_spread_over_their_range():
    data = scenes(size=64, min_height=0.125)
    boxes = data.read_indices(np.arange(250))["boxes"]
    heights = (boxes[..., 2] - boxes[..., 0])[boxes[..., 2] > 0]
    assert 0.45 < heights.max() <= 0.5 + 1 / 64
    assert heights.min() > 0.125 - 3 / 64
    assert (heights < 0.2).mean() > 0.25  # those without a place are large
    assert (heights > 0.3).mean() > 0.15


def test_a_glyph_shows_the_character_of_its_label(monkeypatch):
    drawn = []
    data = scenes(num_classes=47)
    ink = data._ink
    monkeypatch.setattr(data, "_ink", lambda *key: drawn.append(key) or ink(*key))
    monkeypatch.setattr(
        glyph_scene_input, "_find_place", lambda shape, *_, **__: np.array([0, 0, *shape])
    )
    labels = data.read_indices(np.arange(20))["box_labels"]
    characters = [character for _, character in drawn]
    for label, character in zip(labels[labels > 0], characters, strict=True):
        assert character in CLASSES[label - 1]
    assert {face for face, _ in drawn} <= {*data.faces}


def test_glyphs_differ_from_their_ground_wherever_it_is():
    ink = np.full([4, 4], 255, np.uint8)
    for level in (0, 100, 127, 128, 200, 255):
        for colour in np.eye(3):
            image = np.full([4, 4, 3], level, np.uint8)
            glyph_scene_input._blend(image, ink, np.array([0, 0, 4, 4]), colour)
            assert abs(image.mean() - level) > 64


def test_splits_share_neither_faces_nor_pixels_of_photographs():
    train, heldout = (scenes(split=split) for split in ("train", "heldout"))
    assert not {*train.faces} & {*heldout.faces}
    whole = read_photograph("china")
    for data, part in ((train, whole[:, :480]), (heldout, whole[:, 480:])):
        np.testing.assert_array_equal(data._photographs()[0], part)
    draws = [data._draws(np.arange(3))[0].window for data in (train, heldout)]
    assert (draws[0] != draws[1]).all()


def test_batches_are_functions_of_seed_and_step():
    assert_starts_anywhere(lambda: scenes(num_scenes=12, size=32, min_height=0.25), range(4))
    whole = scenes(batch_size=8).batch(3)
    part = scenes(batch_size=8).batch(3, rows=slice(2, 5))
    for name, array in part.items():
        np.testing.assert_array_equal(array, whole[name][2:5])


def test_a_batch_is_as_offered_and_as_specs_say():
    data = scenes()
    assert data.offers() == {
        "num_classes": 10,
        "class_names": tuple("0123456789"),
        "image_shape": (128, 128, 3),
    }
    batch = data.batch(0)
    assert specs_of(batch) == data.specs()
    assert batch["images"].shape == (4, 128, 128, 3)
    data.check_repeatable()


def test_a_single_pass_ends_with_scenes_of_no_weight_and_no_box():
    last = scenes(num_scenes=3, repeat=False).batch(0)
    assert last["weights"].tolist() == [1, 1, 1, 0]
    assert not last["boxes"][3].any()
    assert not last["box_labels"][3].any()


def test_the_fingerprint_tells_scenes_apart():
    first = scenes(split="heldout").fingerprint()
    assert first == scenes(split="heldout", seed=1).fingerprint()
    assert first["source"] == "scenes of glyphs of 6 faces, 128 pixels"
    assert first["examples"] == 64
    others = [{"split": "train"}, {"size": 96}, {"max_height": 0.3}, {"num_classes": 11}]
    prints = [first] + [scenes(**{"split": "heldout"} | one).fingerprint() for one in others]
    assert len({one["digest"] for one in prints}) == 5


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"size": 31}, "size=31 is not from 32 to 2048 pixels"),
        ({"width": 2049}, "width=2049 is not from 32 to 2048 pixels"),
        ({"num_classes": 48}, "num_classes=48, but glyphs have 47"),
        ({"max_boxes": 0}, "max_boxes=0 is not positive"),
        ({"min_height": 0.05}, r"min_height=0\.05 and max_height=0\.5 are not 0\.0625 <= min"),
        ({"min_height": 0.6}, "min_height=0.6 and max_height=0.5 are not"),
        ({"max_height": 0.8}, "max_height=0.8 are not"),
    ],
)
def test_fields_out_of_range_are_refused(field, message):
    with pytest.raises(ParamError, match=message):
        scenes(**field)


@pytest.mark.parametrize("package", ["matplotlib", "sklearn"])
def test_without_fonts_or_photographs_an_error_names_what_to_install(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    data = scenes()
    assert data.offers()["num_classes"] == 10
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[data\]'"):
        data.prepare()


# ---- masks ---------------------------------------------------------------------------------------


def test_masks_are_the_pixels_of_the_ink_in_their_boxes_and_run_lengths_those_of_the_image():
    fields = {"split": "train", "num_classes": 47, "batch_size": 16, "shuffle": False}
    data = scenes(mask_size=112, max_runs=900, **fields)
    batch, plain = data.batch(0), scenes(**fields).batch(0)
    for name, array in plain.items():
        np.testing.assert_array_equal(batch[name], array, err_msg=name)
    grounds = [data._background(draws) for draws in data._draws(np.arange(16))]
    differing = []
    for i in range(16):
        image = batch["images"][i].astype(int)
        for j in np.flatnonzero(batch["box_labels"][i]):
            top, left, bottom, right = np.rint(batch["boxes"][i, j] * 128).astype(int)
            mask = fill_run_lengths(batch["mask_counts"][i, j], (128, 128))
            inside = mask[top:bottom, left:right]
            assert mask.sum() == inside.sum()
            for rim in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):
                assert rim.any()  # the box is the smallest one
            rows, columns = (
                ((np.arange(112) + 0.5) / 112 * side).astype(int) for side in inside.shape
            )
            np.testing.assert_array_equal(batch["masks"][i, j], inside[rows][:, columns])
            change = abs(image - grounds[i]).sum(-1)[top:bottom, left:right]
            if not inside.all():
                differing.append(change[inside].mean() / max(1, change[~inside].mean()))
    assert not batch["masks"][batch["box_labels"] == 0].any()
    assert not batch["mask_counts"][batch["box_labels"] == 0].any()
    assert np.median(differing) > 5  # ink changes pixels, and the rest hardly


def test_masks_are_in_the_specs_and_too_many_runs_are_an_error():
    data = scenes(mask_size=7, max_runs=300)
    assert data.specs()["masks"] == ((4, 6, 7, 7), "uint8")
    assert data.specs()["mask_counts"] == ((4, 6, 300), "int32")
    assert specs_of(data.batch(0)) == data.specs()
    with pytest.raises(ParamError, match=r"a glyph has a mask of \d+ runs, more than max_runs=3"):
        scenes(max_runs=3).batch(0)


@pytest.mark.parametrize("field", ["mask_size", "max_runs"])
def test_sizes_of_masks_are_positive(field):
    with pytest.raises(ParamError, match=f"{field}=0 is not positive"):
        scenes(**{field: 0})


def test_a_letter_is_the_grey_scene_with_the_class_of_its_only_glyph() -> None:
    fields = {"split": "train", "size": 32, "batch_size": 8, "num_classes": 47}
    heights = {"min_height": 0.35, "max_height": 0.45}
    whole = GlyphSceneInput.params(max_boxes=1, **fields, **heights).build().batch(0)
    letters = LetterSceneInput.params(**fields).build()
    batch = letters.batch(0)
    np.testing.assert_array_equal(batch["labels"] + 1, whole["box_labels"][:, 0])
    grey = whole["images"].astype(np.int64).sum(-1, keepdims=True) // 3
    np.testing.assert_array_equal(batch["images"], grey)
    assert letters.specs()["images"] == ((8, 32, 32, 1), "uint8")
    assert letters.offers()["image_shape"] == (32, 32, 1)


def test_the_widest_glyph_of_all_faces_fits() -> None:
    letters = LetterSceneInput.params(size=32, batch_size=1).build()
    inks = [
        letters._draw_ink(face, character)
        for face in letters.faces
        for character in "".join(CLASSES)
    ]
    widest = max(ink.width / ink.height for ink in inks)
    assert round(0.45 * 32) * 1.15 * widest <= 32


def test_larger_letters_several_boxes_and_masks_are_refused() -> None:
    for fields in ({"max_height": 0.5}, {"max_boxes": 2}, {"mask_size": 8}):
        with pytest.raises(ParamError):
            LetterSceneInput.params(batch_size=1, **fields).build()
