"""Fake quantization: rounds a tensor to the values that a few bits can hold, and stays float.

    level = round((clip(x, low, high) - low) / scale)      # an integer of `bits` bits
    y = level * scale + low                                # the value that a product uses

A range is nudged, so that 0 is exactly a level: padding and absent inputs then have no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from lingo.config.lazy import tf

NaturalRange = Literal["softmax", "tanh", "sigmoid", "relu", "relu6", "padding"]
"""An activation whose range is known without a measurement."""


class Range(NamedTuple):
    """The least and the largest value that quantization keeps; other values are clipped."""

    low: Any  # a float, or float32 that broadcasts against the values
    high: Any  # the same type


def natural_range(name: NaturalRange, *, bits: int = 8) -> Range:
    """Returns the range of an activation's results, as in Lingvo's quantization.

    The ranges of softmax and tanh end a level early, so that their scale is a power of two.

    >>> natural_range("tanh")
    Range(low=-1.0, high=0.9921875)
    """
    match name:
        case "softmax":
            low, high = 0.0, 1.0
        case "tanh":
            low, high = -1.0, 1.0
        case "relu6":
            return Range(0.0, 6.0)
        case "sigmoid" | "relu" | "padding":  # Lingvo takes results of a ReLU to be at most 1
            return Range(0.0, 1.0)
        case _:
            raise ValueError(f"{name!r} is not an activation with a known range")
    return Range(low, low + (high - low) * (2**bits - 1) / 2**bits)


def symmetric_range(cap: Any, *, bits: int = 8) -> Range:
    """Returns (-c, c (2^(bits-1) - 1) / 2^(bits-1)) for a cap c, float32 of any shape or a float.

    >>> symmetric_range(8.0)
    Range(low=-8.0, high=7.9375)
    """
    return Range(-cap, cap * (2 ** (bits - 1) - 1) / 2 ** (bits - 1))


def center_range(limits: Range) -> Range:
    """Returns the symmetric range around a constant range; ranges of tensors are unchanged.

    LiteRT's default backend, XNNPACK, needs symmetric ranges where activations are multiplied with
    each other. For the second operand XNNPACK assumes zero point 0, whatever the model says: with
    other ranges, results were wrong by 40 levels (TensorFlow 2.21).

    >>> center_range(Range(-0.5, 2.0))
    Range(low=-2.0, high=1.984375)
    """
    if (known := _static_range(limits)) is None:
        return limits
    return symmetric_range(max(-known.low, known.high))


def fake_quantize(x: tf.Tensor, limits: Range, *, bits: int = 8, narrow: bool = False) -> tf.Tensor:
    """Rounds x to the levels of a range; equals `tf.quantization.fake_quant_with_min_max_vars`.

    Unlike TensorFlow's function, it takes ranges of any shape that broadcasts, and can be
    vectorized and sharded. The gradient of x is straight through (Bengio et al. 2013; Jacob et al.
    2018, sec. 3): 1 inside the nudged range, its ends included, and 0 outside. `low` gets the sum
    of the gradients of values below the range, and `high` the sum for values above. A range (0, 0)
    makes all values 0 and passes all gradients to x.

    Args:
        x: any shape, any float type; computed in float32.
        limits: low <= 0 <= high.
        bits: 2 to 16.
        narrow: whether the least level is left out, so that levels are symmetric around 0.

    Returns:
        The shape and type of x.

    >>> x = tf.constant([-2.0, 0.1, 0.4])
    >>> fake_quantize(x, Range(-1.0, 1.0), bits=2, narrow=True).numpy()
    array([-1.,  0.,  0.], dtype=float32)
    """
    exact = tf.cast(x, tf.float32)
    low, high = (tf.convert_to_tensor(v, tf.float32) for v in limits)
    scale, least, largest = _nudge(Range(low, high), bits, narrow)
    # not a custom gradient, which `tf.vectorized_map` drops
    clipped = tf.where((exact < least) & (scale > 0), _with_value(low, least), exact)
    clipped = tf.where((exact > largest) & (scale > 0), _with_value(high, largest), clipped)
    rounded = _round(tf.stop_gradient(clipped), scale, least)
    return tf.cast(_with_value(clipped, rounded), x.dtype)


def fake_quantize_constant(x: tf.Tensor, limits: Range, *, bits: int = 8) -> tf.Tensor:
    """Computes `fake_quantize` by TensorFlow's operation, from which converters read the range.

    That operation needs a range of constant scalars. If the range is empty, has axes, or is unknown
    while a graph is built, `fake_quantize` itself is used. `x` and the result have the same shape
    and float type.

    >>> fake_quantize_constant(tf.constant([-2.0, 0.1, 0.4]), Range(0.0, 1.5), bits=2).numpy()
    array([0. , 0. , 0.5], dtype=float32)
    """
    known = _static_range(limits)
    if known is None or known.low == known.high:
        return fake_quantize(x, limits, bits=bits)
    rounded = tf.quantization.fake_quant_with_min_max_args(
        tf.cast(x, tf.float32), min=known.low, max=known.high, num_bits=bits
    )
    return tf.cast(rounded, x.dtype)


class Channels(NamedTuple):
    """A weight as integer levels, with one scale per channel."""

    levels: tf.Tensor  # float32, whole numbers from -(2^(bits-1) - 1) to 2^(bits-1) - 1
    scale: tf.Tensor  # float32, broadcasts against the levels: the weight is levels * scale


def quantize_channels(w: tf.Tensor, axes: Sequence[int], *, bits: int = 8) -> Channels:
    """Rounds a weight to levels that are symmetric around 0, with a scale for each channel.

    A channel extends over `axes`, and its largest absolute value is the last level. `w` has any
    shape and float type. The results have no gradient.

    >>> levels, scale = quantize_channels(tf.constant([[1.0, 0.2], [-0.5, 0.1]]), [0], bits=3)
    >>> levels.numpy()
    array([[ 3.,  3.],
           [-1.,  2.]], dtype=float32)
    """
    w = tf.stop_gradient(tf.cast(w, tf.float32))
    largest = tf.reduce_max(tf.abs(w), axis=list(axes), keepdims=True)
    scale = largest / (2 ** (bits - 1) - 1)
    return Channels(tf.floor(tf.math.divide_no_nan(w, scale) + 0.5), scale)


def fake_quantize_channels(w: tf.Tensor, axes: Sequence[int], *, bits: int = 8) -> tf.Tensor:
    """Returns a weight rounded by `quantize_channels`, in its type; the gradient passes unchanged.

    It equals `tf.quantization.fake_quant_with_min_max_vars_per_channel` with `narrow_range` and
    each channel's largest absolute value as the range, so that no value is outside the range.

    >>> fake_quantize_channels(tf.constant([[3.0, 6.0], [-1.2, 0.9]]), [0], bits=3).numpy()
    array([[ 3.,  6.],
           [-1.,  0.]], dtype=float32)
    """
    levels, scale = quantize_channels(w, axes, bits=bits)
    return _with_value(w, tf.cast(levels * scale, w.dtype))


def round_to_multiple(x: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
    """Rounds x to the nearest multiple of a unit, unless the unit is 0; float32, broadcasts.

    >>> round_to_multiple(tf.constant([0.7, 0.7, 0.7]), tf.constant([0.5, -0.5, 0.0])).numpy()
    array([0.5, 0.5, 0.7], dtype=float32)
    """
    return tf.where(unit == 0, x, tf.round(tf.math.divide_no_nan(x, unit)) * unit)


def range_scale(limits: Range, *, bits: int = 8, narrow: bool = False) -> Any:
    """Returns the distance between levels of a range, in the shape and type of its ends.

    `bits` and `narrow` are as in `fake_quantize`.

    >>> range_scale(Range(-0.5, 1.0), bits=2)
    0.5
    """
    return (limits.high - limits.low) / (2**bits - 1 - int(narrow))


def value_range(x: tf.Tensor, axes: Sequence[int] | None = None) -> Range:
    """Returns the range of values over some axes, extended to include 0.

    `x` has any shape and float type. Reduced axes keep size 1; `axes` None: all of them. The range
    is float32, and has no gradient.

    >>> low, high = value_range(tf.constant([[1.0, 2.0], [-3.0, -1.0]]), [1])
    >>> low.numpy().tolist(), high.numpy().tolist()
    ([[0.0], [-3.0]], [[2.0], [0.0]])
    """
    x, over = tf.stop_gradient(tf.cast(x, tf.float32)), None if axes is None else list(axes)
    low = tf.reduce_min(x, axis=over, keepdims=True)
    high = tf.reduce_max(x, axis=over, keepdims=True)
    return Range(tf.minimum(low, 0.0), tf.maximum(high, 0.0))


def _static_range(limits: Range) -> Range | None:
    """Returns a range as floats; None if it has axes, or is unknown while a graph is built."""
    ends = [tf.get_static_value(tf.convert_to_tensor(v, tf.float32)) for v in limits]
    return None if any(v is None or v.ndim for v in ends) else Range(*map(float, ends))


def _nudge(limits: Range, bits: int, narrow: bool) -> Any:
    """Moves the levels so that one is 0; returns their scale, least and largest value, float32.

    The order of operations is from TensorFlow's kernel (fake_quant_ops_functor.h), so that results
    are equal bit for bit.
    """
    low, high = (tf.stop_gradient(end) for end in limits)
    least_level, last_level = int(narrow), 2**bits - 1
    scale = range_scale(Range(low, high), bits=bits, narrow=narrow)
    zero = least_level - tf.math.divide_no_nan(low, scale)
    zero = tf.clip_by_value(tf.floor(zero + 0.5), least_level, last_level)
    return scale, (least_level - zero) * scale, (last_level - zero) * scale


def _round(x: tf.Tensor, scale: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    """Rounds values between the least and the largest level to the nearest level, float32."""
    inverse = tf.math.divide_no_nan(tf.ones_like(scale), scale)
    zero = tf.floor(0.5 - least * inverse)
    return tf.floor((x - least) * inverse - zero + 0.5) * scale


def _with_value(x: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns `value`, with the gradient of x."""
    return tf.stop_gradient(value) + (x - tf.stop_gradient(x))
