"""TensorBundles that TensorFlow wrote: read exactly; a byte that differs anywhere is found."""

from __future__ import annotations

import os
import pathlib
import random
import struct

import numpy as np
import pytest

from lingo.checkpoints.sources.source import Tensor, UnusableSource
from lingo.checkpoints.sources.tensor_bundle import TensorBundle
from lingo.config.errors import LingoError
from lingo.config.lazy import tf
from lingo.data.sources.tfrecord import masked_crc32c

VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)
DATA = "theirs.data-00000-of-00001"


def save(prefix: pathlib.Path, tensors: dict[str, object], specs: dict[str, str] | None = None):
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[(specs or {}).get(name, "") for name in tensors],
        tensors=[tf.convert_to_tensor(value) for value in tensors.values()],
    )
    return prefix


@pytest.fixture
def theirs(tmp_path: pathlib.Path) -> pathlib.Path:
    return save(tmp_path / "theirs", {"w": VALUE, "b": np.float64([1, 2])})


def test_every_float_type_and_shape_is_read(tmp_path: pathlib.Path) -> None:
    draw = np.random.RandomState(0).randn(3, 2, 2)
    tensors = {dtype: tf.cast(draw, dtype) for dtype in ("float64", "float32", "float16")}
    tensors |= {"b": tf.cast(draw, tf.bfloat16), "scalar": tf.constant(2.5), "none": tf.zeros([0])}
    found = TensorBundle(save(tmp_path / "all", tensors))
    for name, value in tensors.items():
        assert found.tensors[name] == Tensor(tuple(value.shape), value.dtype.name)
        read = found.read(name)
        expected = tf.cast(value, tf.float32).numpy() if name == "b" else value.numpy()
        assert read.dtype == expected.dtype
        np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize(
    ("shape", "axis", "cuts"),
    [
        ((6, 3), 0, (2,)),
        ((300, 2), 0, (70, 130)),
        ((2, 20_000), 1, (8191, 8192, 16_500)),
        ((1,), 0, ()),
    ],
)
def test_slices_of_a_partitioned_variable_are_put_together(
    tmp_path: pathlib.Path, shape: tuple[int, ...], axis: int, cuts: tuple[int, ...]
) -> None:
    value = np.random.RandomState(0).randn(*shape).astype(np.float32)
    prefixes = []
    for i, part in enumerate(np.split(value, cuts, axis)):
        start = (0, *cuts)[i]
        spans = ["-"] * len(shape)
        spans[axis] = f"{start},{part.shape[axis]}"
        spec = f"{' '.join(map(str, shape))} {':'.join(spans)}"
        prefixes.append(str(save(tmp_path / f"part{i}", {"a/w": part}, {"a/w": spec})))
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=prefixes, destination_prefix=str(tmp_path / "whole")
    )
    found = TensorBundle(tmp_path / "whole")
    assert found.tensors == {"a/w": Tensor(shape, "float32")}
    np.testing.assert_array_equal(found.read("a/w"), value)


def test_a_flipped_byte_anywhere_in_the_index_is_found(theirs: pathlib.Path) -> None:
    path, whole = theirs.with_name("theirs.index"), TensorBundle(theirs).tensors
    raw, found = path.read_bytes(), 0
    for i in range(len(raw)):
        path.write_bytes(raw[:i] + bytes([raw[i] ^ 0x41]) + raw[i + 1 :])
        try:
            assert TensorBundle(theirs).tensors == whole, f"byte {i}"
        except UnusableSource:
            found += 1
    assert found >= len(raw) - 40  # the footer has room that means nothing


def test_a_flipped_byte_anywhere_in_the_data_is_found(theirs: pathlib.Path) -> None:
    path = theirs.with_name(DATA)
    raw = path.read_bytes()
    assert len(raw) == VALUE.nbytes + 16
    for i in range(len(raw)):
        path.write_bytes(raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :])
        found = TensorBundle(theirs)
        with pytest.raises(UnusableSource, match=r"the bytes of [wb] are not what was written"):
            _ = [found.read(name) for name in "wb"]


def test_damage_deep_in_a_long_index_does_not_pass_for_its_end(tmp_path: pathlib.Path) -> None:
    names = [f"{'a' * 200}/{i:04d}" for i in range(4000)]
    prefix = save(tmp_path / "long", {name: [float(i)] for i, name in enumerate(names)})
    assert sorted(TensorBundle(prefix).tensors) == names
    path = tmp_path / "long.index"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UnusableSource, match=r"long\.index is damaged: .* not what was written"):
        TensorBundle(prefix)


def test_an_index_of_nonsense_under_a_right_checksum_is_refused(theirs: pathlib.Path) -> None:
    path, draw = theirs.with_name("theirs.index"), random.Random(0)
    raw = path.read_bytes()
    end = next(
        i for i in range(len(raw))
        if raw[i : i + 1] == b"\0" and raw[i + 1 : i + 5] == checksum(raw[: i + 1])
    )  # fmt: skip
    for _ in range(500):
        block = bytearray(raw[: end + 1])
        for _ in range(draw.choice([1, 2, 4])):
            block[draw.randrange(end)] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
        path.write_bytes(bytes(block) + checksum(bytes(block)) + raw[end + 5 :])
        try:
            found = TensorBundle(theirs)
            for name, tensor in found.tensors.items():
                if tensor == Tensor((2, 3), "float32"):  # as the model has it
                    found.read(name)
        except LingoError:
            continue


def checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


@pytest.mark.parametrize("size", [0, 1, 47, 48, -1])
def test_an_index_that_is_cut_short_is_refused(theirs: pathlib.Path, size: int) -> None:
    path = theirs.with_name("theirs.index")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UnusableSource, match=r"does not end as an index|has no block"):
        TensorBundle(theirs)


def test_data_that_is_cut_short_or_missing_is_named(theirs: pathlib.Path) -> None:
    path = theirs.with_name(DATA)
    os.truncate(path, 20)
    with pytest.raises(UnusableSource, match=f"{DATA} is damaged: w ends after"):
        TensorBundle(theirs).read("w")
    path.unlink()
    with pytest.raises(UnusableSource, match=f"{DATA} cannot be read: No such file"):
        TensorBundle(theirs)
    os.mkfifo(path)
    with pytest.raises(UnusableSource, match=f"{DATA} is no plain file"):
        TensorBundle(theirs)
