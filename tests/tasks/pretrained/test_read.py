"""Files of image models: what is read of them, and what is told of wrong and damaged ones."""

from __future__ import annotations

import json
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lingo.checkpoints.errors import CheckpointMismatch
from lingo.checkpoints.sources.transfer import Transfer
from lingo.checkpoints.sources.warm_start import weight_shapes
from lingo.checkpoints.sources.weight_source import UnusableSource
from lingo.config.params import ParamError
from params.image.pretrained import classifier
from tasks.pretrained.architecture import IMAGENET
from tasks.pretrained.read import read_image_model

RESNET = "torchvision.resnet18"
HEAD = "fc.weight"
Write = Callable[..., pathlib.Path]


def open_transfer(file: pathlib.Path, architecture: str = RESNET, **arguments: Any) -> Transfer:
    """Finds the weights of the experiment's model in a file, without reading them."""
    cfg = classifier(path=str(file), architecture=architecture, **arguments)
    side = cfg.train_input.enlarged_to[0]
    task = cfg.task.copy().set(image_shape=(side, side, 3)).build()
    warm, shapes = cfg.init_from.build(), weight_shapes(task)
    warm.check_weights(list(shapes))
    return warm.transfer(shapes)


def read_all(file: pathlib.Path, architecture: str = RESNET, **arguments: Any) -> dict[str, Any]:
    transfer = open_transfer(file, architecture, **arguments)
    return {weight: transfer.value(weight) for weight in transfer.reads}


def test_a_file_has_its_number_of_classes_and_the_usual_levels(write: Write) -> None:
    read = read_image_model(str(write()), RESNET)
    assert (read.num_classes, read.image_size, read.crop) == (10, 224, 0.875)
    assert (read.mean, read.std) == IMAGENET
    assert read_image_model(str(write()), "timm.resnet18.a1_in1k").architecture.name == (
        "timm.resnet18"
    )


def test_settings_of_timm_say_size_levels_and_names(write: Write) -> None:
    file = write("timm.vit_tiny_patch16_224")
    settings = {"input_size": [3, 224, 224], "mean": [0.1, 0.2, 0.3], "crop_pct": 0.9}
    config = {
        "architecture": "vit_tiny_patch16_224",
        "pretrained_cfg": settings,
        "label_names": list("abcdefghij"),
    }
    (file.parent / "config.json").write_text(json.dumps(config))
    for path in (file, file.parent):
        read = read_image_model(str(path))
        assert read.architecture.name == "timm.vit_tiny_patch16_224"
        assert (read.mean, read.std, read.crop) == ((0.1, 0.2, 0.3), (0.5,) * 3, 0.9)
        assert read.class_names == tuple("abcdefghij")


def test_a_folder_with_settings_alone_describes_a_network(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "resnet34", "num_classes": 7}')
    read = read_image_model(str(tmp_path))
    assert (read.architecture.name, read.num_classes) == ("timm.resnet34", 7)


def test_a_file_without_a_name_is_recognized_unless_networks_with_its_tensors_differ(
    write: Write,
) -> None:
    assert read_image_model(str(write())).architecture.name == RESNET  # timm's is the same
    name = "torchvision.efficientnet_b5"
    assert read_image_model(str(write(name))).architecture.name == name
    with pytest.raises(ParamError, match=r"tensors fit timm.*b0 and timm.tf_efficientnet_b0: "):
        read_image_model(str(write("timm.efficientnet_b0")))
    with pytest.raises(ParamError, match="no network that lingo knows has its tensors"):
        read_image_model(str(write(**{HEAD: None})))


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_halves_are_read_as_float32(dtype: str, bound: float, write: Write) -> None:
    exact = read_all(write())
    file = write()
    halves = {
        name: value.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        for name, value in load_file(file).items()
    }
    save_file(halves, file)
    found = read_all(file)
    for weight, value in exact.items():
        assert found[weight].dtype == np.float32
        np.testing.assert_allclose(found[weight], value, rtol=bound, atol=1e-6)


def test_positions_are_interpolated_for_images_of_another_size(write: Write) -> None:
    file, name = write("timm.vit_tiny_patch16_224"), "timm.vit_tiny_patch16_224"
    table, small = (read_all(file, name, **size) for size in ({}, {"image_size": 112}))
    vectors = "model/layers/2/vectors"
    np.testing.assert_array_equal(small[vectors][0], table[vectors][0])  # of the class token
    grid = table[vectors][1:].reshape(14, 14, -1).astype(float)
    # a point of the smaller grid sees the four cells that it covers, and half of their neighbours
    weights = np.array([1, 3, 3, 1]) / 8
    expected = np.einsum("i,j,ijd->d", weights, weights, grid[1:5, 3:7])
    np.testing.assert_allclose(small[vectors][1:].reshape(7, 7, -1)[1, 2], expected, rtol=1e-4)
    for weight, value in table.items():
        if weight != vectors:
            np.testing.assert_array_equal(small[weight], value)


def test_an_exported_network_for_another_size_is_read_again(write: Write) -> None:
    """A table of more positions also fits another network, which is published for such images."""
    name = "timm.vit_tiny_patch16_224"
    table = np.zeros([1, 1 + 24 * 24, 192], "f")
    file = write(name, pos_embed=table)
    with pytest.raises(ParamError, match=r"its tensors fit timm.vit_tiny_patch16_384$"):
        read_image_model(str(file), name)
    config: dict[str, Any] = {"architecture": name.removeprefix("timm.")}
    config |= {"model_args": {"img_size": 384}, "pretrained_cfg": {"input_size": [3, 384, 384]}}
    (file.parent / "config.json").write_text(json.dumps(config))
    assert read_image_model(str(file.parent)).image_size == 384
    assert "model/layers/2/vectors" in open_transfer(file.parent, "").reads


