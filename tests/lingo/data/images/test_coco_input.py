"""Images with boxes in COCO's layout: what is read is what was written, and errors say where."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from PIL import Image

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.images import coco_annotations
from lingo.data.images.coco_annotations import read_annotations
from lingo.data.images.coco_input import CocoInput
from lingo.data.images.decode import PixelBudget, decode_into, part_of
from lingo.data.images.header import read_header
from lingo.data.images.view import Window
from lingo.metrics.mask import (
    compress_run_lengths,
    fill_run_lengths,
    polygon_run_lengths,
    run_lengths,
)
from lingo.metrics.mean_average_precision import coco_detections
from lingo.ops import random
from lingo.ops.image.boxed_image import crop_boxes, flip_boxes, jitter_window, min_iou_box
from tests.lingo.data.documents import assert_starts_anywhere, specs_of
from tests.lingo.data.images.pictures import encode, picture

CONTENT = {
    "categories": [
        {"id": 90, "name": "toothbrush"},
        {"id": 3, "name": "car"},
        {"id": 18, "name": "dog"},
    ],
    "images": [
        {"id": 42, "file_name": "a.jpg", "height": 40, "width": 60},
        {"id": 7, "file_name": "sub/b.png", "height": 30, "width": 20},
        {"id": 11, "file_name": "c.jpg", "height": 25, "width": 25},  # has no boxes
    ],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 90, "bbox": [5, 6, 10, 12], "area": 99.5},
        {"id": 2, "image_id": 42, "category_id": 3, "bbox": [0, 0, 60, 40], "iscrowd": 1},
        {"id": 3, "image_id": 7, "category_id": 18, "bbox": [0.5, 0, 19.5, 30.4]},
        {"id": 4, "image_id": 42, "category_id": 18, "bbox": [30, 10, 5.5, 20]},
        {"id": 5, "image_id": 42, "category_id": 18, "bbox": [30, 10, 0, 20]},  # has no area
    ],
}


def write(root, content=CONTENT):
    """Writes a file of annotations and its images; returns the file."""
    (root / "images/sub").mkdir(parents=True, exist_ok=True)
    for seed, image in enumerate(CONTENT["images"]):
        pixels = picture(image["height"], image["width"], seed=seed)
        form = "PNG" if image["file_name"].endswith("png") else "JPEG"
        (root / "images" / image["file_name"]).write_bytes(encode(pixels, form))
    path = root / "instances.json"
    path.write_text(json.dumps(content))
    return path


def coco(root, **fields):
    own = {"annotations": str(root / "instances.json"), "folder": str(root / "images")}
    defaults = {"num_classes": 3, "size": 16, "max_boxes": 4, "batch_size": 3, "shuffle": False}
    return CocoInput.params(**own | defaults | fields).build()


@pytest.fixture
def root(tmp_path):
    write(tmp_path)
    return tmp_path


def test_boxes_are_in_parts_of_their_image_with_labels_by_sorted_ids(root):
    data = coco(root)
    assert data.category_ids == [3, 18, 90]
    batch = data.batch(0)
    assert batch["image_ids"].tolist() == [42, 7, 11]
    assert batch["image_sizes"].tolist() == [[40, 60], [30, 20], [25, 25]]
    assert batch["box_labels"].tolist() == [[1, 2, 0, 0], [3, 2, 0, 0], [0, 0, 0, 0]]
    expected = np.zeros([3, 4, 4], np.float32)
    expected[0, :2] = [[0, 0, 1, 1], [10 / 40, 30 / 60, 30 / 40, 35.5 / 60]]
    expected[1, :2] = [[6 / 30, 5 / 20, 18 / 30, 15 / 20], [0, 0.5 / 20, 1, 1]]  # 0.4 are cut off
    np.testing.assert_array_equal(batch["boxes"], expected)
    assert batch["is_crowd"].tolist() == [[True, *[False] * 3], [False] * 4, [False] * 4]
    assert batch["areas"][:2, :2].tolist() == [[2400, 110], [99.5, np.float32(19.5 * 30.4)]]
    assert data.remarks() == ["left out 1 boxes that have no area"]


def test_images_are_whole_and_resized(root):
    data = coco(root, size=24)
    batch = data.batch(0)
    for image, seed, one in zip(batch["images"], range(3), CONTENT["images"], strict=True):
        pixels = picture(one["height"], one["width"], seed=seed).astype(float)
        rows, columns = (np.arange(24) * pixels.shape[axis] // 24 for axis in (0, 1))
        assert abs(image - pixels[rows][:, columns]).mean() < 12


def test_boxes_return_to_the_pixels_and_ids_of_the_file(root):
    data = coco(root)
    batch = data.batch(0)
    found = coco_detections(
        {name: batch[name] for name in ("boxes", "box_labels")} | {"box_scores": batch["areas"]},
        image_ids=batch["image_ids"],
        image_sizes=batch["image_sizes"],
        category_ids=data.category_ids,
    )
    written = {(a["image_id"], a["category_id"]): a["bbox"] for a in CONTENT["annotations"][:4]}
    written[7, 18] = [0.5, 0, 19.5, 30]
    assert len(found) == len(written)
    for one in found:
        box = written[one["image_id"], one["category_id"]]
        np.testing.assert_allclose(one["bbox"], box, atol=1e-5)


def test_images_without_a_box_are_left_out_if_wanted(root):
    some, batch = coco(root), coco(root, skips_empty=True, batch_size=2).batch(0)
    assert some.num_examples() == 3
    for name, array in batch.items():
        if name != "rows":
            np.testing.assert_array_equal(array, some.batch(0)[name][:2], err_msg=name)


def test_a_crop_and_a_mirror_image_are_those_of_the_key_of_the_example(root):
    data = coco(root, random_crop=True, flip_rate=1.0, repeat=True, batch_size=6, seed=3)
    plain = coco(root, batch_size=3)
    batch, whole = data.batch(2), plain.batch(0)
    numbers = np.arange(12, 18)
    key = random.fold(random.root_key(3), random.text_hash("view"))
    for row, number in enumerate(numbers.tolist()):
        image = number % 3
        size = tuple(whole["image_sizes"][image].tolist())
        boxes, labels = whole["boxes"][image], whole["box_labels"][image]
        objects = np.where(whole["is_crowd"][image], 0, labels)
        window = min_iou_box(size, boxes, objects, random.fold(random.fold(key, 0), number))
        boxes, labels = crop_boxes(boxes, labels, window, size)
        content = (root / "images" / CONTENT["images"][image]["file_name"]).read_bytes()
        pixels = np.empty([1, 16, 16, 3], np.uint8)
        part = part_of(content, read_header(content), Window(window, True))
        decode_into(pixels, [part], PixelBudget())
        np.testing.assert_array_equal(batch["images"][row], pixels[0])
        np.testing.assert_allclose(batch["boxes"][row], flip_boxes(boxes, labels), atol=1e-6)
        np.testing.assert_array_equal(batch["box_labels"][row], labels)
        assert not batch["areas"][row][labels == 0].any()
    assert len({batch["images"][row].tobytes() for row in (0, 3)}) == 2


def test_batches_are_functions_of_seed_and_step(root):
    fields = {"random_crop": True, "flip_rate": 0.5, "shuffle": True, "batch_size": 2}
    assert_starts_anywhere(lambda: coco(root, **fields), range(5))
    whole = coco(root, **fields | {"batch_size": 6}).batch(3)
    part = coco(root, **fields | {"batch_size": 6}).batch(3, rows=slice(2, 5))
    for name, array in part.items():
        np.testing.assert_array_equal(array, whole[name][2:5])


def test_a_batch_is_as_offered_and_as_specs_say(root):
    data = coco(root, repeat=False, batch_size=4)
    assert data.offers() == {"num_classes": 3, "image_shape": (16, 16, 3)}
    batch = data.batch(0)
    assert specs_of(batch) == data.specs()
    assert batch["weights"].tolist() == [1, 1, 1, 0]
    assert not batch["box_labels"][3].any()
    data.check_repeatable()


def test_the_fingerprint_tells_annotations_and_images_apart(root):
    first = coco(root).fingerprint()
    assert first["source"] == "instances.json of COCO's layout"
    assert first["images"] == 3
    assert first["bytes"] == sum(
        (root / "images" / i["file_name"]).stat().st_size for i in CONTENT["images"]
    )
    digests = {first["digest"]}
    (root / "images/c.jpg").write_bytes(encode(picture(25, 25, seed=9)))
    digests.add(coco(root).fingerprint()["digest"])
    content = copy.deepcopy(CONTENT)
    content["annotations"][0]["iscrowd"] = 1
    write(root, content)
    digests.add(coco(root).fingerprint()["digest"])
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("annotations", 0, "image_id"), 5, "annotation 1 is of image 5, which the file lacks"),
        (("annotations", 0, "category_id"), 5, "annotation 1 is of category 5, which the file"),
        (("annotations", 3, "bbox"), [30, 10, 40, 20], r"annotation 4 has bbox=\[30, 10, 40, 20\]"),
        (("annotations", 3, "bbox"), [-2, 10, 9, 9], "is not in its image of 60 x 40 pixels"),
        (("annotations", 3, "bbox"), [9, 9, -1, 5], "is not in its image of 60 x 40 pixels"),
        (("annotations", 3, "bbox"), [30, 10, 5], "not x, y, width and height"),
        (("annotations", 3, "bbox"), [30, 10, 5, "x"], "not x, y, width and height"),
        (("annotations", 3, "bbox"), [30, 10, 5, float("nan")], "not x, y, width and height"),
        (("annotations", 3, "bbox"), None, "entry 3 of 'annotations' has bbox=None, not of type l"),
        (("annotations", 0, "area"), "9", "annotation 1 has area='9', not a number of pixels"),
        (("images", 1, "id"), 42, "has two images of the id 42"),
        (("images", 1, "height"), 0, "image 7 has no pixels"),
        (("images", 1, "file_name"), 3, "entry 1 of 'images' has file_name=3, not of type str"),
        (("images", 1), 3, "entry 1 of 'images' has id=None"),
        (("categories", 1, "name"), "dog", "has the class 'dog' twice"),
        (("categories",), None, "has no list 'categories'"),
        (("images",), [], "which the file lacks"),
    ],
)
def test_a_wrong_entry_is_an_error_that_names_it(where, value, message, root):
    content = copy.deepcopy(CONTENT)
    entry = content
    for step in where[:-1]:
        entry = entry[step]
    entry[where[-1]] = value
    write(root, content)
    with pytest.raises(DataError, match=message):
        coco(root).prepare()


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[]", "is not an object of JSON"), ("{}", "has no list 'categories'")],
)
def test_a_file_of_another_layout_is_an_error(content, message, root):
    (root / "instances.json").write_text(content)
    with pytest.raises(DataError, match=message):
        coco(root).prepare()


def test_a_file_without_images_is_an_error(root):
    write(root, CONTENT | {"images": [], "annotations": []})
    with pytest.raises(DataError, match="has no images"):
        read_annotations(str(root / "instances.json"), 3)


def test_another_number_of_classes_or_of_boxes_is_an_error(root):
    with pytest.raises(DataError, match="has 3 classes, but num_classes=80: set it to 3"):
        coco(root, num_classes=80).prepare()
    with pytest.raises(DataError, match=r"image 42 has 2 boxes, more than max_boxes=1: set it"):
        coco(root, max_boxes=1).prepare()


def test_an_image_that_is_missing_damaged_or_of_another_size_is_an_error(root):
    path = root / "images/c.jpg"
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(
        DataError, match=r"instances\.json names an image, but .*c\.jpg cannot be read"
    ):
        coco(root).prepare()
    path.write_bytes(encode(picture(26, 25)))
    with pytest.raises(DataError, match=r"c\.jpg: the image has 25 x 26 pixels, but 25 x 25 in"):
        coco(root).batch(0)
    path.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"c\.jpg: the image cannot be decoded: its header"):
        coco(root).batch(0)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"c\.jpg: the image cannot be decoded"):
        coco(root).batch(0)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"num_classes": 0}, "num_classes=0 is not positive"),
        ({"max_boxes": 0}, "max_boxes=0 is not positive"),
        ({"flip_rate": 1.5}, r"flip_rate=1\.5 is not in 0\.\.1"),
        ({"folder": ""}, "folder is empty"),
        ({"annotations": ""}, "annotations is empty"),
    ],
)
def test_fields_out_of_range_are_refused(field, message, tmp_path):
    with pytest.raises(ParamError, match=message):
        coco(tmp_path, **field)


# ---- masks and scales ----------------------------------------------------------------------------

HEIGHT, WIDTH, M = 60, 80, 24
TRIANGLES = [[10, 5, 40, 8, 30, 40], [60, 10, 75, 12, 64, 30]]


def draw_objects():
    """Returns three masks, bool [3, HEIGHT, WIDTH]: two triangles, a disc, and half a disc."""
    corners = [np.array(one, float) for one in TRIANGLES]
    polygons = fill_run_lengths(polygon_run_lengths(corners, (HEIGHT, WIDTH)), (HEIGHT, WIDTH))
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    disc = np.hypot(rows - 40, columns - 30) < 14
    half = (np.hypot(rows - 30, columns - 60) < 18) & (rows > columns - 34)
    return np.stack([polygons, disc, half])


def write_masks(root, changes=(), orientation=1):
    """Writes an image that is white where its channel's object is, with all kinds of masks."""
    objects = draw_objects()
    counts = [run_lengths(one) for one in objects]
    size = [HEIGHT, WIDTH]
    segmentations = [
        TRIANGLES,
        {"size": size, "counts": counts[1].tolist()},
        {"size": size, "counts": compress_run_lengths(counts[2])},
    ]
    annotations = []
    for i, one in enumerate(objects):
        (top, left), (bottom, right) = np.argwhere(one).min(0), np.argwhere(one).max(0) + 1
        box = [int(n) for n in (left, top, right - left, bottom - top)]
        entry = {"id": i + 1, "image_id": 7, "category_id": i + 1, "bbox": box}
        annotations.append(entry | {"segmentation": segmentations[i]})
    for i, change in changes:
        annotations[i] |= change
    content = {
        "categories": [{"id": i, "name": str(i)} for i in (1, 2, 3)],
        "images": [{"id": 7, "file_name": "a.png", "height": HEIGHT, "width": WIDTH}],
        "annotations": annotations,
    }
    (root / "images").mkdir(exist_ok=True)
    pixels = Image.fromarray((255 * np.moveaxis(objects, 0, 2)).astype(np.uint8))
    options = {}
    if orientation != 1:  # turned so that the tag turns it back
        pixels = pixels.transpose(Image.Transpose.ROTATE_90)  # 6: a quarter turn to the right
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = orientation
    form = "PNG" if orientation == 1 else "JPEG"
    (root / "images/a.png").write_bytes(encode(pixels, form, **options))
    (root / "instances.json").write_text(json.dumps(content))


