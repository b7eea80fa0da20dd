"""Models in other libraries' layouts: an export is what was imported, or what was trained."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

import lingo
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data import HuggingFaceTokenizer
from lingo.export.hugging_face import (
    CLASSIFIER,
    PRETRAINED,
    convert_weights,
    export_hugging_face,
    find_experiment,
)
from lingo.layers import Attention, BatchNorm, Lora, Remat, Repeat, Stack, TransformerLayer
from lingo.learner.task import Task
from lingo.optim import Sgd
from lingo.storage.files import StorageError
from params.image.pretrained import classifier

MODELS = pathlib.Path(__file__).parents[2] / "params" / "huggingface"
COUNT = "bn1.num_batches_tracked"
NAMES = sorted(folder.name for folder in MODELS.iterdir() if folder.is_dir())


def imported(name: str) -> Params:
    """Returns the experiment of a tiny model, with a tokenizer that has its number of ids."""
    params = lingo.get(f"huggingface.pretrained_model(path={str(MODELS / name)!r})")
    tokenizer = HuggingFaceTokenizer.params(file="none.json", vocab_size=96, end="</s>")
    params.train_input.tokenizer = tokenizer
    return params


def weights_of(experiment: Experiment) -> dict[str, np.ndarray]:
    """Returns the weights that an experiment begins with."""
    transfer = experiment.warm_start()
    assert transfer is not None
    return {name: transfer.value(name) for name in transfer.reads}  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
def test_an_imported_model_is_exported_bit_for_bit(name: str, tmp_path: pathlib.Path) -> None:
    experiment = imported(name).build()
    export_hugging_face(experiment, weights_of(experiment), tmp_path / "out")
    old, new = (load_file(f / "model.safetensors") for f in (MODELS / name, tmp_path / "out"))
    assert {*old} == {*new}
    for tensor, value in old.items():
        assert value.tobytes() == new[tensor].tobytes(), tensor
        assert value.shape == new[tensor].shape, tensor
    configs = [
        json.loads((f / "config.json").read_text()) for f in (MODELS / name, tmp_path / "out")
    ]
    assert configs[0] == configs[1]
    with safe_open(tmp_path / "out" / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert len({file.stat().st_mode for file in (tmp_path / "out").iterdir()}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_other_weights_are_read_again_as_they_were(name: str, tmp_path: pathlib.Path) -> None:
    experiment = imported(name).build()
    draw = np.random.default_rng(0)
    weights = {
        key: draw.normal(size=value.shape).astype(np.float32)
        for key, value in weights_of(experiment).items()
    }
    export_hugging_face(experiment, weights, tmp_path / "out")
    params = imported(name)
    params.init_from.path = str(tmp_path / "out")
    for key, value in weights_of(params.build()).items():
        np.testing.assert_array_equal(value, weights[key], err_msg=key)


def test_parts_scale_and_offset_are_undone() -> None:
    class Two(Task):
        def setup(self) -> None:
            self.a, self.b = (self.weight(name, [2, 3], axes=(None, None)) for name in "ab")

    source = np.arange(12, dtype=np.float32).reshape(2, 6)
    fields = {"rename": {"[ab]": "ab"}, "parts": {"a": (0, 2), "b": (1, 2)}}
    warm = WarmStart.params(path="x", scale={"a": 0.5}, offset={"b": 1.0}, **fields).build()
    task = Two.params().build()
    weights = {name: read.change(source) for name, read in warm.reads(weight_shapes(task)).items()}
    np.testing.assert_array_equal(weights["a"], source[:, :3] * 0.5)
    np.testing.assert_array_equal(weights["b"], source[:, 3:] + 1)
    (tensor,) = convert_weights(warm, weights, task.weights()).values()
    np.testing.assert_array_equal(tensor, source)
    less = WarmStart.params(path="x", skip=("b",)).build()
    with pytest.raises(ParamError, match="hub has no tensor for the weight b"):
        convert_weights(less, weights, task.weights())


def test_how_a_model_is_executed_and_trained_may_change(tmp_path: pathlib.Path) -> None:
    params = imported("llama2")
    params.task.all(Stack).swap(Repeat)
    params.task.all(TransformerLayer).set(dropout_rate=0.1)
    params.task.all(TransformerLayer).wrap(Remat, "layer")
    params.set(optimizer=Sgd.params(learning_rate=1.0))
    experiment = params.build()
    export_hugging_face(experiment, weights_of(experiment), tmp_path / "out")
    old, new = (load_file(f / "model.safetensors") for f in (MODELS / "llama2", tmp_path / "out"))
    assert all(np.array_equal(value, new[name]) for name, value in old.items())


def test_bfloat16_rounds_and_is_named(tmp_path: pathlib.Path) -> None:
    experiment = imported("llama2").build()
    weights = weights_of(experiment)
    export_hugging_face(experiment, weights, tmp_path / "out", dtype="bfloat16")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    params = imported("llama2")
    params.init_from.path = str(tmp_path / "out")
    for key, value in weights_of(params.build()).items():
        np.testing.assert_allclose(value, weights[key], rtol=2**-8, err_msg=key)


def lora(params: Params) -> None:
    params.task.all(Attention).wrap(Lora, "layer", rank=2)
    params.init_from.skip = (".*_lora_[ab]",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.task.all(Attention).set(logit_cap=5.0), r"attention.logit_cap: 5.0, but None"),
        (lambda p: p.task.all(Stack).set(num_layers=1), r"layers/1/attention: absent, but Attent"),
        (lora, r"lora_a: shape \[32, 2\], but absent in config"),
    ],
)
def test_a_model_of_another_shape_is_refused(change, words, tmp_path: pathlib.Path) -> None:
    params = imported("llama2")
    change(params)
    experiment = params.build()
    with pytest.raises(ParamError, match=words):
        export_hugging_face(experiment, weights_of(experiment), tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def test_a_model_that_was_not_imported_needs_a_config(tmp_path: pathlib.Path) -> None:
    params = imported("llama2")
    weights = weights_of(params.build())
    params.init_from = None
    experiment = params.build()
    with pytest.raises(
        ParamError,
        match="was not imported from a model of the hub: format=savedmodel writes a program",
    ):
        export_hugging_face(experiment, weights, tmp_path / "out")
    export_hugging_face(experiment, weights, tmp_path / "out", config=MODELS / "llama2")
    assert (tmp_path / "out" / "model.safetensors").exists()
    with pytest.raises(ParamError, match="out exists: name another folder"):
        export_hugging_face(experiment, weights, tmp_path / "out", config=MODELS / "llama2")
    with pytest.raises(ParamError, match="dtype='int8' is not one of float32, bfloat16"):
        export_hugging_face(experiment, weights, tmp_path / "two", dtype="int8")  # type: ignore
    with pytest.raises(ParamError, match=r"the model is not the one that .*gpt2"):
        export_hugging_face(experiment, weights, tmp_path / "two", config=MODELS / "gpt2")


def test_a_folder_that_is_gone_is_told(tmp_path: pathlib.Path) -> None:
    params = imported("llama2")
    weights = weights_of(params.build())
    params.init_from.path = str(tmp_path / "gone")
    with pytest.raises(ParamError, match=r"gone.*, which has no config\.json now"):
        export_hugging_face(params.build(), weights, tmp_path / "out")


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_an_error_while_writing_leaves_nothing(
    error: Exception, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **keywords: object) -> None:
        raise error

    experiment = imported("llama2").build()
    weights = weights_of(experiment)
    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(StorageError, match="No space left"):
        export_hugging_face(experiment, weights, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


# ---- image networks of other libraries


def draw(experiment: Experiment, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = weight_shapes(experiment.task)
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def build_classifier(**arguments: Any) -> Experiment:
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
    experiment = build_classifier(architecture="torchvision.resnet18")
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
    experiment = build_classifier(architecture="torchvision.resnet18")
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