def test_another_number_of_classes_needs_a_new_head_that_is_asked_for(write: Write) -> None:
    file = write()
    with pytest.raises(ParamError, match=r"has 10 classes, but num_classes=3: .*new_head=true"):
        open_transfer(file, num_classes=3)
    transfer = open_transfer(file, num_classes=3, new_head=True)
    assert [*transfer.other_weights] == ["model/layers/10/linear/w", "model/layers/10/linear/b"]
    assert len(transfer.reads) == 100


WRONG = {
    "missing": (
        {"layer1.0.conv1.weight": None},
        "missing layer1.0.conv1.weight for model/layers/2",
    ),
    "other shape": (
        {"layer1.0.bn1.bias": np.zeros(3, "f")},
        r"shape model/layers/2/branch/0/norm/beta \(layer1.0.bn1.bias\): \[3\] in the source",
    ),
    "other rank": ({"conv1.weight": np.zeros([64, 147], "f")}, r"\[64, 147\] in the source"),
    "in lingo's order": ({"conv1.weight": np.zeros([7, 7, 3, 64], "f")}, r"\[7, 7, 3, 64\] in the"),
    "unknown": (
        {"layer1.0.se.fc1.weight": np.zeros(3, "f")},
        "unknown layer1.0.se.fc1.weight: the network has no such tensor",
    ),
    "integers": ({"bn1.bias": np.zeros(64, np.int8)}, "int8 in the source, but float64, float32"),
}


@pytest.mark.parametrize("case", WRONG)
def test_tensors_that_do_not_fit_are_named(case: str, write: Write) -> None:
    changes, message = WRONG[case]
    with pytest.raises(CheckpointMismatch, match=message):
        open_transfer(write(**changes))


def test_values_that_are_not_finite_are_named(write: Write) -> None:
    with pytest.raises(UnusableSource, match=r"bn1.bias holds 64 values, of 64, that are not fin"):
        read_all(write(**{"bn1.bias": np.full(64, np.nan, "f")}))


@pytest.mark.parametrize(
    "other", ["timm.resnet34", "timm.efficientnet_b0", "torchvision.vit_b_32", "keras.ResNet50"]
)
def test_a_file_of_another_network_is_refused(other: str, write: Write) -> None:
    message = f"is no {other}: its tensors fit torchvision.resnet18 and timm.resnet18$"
    with pytest.raises(ParamError, match=message):
        read_image_model(str(write()), other)


def test_a_truncated_file_is_refused(write: Write) -> None:
    file = write()
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ParamError, match=r"model.safetensors is damaged: "):
        open_transfer(file)


@pytest.mark.parametrize("content", ["zip", "pickle"])
def test_a_pickle_is_not_read_and_the_command_that_converts_it_is_told(
    content: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "resnet18.pth"
    if content == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("resnet18/data.pkl", b"")
    else:
        file.write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ParamError, match=r'is a pickle.* "resnet18.safetensors"\)') as caught:
        read_image_model(str(file), RESNET)
    assert "\n" not in str(caught.value)


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "pool": (
        {"global_pool": "max"},
        "global_pool='max'; lingo's timm.resnet18 supports only 'avg'",
    ),
    "channels": ({"model_args": {"in_chans": 1}}, "in_chans=1; .* supports only 3"),
    "arguments": ({"model_args": {"stem_width": 32}}, "model_args.stem_width=32, which changes"),
    "classes": ({"num_classes": "5"}, "num_classes='5'; a whole number is wanted"),
    "negative": ({"num_classes": -1}, "num_classes=-1; a whole number is wanted"),
    "size": ({"pretrained_cfg": {"input_size": [3, 224, 192]}}, "input_size=.* square images"),
    "mean": ({"pretrained_cfg": {"mean": [0.5]}}, r"mean=\[0.5\], which is not a list of 3"),
    "std": ({"pretrained_cfg": {"std": "x"}}, "std='x', which is not a list of 3"),
    "crop": ({"pretrained_cfg": {"crop_pct": 2}}, r"crop_pct=2; a number in 0..1"),
    "network": ({"architecture": "resnext50_32x4d"}, "its convolutions have groups"),
    "misspelt": ({"architecture": "resnet19"}, "Did you mean 'timm.resnet18'"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_settings_that_lingo_lacks_are_named(case: str, tmp_path: pathlib.Path) -> None:
    changes, message = CONFIGS[case]
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet18"} | changes))
    with pytest.raises(ParamError, match=message):
        read_image_model(str(tmp_path))


def test_a_path_without_weights_is_refused(tmp_path: pathlib.Path) -> None:
    for path in (tmp_path, tmp_path / "none.safetensors"):
        with pytest.raises(ParamError, match=r"holds no weights|does not exist"):
            read_image_model(str(path), RESNET)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ParamError, match="is not JSON"):
        read_image_model(str(tmp_path), RESNET)


def test_a_network_without_a_last_layer_needs_a_new_one(tmp_path: pathlib.Path) -> None:
    settings = {"architecture": "resnet18", "num_classes": 0}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ParamError, match=r"has no last layer: --set=exp.new_head=true --set=exp.n"):
        classifier(path=str(tmp_path))
    cfg = classifier(path=str(tmp_path), num_classes=3, new_head=True)
    assert cfg.task.num_classes == 3


@pytest.mark.parametrize(("name", "mean"), [("vit_tiny_patch16_224", 0.5), ("resnet18", 0.485)])
def test_random_weights_see_the_levels_of_their_network(name: str, mean: float) -> None:
    assert classifier(architecture=f"timm.{name}").task.mean[0] == mean