def slow_bins(channel, box):
    """Returns what is white at the centres of the bins of a box, by a loop."""
    bins, (height, width) = np.zeros([M, M], np.uint8), channel.shape
    for i in range(M):
        for j in range(M):
            y = (box[0] + (box[2] - box[0]) * (i + 0.5) / M) * height
            x = (box[1] + (box[3] - box[1]) * (j + 0.5) / M) * width
            bins[i, j] = channel[min(int(y), height - 1), min(int(x), width - 1)] > 127
    return bins


def test_masks_of_all_kinds_are_sampled_in_their_boxes_and_counted_in_the_image(tmp_path):
    write_masks(tmp_path)
    batch = coco(tmp_path, mask_size=M, max_runs=300, batch_size=1).batch(0)
    objects = draw_objects()
    for i, one in enumerate(objects):
        box = batch["boxes"][0, i].astype(float)
        expected = slow_bins(255 * one.astype(int), box)
        assert (batch["masks"][0, i] == expected).mean() > 0.99  # but for float32's rounding
        filled = fill_run_lengths(batch["mask_counts"][0, i], (HEIGHT, WIDTH))
        np.testing.assert_array_equal(filled, one)
    assert batch["masks"].dtype == np.uint8
    assert not batch["masks"][0, 3].any()
    assert not batch["mask_counts"][0, 3].any()


