"""Errors about what a user's own layers return: they name the layer, its line and the shapes.

TensorFlow fails where a wrong result is used, which may be far from the layer that returned it. So
the call context remembers the latest result whose shape differs from its layer's input.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lingo.config.base.errors import LingoError, ParamError
from lingo.config.lazy import tf
from lingo.config.roots.user_line import definition_line, is_lingos, user_line
from lingo.ops.losses import explain_float_labels

if TYPE_CHECKING:
    from lingo.layers.context import Call
    from lingo.layers.layer import Layer

_ABOUT_SHAPES = re.compile(r"shape|dimension|\brank\b|\baxes\b|\baxis\b", re.IGNORECASE)
_FLOAT_LABELS = re.compile(
    r"Value passed to parameter '(labels|targets)' has DataType (\w*float\w+)"
)
_NODE = re.compile(
    r" for '\{\{node .*?\}\} = \w+\[.*?\]\(.*?\)'"
)  # how TensorFlow names an operation


class Returned(NamedTuple):
    """A result of a user's layer, whose shape differs from the shape of the layer's input."""

    layer: Layer
    shapes: str  # "[4, 256, 7] for an input of [4, 256, 32]"


def check_result(layer: Layer, inputs: Sequence[Any], result: Any, call: Call | None) -> None:
    """Remembers in `call` what a user's layer returned for its inputs.

    Raises ParamError if it returned nothing, or another shape than its `output_shape` says. Layers
    of lingo are not checked.
    """
    cls = type(layer)
    if not _is_own(cls, "__call__"):
        return
    if result is None:
        raise ParamError(f"{_where(layer)} returned None: is a `return` missing?")
    given, returned = (_shape(inputs[0]) if inputs else None), _shape(result)
    if given is not None and None not in given and _is_own(cls, "output_shape"):
        own: Any = layer  # it has `output_shape`
        expected = tuple(own.output_shape(given))
        if not _agree(returned, expected):
            raise ParamError(
                f"{_where(layer)} returned {_text(result)} for an input of {_text(inputs[0])}, but"
                f" its output_shape says {_shape_text(expected)}: correct one of them"
            )
    if call is None:
        return
    if returned != given:
        shapes = _text(result) + (f" for an input of {_text(inputs[0])}" if inputs else "")
        call.returned[:] = [Returned(layer, shapes)]
    elif any(one.layer is inner for one in call.returned for inner in layer.tree()):
        call.returned.clear()  # the layer has used that result


def explain(error: Exception, layer: Layer, call: Call | None) -> Exception:
    """Returns an error about shapes in a layer's call that names the user's layer before it.

    For float labels, it returns an error that says what a loss wants. Any other error is returned
    as it is.
    """
    if found := _FLOAT_LABELS.match(str(error)):
        where = ": ".join(filter(None, [user_line(error), _path(layer)]))
        return ParamError(f"{where}: {explain_float_labels(found[1], found[2])}")
    text = _NODE.sub("", str(error)).partition("\n")[0].partition(". ")[0].rstrip(".")
    if call is None or not call.returned or isinstance(error, LingoError):
        return error
    if not isinstance(error, (ValueError, TypeError)) or not _ABOUT_SHAPES.search(text):
        return error
    ((source, shapes),) = call.returned
    if line := user_line(error):  # the mistake may be there, or in the layer before
        return ParamError(
            f"{line}: {_path(layer)}: {text} (before it, {_name(source)} returned {shapes})"
        )
    by = f"{type(layer).__name__} at {_path(layer)}"
    return ParamError(f"{_where(source)} returned {shapes}, which {by} does not take: {text}")


def _where(layer: Layer) -> str:
    """Returns `file:line: path: Class.__call__` of a user's layer."""
    return f"{_line(layer)}: {_path(layer)}: {type(layer).__name__}.__call__"


def _name(layer: Layer) -> str:
    return f"{type(layer).__name__} ({_path(layer)}, {_line(layer)})"


def _line(layer: Layer) -> str:
    return definition_line(inspect.unwrap(type(layer).__call__))


def _path(layer: Layer) -> str:
    return vars(layer.p)["_path"] or type(layer).__name__


@functools.cache
def _is_own(cls: type[Layer], method: str) -> bool:
    """Returns whether a class gets a method from a class that is not lingo's."""
    owner = next((base for base in cls.__mro__ if method in vars(base)), None)
    return owner is not None and not is_lingos(owner)


def _shape(value: Any) -> Sequence[Any] | None:
    """Returns the shape of a tensor, with None for unknown sizes; None: unknown, or no tensor."""
    shape = value.shape if tf.is_tensor(value) else None
    return None if shape is None or shape.rank is None else tuple(shape)


def _agree(returned: Sequence[Any] | None, expected: Sequence[Any]) -> bool:
    """Returns whether a shape may be the expected one; unknown sizes may be any."""
    if returned is None:
        return True
    same = (None in (a, b) or a == b for a, b in zip(returned, expected, strict=False))
    return len(returned) == len(expected) and all(same)


def _text(value: Any) -> str:
    """Returns the shape of a tensor, the shapes of several, or the type of another value."""
    if isinstance(value, (list, tuple)):
        parts: Sequence[Any] = value
        return f"({', '.join(map(_text, parts))})"
    shape = _shape(value)
    return type(value).__name__ if shape is None else _shape_text(shape)


def _shape_text(shape: Sequence[Any]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
