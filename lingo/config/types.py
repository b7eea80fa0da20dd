"""Field types: what a parameter may hold, checked when it is set.

A parameter is None, a bool, an int, a float, a str, a list, tuple or dict of parameters, or Params.
Nothing else, so that every configuration prints, diffs and reloads exactly.
"""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from lingo.config.params import Params

T = TypeVar("T")

_OPERATIONAL = "operational"
_WRAPPED = "wrapped"
_FILE_PATH = "file path"

Operational = Annotated[T, _OPERATIONAL]
"""`steps: Operational[int] = 100`: how a run is carried out; may change when it resumes."""

Wrapped = Annotated[Any, _WRAPPED]
"""`layer: Wrapped`: what a wrapper stands around; every offer to the wrapper is handed on to it."""

FilePath = Annotated[str, _FILE_PATH]
"""`directory: FilePath`: a relative path is made absolute when it is set, for a run may go on from
another working directory; one with a scheme, as `gs://`, or with `~` stays as it is."""

SCALARS = frozenset({type(None), bool, int, float, str})
"""The types of values with nothing inside."""

INT_BITS = 64
INT_LIMIT = 2 ** (INT_BITS - 1)
NOT_FINITE = "A number must be finite."

Fit = Callable[[Any], Any]


def is_operational(hint: Any) -> bool:
    """Returns whether a field of this type may change when a run resumes."""
    return _OPERATIONAL in getattr(hint, "__metadata__", ())


def is_wrapped(hint: Any) -> bool:
    """Returns whether a field of this type holds what a wrapper stands around."""
    return _WRAPPED in getattr(hint, "__metadata__", ())


def is_file_path(hint: Any) -> bool:
    """Returns whether a field of this type holds a path of a file, or None."""
    return Path_ in alternatives(hint)


def is_configurable(hint: Any) -> bool:
    """Returns whether the type is a `Configurable` class: a field that holds a template."""
    return isinstance(hint, type) and hasattr(cast("Any", hint), "_kind")


def is_params(value: Any) -> TypeIs[Params]:
    """Returns whether the value is a parameter object."""
    return hasattr(value.__class__, "__params__")  # isinstance is slow on Fiddle's classes


def unannotated(hint: Any) -> Any:
    """Returns the type without its `Annotated` marks."""
    while metadata := getattr(hint, "__metadata__", ()):
        hint = _MARKED.get(metadata[0], hint.__origin__)
    return hint


class Params_:  # stands for "parameters of any class" among types
    """Marks the type of a field that takes parameters of any class."""


class Path_(str):  # stands for a path among types
    """Marks the type of a field that holds the path of a file, or a pattern of paths."""