def test_each_polygon_is_drawn_once(tmp_path, monkeypatch):
    drawn = []

    def draw(polygons, size):
        drawn.append(size)
        return polygon_run_lengths(polygons, size)

    write_masks(tmp_path)
    data = coco(tmp_path, mask_size=M, max_runs=300, batch_size=1)
    monkeypatch.setattr(coco_annotations, "polygon_run_lengths", draw)
    data.batch(0)
    assert drawn == [(HEIGHT, WIDTH)]  # the other objects of the image are run lengths


@pytest.mark.parametrize(
    "fields", [{}, {"flip_rate": 1.0}, {"random_crop": True}, {"scale_jitter": (0.3, 2.0)}]
)
@pytest.mark.parametrize("width", [None, 144])
@pytest.mark.parametrize("orientation", [1, 6])
def test_masks_are_where_their_objects_are_after_every_change(fields, width, orientation, tmp_path):
    write_masks(tmp_path, orientation=orientation)
    fields = {"flip_rate": 0.5, "size": 96, "width": width, "batch_size": 24} | fields
    data = coco(tmp_path, mask_size=M, **fields)
    batch, seen = data.batch(0), 0
    for image, boxes, labels, masks in zip(
        *(batch[name] for name in ("images", "boxes", "box_labels", "masks")), strict=True
    ):
        for i in np.flatnonzero(labels):
            box, seen = boxes[i].astype(float), seen + 1
            if (box[2:] - box[:2]).min() > 0.1:  # rims are a small part
                assert (masks[i] == slow_bins(image[..., labels[i] - 1], box)).mean() > 0.85
        assert not masks[labels == 0].any()
    assert seen > 30
    assert specs_of(batch) == data.specs()


