"""Weights in files of Keras's: their names in each format, and what is told of damaged files."""

from __future__ import annotations

import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from lingo.checkpoints.sources.find import find_source
from lingo.checkpoints.sources.keras_file import KerasFile
from lingo.checkpoints.sources.weight_source import UnusableSource


def make_model() -> Any:
    """Returns a model with each kind of layer that image networks have, after a training step."""
    layers = keras.layers
    image = keras.Input((8, 8, 3))
    x = layers.Normalization(mean=None, name="levels")(image)
    x = layers.Conv2D(4, 3, name="stem")(x)
    x = layers.DepthwiseConv2D(3, name="apart", use_bias=False)(x)
    x = layers.BatchNormalization(name="bn")(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(image, layers.Dense(2, name="head")(x))
    model.compile("adam", "mse")
    model.fit(np.zeros([2, 8, 8, 3]), np.zeros([2, 2]), verbose=0)
    return model


@pytest.mark.parametrize("name", ["a.weights.h5", "a.keras", "a.h5"])
@pytest.mark.filterwarnings("ignore:.*HDF5")
def test_weights_have_the_names_of_their_layers(name: str, tmp_path: pathlib.Path) -> None:
    model, path = make_model(), tmp_path / name
    (model.save_weights if ".weights" in name else model.save)(path)
    source = find_source(path, step=None, averages=False)
    expected = {
        f"{layer.name}/{weight.name}": weight.numpy()
        for layer in model.layers
        for weight in layer.weights
    }
    assert {*source.tensors} == {*expected}
    for weight, value in expected.items():
        assert source.tensors[weight] == (value.shape, value.dtype.name)
        np.testing.assert_array_equal(source.read(weight), value)
    assert source.files([*expected]) == [path]


@pytest.mark.parametrize("name", ["a.weights.h5", "a.keras", "a.h5"])
@pytest.mark.filterwarnings("ignore:.*HDF5")
def test_a_network_inside_of_another_has_the_same_names(name: str, tmp_path: pathlib.Path) -> None:
    layers, inner = keras.layers, make_model()
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), inner, layers.Dropout(0.1), layers.Dense(3, name="labels")]
    )
    (model.save_weights if ".weights" in name else model.save)(tmp_path / name)
    source = KerasFile(tmp_path / name)
    inside = {f"{layer.name}/{w.name}": w.numpy() for layer in inner.layers for w in layer.weights}
    assert {*source.tensors} == {*inside, "labels/kernel", "labels/bias"}
    for weight, value in inside.items():
        np.testing.assert_array_equal(source.read(weight), value)


@pytest.mark.parametrize("name", ["a.weights.h5", "a.h5"])
@pytest.mark.filterwarnings("ignore:.*HDF5")
def test_weights_with_one_name_have_their_paths(name: str, tmp_path: pathlib.Path) -> None:
    layers, x = keras.layers, keras.Input((4, 6))
    attention = [layers.MultiHeadAttention(1, 2 + i, name=f"attend_{i}") for i in range(2)]
    model = keras.Model(x, attention[1](attention[0](x, x), x))
    (model.save_weights if ".weights" in name else model.save)(tmp_path / name)
    source = KerasFile(tmp_path / name)
    values = sorted(source.read(weight).tobytes() for weight in source.tensors)
    assert values == sorted(weight.tobytes() for weight in model.get_weights())
    assert len(values) == 16
    assert all("attend_" in weight or "attention" in weight for weight in source.tensors)


def test_older_weights_are_read_without_a_model_around_them(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["apart/apart/depthwise_kernel:0"] = np.ones([3, 3, 2, 1], "f")
        file["stem/stem/kernel:0"] = np.ones(3, "f")
    assert {*KerasFile(tmp_path / "a.h5").tensors} == {"apart/kernel", "stem/kernel"}


def test_a_file_that_is_deleted_or_cut_later_is_refused(tmp_path: pathlib.Path) -> None:
    make_model().save_weights(tmp_path / "a.weights.h5")
    file = tmp_path / "a.weights.h5"
    source = KerasFile(file)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(UnusableSource, match=r"a.weights.h5 is damaged: .*truncated"):
        source.read("stem/kernel")
    file.unlink()
    with pytest.raises(UnusableSource, match=r"a.weights.h5 cannot be read: No such file"):
        source.read("stem/kernel")


def write_zip(file: pathlib.Path, kind: int = zipfile.ZIP_STORED, **members: bytes) -> None:
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _h5_without_layers(file: pathlib.Path) -> None:
    with h5py.File(file, "w") as content:
        content["array"] = np.zeros(3)


def _h5_elsewhere(file: pathlib.Path) -> None:
    with h5py.File(file, "w") as content:
        group = content.create_group("conv1_conv")
        group.create_dataset("kernel", (3,), "f", external=[("/etc/passwd", 0, 12)])


def _h5_without_values(file: pathlib.Path) -> None:
    with h5py.File(file, "w") as content:
        content.create_dataset("conv1_conv/kernel", data=h5py.Empty("f"))
        content.create_dataset(b"conv1_conv/\xff", data=np.zeros(3))


def _encrypt(file: pathlib.Path) -> None:
    write_zip(file, zipfile.ZIP_STORED, **{"model.weights.h5": b"text"})
    content = bytearray(file.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.find(header) + flags] |= 1
    file.write_bytes(content)


DAMAGED: dict[str, tuple[str, Callable[[pathlib.Path], Any], str]] = {
    "no HDF5": ("a.h5", lambda f: f.write_bytes(b"text"), r"a.h5 is damaged: "),
    "empty": ("a.weights.h5", lambda f: f.write_bytes(b""), r"a.weights.h5 is damaged: "),
    "no zip": ("a.keras", lambda f: f.write_bytes(b"text"), r"a.keras is damaged: .*not a zip"),
    "no weights": (
        "a.keras",
        lambda f: write_zip(f, a=b""),
        r"damaged: .*no item.*model.weights.h5",
    ),
    "compressed": (
        "a.keras",
        lambda f: write_zip(f, zipfile.ZIP_DEFLATED, **{"model.weights.h5": bytes(1000)}),
        r"a.keras is damaged: its model.weights.h5 is compressed",
    ),
    "encrypted": ("a.keras", _encrypt, r"a.keras is damaged: .*encrypted"),
    "no values": ("a.h5", _h5_without_values, r"a.h5 holds no weights of layers"),
    "no layers": ("a.h5", _h5_without_layers, r"a.h5 holds no weights of layers"),
    "elsewhere": ("a.h5", _h5_elsewhere, r"damaged: the values of conv1_conv/kernel are elsewhere"),
    "a folder": ("a.h5", lambda f: f.mkdir(), r"a.h5 holds no weights that lingo can read"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_of_keras_are_refused(case: str, tmp_path: pathlib.Path) -> None:
    name, make, message = DAMAGED[case]
    make(tmp_path / name)
    with pytest.raises(UnusableSource, match=message) as caught:
        find_source(tmp_path / name, step=None, averages=False)
    assert "\n" not in str(caught.value)
