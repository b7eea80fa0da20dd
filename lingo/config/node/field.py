"""Reads the fields that a Configurable class declares: names, types and defaults."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from lingo.config.base import types
from lingo.config.base.errors import MAX_SHOWN, ParamError, suggest
from lingo.config.roots.user_line import definition_line

REQUIRED: Any = inspect.Parameter.empty
"""The value of `Field.default` for a field without a default."""


class Field:
    """One annotated attribute of a Configurable class.

    The type is read on first use, so that forward references and import order do not matter.
    """

    def __init__(self, name: str, owner: type, annotation: Any, default: Any) -> None:
        self.name = name
        self.owner = owner  # the class whose body declares the field
        self.annotation = annotation  # the field's type, as written
        self.default = default  # Params for a template; REQUIRED if there is no default
        self._fit: types.Fit | None = None
        self._hint: Any = None
        self._operational = False

    @property
    def hint(self) -> Any:
        """The field's type, as an object."""
        if self._fit is None:
            self._resolve()
        return self._hint

    @property
    def operational(self) -> bool:
        """Whether the field does not change results, so that it may change when a run resumes."""
        if self._fit is None:
            self._resolve()
        return self._operational

    def fit(self, value: Any) -> Any:
        """Returns a value converted to the field's type; raises ParamError if it does not fit."""
        fit = self._fit or self._resolve()
        try:
            return fit(value)
        except TypeError as error:
            raise self._refusal(value, error) from None

    @property
    def mutable(self) -> bool:
        """Whether the default is Params or a container, so that each Params needs its own copy."""
        return types.is_params(self.default) or isinstance(self.default, (list, dict, tuple))

    def _resolve(self) -> types.Fit:
        hint = self.annotation
        if isinstance(hint, str):
            names = vars(sys.modules[self.owner.__module__])
            try:
                hint = eval(hint, dict(names), {self.owner.__name__: self.owner})  # noqa: S307  # source code
            except NameError as error:
                raise ParamError(
                    f"{self._where()}: {error}, in its type {hint!r}: a type is"
                    f" looked up at the top level of {self.owner.__module__}"
                ) from None
        try:
            fit, self._hint = types.fitter(hint), hint
        except TypeError as error:
            raise ParamError(f"{self._where()}: {error}: write {types.PARAMETER_TYPES}") from None
        self._operational = types.is_operational(hint)
        if self.default is not REQUIRED:
            try:
                self.default = fit(self.default)
            except TypeError as error:
                refusal = self._refusal(self.default, error)
                raise ParamError(f"{definition_line(self.owner)}: {refusal}") from None
        self._fit = fit  # last: it tells other threads that the rest is set
        return fit

    def _where(self) -> str:
        return f"{definition_line(self.owner)}: {self.owner.__name__}.{self.name}"

    def _refusal(self, value: Any, error: TypeError) -> ParamError:
        wanted = types.describe(self._hint)
        advice = f". {error}" if error.args else ""
        given = _describe_value(value)
        return ParamError(f"{self.owner.__name__}.{self.name} takes {wanted}, got {given}{advice}")


def _describe_value(value: Any) -> str:
    """Returns text for an error: a value, shortened, and its type."""
    if types.is_params(value):
        return value.cls.__name__
    try:
        shown = repr(value)[:MAX_SHOWN]
    except ValueError:  # an int with more digits than Python prints
        shown = "a number of many digits"
    return f"{shown} ({type(value).__name__})"


def fields(cls: type[Any]) -> dict[str, Field]:
    """Returns the fields of a class by name, inherited ones first."""
    return cls._fields


def field_of(cls: type[Any], name: str) -> Field:
    """Returns a field of a class by name.

    Raises ParamError if the class has no such field. The message has the nearest and all names.
    """
    try:
        return cls._fields[name]
    except KeyError:
        raise unknown_field(cls, name) from None


def unknown_field(cls: type[Any], name: str) -> ParamError:
    """Returns the error for a field that a class does not have."""
    near = suggest(name, cls._fields)
    all_names = ", ".join(cls._fields) or "none"
    return ParamError(f"{cls.__name__} has no field {name!r}.{near} Fields: {all_names}.")


def interface(cls: type[Any]) -> type[Any]:
    """Returns a class's interface: a field of its type takes any class with the same interface."""
    return cls._interface


# ---- class statements ------------------------------------------------------------------------


def declared_fields(cls: type[Any], reserved: type) -> dict[str, Field]:
    """Returns the fields of a new class, inherited ones first, and deletes its default attributes.

    The attributes are deleted because `layer.rate` would read the default, not the configured
    value. Raises TypeError for a field whose name is already an attribute of a base class or of
    `reserved`, the class Params.
    """
    bases = reversed(cls.__mro__[1:])  # all bases, since a class may have several
    owned = ((base, f) for base in bases for f in vars(base).get("_fields", {}).values())
    found: dict[str, Field] = {f.name: f for base, f in owned if f.owner is base}
    for name, annotation in inspect.get_annotations(cls).items():
        if name.startswith("_") or "ClassVar" in str(annotation):
            continue
        default = vars(cls).get(name, REQUIRED)
        if name in vars(cls):
            delattr(cls, name)
        elif inherited := found.get(name):
            default = inherited.default
        if name == "p" or hasattr(reserved, name) or hasattr(cls, name):
            raise TypeError(
                f"{cls.__name__}.{name}: the name is taken by Params or by a base class"
            )
        if types.is_configurable(default):
            default = default.params()
        found[name] = Field(name, cls, annotation, default)
    return found


def wrapped_field(cls: type[Any]) -> str | None:
    """Returns the name of the `Wrapped` field that a class itself declares, or None."""
    for name, field in cls._fields.items():
        written = str(field.annotation)  # its names cannot be resolved yet
        is_wrapped = written in ("Wrapped", "types.Wrapped") or types.is_wrapped(field.annotation)
        if is_wrapped and field.owner is cls:
            return name
    return None


def signature(cls: type[Any]) -> inspect.Signature:
    """Returns a signature with a class's fields as keyword arguments, which Fiddle needs."""
    return inspect.Signature(
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=REQUIRED if field.mutable else field.default,
            )
            for field in cls._fields.values()
        ]
    )
