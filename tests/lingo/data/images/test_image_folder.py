"""A folder for each class: labels, what is read, and what is refused."""

from __future__ import annotations

import shutil

import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.images.encoded import from_document, open_images
from lingo.data.images.image_folder import ImageFiles, ImageFolder
from tests.lingo.data.images.pictures import encode, picture, write_folder


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "pets", classes=("dog", "cat"))


def source(root, **fields):
    return ImageFolder.params(**{"folder": str(root), "num_classes": 2} | fields).build()


def images(root, **fields):
    """Returns {path below the root: (label, bytes)}."""
    index = open_images(source(root, **fields))
    documents = [index.read(i, 0, int(size)) for i, size in enumerate(index.size)]
    return {
        index.files[f].name: tuple(from_document(document))
        for f, document in zip(index.file_id, documents, strict=True)
    }


def test_every_image_has_the_place_of_its_folder_as_label(root):
    found = images(root)
    names = [f"{c}/{i}.{('jpeg', 'png')[i % 2]}" for c in ("cat", "dog") for i in range(4)]
    assert list(found) == names
    assert [label for label, _ in found.values()] == [0] * 4 + [1] * 4
    assert all(data == (root / name).read_bytes() for name, (_, data) in found.items())
    assert source(root).class_names() == ["cat", "dog"]


def test_folders_in_a_class_and_hidden_files(root):
    (root / "dog" / "more" / "deep").mkdir(parents=True)
    (root / "dog" / "0.jpeg").rename(root / "dog" / "more" / "deep" / "0.JPG")
    (root / ".git").mkdir()
    (root / "cat" / ".DS_Store").write_bytes(b"no image")
    (root / "notes.txt").write_text("beside the folders of classes")
    assert images(root)["dog/more/deep/0.JPG"][0] == 1
    assert len(images(root)) == 8


def test_a_file_of_classes_orders_them_and_has_those_without_images(root):
    (root.parent / "classes.txt").write_text("dog\nbird\n\ncat\n")
    fields = {"classes": str(root.parent / "classes.txt"), "num_classes": 3}
    assert source(root, **fields).class_names() == ["dog", "bird", "cat"]
    assert images(root, **fields)["cat/0.jpeg"][0] == 2


def test_train_and_heldout_share_no_image_even_if_it_is_in_both_classes(root):
    for i in range(4, 40):
        (root / "cat" / f"{i}.png").write_bytes(encode(picture(4, 4, seed=i), "PNG"))
        (root / "dog" / f"{i}.png").write_bytes(encode(picture(4, 4, seed=i), "PNG"))
    train, heldout = (
        images(root, split=split, heldout_fraction=0.3) for split in ("train", "heldout")
    )
    assert train.keys() | heldout.keys() == images(root).keys()
    assert not {data for _, data in train.values()} & {data for _, data in heldout.values()}
    assert len(heldout) > 10
    assert len(images(root, unique=True)) == 8 + 36


def write(data, *path):
    def change(root):
        root.joinpath(*path).write_bytes(data)

    return change


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (write(b"GIF89a", "cat", "a.gif"), {}, r"cat/a\.gif is not \.jpg, \.jpeg or \.png: move"),
        (write(b"", "cat", "a.png"), {}, r"cat/a\.png: neither JPEG nor PNG: it begins with b''"),
        (write(b"<html>", "cat", "a.jpg"), {}, r"cat/a\.jpg: neither JPEG nor PNG.*b'<html>'"),
        (write(b"", "a.jpg"), {}, r"pets/a\.jpg is in no class"),
        (lambda root: None, {"num_classes": 3}, "pets has 2 classes, but num_classes=3: set it"),
        (lambda root: (root / "fox").mkdir(), {}, "pets has 3 classes, but num_classes=2"),
        (shutil.rmtree, {}, "pets cannot be listed: No such file or directory"),
        (
            lambda root: [shutil.rmtree(path) for path in root.iterdir()],
            {},
            "pets has no folders: each class needs one",
        ),
        (
            lambda root: [p.unlink() for p in root.glob("*/*")],
            {},
            "no file matches",
        ),
    ],
    ids=["gif", "empty", "html", "stray", "classes", "folders", "gone", "no folders", "no images"],
)
def test_a_folder_that_is_not_as_it_should_be_is_an_error(root, change, fields, message):
    change(root)
    with pytest.raises(DataError, match=message):
        images(root, **fields)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"dog\ncow\n", r"pets/cat is not the folder of a class in .*classes\.txt: add"),
        (b"dog\n", r"classes\.txt has 1 classes, but num_classes=2"),
        (b"dog\ndog\n", r"classes\.txt has the class 'dog' twice"),
        (b"\xff", r"classes\.txt is not text in UTF-8"),
    ],
)
def test_a_file_of_classes_that_does_not_fit_is_an_error(root, content, message):
    file = root.parent / "classes.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        images(root, classes=str(file))


def test_damaged_images_may_be_left_out(root):
    (root / "cat" / "0.jpeg").write_bytes(b"<html>")
    assert len(images(root, max_damaged=1)) == 7


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"folder": ""}, "folder is empty"), ({"num_classes": 0}, "num_classes=0 is not positive")],
)
def test_fields_out_of_range_are_refused(root, fields, message):
    with pytest.raises(ParamError, match=message):
        source(root, **fields)


def files(pattern, **fields):
    """Returns the shown names of images without labels, in order, and the labels of all."""
    source = ImageFiles.params(pattern=str(pattern), num_classes=1, **fields).build()
    index = open_images(source)
    documents = [index.read(i, 0, int(size)) for i, size in enumerate(index.size)]
    assert {from_document(document).label for document in documents} == {0}
    return [index.where(i) for i in range(len(documents))]


def test_images_without_classes_are_those_of_a_folder_a_glob_or_one_path(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    (root / "0.png").write_bytes(encode(picture(), "PNG"))
    (root / ".hidden").write_bytes(b"")
    names = [f"{c}/{i}.{('jpeg', 'png')[i % 2]}" for c in ("cat", "dog") for i in range(4)]
    assert files(root) == files("pets") == [f"pets/{name}" for name in ("0.png", *names)]
    assert files("pets/cat/1.png") == ["pets/cat/1.png"]
    assert files("pets/*/1.png") == ["pets/cat/1.png", "pets/dog/1.png"]
    monkeypatch.chdir(root / "dog")
    assert files(root / "cat" / "1.png") == [f"{root}/cat/1.png"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "cat" / "a.txt").write_text("x"), r"cat/a\.txt is not \.jpg"),
        (lambda root: (root / "cat" / "a.png").write_text("x"), r"cat/a\.png: neither JPEG nor"),
        (
            lambda root: [p.unlink() for p in root.glob("*/*")],
            r"no file matches\. .* holds cat, dog",
        ),
        (shutil.rmtree, r"no file matches\. .* holds nothing"),
    ],
)
def test_files_that_are_no_images_are_refused(root, change, message):
    change(root)
    with pytest.raises(DataError, match=message):
        files(root)
