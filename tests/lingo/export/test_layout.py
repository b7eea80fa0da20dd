"""Image networks written for other libraries: from an import, and after training from nothing."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lingo.checkpoints.sources.warm_start import weight_shapes
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.export.hugging_face import CLASSIFIER, PRETRAINED, export_hugging_face, find_experiment
from lingo.layers import BatchNorm
from params.image.pretrained import classifier

NAME = "timm.vit_tiny_patch16_224"
COUNT = "bn1.num_batches_tracked"


def draw(experiment: Experiment, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = weight_shapes(experiment.task)
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def build(**arguments: Any) -> Experiment:
    return classifier(num_classes=10, image_size=32, **arguments).build()


def split(experiment: Experiment, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    states = {name: arrays[name] for name in experiment.task.states()}
    return {"weights": {n: v for n, v in arrays.items() if n not in states}, "states": states}


@pytest.fixture
def described(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a folder that describes a ResNet-18 of ten classes."""
    folder = tmp_path / "described"
    folder.mkdir()
    settings = {"architecture": "torchvision.resnet18", "num_classes": 10}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def test_a_network_of_random_weights_is_written_as_a_folder_describes_it(
    described: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    experiment = build(architecture="torchvision.resnet18")
    arrays = draw(experiment)
    parts = split(experiment, arrays)
    with pytest.raises(ParamError, match="the run was not imported"):
        export_hugging_face(experiment, parts["weights"], tmp_path / "out", states=parts["states"])
    export_hugging_face(
        experiment,
        parts["weights"],
        tmp_path / "out",
        states=parts["states"],
        config=described,
        class_names=list("abcdefghij"),
    )
    written = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(
        written["conv1.weight"], arrays["model/layers/0/conv/w"].transpose(3, 2, 0, 1)
    )
    np.testing.assert_array_equal(
        written["layer4.1.bn2.running_var"],
        arrays["model/layers/9/branch/1/norm/moving_variance"],
    )
    assert len(written) == len(arrays)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["label_names"] == list("abcdefghij")
    again = classifier(path=str(tmp_path / "out")).build()
    transfer = again.init_from.transfer(weight_shapes(again.task))
    for name, value in arrays.items():
        np.testing.assert_array_equal(transfer.value(name), value, err_msg=name)


def test_counts_of_steps_are_those_of_the_imported_file(
    described: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    experiment = build(architecture="torchvision.resnet18")
    parts = split(experiment, draw(experiment))
    export_hugging_face(
        experiment, parts["weights"], tmp_path / "out", states=parts["states"], config=described
    )
    file = tmp_path / "out" / "model.safetensors"
    save_file(load_file(file) | {COUNT: np.array(7)}, file)
    imported = classifier(path=str(file), image_size=32).build()
    parts = split(imported, draw(imported, seed=1))
    for folder in ("with", "without"):
        export_hugging_face(
            imported, parts["weights"], tmp_path / folder, states=parts["states"], dtype="bfloat16"
        )
        written = load_file(tmp_path / folder / "model.safetensors")
        assert (COUNT in written) == (folder == "with")
        assert written["conv1.weight"].dtype.name == "bfloat16"
        file.unlink(missing_ok=True)


def test_how_a_network_is_trained_may_change_but_not_what_it_computes(
    described: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    params = classifier(architecture="torchvision.resnet18", num_classes=10, image_size=32)
    params.all(BatchNorm).set(statistics_over=8, decay=0.5, adapts_if_frozen=True)
    experiment = params.build()
    parts = split(experiment, draw(experiment))
    export_hugging_face(
        experiment, parts["weights"], tmp_path / "a", states=parts["states"], config=described
    )
    params.all(BatchNorm).set(epsilon=1e-3)
    with pytest.raises(ParamError, match=r"norm.epsilon: 0.001, but 1e-05 there"):
        export_hugging_face(
            params.build(),
            parts["weights"],
            tmp_path / "b",
            states=parts["states"],
            config=described,
        )
    assert not (tmp_path / "b").exists()


def test_the_experiment_that_reads_a_folder_is_found_by_its_settings(
    described: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert find_experiment(described) == find_experiment(described / "config.json") == CLASSIFIER
    for content in ('{"model_type": "gpt2"}', "{", '{"architecture": "x", "model_type": "y"}'):
        (tmp_path / "config.json").write_text(content)
        assert find_experiment(tmp_path) == PRETRAINED
        assert find_experiment(tmp_path, has_architecture=True) == CLASSIFIER
    assert find_experiment(tmp_path / "nowhere") == CLASSIFIER
