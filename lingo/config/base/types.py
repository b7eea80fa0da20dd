"""Field types: they check and convert a parameter's value when it is set.

A parameter is None, a bool, an int, a float, a str, a list, tuple or dict of parameters, or Params.
A field of type `Function` takes a function. There are no other values, so that every configuration
prints, diffs and reloads exactly.
"""

from __future__ import annotations

import ast
import math
import os
import types
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar, cast

from lingo.config.base.ast_lock import AST_LOCK
from lingo.config.base.errors import Unreadable, suggest

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")

_OPERATIONAL = "operational"
_WRAPPED = "wrapped"
_FILE_PATH = "file path"
_FUNCTION = "function"

Operational = Annotated[T, _OPERATIONAL]
"""Marks a field that does not change results, so that it may change when a run resumes."""

Wrapped = Annotated[Any, _WRAPPED]
"""`layer: Wrapped` holds the template in a wrapper, and it inherits what the wrapper inherits."""

FilePath = Annotated[str, _FILE_PATH]
"""`directory: FilePath` holds a file's path. A relative path is made absolute when it is set, since
a run may resume from another working directory. A path such as `gs://...` or `~/...` is kept."""

Function = Annotated[Any, _FUNCTION]
"""`factory: Function` holds a function at a file's top level, in text `file.py:function`."""

SCALARS = frozenset({type(None), bool, int, float, str})
"""The types of values that contain no other values."""

PARAMETER_TYPES = (
    "bool, int, float, str, None, a Literal, list, tuple, dict, or a class to configure"
)

INT_BITS = 64
INT_LIMIT = 2 ** (INT_BITS - 1)
NOT_FINITE = "A number must be finite."

Fit = Callable[[Any], Any]


class Node(Protocol):
    """The interface of `Params`, for type hints in modules that `params` imports."""

    __fn_or_cls__: type[Any]
    __arguments__: dict[str, Any]
    __argument_history__: Any
    __argument_tags__: Any

    @property
    def cls(self) -> type[Any]: ...

    def is_given(self, name: str) -> bool: ...


def is_operational(hint: Any) -> bool:
    """Returns whether a field of this type may change when a run resumes."""
    return _OPERATIONAL in getattr(hint, "__metadata__", ())


def is_wrapped(hint: Any) -> bool:
    """Returns whether a field of this type holds the template that a wrapper wraps."""
    return _WRAPPED in getattr(hint, "__metadata__", ())


def is_file_path(hint: Any) -> bool:
    """Returns whether a field of this type is a `FilePath`, or a `FilePath` or None."""
    return Path_ in alternatives(hint)


def is_configurable(hint: Any) -> bool:
    """Returns whether a type is a `Configurable` class; a field of such a type holds Params."""
    return isinstance(hint, type) and hasattr(cast("Any", hint), "_interface")


def is_params(value: Any) -> TypeIs[Node]:
    """Returns whether a value is Params."""
    return hasattr(value.__class__, "__params__")  # isinstance is slow on Fiddle's classes


def strip_annotations(hint: Any) -> Any:
    """Returns a type without its `Annotated` marks; `Wrapped` becomes `Params_`, for example."""
    while metadata := getattr(hint, "__metadata__", ()):
        hint = _MARKED.get(metadata[0], hint.__origin__)
    return hint


class Params_:
    """Stands for the type `Wrapped`: the field takes Params of any class."""


class Path_(str):
    """Stands for the type `FilePath`: the field holds a file's path, or a pattern of paths."""


class Function_:
    """Stands for the type `Function`: the field holds a function."""


