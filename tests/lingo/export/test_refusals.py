"""What no other program can compute is refused by the path of its layer, and nothing is left."""

from __future__ import annotations

import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from lingo import layers
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.export.formats import Export, Format, TfLiteFormat, _refusal
from lingo.export.lite_int8 import convert_to_int8
from lingo.trainer.trained import Trained

Train = Callable[[str], Trained]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*"),
    pytest.mark.xdist_group("exports"),  # they share trained models
]


@pytest.fixture
def change(trained: Train, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trained]:
    """Returns a function that changes the result of a layer of a trained model."""

    def change(function: Callable[[tf.Tensor], tf.Tensor]) -> Trained:
        model = trained("tiny")
        kind = type(model.experiment.task.model.stack.layers[0].ffn)
        call = kind.__call__

        def call_changed(self: Any, x: tf.Tensor, **inputs: Any) -> tf.Tensor:
            y = call(self, x, **inputs)
            return tf.ensure_shape(function(y), y.shape)

        monkeypatch.setattr(kind, "__call__", call_changed)
        return model

    return change


def numpy_function(y: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(lambda a: a, [y], y.dtype, stateful=False)


def py_function(y: tf.Tensor) -> tf.Tensor:
    return tf.py_function(lambda a: a, [y], y.dtype)


def look_up(y: tf.Tensor) -> tf.Tensor:
    entries = tf.lookup.KeyValueTensorInitializer([0], [1.0], tf.int32, tf.float32)
    return y * tf.lookup.StaticHashTable(entries, 1.0)[tf.zeros([1], tf.int32)]


def read_a_variable(y: tf.Tensor) -> tf.Tensor:
    return y * OWN


def add_devices(y: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveReduce(
        input=y,
        group_size=1,
        group_key=1,
        instance_key=1,
        merge_op="Add",
        final_op="Id",
        subdiv_offsets=[0],
    )


def split_over_a_mesh(y: tf.Tensor) -> tf.Tensor:
    return gen_xla_ops.xla_spmd_full_to_shard_shape(y, manual_sharding="")


OWN = tf.Variable(1.0)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (numpy_function, "PyFuncStateless calls Python"),
        (split_over_a_mesh, "XlaSpmdFullToShardShape has no kernel for one CPU"),
        (py_function, "EagerPyFunc may compute from more than its inputs"),
        (add_devices, "CollectiveReduce may compute from more than its inputs"),
        (look_up, "LookupTableImportV2 uses a tf.Variable"),
        (read_a_variable, "ReadVariableOp uses a tf.Variable"),
    ],
)
def test_a_layer_that_no_other_program_can_compute(
    function: Callable[[tf.Tensor], tf.Tensor],
    words: str,
    change: Callable[..., Trained],
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(ParamError, match=rf"model.stack.layers.*: {words}"):
        change(function).export(tmp_path / "out", format="savedmodel", signatures=["predict"])
    assert [*tmp_path.iterdir()] == []


def number_of_text(y: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_number(tf.strings.as_string(y))


def incomplete_gamma(y: tf.Tensor) -> tf.Tensor:
    return y + tf.math.igamma(tf.abs(y), tf.abs(y))


@pytest.mark.parametrize(
    ("format", "compiler", "function"),
    [
        ("stablehlo", "XLA", number_of_text),
        ("tflite", "TensorFlow Lite", incomplete_gamma),
    ],
)
def test_a_layer_that_a_compiler_cannot_compute(
    format: Format,
    compiler: str,
    function: Callable[[tf.Tensor], tf.Tensor],
    change: Callable[..., Trained],
    tmp_path: pathlib.Path,
) -> None:
    words = rf"task\.model\.stack.*: {compiler} cannot compute the predict of this model: name the "
    with pytest.raises(ParamError, match=words):
        change(function).export(tmp_path / "out", format=format, signatures=["predict"])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("domain", "bits"),
    [
        (layers.PassiveAsymQDomain.params(bits=16), 16),
        (layers.WeightQDomain.params(bits=4), 4),
        (
            layers.SymmetricScheduledClipQDomain.params(
                schedule=layers.FakeQuantizationSchedule.params(bits=4)
            ),
            4,
        ),
    ],
)
def test_levels_of_other_bits_have_no_file_of_8_bits(
    domain: Params, bits: int, tmp_path: pathlib.Path
) -> None:
    layer = layers.Quantized.params(layer=layers.FeedForward, domain=domain)
    model: Any = types.SimpleNamespace(task=layers.Stack.params(layer=layer).build(dim=2))
    words = rf"^task\.layers.*: quantize=int8 needs domains of bits=8, got bits={bits}$"
    with pytest.raises(ParamError, match=words):
        TfLiteFormat().write(tmp_path, Export(model, [], [], 1, "int8"))


def test_a_compiler_that_says_nothing_is_told_by_its_class(tmp_path: pathlib.Path) -> None:
    model: Any = types.SimpleNamespace(owner=lambda *names: "task")
    signature: Any = types.SimpleNamespace(name="predict")
    assert str(_refusal(model, signature, "XLA", KeyError())).endswith("(KeyError)")


def test_another_tensorflow_is_not_a_fault_of_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow.lite.python.convert", None)
    with pytest.raises(ParamError, match="quantize=int8 needs functions that TensorFlow"):
        convert_to_int8(None, lambda: iter([]))


def test_a_result_without_a_rank(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained("tiny")
    kind = type(model.experiment.task)
    predict = kind.predict

    def predict_more(self: Any, batch: Any) -> dict[str, tf.Tensor]:
        found = predict(self, batch)
        text = tf.io.serialize_tensor(next(iter(found.values())))
        return {**found, "more": tf.io.parse_tensor(text, tf.float32)}

    monkeypatch.setattr(kind, "predict", predict_more)
    with pytest.raises(ParamError, match="the shape of more, which predict"):
        model.export(tmp_path / "out", format="savedmodel", signatures=["predict"])
    assert [*tmp_path.iterdir()] == []
