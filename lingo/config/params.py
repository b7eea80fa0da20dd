"""Parameter objects: a class declares them, a researcher sets them, and a parent builds them.

A `Configurable` class declares its fields as annotated attributes. `X.params(field=value)` gives a
`Params`, which can be changed at any depth until `build()` makes the object:

    class FeedForward(Layer):
        dim: int                          # width of the input; no default: required
        hidden_dim: int | None = None     # None: 4 * dim
        norm: Norm = RmsNorm              # a template: the layer may build it several times

        def setup(self):
            self.norm = self.p.norm.build(dim=self.p.dim)     # the norm inherits `dim` if unset

Building is shallow: the children of Params stay Params until their parent builds them. The root is
copied deeply before it is built, so built objects share nothing with the caller's Params. The
Params of a built object cannot change.

`Params` and `Configurable` are in one file, since each makes the other. Layers, tasks and
experiments need only the names in `__all__`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn

from lingo.config.base.errors import ParamError, suggest
from lingo.config.base.types import is_params
from lingo.config.node.build import build, inherited_values
from lingo.config.node.copying import FROZEN, copy_tree, deep_copy
from lingo.config.node.fiddle_api import Config, History, add_exclude_location, is_building
from lingo.config.node.field import (
    REQUIRED,
    Field,
    declared_fields,
    field_of,
    fields,
    interface,
    signature,
    wrapped_field,
)
from lingo.config.node.selection import Selection
from lingo.config.node.tree import Value, nodes, same
from lingo.config.node.tree_html import tree_html
from lingo.config.override_path import follow
from lingo.config.roots.user_line import definition_line

__all__ = [
    "Configurable",
    "ParamError",
    "Params",
    "fields",
    "inherited_values",
    "interface",
    "suggest",
]

add_exclude_location("lingo/config/params.py")
add_exclude_location("lingo/config/node/selection.py")


class Configurable:
    """Anything that is built from parameters.

    Subclasses declare fields as annotated attributes and may define `check` and `setup`. A class
    defined with `interface=True` is an interface. A field whose type is an interface, or a
    subclass of one, takes any class with the same interface, because a parent depends only on
    its child's methods.
    """

    p: Any  # the object's parameters, inherited values included; they cannot change
    _fields: ClassVar[dict[str, Field]] = {}
    _interface: ClassVar[type]
    _wrapped: ClassVar[str | None] = None
    _fits_parent: ClassVar[bool] = False  # whether a required field must have the parent's value

    def __init_subclass__(cls, interface: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if interface or Configurable in cls.__bases__:
            cls._interface = cls
        cls._fields = declared_fields(cls, reserved=Params)
        cls._wrapped = wrapped_field(cls) or cls._wrapped
        cls.__signature__ = signature(cls)
        if cls.__init__ is not Configurable.__init__:
            raise TypeError(
                f"{cls.__name__}.__init__ would never be called. Declare parameters as annotated"
                " attributes, `dim: int = 8`, and do the rest in `setup(self)`, which reads them as"
                " `self.p.dim`."
            )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        raise TypeError(f"{name} is built from parameters: {name}.params(...).build()")

    def __getattr__(self, name: str) -> Any:
        if name in type(self)._fields:
            raise AttributeError(
                f"{type(self).__name__}.{name} is a parameter: read self.p.{name}; if a base"
                f" class sets self.{name} in its `setup`, call super().setup() in yours"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def params(cls, **values: Any) -> Params:
        """Returns Params of this class with the given values set."""
        return Params(cls, **values)

    def check(self) -> None:
        """Raises ParamError if values in `self.p` contradict each other. Called before `setup`."""

    def setup(self) -> None:
        """Builds children and sets attributes, in place of `__init__`. `self.p` is complete."""

    def _missing_method(self, method: str, purpose: str) -> ParamError:
        """Returns the error to raise if a subclass lacks a method that it has to define."""
        cls = type(self)
        return ParamError(f"{definition_line(cls)}: {cls.__name__} has no `{method}`: {purpose}")

    def _finish(self, parent: Configurable | None) -> None:
        """Called after `setup` with the object that builds this object; None for the root."""


class Params(Config):
    """The parameters of a Configurable, read and set as attributes; each is checked when set."""

    __params__ = True  # see `types.is_params`
    __fn_or_cls__: type[Configurable]
    __arguments__: dict[str, Value]
    __argument_history__: History
    __argument_tags__: defaultdict[str, set[Any]]

    def __init__(self, cls: type[Configurable], /, **values: Any) -> None:
        blank = prototype(cls)
        vars(self).update(
            vars(blank),
            __arguments__=deep_copy(
                {name: v for name, v in blank.__arguments__.items() if name not in values}
            ),
            __argument_history__=History(),
            __argument_tags__=defaultdict(set),
        )
        for name, value in values.items():  # no value can contain the new Params
            self._store(name, field_of(cls, name).fit(value))

    @property
    def cls(self) -> type[Configurable]:
        """The class that these parameters build."""
        return self.__fn_or_cls__

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises ParamError: only a built object can be called."""
        path, name = vars(self).get("_path"), self.cls.__name__
        where = f"{path} is" if path else "these are"
        raise ParamError(
            f"{where} the parameters of {name}, not a {name}, and cannot be called: build them in"
            " `setup`, as in self.layer = self.p.layer.build(), and call self.layer(x)"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        state = vars(self)
        if "_frozen" in state:
            raise ParamError(f"{self._where(name)}: {FROZEN}")
        value = field_of(self.cls, name).fit(value)
        if is_params(value) and any(node is self for node in nodes(value)):
            raise ParamError(f"{self._where(name)} cannot contain itself")
        self._store(name, value)

    def _store(self, name: str, value: Any) -> None:
        state = vars(self)
        state["__arguments__"][name] = value
        state["__argument_history__"].add_new_value(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        arguments = vars(self)["__arguments__"]
        if name in arguments:
            return arguments[name]
        default = field_of(self.cls, name).default
        if default is REQUIRED:
            raise ParamError(
                f"{self._where(name)} is not set; a parent may pass it down when it builds this"
            )
        return default

    def __delattr__(self, name: str) -> None:
        if "_frozen" in vars(self):
            raise ParamError(f"{self._where(name)}: {FROZEN}")
        field = field_of(self.cls, name)
        self.__arguments__.pop(name, None)
        self.__argument_history__.pop(name, None)
        if field.mutable:
            self.__arguments__[name] = deep_copy(field.default)

    def __iter__(self) -> Iterator[str]:
        """Yields the names of all fields, set or not."""
        yield from fields(self.cls)

    def __getitem__(self, path: str) -> Any:
        """Returns the value at a path: `cfg["task.model.stack.layer"]`, `cfg["eval_inputs['a']"]`.

        Raises ParamError if the path leads nowhere, or its field is not set.
        """
        slot = follow(self, path, new=False)
        return slot.get() if slot.keys else getattr(slot.owner, slot.field)

    def __setitem__(self, path: str, value: Any) -> None:
        """Sets the value at a path, with the checks of an attribute's assignment."""
        follow(self, path).set(value)

    def __dir__(self) -> list[str]:
        """Returns the names of fields and of public methods, for completion in notebooks."""
        return [*fields(self.cls), *(name for name in vars(Params) if not name.startswith("_"))]

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows: a foldable tree of the values that were set."""
        return tree_html(self)

    def __copy__(self) -> Params:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Params:
        return copy_tree(self, memo)

    def __flatten__(self) -> tuple[tuple[Any, ...], Any]:
        """Returns the values and metadata for Fiddle's tools, but no values during `fdl.build`.

        `fdl.build` would build leaves before their parents, from which leaves inherit values.
        Without values it sees a single leaf, and `__build__` builds the whole tree from its root.
        """
        values, metadata = super().__flatten__()
        return ((), metadata._replace(argument_names=())) if is_building() else (values, metadata)

    def __build__(self) -> Any:
        return self.build()

    def _where(self, name: str) -> str:
        path = vars(self).get("_path")
        return f"{path}.{name}" if path else f"{self.cls.__name__}.{name}"

    def is_given(self, name: str) -> bool:
        """Returns whether the field itself was set, or a value inside its default template."""
        if self.__argument_history__.get(name):
            return True
        field = field_of(self.cls, name)
        return field.mutable and not same(self.__arguments__[name], field.default)

    def set(self, **values: Any) -> Params:
        """Sets several fields and returns self."""
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def copy(self) -> Params:
        """Returns a deep copy that can be changed, even if the original is frozen."""
        return deep_copy(self)

    def all(self, cls: type[Configurable]) -> Selection:
        """Returns a selection of all Params of a class and its subclasses in this tree."""
        return Selection(
            [node for node in nodes(self) if issubclass(node.__fn_or_cls__, cls)], cls, self
        )

    def build(self, **inherited: Any) -> Any:
        """Builds the object; the caller's Params stay as they are and can be built again.

        `inherited` has values for unset fields. Names without a field are ignored. Children always
        inherit `dtype`. Raises ParamError, with the path, if a required field has no value, or if
        `check` or `setup` raises it.
        """
        return build(self, inherited)


@functools.cache
def prototype(cls: type[Configurable]) -> Params:
    """Returns Params of a class in which nothing is set, with its default templates; cached."""
    blank = object.__new__(Params)
    Config.__init__(blank, cls)
    for field in fields(cls).values():
        if field.mutable:
            _ = field.hint  # converts the default
            blank.__arguments__[field.name] = field.default
    blank.__argument_history__.clear()
    return blank
