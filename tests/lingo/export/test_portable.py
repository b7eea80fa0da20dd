"""Exported programs compute, in a process that cannot import lingo, what their runs compute."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from lingo.config.params import ParamError
from lingo.export import check
from lingo.export.check import Case, ExportError
from lingo.export.formats import Format
from lingo.export.portable import Settings
from lingo.learner.task import Task
from lingo.trainer.trained import Trained

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
    ],
)
def test_a_saved_model_computes_what_its_run_computes(
    name: str, signatures: list[str], saved: Save
) -> None:
    assert (saved(name) / "1" / "saved_model.pb").exists()  # the version is the step
    manifest = read(saved(name))
    assert [*manifest["signatures"]] == signatures
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
    with pytest.raises(tf.errors.InvalidArgumentError, match="lengths are from 1 to the number"):
        served["decode"](
            tokens=tf.constant([[5]]), lengths=tf.constant([2]), seeds=tf.constant([0])
        )


def test_stablehlo_and_tensorflow_lite_have_the_shapes_of_a_batch(
    trained: Train, tmp_path: pathlib.Path
) -> None:
    model = trained("tiny_moe")
    model.export(tmp_path / "hlo", format="stablehlo", batch_size=32)
    assert [*sorted(f.name for f in (tmp_path / "hlo").iterdir())] == [
        "export.json",
        "predict.stablehlo",
        "score.stablehlo",
    ]
    assert read(tmp_path / "hlo")["signatures"]["score"]["targets"] == [[32, 32], "int32"]
    model = trained("convolution")
    model.export(tmp_path / "lite", format="tflite", batch_size=16, quantize="float16")
    assert [*sorted(f.name for f in (tmp_path / "lite").iterdir())] == [
        "export.json",
        "model.tflite",
    ]
    assert read(tmp_path / "lite")["signatures"]["predict"] == {
        "images": [[16, 8, 8, 1], "float32"]
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
    assert len(lows) == 2
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
    with pytest.raises(ExportError, match="predict is not what the run computes: numbers differ"):
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


def test_a_layer_that_calls_python_is_refused_by_its_path(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained("tiny")
    norm = model.experiment.task.model.stack.layers[0].ffn
    call = type(norm).__call__

    def call_python(self: object, x: tf.Tensor, **inputs: object) -> tf.Tensor:
        y = call(self, x, **inputs)
        return tf.ensure_shape(
            tf.numpy_function(lambda a: a, [y], y.dtype, stateful=False), y.shape
        )

    monkeypatch.setattr(type(norm), "__call__", call_python)
    with pytest.raises(ParamError, match=r"task\.model\.stack.*: PyFuncStateless calls Python"):
        model.export(tmp_path / "out", format="savedmodel", signatures=["predict"])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("format", "compiler", "add"),
    [
        ("stablehlo", "XLA", lambda y: tf.strings.to_number(tf.strings.as_string(y))),
        ("tflite", "TensorFlow Lite", lambda y: y + tf.math.igamma(tf.abs(y), tf.abs(y))),
    ],
    ids=["xla", "lite"],
)
def test_a_layer_that_a_compiler_cannot_compute_is_refused_by_its_path(
    format: Format,
    compiler: str,
    add: Callable[[tf.Tensor], tf.Tensor],
    trained: Train,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = trained("tiny")
    kind = type(model.experiment.task.model.stack.layers[0].ffn)
    call = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda self, x, **inputs: add(call(self, x, **inputs)))
    words = rf"task\.model\.stack.*: {compiler} cannot compute the predict of this model"
    with pytest.raises(ParamError, match=words):
        model.export(tmp_path / "out", format=format, signatures=["predict"])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings("onnx"), "format='onnx' is not one of savedmodel, stablehlo, tflite"),  # type: ignore[arg-type]
        (Settings("tflite", quantize="int4"), "quantize='int4' is not one of none, float16"),  # type: ignore[arg-type]
        (
            Settings("tflite", quantize="int8_weights"),
            "quantize=int8_weights is of format=savedmodel, not of tflite",
        ),
        (
            Settings("savedmodel", quantize="int8"),
            "quantize=int8 is of format=tflite, not of saved",
        ),
        (Settings("tflite", batch_size=0), "batch_size=0 is not positive"),
        (Settings("stablehlo", ("decode",)), "lengths that vary, but format=stablehlo has static"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: Settings, words: str) -> None:
    with pytest.raises(ParamError, match=words):
        settings.check()


def test_signatures_that_a_task_does_not_have_are_refused(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained("convolution")
    for name, words in (
        ("score", "ImageClassification predicts no tokens"),
        ("decode", "ImageClassification continues no text"),
        ("logits", "signature=logits is not one of predict, score, decode"),
    ):
        with pytest.raises(ParamError, match=words):
            model.export(tmp_path / "out", format="savedmodel", signatures=[name])
    monkeypatch.setattr(type(model.experiment.task), "predict", Task.predict)
    with pytest.raises(ParamError, match="predict"):
        model.export(tmp_path / "out", format="savedmodel")
    assert [*tmp_path.iterdir()] == []
