"""Models in Hugging Face's layout: what is exported is what was imported, or what was trained."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

import lingo
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data import HuggingFaceTokenizer
from lingo.export.hugging_face import convert_weights, export_hugging_face
from lingo.layers import Attention, Lora, Remat, Repeat, Stack, TransformerLayer
from lingo.learner.task import Task
from lingo.optim import Sgd
from lingo.storage.files import StorageError

MODELS = pathlib.Path(__file__).parents[2] / "params" / "huggingface"
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
        ParamError, match="was not imported from a model of the hub: set `config` to a folder"
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
