"""Counter-based random numbers: the same bits in NumPy, TensorFlow and XLA, on any split of work.

A number is a function of a key and a counter. Keys come from folding integers into a root key:
seed, step, path of the layer, id of the example. Nothing depends on the micro-batch, replica or
device that draws, nor on earlier draws. (The stateless generators of TensorFlow and XLA differ from
each other for the same seed.)

The mixing function is the 32-bit permutation "lowbias32" of Wellons (2018): two multiplications and
three shifts, bias 0.17.

Axes: ... shape of the keys, N numbers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.scope import one_scope

_SCOPE = "random"  # of operations: TensorBoard's graph shows them as one box of each layer
_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: spreads small integers


class Key(NamedTuple):
    """A 64-bit key for random numbers, as two uint32 halves; or an array of keys.

    Attributes:
        high: the upper half, uint32 [...]: NumPy, or a tensor inside a TensorFlow program.
        low: the lower half, same shape and kind.
    """

    high: Any
    low: Any


class Part(NamedTuple):
    """The position of a tensor that is a part of a larger tensor, along the last axes.

    Attributes:
        starts: the index of the part's first element in the larger tensor, along each axis, ints or
            int32 scalars.
        sizes: the sizes of the larger tensor, ints or int32 scalars.
    """

    starts: tuple[Any, ...]
    sizes: tuple[Any, ...]


def root_key(seed: int) -> Key:
    """Returns the key of a seed, any Python int; the key's fields are NumPy uint32 scalars.

    >>> root_key(7)
    Key(high=np.uint32(2926543089), low=np.uint32(3238574643))
    """
    seed &= 0xFFFFFFFFFFFFFFFF
    return fold(Key(np.uint32(seed >> 32), np.uint32(seed & 0xFFFFFFFF)), 0)


def key_array(keys: Iterable[Key]) -> Key:
    """Stacks scalar NumPy keys into one `Key`, whose fields are [number of keys].

    >>> key_array([root_key(7), root_key(8)]).high.shape
    (2,)
    """
    return Key(*np.array([*keys], np.uint32).reshape(-1, 2).T)


def text_hash(text: str) -> int:
    """Returns a 32-bit hash of a text, the same in every process."""
    return zlib.crc32(text.encode())


def fold(key: Key, data: Any) -> Key:
    """Returns the key derived from a key and an integer.

    Args:
        key: the parent key; its fields broadcast against `data`.
        data: a Python int, or a uint32 or int32 array or tensor of any shape.

    Returns:
        A key of the broadcast shape; NumPy if neither argument is a tensor, else tensors.

    >>> fold(root_key(7), 1) == fold(root_key(7), 2)
    False
    """
    if _on_host(key) and not _is_tensor(data):
        return Key(*_fold_numpy(key, data))
    with one_scope(_SCOPE):
        if _is_tensor(data):
            word = _mix_tf(_tf_word(data) + tf.constant(_GOLDEN, tf.uint32))
        else:  # most parts of a path are ints: mixing them on the host saves a third of the ops
            word = tf.constant(_spread(data))
        high, low = _tf_word(key.high), _tf_word(key.low)
        high = _mix_tf(tf.bitwise.bitwise_xor(high, word))
        return Key(high, _mix_tf(low + high))


def bits(key: Key, *sizes: Any, part: Part | None = None) -> Any:
    """Returns random uint32 numbers for every key; a number's counter is its row-major index.

    Args:
        key: fields of shape [...], NumPy or tensors.
        *sizes: ints or int32 scalar tensors.
        part: which part of a larger tensor the result is, along the last axes; None: all of it.

    Returns:
        uint32 [..., *sizes]. The counter is a sum of ranges along each axis, not a reshape of one
        long range, so that a mesh may split any axis.

    >>> bits(root_key(7), 2)
    array([2003061680, 3522939857], dtype=uint32)
    """
    if _on_host(key) and part is None:
        return host_bits(key, 0, math.prod(sizes)).reshape(np.shape(key.high) + sizes)
    part = Part((), ()) if part is None else part
    first = len(sizes) - len(part.sizes)
    starts, wholes = [0] * first + [*part.starts], [*sizes[:first], *part.sizes]
    with one_scope(_SCOPE):
        counter = tf.constant(0, tf.uint32)
        for size, start, whole in zip(sizes, starts, wholes, strict=True):
            positions = (
                tf.range(size) if isinstance(start, int) and not start else tf.range(size) + start
            )
            digit = tf.cast(positions, tf.uint32)
            counter = tf.expand_dims(counter, -1) * tf.cast(whole, tf.uint32) + digit
        words: list[Any] = [tf.convert_to_tensor(word) for word in key]
        high, low = (word[(..., *[None] * len(sizes))] for word in words)
        return _mix_tf(_mix_tf(counter + high) + low)


def host_bits(key: Key, start: int, count: int) -> np.ndarray:
    """Returns random uint32 [..., count] of NumPy keys, for `count` counters from `start` on."""
    return host_words(key, np.arange(start, start + count, dtype=np.uint64))


def host_words(key: Key, numbers: np.ndarray) -> np.ndarray:
    """Returns random uint32 [..., N] of NumPy keys [...] for the counters `numbers`, uint64 [N].

    With it, any part of a random tensor can be drawn without the rest. Counters from 2**32 on use a
    key that is folded with their upper 32 bits.
    """
    words = (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    out = _words(key, words)
    for page in range(1, (int(numbers.max(initial=0)) >> 32) + 1):
        here = numbers >> np.uint64(32) == page
        out[..., here] = _words(fold(key, page), words[here])
    return out


def uniform(key: Key, *sizes: Any) -> Any:
    """Returns float32 [..., *sizes] in [0, 1), multiples of 2**-24; arguments as in `bits`.

    >>> uniform(root_key(7), 3)
    array([0.4663741, 0.8202483, 0.5866636], dtype=float32)
    """
    words = bits(key, *sizes)
    if isinstance(words, np.ndarray):
        return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
    top = tf.bitwise.right_shift(words, tf.constant(8, tf.uint32))
    return tf.cast(top, tf.float32) * 2.0**-24


def normal(key: Key, *sizes: Any) -> Any:
    """Returns float32 [..., *sizes] of unit normal distribution (Box and Muller 1958).

    Arguments are as in `bits`. NumPy and TensorFlow may differ in the last bits.

    >>> normal(root_key(7), 3).round(3)
    array([0.953, 0.497, 1.373], dtype=float32)
    """
    first, second = (uniform(fold(key, i), *sizes) for i in range(2))
    if isinstance(first, np.ndarray):
        radius = np.sqrt(np.float32(-2) * np.log1p(-first))
        return (radius * np.cos(np.float32(2 * math.pi) * second)).astype(np.float32)
    return tf.sqrt(-2.0 * tf.math.log1p(-first)) * tf.cos(2 * math.pi * second)


def _on_host(key: Key) -> bool:
    return not (_is_tensor(key.high) or _is_tensor(key.low))


def _is_tensor(value: Any) -> bool:
    return not isinstance(value, (int, np.integer, np.ndarray))


def _mix_numpy(x: Any) -> Any:
    with np.errstate(over="ignore"):
        x = x ^ (x >> np.uint32(16))
        x = x * np.uint32(0x7FEB352D)
        x = x ^ (x >> np.uint32(15))
        x = x * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))


def _words(key: Key, counter: np.ndarray) -> np.ndarray:
    high, low = (np.asarray(word, np.uint32)[..., None] for word in key)
    return _mix_numpy(_mix_numpy(counter + high) + low)


def _spread(data: Any) -> Any:
    with np.errstate(over="ignore"):
        return _mix_numpy(_word(data) + np.uint32(_GOLDEN))


def _fold_numpy(key: Key, data: Any) -> tuple[Any, Any]:
    with np.errstate(over="ignore"):
        high = _mix_numpy(key.high ^ _spread(data))
        return high, _mix_numpy(key.low + high)


def _word(value: Any) -> Any:
    return np.asarray(value).astype(np.int64).astype(np.uint32)[()]


def _tf_word(value: Any) -> tf.Tensor:
    if not _is_tensor(value):
        return tf.constant(_word(value))
    return tf.cast(value, tf.uint32)  # not a bitcast: vectorized_map has no rule for it


def _mix_tf(x: tf.Tensor) -> tf.Tensor:
    def shift(by: int) -> tf.Tensor:
        return tf.bitwise.right_shift(x, tf.constant(by, tf.uint32))

    x = tf.bitwise.bitwise_xor(x, shift(16)) * tf.constant(0x7FEB352D, tf.uint32)
    x = tf.bitwise.bitwise_xor(x, shift(15)) * tf.constant(0x846CA68B, tf.uint32)
    return tf.bitwise.bitwise_xor(x, shift(16))
