"""Shards of images: what is in them, and that a failure leaves nothing."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.images import record_writer
from lingo.data.images.encoded import from_document, open_images
from lingo.data.images.image_folder import ImageFolder
from lingo.data.images.image_records import ImageRecords
from lingo.data.images.record_writer import write_records
from lingo.storage.files import StorageError
from tests.lingo.data.images.pictures import encode, picture, write_folder


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "pets", num=5)


def folder(root, **fields):
    return ImageFolder.params(folder=str(root), num_classes=2, **fields).build()


def records(out, **fields):
    params = ImageRecords.params(pattern=str(out / "*.tfrecord"), num_classes=2, **fields)
    return params.set(classes=str(out / "classes.txt")).build()


def images(source):
    index = open_images(source)
    return [from_document(index.read(i, 0, int(n))) for i, n in enumerate(index.size)]


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
    assert records(out).class_names() == ["cat", "dog"]
    assert images(records(out)) == images(records(again)) != images(folder(root))
    assert sorted(images(records(out))) == sorted(images(folder(root)))
    assert 0 < [label for label, _ in images(records(out))][:5].count(1) < 5


def test_the_split_of_an_image_is_the_same_in_folder_and_records(root, tmp_path):
    write_records(folder(root), tmp_path / "out", num_shards=1)
    fields = {"split": "heldout", "heldout_fraction": 0.4}
    heldout = images(folder(root, **fields))
    assert 0 < len(heldout) < 10
    assert sorted(images(records(tmp_path / "out", **fields))) == sorted(heldout)


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
        Image.open(io.BytesIO(data)).size: data for _, data in images(records(tmp_path / "out"))
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

    monkeypatch.setattr(record_writer, "_AT_A_TIME", 2)
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