@pytest.mark.parametrize("target", [(64, 64), (48, 96)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jittered_image_is_its_window_above_and_left_of_black(orientation, target, tmp_path):
    write_masks(tmp_path, orientation=orientation)
    fields = {"scale_jitter": (0.2, 2.0), "size": target[0], "width": target[1], "seed": 5}
    data = coco(tmp_path, batch_size=8, flip_rate=0.0, **fields)
    batch, sizes = data.batch(0), set()
    whole = np.moveaxis(draw_objects(), 0, 2) * 255.0
    key = random.fold(random.root_key(5), random.text_hash("view"))
    for row in range(8):
        own = random.fold(random.fold(key, 0), row)
        window, shown = jitter_window((HEIGHT, WIDTH), own, target=target, low=0.2, high=2.0)
        image = batch["images"][row].astype(float)
        assert not image[shown[0] :].any()
        assert not image[:, shown[1] :].any()
        rows, columns = (
            ((np.arange(n) + 0.5) / n * side).astype(int)
            for n, side in zip(shown, (window.height, window.width), strict=True)
        )
        expected = whole[window.slices][rows][:, columns]
        assert abs(image[: shown[0], : shown[1]] - expected).mean() < 25
        canvas = np.array([window.height, window.width]) * target / np.array(shown)
        np.testing.assert_allclose(batch["canvas_sizes"][row], canvas, rtol=1e-6)
        sizes.add(shown)
    assert len(sizes) > 3


@pytest.mark.parametrize("fields", [{}, {"width": 96}, {"width": 96, "fit_size": (48, 80)}])
def test_without_scaling_boxes_on_the_canvas_are_those_of_the_file_in_pixels(fields, tmp_path):
    write_masks(tmp_path)
    batch = coco(tmp_path, scale_jitter=(1.0, 1.0), size=64, batch_size=1, **fields).batch(0)
    pixels = batch["boxes"][0] * np.tile(batch["canvas_sizes"][0], 2)
    for i, one in enumerate(draw_objects()):
        expected = [*np.argwhere(one).min(0), *(np.argwhere(one).max(0) + 1)]
        np.testing.assert_allclose(pixels[i], expected, atol=1e-4)


def test_an_image_just_fits_its_size_and_the_rest_of_an_oblong_canvas_is_black(tmp_path):
    write_masks(tmp_path)  # of 60 x 80 pixels
    fields = {"scale_jitter": (1.0, 1.0), "size": 52, "width": 84, "fit_size": (48, 72)}
    data = coco(tmp_path, batch_size=1, flip_rate=0.0, **fields)
    batch = data.batch(0)
    assert data.offers()["image_shape"] == batch["images"].shape[1:] == (52, 84, 3)
    seen = np.argwhere(batch["images"][0].any(-1))
    assert (seen.max(0) < [48, 64]).all()
    canvas = [52 * HEIGHT / 48, 84 * WIDTH / 64]
    np.testing.assert_allclose(batch["canvas_sizes"], [canvas], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segmentation": [[1, 2, 3, 4, 5]]}, "annotation 2 has a polygon of 5 numbers"),
        ({"segmentation": [[1, 2, 3, 4]]}, "annotation 2 has a polygon of 4 numbers"),
        (
            {"segmentation": [[1, 2, 99, 4, 9, 9]]},
            "annotation 2 has a polygon with corners outside",
        ),
        ({"segmentation": {"size": [60, 80], "counts": [9]}}, "2 has counts of 9 pixels, but its"),
        ({"segmentation": {"size": [80, 60], "counts": [4800]}}, r"a mask of size=\[80, 60\], but"),
        ({"segmentation": None}, "annotation 2 has segmentation=None, neither polygons nor run"),
    ],
)
def test_a_damaged_mask_is_an_error_that_names_its_annotation(change, message, tmp_path):
    write_masks(tmp_path, [(1, change)])
    coco(tmp_path).prepare()  # nothing reads masks
    with pytest.raises(DataError, match=message):
        coco(tmp_path, mask_size=M).prepare()


def test_more_runs_than_there_is_room_for_are_an_error(tmp_path):
    write_masks(tmp_path)
    with pytest.raises(
        ParamError, match=r"a\.png: an object has a mask of \d+ runs, more than max"
    ):
        coco(tmp_path, max_runs=3, batch_size=1).batch(0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_size": 0}, "mask_size=0 is not positive"),
        ({"max_runs": 0}, "max_runs=0 is not positive"),
        ({"scale_jitter": (2.0, 1.0)}, r"scale_jitter=\(2\.0, 1\.0\) is not \(low, high\)"),
        ({"scale_jitter": (1.0, 1.0), "random_crop": True}, "are both set: choose one"),
        ({"width": 0}, "width=0 is not positive"),
        ({"fit_size": (8, 8)}, r"fit_size=\(8, 8\) without scale_jitter"),
    ],
)
def test_fields_of_masks_and_scales_out_of_range_are_refused(fields, message, tmp_path):
    with pytest.raises(ParamError, match=message):
        coco(tmp_path, **fields)
