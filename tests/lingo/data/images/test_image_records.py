"""Images in TFRecord files: ImageNet's, TensorFlow Datasets', and those that lingo writes."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.images import image_records
from lingo.data.images.encoded import from_document, open_images
from lingo.data.images.image_folder import ImageFolder
from lingo.data.images.image_records import ImageRecords, TfdsImages, write_records
from lingo.storage.files import StorageError
from tests.lingo.data.images.pictures import encode, picture, write_example, write_folder

IMAGES = [encode(picture(8, 8, seed=i), ("JPEG", "PNG")[i % 2]) for i in range(5)]
LABELS = [2, 0, 1, 1, 2]
MODULE = "tensorflow_datasets.core.features"


def write_examples(file, *, first_label=1, image="image/encoded", label="image/class/label"):
    with tf.io.TFRecordWriter(str(file)) as writer:
        for data, number in zip(IMAGES, LABELS, strict=True):
            write_example(writer, data, number + first_label, image, label)
    return file


def images(source):
    index = open_images(source)
    return [from_document(index.read(i, 0, int(n))) for i, n in enumerate(index.size)]


def records(file, **fields):
    return ImageRecords.params(**{"pattern": str(file), "num_classes": 3} | fields).build()


def test_images_and_labels_are_those_that_tensorflow_parses(tmp_path):
    file = write_examples(tmp_path / "a.tfrecord")
    spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = images(records(file))
    for (label, data), raw in zip(found, tf.data.TFRecordDataset(str(file)), strict=True):
        parsed = tf.io.parse_single_example(raw, spec)
        assert data == parsed["image/encoded"].numpy()
        assert label + 1 == parsed["image/class/label"].numpy()
    assert [label for label, _ in found] == LABELS


def test_features_and_the_first_label_may_be_others(tmp_path):
    file = write_examples(tmp_path / "a.tfrecord", first_label=0, image="jpg", label="y")
    found = images(records(file, feature="jpg", label_feature="y", first_label=0))
    assert found == list(zip(LABELS, IMAGES, strict=True))


def test_classes_have_the_names_in_a_file_or_none(tmp_path):
    file, names = write_examples(tmp_path / "a.tfrecord"), tmp_path / "classes.txt"
    names.write_text("ant\nbee\ncat\n")
    assert records(file).class_names() == []
    assert records(file, classes=str(names)).class_names() == ["ant", "bee", "cat"]
    with pytest.raises(DataError, match="has 3 classes, but num_classes=4: set it to 3"):
        images(records(file, classes=str(names), num_classes=4))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_classes": 2}, r"a\.tfrecord, image 1, byte 0: its label, counted from 0, is 2, but"),
        ({"first_label": 2}, r"image 2, .*counted from 0, is -1, but with num_classes=3 labels"),
        ({"feature": "png"}, r"image 1, .*no feature 'png'; features: 'image/class/label'"),
        ({"label_feature": "image/encoded2"}, "no feature 'image/encoded2'"),
    ],
)
def test_records_of_another_layout_are_an_error(tmp_path, fields, message):
    file = write_examples(tmp_path / "a.tfrecord")
    with pytest.raises(DataError, match=message):
        images(records(file, **fields))


def test_a_label_that_is_a_text_is_an_error(tmp_path):
    file = tmp_path / "a.tfrecord"
    feature = {n: tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"1"])) for n in "xy"}
    with tf.io.TFRecordWriter(str(file)) as writer:
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        writer.write(example.SerializeToString())
    with pytest.raises(DataError, match="feature 'y' has 0 integers, not one"):
        images(records(file, feature="x", label_feature="y"))
    with pytest.raises(ParamError, match="feature and label_feature are both 'x'"):
        records(file, feature="x", label_feature="x")


def test_a_damaged_record_is_an_error_or_left_out(tmp_path):
    file = write_examples(tmp_path / "a.tfrecord")
    content = bytearray(file.read_bytes())
    content[-30] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"image 5, .*its checksum is wrong.*max_damaged=N"):
        images(records(file))
    assert [label for label, _ in images(records(file, max_damaged=1))] == LABELS[:-1]


@pytest.fixture
def directory(tmp_path):
    """Two shards, as tensorflow-datasets writes them for an image and its class."""
    split = {"name": "train", "shardLengths": ["5", "5"]}
    info = {"fileFormat": "tfrecord", "name": "zoo", "splits": [split]}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    features = {
        "image": {
            "pythonClassName": f"{MODULE}.image_feature.Image",
            "image": {"dtype": "uint8", "encodingFormat": "jpeg"},
        },
        "label": {
            "pythonClassName": f"{MODULE}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": "3"},
        },
        "id": {"pythonClassName": f"{MODULE}.text_feature.Text", "text": {}},
    }
    content = {"featuresDict": {"features": features}}
    (tmp_path / "features.json").write_text(json.dumps(content))
    (tmp_path / "label.labels.txt").write_text("ant\nbee\ncat\n")
    for i in range(2):
        file = tmp_path / f"zoo-train.tfrecord-{i:05d}-of-00002"
        write_examples(file, first_label=0, image="image", label="label")
    return tmp_path


def tfds(directory, **fields):
    return TfdsImages.params(**{"directory": str(directory), "num_classes": 3} | fields).build()


def test_a_tfds_directory_has_images_classes_and_their_names(directory):
    source = tfds(directory)
    assert images(source) == 2 * list(zip(LABELS, IMAGES, strict=True))
    assert source.class_names() == ["ant", "bee", "cat"]
    train, heldout = (tfds(directory, split=s, heldout_fraction=0.5) for s in ("train", "heldout"))
    assert len(images(train)) + len(images(heldout)) == 10
    assert np.unique([data for _, data in images(heldout)]).size == len(images(heldout)) / 2


def test_a_tfds_directory_of_other_classes_or_features_is_an_error(directory):
    with pytest.raises(DataError, match="has 3 classes, but num_classes=2: set it to 3"):
        images(tfds(directory, num_classes=2))
    with pytest.raises(DataError, match="feature 'id' is not an image; images: 'image'"):
        images(tfds(directory, feature="id"))
    with pytest.raises(DataError, match="feature 'id' is not a label; labels: 'label'"):
        images(tfds(directory, label_feature="id"))
    (directory / "label.labels.txt").unlink()
    assert tfds(directory).class_names() == []
    with pytest.raises(DataError, match="'label' has 3 classes, but num_classes=4"):
        images(tfds(directory, num_classes=4))


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "pets", num=5)


def folder(root, **fields):
    return ImageFolder.params(folder=str(root), num_classes=2, **fields).build()


def written(out, **fields):
    params = ImageRecords.params(pattern=str(out / "*.tfrecord"), num_classes=2, **fields)
    return params.set(classes=str(out / "classes.txt")).build()


def test_records_hold_the_images_of_the_folder_shuffled_and_the_same_each_time(root, tmp_path):
    shown = []
    for name in ("out", "again"):
        num = write_records(
            folder(root), tmp_path / name, num_shards=3, progress=lambda *a: shown.append(a)
        )
        assert num == 10
    assert shown[:10] == [(i, 10) for i in range(1, 11)]
    out, again = tmp_path / "out", tmp_path / "again"
    assert sorted(file.name for file in out.iterdir()) == [
        "classes.txt",
        *[f"out-{i:05d}-of-00003.tfrecord" for i in range(3)],
    ]
    assert written(out).class_names() == ["cat", "dog"]
    assert images(written(out)) == images(written(again)) != images(folder(root))
    assert sorted(images(written(out))) == sorted(images(folder(root)))
    assert 0 < [label for label, _ in images(written(out))][:5].count(1) < 5


def test_the_split_of_an_image_is_the_same_in_folder_and_records(root, tmp_path):
    write_records(folder(root), tmp_path / "out", num_shards=1)
    fields = {"split": "heldout", "heldout_fraction": 0.4}
    heldout = images(folder(root, **fields))
    assert 0 < len(heldout) < 10
    assert sorted(images(written(tmp_path / "out", **fields))) == sorted(heldout)


def test_tensorflow_reads_the_layout_of_imagenet(root, tmp_path):
    write_records(folder(root), tmp_path / "out", num_shards=1)
    text, number = tf.io.FixedLenFeature([], tf.string), tf.io.FixedLenFeature([], tf.int64)
    spec = {f"image/{name}": text for name in ("encoded", "format", "filename", "class/text")}
    spec["image/class/label"] = number
    found = set()
    for raw in tf.data.TFRecordDataset(str(tmp_path / "out" / "out-00000-of-00001.tfrecord")):
        example = {k: v.numpy() for k, v in tf.io.parse_single_example(raw, spec).items()}
        name = example["image/filename"].decode()
        assert example["image/encoded"] == (root / name).read_bytes()
        assert example["image/format"] == (b"PNG" if name.endswith("png") else b"JPEG")
        assert name.startswith(example["image/class/text"].decode())
        assert example["image/class/label"] == (1 if name.startswith("cat") else 2)
        found.add(name)
    assert len(found) == 10


def test_size_shrinks_larger_images_and_turns_them_upright(tmp_path):
    root, exif = tmp_path / "pets", Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    kinds = {
        "large.jpg": encode(picture(40, 60)),
        "turned.jpg": encode(picture(40, 60), exif=exif),
        "small.png": encode(picture(20, 16), "PNG"),
        "palette.png": encode(Image.fromarray(picture(48, 30)).convert("P"), "PNG"),
        "alpha.png": encode(Image.fromarray(picture(48, 30)).convert("RGBA"), "PNG"),
    }
    for class_ in ("cat", "dog"):
        (root / class_).mkdir(parents=True)
    for name, data in kinds.items():
        (root / "cat" / name).write_bytes(data)
    write_records(folder(root), tmp_path / "out", num_shards=1, size=20)
    found = {
        Image.open(io.BytesIO(data)).size: data for _, data in images(written(tmp_path / "out"))
    }
    assert sorted(found) == [(16, 20), (20, 30), (20, 32), (30, 20)]  # (width, height)
    assert found[16, 20] == kinds["small.png"]
    large = Image.open(io.BytesIO(kinds["large.jpg"]))
    assert found[30, 20] == encode(large.resize((30, 20), Image.Resampling.BICUBIC))
    shrunk = np.asarray(Image.open(io.BytesIO(found[30, 20]))).astype(int)
    turned = np.asarray(Image.open(io.BytesIO(found[20, 30]))).astype(int)
    assert abs(np.rot90(turned) - shrunk).mean() < 4


def test_an_image_that_cannot_be_decoded_is_an_error_and_nothing_is_left(root, tmp_path):
    file = root / "dog" / "3.png"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(DataError, match=rf"{file}: the image cannot be decoded: .*\. Replace or"):
        write_records(folder(root), tmp_path / "out", num_shards=2)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["pets"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupt_or_a_full_disk_leaves_nothing(root, tmp_path, monkeypatch, error):
    def fail(done, total):
        assert len(list(tmp_path.glob(".out.*/*.tfrecord"))) == 2  # the second shard is begun
        if done == 7:
            raise error

    monkeypatch.setattr(image_records, "_AT_A_TIME", 2)
    kind = StorageError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(kind):
        write_records(
            folder(root),
            tmp_path / "out",
            num_shards=2,
            progress=lambda done, total: done > 5 and fail(done, total),
        )
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["pets"]


def test_a_folder_that_exists_is_not_overwritten(root, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ParamError, match="out exists: name another folder"):
        write_records(folder(root), tmp_path / "out", num_shards=1)
