"""A model of TensorFlow Lite is the same model in a smaller file."""

from __future__ import annotations

import numpy as np
import pytest
from tensorflow.lite.tools import flatbuffer_utils

from lingo.config.lazy import tf
from lingo.export.lite_file import write_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*"),
    pytest.mark.filterwarnings("ignore:Statistics for quantized inputs were expected"),
]

NUM_INPUTS, NUM_OUTPUTS = 16, 64
ZERO_POINT_BYTES = 8


@pytest.fixture(scope="module")
def content() -> bytes:
    """A product and its bias in 8 bits, a scale for each output, as the converter writes it."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(NUM_INPUTS, NUM_OUTPUTS)).astype(np.float32)
    bias = rng.normal(size=NUM_OUTPUTS).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec([1, NUM_INPUTS])])
    def product(x):
        return x @ weight + bias

    module = tf.Module()
    module.product = product
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [product.get_concrete_function()], module
    )
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([x] for x in _inputs(rng))
    return converter.convert()


def _inputs(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.uniform(-1, 1, (1, NUM_INPUTS)).astype(np.float32) for _ in range(20)]


def _compute(content: bytes, inputs: list[np.ndarray]) -> np.ndarray:
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (source,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    results = []
    for x in inputs:
        interpreter.set_tensor(source["index"], x)
        interpreter.invoke()
        results.append(interpreter.get_tensor(result["index"]))
    return np.stack(results)


def test_it_computes_the_same_from_fewer_bytes(content):
    small = write_model(flatbuffer_utils.convert_bytearray_to_object(bytearray(content)))
    # the zero points of the bias are those of the weight
    assert len(content) - len(small) >= ZERO_POINT_BYTES * NUM_OUTPUTS
    inputs = _inputs(np.random.default_rng(1))
    np.testing.assert_array_equal(_compute(small, inputs), _compute(content, inputs))


def test_every_field_stays(content):
    model = flatbuffer_utils.convert_bytearray_to_object(bytearray(content))
    again = flatbuffer_utils.convert_bytearray_to_object(bytearray(write_model(model)))
    np.testing.assert_equal(_fields(again), _fields(model))


def test_the_bytes_of_constants_are_aligned(content):
    small = write_model(flatbuffer_utils.convert_bytearray_to_object(bytearray(content)))
    for buffer in flatbuffer_utils.convert_bytearray_to_object(bytearray(small)).buffers:
        if buffer.data is not None and len(buffer.data) >= NUM_OUTPUTS:
            assert small.index(buffer.data.tobytes()) % 16 == 0


def _fields(value):
    """Returns an object of the schema as dicts, lists and arrays."""
    if isinstance(value, list):
        return [_fields(one) for one in value]
    return {k: _fields(v) for k, v in vars(value).items()} if hasattr(value, "__dict__") else value
