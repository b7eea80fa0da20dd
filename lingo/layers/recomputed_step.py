"""The decoding step of a layer without its own `step`: it computes all positions so far again.

    past[index : index + C] = x            # a cache with room for S positions
    return layer(past)[index : index + C]  # computes all S positions, so all steps have one shape

Positions that are not known yet are zeros with segment 0, like padding in training. The results of
earlier steps are final, so the layer has to be *causal*: no result may depend on later positions.
The first step checks this: it computes the layer a second time with other values at later
positions, and compares the results (`SideOutputs.is_causal`).

Axes: B batch, C positions of a chunk, S positions that decoding has room for, D model width.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lingo.config.lazy import tf
from lingo.layers import context, path
from lingo.layers.inputs import CallInputs
from lingo.ops.shape import size_of, sizes_of

if TYPE_CHECKING:
    from lingo.layers.layer import Layer

_log = logging.getLogger(__name__)

_FOLDER = "past"  # path of the caches, below the layer's path
_OF_TOKENS = ("position_ids", "segments", "token_ids")
_OF_MEMORY = ("memory", "memory_segments")


def recompute_step(
    layer: Layer,
    x: tf.Tensor,
    index: tf.Tensor,
    inputs: CallInputs,
    *,
    compute: Callable[..., tf.Tensor] | None = None,
) -> tf.Tensor:
    """Returns a causal layer's results for the next positions, [B, C, ...].

    Raises RuntimeError if the call context has no `decode_length`.

    Args:
        layer: the layer; caches of x and of the further inputs have paths below the layer's path.
        x: [B, C, ...], any type: positions index, ..., index + C - 1 of the input.
        index: int32 scalar, the number of positions computed before.
        inputs: further inputs for these positions; a memory is given in the first step only.
        compute: method of the layer that maps x and `inputs` to the result; None: `__call__`.
    """
    _report(_path_pattern(layer), type(layer).__name__)
    if inputs.segments is None:
        inputs = inputs._replace(segments=tf.ones(sizes_of(x)[:2], tf.int32))
    is_first = _read(layer, "x") is None
    new = {"x": x, **{name: getattr(inputs, name) for name in _OF_TOKENS}}
    past = {name: _extend(layer, name, value, index) for name, value in new.items()}
    past["prefix"] = _extend(layer, "prefix", inputs.prefix, index)
    for name in _OF_MEMORY:
        if inputs.memory is None:
            past[name] = _read(layer, name)
        elif (value := getattr(inputs, name)) is not None:
            past[name] = _write(layer, name, value)

    def result(past: Mapping[str, Any]) -> tf.Tensor:
        values = dict(past)
        y = (compute or layer)(values.pop("x"), inputs=inputs._replace(**values))
        return tf.gather(y, index + tf.range(size_of(x, 1)), axis=1)

    y = result(past)
    if is_first:
        later = {"x": _change_later(layer, x), "token_ids": _change_later(layer, inputs.token_ids)}
        later |= {name: _repeat(layer, new[name]) for name in ("position_ids", "segments")}
        other = result(past | later)
        context.current().sides.is_causal[layer.path] = tf.cast(_is_close(y, other), tf.int32)
    return y


def _extend(layer: Layer, name: str, new: tf.Tensor | None, index: tf.Tensor) -> Any:
    """Writes new values, [B, C, ...], into the cached input `name` from position `index` on.

    Returns the whole input, [B, S, ...]. If `new` is None, the result is the cached input, or None
    if nothing is cached.
    """
    old = _read(layer, name)
    if new is None:
        return old
    offset = tf.range(_length(layer)) - index
    is_new = (offset >= 0) & (offset < size_of(new, 1))
    spread = tf.gather(new, tf.clip_by_value(offset, 0, size_of(new, 1) - 1), axis=1)
    is_new = tf.reshape(is_new, [1, -1, *[1] * (len(new.shape) - 2)])
    old = tf.zeros_like(spread) if old is None else old
    return _write(layer, name, tf.where(is_new, spread, old))


def _change_later(layer: Layer, new: tf.Tensor | None) -> Any:
    """Returns values, [B, S, ...], that begin with `new`, [B, C, ...], and then differ from it."""
    if new is None:
        return None
    repeated, positions = _repeat(layer, new), tf.range(_length(layer))
    positions = tf.reshape(positions, [1, -1, *[1] * (len(new.shape) - 2)])
    # Zeros would not differ from unknown positions. A mere repetition has the same mean as `new`.
    if new.dtype.is_floating:
        other = 1 - repeated
    else:  # 0 and 1: ids that every vocabulary has
        is_odd = tf.equal(tf.math.floormod(positions, 2), 1)
        other = tf.cast(tf.equal(repeated, 0) | is_odd, new.dtype)
    return tf.where(positions < size_of(new, 1), repeated, other)


def _repeat(layer: Layer, new: tf.Tensor | None) -> Any:
    """Repeats values, [B, C, ...], along the positions up to [B, S, ...]."""
    if new is None:
        return None
    return tf.gather(new, tf.range(_length(layer)) % size_of(new, 1), axis=1)


def _is_close(y: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns whether two results, [B, C, ...], are equal up to rounding, bool [B]."""
    axes = range(1, len(y.shape))
    difference = tf.reduce_max(tf.abs(tf.cast(y - other, tf.float32)), axis=axes)
    largest = tf.reduce_max(tf.abs(tf.cast(y, tf.float32)), axis=axes)
    rounding = 1e-3 if y.dtype.size >= 4 else 0.05
    # a nan counts as equal, since it says nothing about causality
    return tf.logical_not(difference > rounding * largest)


def _write(layer: Layer, name: str, value: tf.Tensor) -> tf.Tensor:
    layer.new_cache(path.join(_FOLDER, name), value)
    return value


def _read(layer: Layer, name: str) -> Any:
    return context.current().caches.get(path.join(layer.path, _FOLDER, name))


def _length(layer: Layer) -> Any:
    length = context.current().decode_length
    if length is None:
        raise RuntimeError(
            f"{layer.path or type(layer).__name__}: a layer without `step` needs decode_length in"
            " the call context, the number of positions there is room for"
        )
    return length


def _path_pattern(layer: Layer) -> str:
    """Returns a layer's path with * in place of indices: all layers of a stack have one pattern."""
    parts = layer.path.split("/")
    return "/".join("*" if p.isdigit() or path.index_range(p) else p for p in parts)


@functools.cache  # warns once per layer in a process, however often a program is traced
def _report(where: str, name: str) -> None:
    _log.warning(
        "%s: decoding computes %s again for all positions before each new token, which is slow, as"
        " the class has no `step`; define one, or `positionwise = True` if it mixes no positions.",
        where or name,
        name,
    )
