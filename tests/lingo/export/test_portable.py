"""Exported programs compute, in a process that cannot import lingo, what their runs compute."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.export import check
from lingo.export.check import Case, ExportError
from lingo.export.manifest import verify_export
from lingo.export.portable import Settings
from lingo.learner.task import Task
from lingo.storage.files import StorageError
from lingo.trainer.trained import Trained
from tests.lingo.export.models import small
from tests.processor import HAS_AVX512

Train = Callable[[str], Trained]
Save = Callable[[str], pathlib.Path]


def read(folder: pathlib.Path) -> dict:
    return json.loads((folder / "export.json").read_text())


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*"),
    pytest.mark.xdist_group("exports"),  # they share trained models
]


@pytest.mark.parametrize(
    ("name", "signatures"),
    [
        ("tiny", ["predict", "score", "decode", "score_text", "decode_text"]),
        ("tiny_moe", ["predict", "score", "decode", "score_text", "decode_text"]),
        ("pairs", ["predict", "score", "decode", "decode_text"]),
        ("convolution", ["predict"]),
        ("resnet", ["predict"]),
        ("vit", ["predict"]),
    ],
)
def test_a_saved_model_computes_what_its_run_computes(
    name: str, signatures: list[str], saved: Save
) -> None:
    assert (saved(name) / "1" / "saved_model.pb").exists()  # the version is the step
    manifest = read(saved(name))
    assert [*manifest["signatures"]] == sorted(signatures)
    specs = manifest["signatures"][signatures[-1]]
    served = tf.saved_model.load(str(saved(name) / "1")).signatures[signatures[-1]]
    assert {*specs["inputs"]} == {*served.structured_input_signature[1]}
    assert specs["outputs"] == {
        name: [spec.shape.as_list(), spec.dtype.name]
        for name, spec in served.structured_outputs.items()
    }
    assert manifest["check"]["input"] == "same"
    assert manifest["check"]["examples"] == 64
    for name in signatures:
        assert manifest["check"]["differences"][name]["floats"] < 1e-5
        assert manifest["check"]["differences"][name]["others"] == 0
    before, after = (manifest["evaluation"][key] for key in ("before", "after"))
    assert len(before) == 1
    assert after == pytest.approx(before, rel=1e-5)


def test_a_saved_model_takes_texts_of_any_number_and_length(trained: Train, saved: Save) -> None:
    served = tf.saved_model.load(str(saved("tiny") / "1")).signatures
    prompts = ["a", "def f(x):", "import"]
    texts = served["decode_text"](
        text=tf.constant(prompts), seeds=tf.constant([0, 1, 2], tf.int32)
    )["text"]
    expected = trained("tiny").generate(prompts, max_tokens=6)
    assert [text.decode() for text in texts[:, 0].numpy()] == expected
    one = served["score_text"](text=tf.constant(["import"]))
    several = served["score_text"](text=tf.constant(["import", "import numpy"]))
    assert one["num_tokens"].numpy().tolist() == [6]
    np.testing.assert_allclose(several["log_prob"][:1], one["log_prob"], rtol=1e-5)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="lengths must be from 1 to the number"
    ):
        served["decode"](
            tokens=tf.constant([[5]]), lengths=tf.constant([2]), seeds=tf.constant([0])
        )


def test_stablehlo_and_tensorflow_lite_have_the_shapes_of_a_batch(
    trained: Train, tmp_path: pathlib.Path
) -> None:
    model = trained("tiny_moe")
    signatures = ["predict", "score"]
    model.export(tmp_path / "hlo", format="stablehlo", signatures=signatures, batch_size=32)
    assert [*sorted(f.name for f in (tmp_path / "hlo").iterdir())] == [
        "export.json",
        "predict.stablehlo",
        "score.stablehlo",
    ]
    assert read(tmp_path / "hlo")["signatures"]["score"]["inputs"]["targets"] == [
        [32, 32],
        "int32",
    ]
    model = trained("convolution")
    model.export(tmp_path / "lite", format="tflite", batch_size=16, quantize="float16")
    assert [*sorted(f.name for f in (tmp_path / "lite").iterdir())] == [
        "export.json",
        "model.tflite",
    ]
    assert read(tmp_path / "lite")["signatures"]["predict"] == {
        "inputs": {"images": [[16, 8, 8, 1], "float32"]},
        "outputs": {"labels": [[16], "int32"], "logits": [[16, 10], "float32"]},
    }


def test_eight_bits_compute_nearly_the_same_in_a_quarter_of_the_weights(
    trained: Train, tmp_path: pathlib.Path
) -> None:
    model = trained("convolution")
    model.export(tmp_path / "lite", format="tflite", batch_size=16, quantize="int8")
    manifest = read(tmp_path / "lite")
    difference = manifest["check"]["differences"]["predict"]["floats"]
    assert 1e-4 < difference < manifest["check"]["bound"]["floats"]
    interpreter = tf.lite.Interpreter(model_path=str(tmp_path / "lite" / "model.tflite"))
    kernel = next(t for t in interpreter.get_tensor_details() if [*t["shape"]] == [8, 3, 3, 1])
    assert kernel["dtype"] == np.int8


def test_a_network_trained_for_8_bits_computes_in_its_trained_ranges(
    trained: Train, tmp_path: pathlib.Path
) -> None:
    model = trained("convolution_int8")
    model.export(tmp_path / "lite", format="tflite", quantize="int8")
    interpreter = tf.lite.Interpreter(model_path=str(tmp_path / "lite" / "model.tflite"))
    tensors = interpreter.get_tensor_details()
    found = [t["quantization"][0] for t in tensors if t["dtype"] == np.int8]
    state = model._state.state
    lows = [where for where in state if where.endswith("_low")]
    assert len(lows) == 3
    for low in lows:
        scale = (state[low.replace("_low", "_high")] - state[low]) / 255
        assert min(abs(np.array(found) / scale - 1)) < 1e-5
    kernel = next(t for t in tensors if [*t["shape"]] == [8, 3, 3, 1])
    levels = interpreter.tensor(kernel["index"])().astype("f")
    (weight,) = (v for name, v in model.weights.items() if name.endswith("conv/w"))
    w = np.moveaxis(weight, -1, 0)
    scale = np.abs(w).max((1, 2, 3), keepdims=True) / np.float32(127)
    ours = np.floor(w / scale + np.float32(0.5))
    is_same = (levels == ours) | (levels == -ours)  # a norm is part of the scale
    assert is_same.all()
    assert read(tmp_path / "lite")["check"]["differences"]["predict"]["floats"] < 0.05


def test_weights_of_8_bits_are_a_quarter_of_a_saved_model(
    trained: Train, saved: Save, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "out"
    trained("tiny").export(
        folder, format="savedmodel", quantize="int8_weights", signatures=["decode"]
    )
    sizes = []
    for one in (saved("tiny"), folder):
        file = tf.train.load_checkpoint(str(one / "1" / "variables" / "variables"))
        types, shapes = file.get_variable_to_dtype_map(), file.get_variable_to_shape_map()
        matrices = {name: shape for name, shape in shapes.items() if "layers" in name and shape}
        sizes.append(sum(np.prod(matrices[name]) * types[name].size for name in matrices))
    assert sizes[1] < 0.45 * sizes[0]  # few numbers, about 16, share a scale of four bytes
    for difference in read(folder)["check"]["differences"].values():
        assert difference["floats"] < 1e-5
        assert difference["others"] == 0


def test_an_export_that_differs_from_its_run_leaves_nothing(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute_wrong(
        folder: pathlib.Path, format: str, cases: Sequence[Case]
    ) -> list[dict[str, np.ndarray]]:
        assert (folder / "1" / "saved_model.pb").exists()
        arrays = [model.predict(case.inputs, batch_size=len(case.batch["rows"])) for case in cases]
        return [{**found, "log_probs": found["log_probs"] + 0.01} for found in arrays]

    model = trained("tiny")
    monkeypatch.setattr(check, "compute_alone", compute_wrong)
    with pytest.raises(
        ExportError, match="predict does not compute what the run computes: floats differ"
    ):
        model.export(tmp_path / "out", format="savedmodel", signatures=["predict"])
    assert [*tmp_path.iterdir()] == []


def test_an_export_that_cannot_be_used_without_lingo_leaves_nothing(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "reader.py"
    broken.write_text("raise ImportError('no module named lingo')")
    monkeypatch.setattr(check.reader, "__file__", str(broken))
    with pytest.raises(ExportError, match="without lingo: ImportError: no module named lingo"):
        trained("tiny").export(tmp_path / "out", format="savedmodel", signatures=["predict"])
    assert [*tmp_path.iterdir()] == [broken]


def test_layers_of_16_bits_have_a_bound_of_their_own(
    trained: Train, tmp_path: pathlib.Path
) -> None:
    # this model is hardly trained: rounding alone chooses between its likeliest tokens
    signatures = () if HAS_AVX512 else ["score"]
    trained("bfloat16").export(tmp_path / "out", format="savedmodel", signatures=signatures)
    manifest = read(tmp_path / "out")
    assert manifest["check"]["bound"] == {"floats": 0.05, "others": 0.05}
    assert manifest["check"]["differences"]["score"]["floats"] < 0.05


def test_weights_and_step_are_those_that_were_chosen(tmp_path: pathlib.Path) -> None:
    lingo.train(small("average"), tmp_path / "run")
    model = lingo.load(tmp_path / "run", step="best")
    model.export(tmp_path / "out", format="savedmodel", signatures=["score"])
    manifest = read(tmp_path / "out")
    assert (manifest["step"], manifest["weights"]) == (1, "ema")  # of 3 steps
    served = tf.saved_model.load(str(tmp_path / "out" / "1"))
    trained = lingo.load(tmp_path / "run", step=1)._state.select("trained").weights
    for where, value in model.weights.items():
        np.testing.assert_array_equal(served.weights[where], value)
    assert any((served.weights[where].numpy() != trained[where]).any() for where in trained)


def test_one_byte_that_was_changed_is_found_by_the_digests(
    saved: Save, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(saved("convolution"), tmp_path / "out")
    manifest = verify_export(tmp_path / "out")
    names = ["1/fingerprint.pb", "1/saved_model.pb", "1/variables/variables.index"]
    assert {*names} < {*manifest["files"]}
    assert manifest["versions"]["tensorflow"] == tf.__version__
    file = tmp_path / "out" / "1" / "variables" / "variables.data-00000-of-00001"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (tmp_path / "out" / "1" / "fingerprint.pb").unlink()
    words = "is not as it was exported: 1/fingerprint.pb, 1/variables/variables.data-00000-of-00001"
    with pytest.raises(ExportError, match=words):
        verify_export(tmp_path / "out")
    for text in ("{", "[]", '{"files": 1}'):
        (tmp_path / "out" / "export.json").write_text(text)
        with pytest.raises(ParamError, match=r"export\.json is not what lingo wrote"):
            verify_export(tmp_path / "out")
    (tmp_path / "out" / "export.json").unlink()
    with pytest.raises(ParamError, match=r"out is not an export: it has no export\.json"):
        verify_export(tmp_path / "out")
    (tmp_path / "out" / "export.json").symlink_to("export.json")
    with pytest.raises(ParamError, match=r"export\.json is not what lingo wrote: Too many levels"):
        verify_export(tmp_path / "out")


def test_several_processes_are_refused(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two:
        count = 2

    model = trained("tiny")
    monkeypatch.setattr(type(model.experiment.runtime), "join", lambda self: Two)
    with pytest.raises(ParamError, match="written by one process, and TF_CONFIG names several"):
        model.export(tmp_path / "out", format="savedmodel")
    assert [*tmp_path.iterdir()] == []


def test_nothing_is_written_into_a_run_or_over_a_folder(tmp_path: pathlib.Path) -> None:
    lingo.train(small("convolution"), tmp_path / "run")
    model = lingo.load(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    for format in ("savedmodel", "huggingface"):
        with pytest.raises(ParamError, match=r"is inside the run .*: name a folder outside"):
            model.export(tmp_path / "run" / "checkpoints" / "out", format=format)
    (tmp_path / "other").mkdir()
    with pytest.raises(ParamError, match="other exists: name another folder, or remove it"):
        model.export(tmp_path / "other", format="savedmodel")
    (tmp_path / "other").rmdir()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_is_full_for_the_results_is_told(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "reader.py"
    full.write_text("raise OSError(28, 'No space left on device')")
    monkeypatch.setattr(check.reader, "__file__", str(full))
    with pytest.raises(StorageError, match=r"cannot write .*out: No space left on device"):
        trained("tiny").export(tmp_path / "out", format="savedmodel", signatures=["predict"])
    assert [*tmp_path.iterdir()] == [full]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            Settings(format="pickle"),
            "format='pickle' is not one of huggingface, savedmodel, stablehlo, tfl",
        ),  # type: ignore[arg-type]
        (Settings(format="tflite", quantize="int4"), "quantize='int4' is not one of none, float16"),  # type: ignore[arg-type]
        (
            Settings(format="tflite", quantize="int8_weights"),
            "quantize='int8_weights' is for format=savedmodel, not for tflite",
        ),
        (
            Settings(format="savedmodel", quantize="int8"),
            "quantize='int8' is for format=tflite, not for saved",
        ),
        (Settings(format="tflite", batch_size=0), "batch_size=0 is not positive"),
        (Settings(format="stablehlo", prompt_length=-1), "prompt_length=-1 is negative"),
        (
            Settings(format="savedmodel", prompt_length=9),
            "prompt_length=9 is for format=stablehlo or tflit",
        ),
        (
            Settings(format="savedmodel", batch_size=2),
            "batch_size=2 is for format=stablehlo or tflite, not",
        ),
        (
            Settings(format="huggingface", batch_size=2),
            "batch_size=2 is for .*, not for huggingface",
        ),
        (
            Settings(format="huggingface", prompt_length=9),
            "prompt_length=9 is for .*, not for huggingface",
        ),
        (
            Settings(format="huggingface", quantize="int8"),
            "quantize='int8' is for .*, not for huggingface",
        ),
        (
            Settings(format="huggingface", signatures=("score",)),
            r"signatures=\('score',\) is for format=savedmodel or stablehlo or tflite, not for hu",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: Settings, words: str) -> None:
    with pytest.raises(ParamError, match=words):
        settings.check()


@pytest.mark.parametrize("setting", [{"config": "folder"}, {"dtype": "bfloat16"}])
def test_settings_of_the_hub_are_refused_for_a_program(setting: dict[str, str]) -> None:
    with pytest.raises(ParamError, match=r"^\w+='\w+' is for format=huggingface, not for tflite$"):
        Settings(format="tflite", **setting).check()
    Settings(format="huggingface", **setting).check()


def test_signatures_that_a_task_does_not_have_are_refused(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained("convolution")
    for name, words in (
        ("score", "ImageClassification predicts no tokens"),
        ("decode", "ImageClassification cannot continue texts"),
        ("logits", "signature=logits is not one of predict, score, decode"),
    ):
        with pytest.raises(ParamError, match=words):
            model.export(tmp_path / "out", format="savedmodel", signatures=[name])
    monkeypatch.setattr(type(model.experiment.task), "predict", Task.predict)
    with pytest.raises(ParamError, match="predict"):
        model.export(tmp_path / "out", format="savedmodel")
    assert [*tmp_path.iterdir()] == []
