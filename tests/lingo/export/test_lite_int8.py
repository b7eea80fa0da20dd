"""TensorFlow Lite computes in 8 bits what the graph with fake quantization computes.

Equal vectors of its file are stored once.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from tensorflow.lite.tools import flatbuffer_utils

from lingo.config.lazy import tf
from lingo.export.lite_int8 import convert_to_int8, write_model
from lingo.ops.quantization import (
    Range,
    center_range,
    fake_quantize,
    fake_quantize_channels,
    natural_range,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*"),
    pytest.mark.filterwarnings("ignore:Statistics for quantized inputs were expected"),
]

RNG = np.random.default_rng(0)
SHAPE = (1, 6, 6, 8)
INPUT = Range(-1.5, 2.25)
CENTERED = center_range(Range(-0.5, 1.0))


def weight(*shape: int, axes: tuple[int, ...]) -> tf.Tensor:
    """Returns a weight of 8 bits."""
    return fake_quantize_channels(tf.constant(RNG.normal(size=shape).astype("f")), axes)


class Case(NamedTuple):
    """An operation of images [1, 6, 6, 8] in 8 bits."""

    function: Callable[[tf.Tensor], tf.Tensor]
    output: Range | None = None  # None: that of its values


MATRIX = weight(8, 5, axes=(0,))
KERNEL = weight(3, 3, 8, 4, axes=(0, 1, 2))
DEPTHWISE = weight(3, 3, 8, 1, axes=(0, 1))

CASES = {
    "fully connected": Case(lambda x: tf.reshape(x, [-1, 8]) @ MATRIX + tf.range(5.0)),
    "convolution": Case(lambda x: tf.nn.conv2d(x, KERNEL, 1, "SAME") + 0.5),
    "depthwise convolution": Case(
        lambda x: tf.nn.depthwise_conv2d(x, DEPTHWISE, [1, 1, 1, 1], "SAME")
    ),
    "batch product": Case(lambda x: tf.matmul(x, constant(tf.tanh(x), CENTERED), transpose_b=True)),
    "product of positions": Case(lambda x: tf.einsum("bhwc,cd->bhwd", x, MATRIX)),
    "product of positions and a bias": Case(
        lambda x: tf.einsum("bhwc,cd->bhwd", x, MATRIX) + tf.range(5.0)
    ),
    "sum": Case(lambda x: x + x[:, ::-1]),
    "product": Case(lambda x: x * x[:, ::-1]),
    "relu": Case(tf.nn.relu, INPUT),
    "softmax": Case(tf.nn.softmax, natural_range("softmax")),
    "tanh": Case(tf.tanh, natural_range("tanh")),
    "sigmoid": Case(tf.sigmoid, natural_range("softmax")),
    "average pool": Case(lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID"), INPUT),
    "maximum pool": Case(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), INPUT),
    "mean": Case(lambda x: tf.reduce_mean(x, [1, 2])),
    "concatenation": Case(lambda x: tf.concat([x, x[:, ::-1]], -1), INPUT),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operation_differs_by_one_level_at_most(name: str) -> None:
    case = CASES[name]
    values = RNG.integers(0, 256, size=(16, *SHAPE)) * (INPUT.high - INPUT.low) / 255 + INPUT.low
    examples = [fake_quantize(tf.constant(v, tf.float32), INPUT) for v in values]
    plain = tf.stack([case.function(x) for x in examples])
    output = case.output or Range(float(min(0, tf.reduce_min(plain))), float(tf.reduce_max(plain)))

    def compute(x: tf.Tensor) -> tf.Tensor:
        return constant(case.function(constant(x, INPUT)), output)

    found = lite(compute, examples)
    scale = (output.high - output.low) / 255
    expected = fake_quantize(plain, output).numpy()
    assert np.abs(found - expected).max() <= 1.01 * scale
    assert np.abs(found - expected).mean() <= 0.3 * scale


def test_a_constant_factor_has_a_symmetric_range() -> None:
    levels = RNG.integers(-30, 127, size=(6, 8, 5))
    levels[0, 0, 0] = 127
    factor = tf.constant(levels / 32, tf.float32)  # 8 bits hold it exactly in a symmetric range
    values = RNG.uniform(INPUT.low, INPUT.high, size=(16, *SHAPE))
    examples = [fake_quantize(tf.constant(v, tf.float32), INPUT) for v in values]
    found = lite(lambda x: tf.matmul(constant(x, INPUT), factor), examples)
    expected = tf.matmul(tf.stack(examples), factor).numpy()
    scale = (max(expected.max(), 0) - min(expected.min(), 0)) / 255
    assert np.abs(found - expected).max() <= 1.01 * scale


def test_a_measured_factor_has_a_symmetric_range_after_a_transpose() -> None:
    examples = [tf.constant(RNG.uniform(0.5, 2.0, size=SHAPE), tf.float32) for _ in range(16)]

    def compute(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(constant(x, INPUT), tf.transpose(x * x, [0, 1, 3, 2]))

    found, expected = lite(compute, examples), np.stack([compute(x) for x in examples])
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.05 * expected.std()


@pytest.mark.parametrize("perm", [[0, 1, 2, 3], [0, 1, 3, 2]])
def test_a_trained_symmetric_range_of_a_factor_stays(perm: list[int]) -> None:
    examples = [tf.constant(RNG.uniform(-1.0, 1.0, size=SHAPE), tf.float32) for _ in range(16)]

    def compute(x: tf.Tensor) -> tf.Tensor:
        factor = tf.transpose(constant(tf.tanh(x[:, :, :, :6]), CENTERED), perm)
        return tf.matmul(constant(x[:, :, :, :6], INPUT), factor)

    interpreter = tf.lite.Interpreter(model_content=convert(compute, examples))
    (product,) = (op for op in interpreter._get_ops_details() if op["op_name"] == "BATCH_MATMUL")
    tensors = {t["index"]: t["quantization"] for t in interpreter.get_tensor_details()}
    scale, zero = tensors[product["inputs"][1]]
    assert zero == 0
    assert scale == pytest.approx((CENTERED.high - CENTERED.low) / 255, rel=1e-5)


def test_levels_of_an_image_stay_levels_where_it_is_scaled() -> None:
    images = RNG.integers(0, 256, size=(16, *SHAPE))
    images[..., 0], images[..., 1] = 0, 255
    examples = [tf.constant(image, tf.float32) for image in images]
    output = Range(-0.06 / 0.21, 0.94 / 0.21)

    def normalize(x: tf.Tensor) -> tf.Tensor:
        return (x / 255.0 - 0.06) / 0.21

    found = lite(lambda x: constant(normalize(x), output), examples)
    expected = fake_quantize(normalize(tf.stack(examples)), output).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def constant(x: tf.Tensor, limits: Range) -> tf.Tensor:
    return tf.quantization.fake_quant_with_min_max_args(x, limits.low, limits.high)


def convert(compute: Callable[[tf.Tensor], tf.Tensor], examples: list[tf.Tensor]) -> bytes:
    """Returns a model of TensorFlow Lite in 8 bits."""
    spec = tf.TensorSpec(examples[0].shape, tf.float32)
    function = tf.function(compute).get_concrete_function(spec)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module())
    return convert_to_int8(converter, lambda: ([x] for x in examples))


def lite(compute: Callable[[tf.Tensor], tf.Tensor], examples: list[tf.Tensor]) -> np.ndarray:
    """Returns what a model of TensorFlow Lite in 8 bits computes for examples."""
    interpreter = tf.lite.Interpreter(model_content=convert(compute, examples))
    interpreter.allocate_tensors()
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    types = [t["dtype"] for t in interpreter.get_tensor_details()]
    assert types.count(np.float32) == 2  # those of the input and of the output
    found = []
    for x in examples:
        interpreter.set_tensor(given["index"], x.numpy())
        interpreter.invoke()
        found.append(interpreter.get_tensor(result["index"]))
    return np.stack(found)


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
