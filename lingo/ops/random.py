"""Counter-based random numbers: the same bits in NumPy, TensorFlow and XLA, on any split of work.

A number is a function of a key and a counter. Keys are made by folding integers into a root key:
seed, step, path of the layer, global row of the example. Nothing depends on the micro-batch,
replica or device that draws, nor on what was drawn before. (TensorFlow's and XLA's own stateless
generators give different numbers for one seed.)

The mixing function is the 32-bit permutation "lowbias32" of Wellons (2018): two multiplications and
three shifts, bias 0.17.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf

_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: spreads small integers


class Key(NamedTuple):
    """A 64-bit key in two uint32 words: NumPy scalars on the host, tensors in a program."""

    high: Any
    low: Any


def root_key(seed: int) -> Key:
    """Returns the key of a seed; any Python int."""
    seed &= 0xFFFFFFFFFFFFFFFF
    return fold(Key(np.uint32(seed >> 32), np.uint32(seed & 0xFFFFFFFF)), 0)


def text_hash(text: str) -> int:
    """Returns a 32-bit hash of a text, the same in every process."""
    return zlib.crc32(text.encode())


def fold(key: Key, data: Any) -> Key:
    """Returns the key of a branch.

    Args:
        key: the parent; its words broadcast against `data`.
        data: a Python int, or a uint32 or int32 array or tensor.
    """
    if _on_host(key) and not _is_tensor(data):
        return Key(*_fold_numpy(key, data))
    if _is_tensor(data):
        word = _mix_tf(_tf_word(data) + tf.constant(_GOLDEN, tf.uint32))
    else:  # as most parts of a path are: the host spares the program a third of the operations
        word = tf.constant(_spread(data))
    high, low = _tf_word(key.high), _tf_word(key.low)
    high = _mix_tf(tf.bitwise.bitwise_xor(high, word))
    return Key(high, _mix_tf(low + high))


def bits(key: Key, *sizes: Any) -> Any:
    """Returns random uint32 words for every key, each numbered by its row-major index.

    Args:
        key: words of shape [...]: NumPy or tensors.
        *sizes: ints or int32 scalar tensors.

    Returns:
        uint32 [..., *sizes]. The numbering is a sum of ranges along each axis, not a reshape of one
        long range, so that a mesh may split any axis.
    """
    if _on_host(key):
        return host_bits(key, 0, math.prod(sizes)).reshape(np.shape(key.high) + sizes)
    counter = tf.constant(0, tf.uint32)
    for size in sizes:
        digit = tf.cast(tf.range(size), tf.uint32)
        counter = tf.expand_dims(counter, -1) * tf.cast(size, tf.uint32) + digit
    high, low = (word[(..., *[None] * len(sizes))] for word in key)
    return _mix_tf(_mix_tf(counter + high) + low)


def host_bits(key: Key, start: int, count: int) -> np.ndarray:
    """Returns words start, start + 1, ... of host keys, as `host_words` does."""
    return host_words(key, np.arange(start, start + count, dtype=np.uint64))


def host_words(key: Key, numbers: np.ndarray) -> np.ndarray:
    """Returns some of the words of host keys: any part of a tensor without the rest.

    Counters past 2**32 go on in another branch of the key.

    Args:
        key: words of shape [...], NumPy.
        numbers: uint64 [N], the number of each word.

    Returns:
        uint32 [..., N].
    """
    words = (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    out = _words(key, words)
    for page in range(1, (int(numbers.max(initial=0)) >> 32) + 1):
        here = numbers >> np.uint64(32) == page
        out[..., here] = _words(fold(key, page), words[here])
    return out


def uniform(key: Key, *sizes: Any) -> Any:
    """Returns float32 [..., *sizes] in [0, 1), multiples of 2**-24; arguments as for `bits`."""
    words = bits(key, *sizes)
    if isinstance(words, np.ndarray):
        return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
    top = tf.bitwise.right_shift(words, tf.constant(8, tf.uint32))
    return tf.cast(top, tf.float32) * 2.0**-24


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
