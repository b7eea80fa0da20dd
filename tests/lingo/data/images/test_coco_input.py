"""Images with boxes in COCO's layout: what is read is what was written, and errors say where."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.images.coco_input import CocoInput, read_annotations
from lingo.data.images.decode import PixelBudget, decode_into, part_of
from lingo.data.images.header import read_header
from lingo.data.images.view import Window
from lingo.metrics.mean_average_precision import coco_detections
from lingo.ops import random
from lingo.ops.image.boxed_image import crop_boxes, flip_boxes, min_iou_box
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
    with pytest.raises(DataError, match=r"c\.jpg, an image of .*instances\.json, cannot be read"):
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