_MARKED = {_WRAPPED: Params_, _FILE_PATH: Path_}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the type alone."""
    hint = unannotated(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(a for member in typing.get_args(hint) for a in alternatives(member))
    return (hint,)


def takes_any_class(hint: Any) -> bool:
    """Returns whether a field of this type takes Params whatever their kind."""
    return any(member is Params_ or member is Any for member in alternatives(hint))


def takes_params(hint: Any) -> bool:
    """Returns whether a field of this type takes Params of some class."""
    members = alternatives(hint)
    return takes_any_class(hint) or any(is_configurable(member) for member in members)


def takes(hint: Any, cls: type) -> bool:
    """Returns whether a field of this type takes Params of a class."""
    return any(
        member is Params_
        or member is Any
        or (is_configurable(member) and issubclass(cls, member._kind))
        for member in alternatives(hint)
    )


def item(hint: Any, key: str | int) -> Any:
    """Returns the type of an item of a container of this type."""
    for member in alternatives(hint):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if origin is dict and isinstance(key, str):
            return args[1]
        if origin in (list, tuple) and isinstance(key, int):
            return args[key] if origin is tuple and args[-1] is not Ellipsis else args[0]
    return Any


def describe(hint: Any) -> str:
    """Returns a type in words, for messages: "int or None", "one of 'relu', 'gelu'"."""
    hint, *others = alternatives(hint)
    if others:
        return " or ".join(map(describe, (hint, *others)))
    args = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return "one of " + ", ".join(map(repr, args))
        case origin if origin is list or (origin is tuple and args[1:] == (...,)):
            return f"{origin.__name__} of {describe(args[0])}"
        case origin if origin is tuple:
            return f"tuple of {', '.join(map(describe, args))}"
        case origin if origin is dict:
            return f"dict of {describe(args[1])}"
        case _:
            return _describe_plain(hint)


def _describe_plain(hint: Any) -> str:
    if hint is Any:
        return "any parameter value"
    if hint is Params_:
        return "the parameters of what it wraps"
    if hint is type(None):
        return "None"
    if hint is Path_:
        return "str"
    if is_configurable(hint):
        kind = hint._kind.__name__
        kind = f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"
        return kind if hint is hint._kind else f"{kind} such as {hint.__name__}"
    return hint.__name__


def fitter(hint: Any) -> Fit:
    """Returns the function that turns a given value into the stored one.

    The function converts what loses nothing (an int into a float, a class into its Params, a list
    into a tuple), copies containers, and raises TypeError for the rest. A bool is no int and 8.0 is
    no int: both are usually a mistake.
    """
    hint, *others = alternatives(hint)
    if others:
        fits = [fitter(member) for member in (hint, *others)]

        def fit_union(value: Any) -> Any:
            said: tuple[Any, ...] = ()
            for fit in fits:
                try:
                    return fit(value)
                except TypeError as error:
                    said = said or error.args
            raise TypeError(*said)

        return fit_union
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _literal(args)
    if origin in (list, tuple, dict) or hint in (list, tuple, dict):
        return _container(origin or hint, args)
    if is_configurable(hint):
        return _template(hint._kind)
    if hint is Params_:
        return _template(object)
    if hint is Any:
        return plain
    if hint is Path_:
        return _path
    if hint in (bool, int, str, float, type(None)):
        return _scalar(hint)
    raise TypeError(f"{hint!r} is not a parameter type")


def _scalar(kind: type) -> Fit:
    def fit(value: Any) -> Any:
        if type(value) is kind:
            if kind is float and not math.isfinite(value):
                raise TypeError(NOT_FINITE)
            if kind is int and not -INT_LIMIT <= value < INT_LIMIT:
                raise TypeError(f"A whole number has {INT_BITS} bits.")
            return value
        if kind is float and type(value) is int:
            return _float(value)
        raise TypeError

    return fit


def _path(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    if not value or value.startswith("~") or "://" in value or os.path.isabs(value):
        return value
    try:
        return os.path.abspath(value)
    except OSError:
        raise TypeError("It is relative, and the working directory is gone.") from None


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise TypeError(NOT_FINITE) from None


def _literal(choices: tuple[Any, ...]) -> Fit:
    def fit(value: Any) -> Any:
        if not any(type(choice) is type(value) and choice == value for choice in choices):
            raise TypeError
        return value

    return fit


def _container(kind: type, args: tuple[Any, ...]) -> Fit:
    if kind is dict:
        fit_item = fitter(args[1]) if args else plain
        return lambda value: {k: fit_item(v) for k, v in _dict(value).items()}
    if kind is tuple and args and args[-1] is not Ellipsis:
        fit_items = [fitter(a) for a in args]

        def fit_tuple(value: Any) -> Any:
            inside = _sequence(value)
            if len(inside) != len(fit_items):
                raise TypeError
            return tuple(fit(v) for fit, v in zip(fit_items, inside, strict=True))

        return fit_tuple
    fit_each, make = fitter(args[0]) if args else plain, cast("Fit", kind)
    return lambda value: make(fit_each(v) for v in _sequence(value))


def _sequence(value: Any) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError
    return cast("Sequence[Any]", value)


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    inside = cast("dict[Any, Any]", value)
    if not all(type(k) is str for k in inside):
        raise TypeError
    return inside


def _template(kind: type) -> Fit:
    def fit(value: Any) -> Any:
        if is_configurable(value):
            value = value.params()
        if not is_params(value) or not issubclass(value.__fn_or_cls__, kind):
            raise TypeError
        return value

    return fit


def plain(value: Any) -> Any:
    """Returns any parameter value as stored; raises TypeError for what is none."""
    if is_configurable(value):
        return value.params()
    if type(value) in SCALARS or is_params(value):
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError(NOT_FINITE)
        return value
    if isinstance(value, dict):
        return {k: plain(v) for k, v in _dict(value).items()}
    inside = [plain(v) for v in _sequence(value)]
    return tuple(inside) if isinstance(value, tuple) else inside