_READING_ORDER = (
    type(None),
    bool,
    Literal,
    int,
    float,
    Params_,
    Function_,
    dict,
    list,
    tuple,
    str,
    Path_,
    Any,
)
_MARKED = {_WRAPPED: Params_, _FILE_PATH: Path_, _FUNCTION: Function_}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union type; the type itself if it is not a union."""
    hint = strip_annotations(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(a for member in typing.get_args(hint) for a in alternatives(member))
    return (hint,)


def takes_any_class(hint: Any) -> bool:
    """Returns whether a field of this type takes Params of all classes."""
    return any(member is Params_ or member is Any for member in alternatives(hint))


def takes_params(hint: Any) -> bool:
    """Returns whether a field of this type takes Params, of at least one class."""
    members = alternatives(hint)
    return takes_any_class(hint) or any(is_configurable(member) for member in members)


def takes(hint: Any, cls: type) -> bool:
    """Returns whether a field of this type takes Params of the class `cls`."""
    return any(
        member is Params_
        or member is Any
        or (is_configurable(member) and issubclass(cls, member._interface))
        for member in alternatives(hint)
    )


def item(hint: Any, key: str | int) -> Any:
    """Returns the type of the item at `key` in a container of type `hint`."""
    for member in alternatives(hint):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if origin is dict and isinstance(key, str):
            return args[1]
        if origin in (list, tuple) and isinstance(key, int):
            return args[key] if origin is tuple and args[-1] is not Ellipsis else args[0]
    return Any


def describe(hint: Any) -> str:
    """Returns a description of a type for messages: "int or None", "one of 'relu', 'gelu'"."""
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
    if hint is Function_:
        return "a function"
    if is_configurable(hint):
        kind = hint._interface.__name__
        kind = f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"
        return kind if hint is hint._interface else f"{kind} such as {hint.__name__}"
    return hint.__name__


def fitter(hint: Any) -> Fit:
    """Returns a function that converts a value given for a field of this type to the stored value.

    The function converts without loss (an int into a float, a class into its Params, a list into a
    tuple), copies containers, and raises TypeError for other values. It does not take a bool or 8.0
    as an int, since these are usually mistakes.
    """
    hint, *others = alternatives(hint)
    if others:
        fits = [fitter(member) for member in (hint, *others)]

        def fit_union(value: Any) -> Any:
            advice: tuple[Any, ...] = ()
            for fit in fits:
                try:
                    return fit(value)
                except TypeError as error:
                    advice = advice or error.args
            raise TypeError(*advice)

        return fit_union
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _literal(args)
    if origin in (list, tuple, dict) or hint in (list, tuple, dict):
        return _container(origin or hint, args)
    if is_configurable(hint):
        return _template(hint._interface)
    if hint is Params_:
        return _template(object)
    if hint is Any:
        return fit_any
    if hint is Path_:
        return _path
    if hint is Function_:
        return _function
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
            try:
                return float(value)
            except OverflowError:
                raise TypeError(NOT_FINITE) from None
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


def _function(value: Any) -> Any:
    if not isinstance(value, types.FunctionType):
        raise TypeError
    return value


def _literal(choices: tuple[Any, ...]) -> Fit:
    def fit(value: Any) -> Any:
        if not any(type(choice) is type(value) and choice == value for choice in choices):
            raise TypeError
        return value

    return fit


def _container(kind: type, args: tuple[Any, ...]) -> Fit:
    if kind is dict:
        fit_item = fitter(args[1]) if args else fit_any
        return lambda value: {k: fit_item(v) for k, v in _dict(value).items()}
    if kind is tuple and args and args[-1] is not Ellipsis:
        fit_items = [fitter(a) for a in args]

        def fit_tuple(value: Any) -> Any:
            inside = _sequence(value)
            if len(inside) != len(fit_items):
                raise TypeError
            return tuple(fit(v) for fit, v in zip(fit_items, inside, strict=True))

        return fit_tuple
    fit_each, make = fitter(args[0]) if args else fit_any, cast("Fit", kind)
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
        params = value.params() if is_configurable(value) else value
        if not is_params(params) or not issubclass(params.__fn_or_cls__, kind):
            raise TypeError
        return params

    return fit


def fit_any(value: Any) -> Any:
    """Converts a value given for a field of type Any; raises TypeError if no field may hold it."""
    if is_configurable(value):
        return value.params()
    if type(value) in SCALARS or is_params(value):
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError(NOT_FINITE)
        return value
    if isinstance(value, dict):
        return {k: fit_any(v) for k, v in _dict(value).items()}
    inside = [fit_any(v) for v in _sequence(value)]
    return tuple(inside) if isinstance(value, tuple) else inside


# ---- text --------------------------------------------------------------------------------------


def reading_rank(hint: Any) -> int:
    """Returns a sort key for a union's members: a text is read as the first that accepts it."""
    kind = Params_ if is_configurable(hint) else typing.get_origin(hint) or hint
    return _READING_ORDER.index(kind)


def members_of_any(text: str, *, may_be_params: bool) -> tuple[Any, ...]:
    """Returns the types to try, as for a union, when a text is read for a field of type Any."""
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise Unreadable(NOT_FINITE)
    if container := {"[]": list, "{}": dict}.get(text[:1] + text[-1:]):
        return (container,)
    leaves = (type(None), bool, int, float, str)
    return (*leaves, Params_) if may_be_params and text[0].isupper() else leaves


def item_hints(hint: Any, count: int) -> tuple[Any, ...]:
    """Returns the types of the `count` items of a list or tuple type; raises Unreadable."""
    args = typing.get_args(hint) or (Any, ...)
    if typing.get_origin(hint) is tuple and args[-1] is not Ellipsis:
        if len(args) != count:
            raise Unreadable(f"It has {len(args)} items.")
        return args
    return args[:1] * count


def read_leaf(text: str, hint: Any) -> Any:
    """Returns None, a bool, a number, a string, or a word of a `Literal`, read from text.

    int    12  1_000            bool   true  False      str   as it is; quotes are taken off
    float  0.1  1e-3  3         None   none

    Raises Unreadable for any other text, with advice if there is any.
    """
    if typing.get_origin(hint) is Literal:
        return _read_choice(text, typing.get_args(hint))
    if hint is type(None) and text.lower() == "none":
        return None
    if hint is type(None):
        raise Unreadable("")
    if hint is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if hint is bool:
        raise Unreadable("Write true or false.")
    if hint is int or hint is float:
        if not text.isascii():  # Python would read the digits of any script
            raise Unreadable("")
        return _read_int(text) if hint is int else _read_float(text)
    return unquote(text)


def unquote(text: str) -> str:
    """Returns the value of a quoted Python string; any other text is returned unchanged."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        try:
            with AST_LOCK:
                value = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            return text
        return value if isinstance(value, str) else text
    return text


def _read_choice(text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if unquote(text) == choice or (
            not isinstance(choice, str) and text.lower() == str(choice).lower()
        ):
            return choice
    raise Unreadable(suggest(unquote(text), [c for c in choices if isinstance(c, str)]).strip())


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        value = _read_float(text)
    if value.is_integer() and abs(value) < 2**53:
        raise Unreadable(f"Write {int(value)}.")
    raise Unreadable("")


def _read_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise Unreadable("") from None
    if not math.isfinite(value):
        raise Unreadable(NOT_FINITE)
    return value
