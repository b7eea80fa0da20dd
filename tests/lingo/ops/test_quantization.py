import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.quantization import (
    Range,
    center_range,
    fake_quantize,
    fake_quantize_channels,
    fake_quantize_constant,
    natural_range,
    quantize_channels,
    symmetric_range,
    value_range,
)

SOME = np.random.default_rng(0).uniform(-3.0, 3.0, 400).astype("f")


def with_gradients(function, x, low, high):
    low, high, x = (tf.constant(v, tf.float32) for v in (low, high, x))
    with tf.GradientTape() as tape:
        tape.watch([x, low, high])
        y = function(x, low, high)
    upward = tf.constant(np.linspace(-1.0, 1.0, x.shape[0]).astype("f"))
    return y.numpy(), [g.numpy() for g in tape.gradient(y, [x, low, high], upward)]


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 1.0), (-2.0, 0.3), (0.0, 2.5), (-1.5, 0.0), (-1e-3, 2.0), (0.0, 0.0)]
)
@pytest.mark.parametrize(("bits", "narrow"), [(2, False), (4, True), (8, False), (8, True)])
def test_values_and_gradients_are_those_of_tensorflow(low, high, bits, narrow):
    ours, gradients = with_gradients(
        lambda x, *ends: fake_quantize(x, Range(*ends), bits=bits, narrow=narrow), SOME, low, high
    )
    theirs, expected = with_gradients(
        lambda x, *ends: tf.quantization.fake_quant_with_min_max_vars(
            x, *ends, num_bits=bits, narrow_range=narrow
        ),
        SOME,
        low,
        high,
    )
    np.testing.assert_array_equal(ours, theirs)
    for gradient, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-5)


def test_zero_is_a_level_of_every_range():
    zeros = tf.zeros([3])
    for low, high in [(-0.3, 0.9), (0.0, 0.7), (-1e-6, 5.0)]:
        np.testing.assert_array_equal(fake_quantize(zeros, Range(low, high)), zeros)


def test_examples_may_have_ranges_of_their_own_and_keep_their_type():
    x = tf.cast(tf.reshape(SOME[:8], [2, 4]), tf.bfloat16)
    y = fake_quantize(x, value_range(x, [1]))
    assert y.dtype == tf.bfloat16
    alone = fake_quantize(x[1], value_range(x[1]))
    np.testing.assert_array_equal(tf.cast(y[1], tf.float32), tf.cast(alone, tf.float32))


def test_the_gradient_survives_vectorized_map():
    x = tf.constant(SOME[:6].reshape(2, 3))

    @tf.function(autograph=False)
    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.vectorized_map(lambda v: fake_quantize(v, Range(-1.0, 1.0)), x)
        return tape.gradient(y, x)

    np.testing.assert_array_equal(gradient(), np.abs(x) <= 127.5 / 127.5)


def test_channels_are_those_of_tensorflow_and_pass_all_gradients():
    w = tf.constant(SOME[:60].reshape(4, 3, 5))
    with tf.GradientTape() as tape:
        tape.watch(w)
        y = fake_quantize_channels(w, [0, 1])
    largest = tf.reduce_max(tf.abs(w), [0, 1])
    expected = tf.quantization.fake_quant_with_min_max_vars_per_channel(
        w, -largest, largest, narrow_range=True
    )
    np.testing.assert_allclose(y, expected, atol=1e-6)
    np.testing.assert_array_equal(tape.gradient(y, w), np.ones([4, 3, 5]))
    levels, scale = quantize_channels(w, [0, 1])
    assert scale.shape == [1, 1, 5]
    np.testing.assert_array_equal(tf.reduce_max(tf.abs(levels), [0, 1]), np.full(5, 127.0))
    np.testing.assert_array_equal(levels, tf.cast(tf.cast(levels, tf.int8), tf.float32))


def test_a_channel_of_zeros_stays():
    np.testing.assert_array_equal(fake_quantize_channels(tf.zeros([2, 2]), [0]), np.zeros([2, 2]))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("softmax", 0.0, 255 / 256),
        ("tanh", -1.0, 127 / 128),
        ("sigmoid", 0.0, 1.0),
        ("relu", 0.0, 1.0),
        ("relu6", 0.0, 6.0),
        ("padding", 0.0, 1.0),
    ],
)
def test_natural_ranges(name, low, high):
    assert natural_range(name) == Range(low, high)


def test_symmetric_ranges_leave_out_the_last_level():
    assert symmetric_range(8.0) == Range(-8.0, 8.0 * 127 / 128)
    assert symmetric_range(1.0, bits=4) == Range(-1.0, 0.875)


def test_ranges_of_values_include_zero_and_have_no_gradient():
    x = tf.constant([[1.0, 2.0], [-3.0, -1.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        low, high = value_range(x, [1])
        total = tf.reduce_sum(low + high)
    np.testing.assert_array_equal(low, [[0.0], [-3.0]])
    np.testing.assert_array_equal(high, [[2.0], [0.0]])
    assert tape.gradient(total, x) is None


@pytest.mark.parametrize("limits", [(-1.0, 1.0), (-2.0, 0.3), (0.0, 2.5), (0.0, 0.0)])
def test_the_operation_that_converters_read_rounds_alike(limits):
    x = tf.constant(SOME)
    np.testing.assert_array_equal(
        fake_quantize_constant(x, Range(*limits)), fake_quantize(x, Range(*limits))
    )
    half = tf.cast(x, tf.bfloat16)
    assert fake_quantize_constant(half, Range(*limits)).dtype == tf.bfloat16


def test_a_converter_reads_ranges_of_constants_alone():
    def kinds(*ends):
        function = tf.function(lambda x, *ends: fake_quantize_constant(x, Range(*(ends or ENDS))))
        specs = [tf.TensorSpec([4]), *(tf.TensorSpec([]) for _ in ends)]
        graph = function.get_concrete_function(*specs).graph
        return {op.type for op in graph.get_operations()}

    ENDS = (np.float32(-1.0), np.float32(0.5))
    assert "FakeQuantWithMinMaxArgs" in kinds()
    assert "FakeQuantWithMinMaxArgs" not in kinds(*ENDS)


def test_a_range_with_axes_is_no_range_of_a_converter():
    x = tf.constant([[0.1, 0.4], [2.0, -2.0]])
    limits = Range(np.array([[-1.0], [-2.0]], "f"), np.array([[0.5], [1.0]], "f"))
    np.testing.assert_array_equal(fake_quantize_constant(x, limits), fake_quantize(x, limits))
    assert center_range(limits) is limits


def test_only_a_range_that_is_known_is_centered():
    low, high = center_range(Range(tf.constant(-3.0), 2.0))
    assert (low, high) == (-3.0, 3.0 * 127 / 128)

    @tf.function
    def ends(low):
        assert center_range(Range(low, 2.0)).low is low
        return low

    ends(tf.constant(-1.0))
