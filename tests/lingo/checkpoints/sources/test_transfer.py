"""What is read from where, as it is told and as it is written down."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from lingo.checkpoints.sources.transfer import TensorRead, Transfer, fits, resize_grid
from lingo.checkpoints.sources.weight_source import Tensor, UnusableSource, printable
from lingo.config.lazy import tf


class Arrays:
    """A source in memory; `path` is of a file that is one of it."""

    what = "arrays"

    def __init__(self, path, **arrays):
        self.path, self._arrays = path, arrays
        self.tensors = {n: Tensor(a.shape, a.dtype.name) for n, a in arrays.items()}
        self.was_read = []

    def read(self, name):
        self.was_read.append(name)
        return self._arrays[name]

    def files(self, names):
        assert names
        return [self.path]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    return Arrays(
        tmp_path / "a",
        w=np.arange(6, dtype=np.float64).reshape(2, 3),
        h=np.float16([1.5]),
        big=np.array([0.0, 1e300]),
        nan=np.float32([[1, np.nan], [np.inf, 2]]),
        unused=np.int64([[3]]),
    )


def test_a_weight_is_read_when_it_is_asked_for_in_its_type_and_shape(source):
    parts = {"a/w": TensorRead("w", (3, 2), reverse=True), "a/h": TensorRead("h", ())}
    found = Transfer(source, parts, {}, [])
    assert source.was_read == []
    value = found.value("a/w")
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value, [[0, 3], [1, 4], [2, 5]])
    assert found.value("a/h") == 1.5
    assert found.value("other") is None
    assert source.was_read == ["w", "h"]


@pytest.mark.parametrize(("name", "shape", "count"), [("nan", (2, 2), "2"), ("big", (2,), "1")])
def test_a_value_that_float32_cannot_hold_is_refused(source, name, shape, count):
    found = Transfer(source, {"a": TensorRead(name, shape)}, {}, [])
    with pytest.raises(UnusableSource, match=f"{name} holds {count} values, of .* not finite"):
        found.value("a")


def test_one_line_says_what_is_read_and_what_is_not(source):
    parts = {"a": TensorRead("w", (2, 3)), "b": TensorRead("h", (1,)), "c": TensorRead("w", (2, 3))}
    left = [f"left{i}" for i in range(7)]
    assert Transfer(source, parts, {"d": "dd"}, left).summary() == (
        f"3 of 11 weights from {source.path} (arrays, float16 and float64 cast to float32,"
        " 2 weights share tensors); missing: d; not requested: left0, left1, left2, left3, left4"
        " and 2 more"
    )


def test_a_table_lists_every_weight_and_every_tensor(source):
    parts = {"a/weight": TensorRead("w", (3, 2), reverse=True), "b": TensorRead("h", (1,))}
    assert Transfer(source, parts, {"d": "d\n"}, ["e"]).table().splitlines() == [
        f"{source.path}: arrays",
        "",
        "read           a/weight  w       float64 [2, 3], axes reversed",
        "read           b         h       float16 [1]",
        r"missing        d         'd\n'",
        "not requested  e",
        "not used                 big     float64 [2]",
        "not used                 nan     float32 [2, 2]",
        "not used                 unused  int64 [1, 1]",
    ]


def test_a_source_is_identified_by_the_content_of_its_files(source):
    assert Transfer(source, {"a": TensorRead("w", (2, 3))}, {}, []).origin() == {
        "path": str(source.path),
        "what": "arrays",
        "sha256": {"a": hashlib.sha256(b"content").hexdigest()},
    }


@pytest.mark.parametrize(
    ("shape", "wanted", "expected"),
    [
        ([8, 6], [8, 2, 3], True),
        ([6], [1, 6, 1], True),
        ([1], [], True),
        ([0, 3], [0, 4], True),
        ([8, 6], [6, 8], False),
        ([8, 6], [8, 5], False),
    ],
)
def test_neighbouring_axes_may_be_split_or_merged(shape, wanted, expected):
    assert fits(shape, wanted) == fits(wanted, shape) == expected


def test_names_are_shown_in_one_line():
    assert printable("model/w") == "model/w"
    assert printable("a\x1b[2J") == r"'a\x1b[2J'"
    assert printable("x" * 500) == "x" * 120 + "..."


@pytest.mark.parametrize(
    ("old", "new"), [((4, 4), (6, 6)), ((3, 5), (7, 4)), ((8, 6), (3, 3)), ((2, 2), (2, 2))]
)
def test_a_grid_is_resized_as_an_image_is_by_tensorflow_and_pillow(old, new):
    grid = np.random.default_rng(0).normal(size=[*old, 3]).astype("f")
    found = resize_grid(grid.reshape(-1, 3), old, new)
    expected = tf.image.resize(grid, new, antialias=True).numpy()
    np.testing.assert_allclose(found.reshape(*new, 3), expected, atol=1e-5)
    picture = Image.fromarray(grid[..., 0]).resize(new[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_allclose(found[:, 0].reshape(new), np.array(picture), atol=1e-5)


def test_a_row_of_positions_grows_linearly_and_keeps_its_middle():
    values = np.random.default_rng(0).normal(size=[5, 2]).astype("f")
    found = resize_grid(values, (5,), (9,))
    places = (np.arange(9) + 0.5) * 5 / 9 - 0.5  # np.interp repeats the ends, as is wanted
    expected = np.stack([np.interp(places, np.arange(5), column) for column in values.T], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found[4], values[2], atol=1e-6)
    assert found.dtype == np.float32


def test_a_grid_of_other_size_is_read_and_listed(source):
    read = TensorRead("w", (2, 2), reverse=True, resize=((3,), (2,)))
    found = Transfer(source, {"a": read}, {}, [])
    np.testing.assert_allclose(
        found.value("a"), resize_grid(np.array([[0.0, 3], [1, 4], [2, 5]]), (3,), (2,))
    )
    assert "float64 [2, 3], axes reversed, resized from 3 to 2" in found.table()
