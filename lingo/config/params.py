"""Parameter objects: what a class declares, a researcher sets, and a parent builds.

A `Configurable` class declares its fields as annotated attributes. `X.params(field=value)` gives a
`Params`, which can be changed at any depth until `build()` makes the object:

    class FeedForward(Layer):
        dim: int                          # width of the input; no default: required
        hidden_dim: int | None = None     # None: 4 * dim
        norm: Norm = RmsNorm              # a template: the layer builds it, as often as it likes

        def setup(self):
            self.norm = self.p.norm.build(dim=self.p.dim)     # an offer: fills `dim` if left unset

Building is shallow: a node's children stay Params until their parent builds them. The root is
copied once, deeply; what is built shares nothing with the caller's Params and cannot change.
"""
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import contextvars
import difflib
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, cast

import fiddle as fdl
from fiddle import history

from lingo.config import types
from lingo.errors import LingoError

history.add_exclude_location("lingo/config/params.py")
history.add_exclude_location("lingo/config/selection.py")

REQUIRED: Any = inspect.Parameter.empty
MAX_PARTS = 50_000
MAX_SHOWN = 200
FROZEN = "the parameters of what is built cannot change; copy() them."

Value: TypeAlias = (
    "bool | int | float | str | list[Value] | tuple[Value, ...] | dict[str, Value] | Params | None"
)
"""What a parameter may be."""

if TYPE_CHECKING:

    class History(dict[str, list[history.HistoryEntry]]):
        """What was set, by field, in order."""

        def add_new_value(self, param_name: str, value: Any) -> None: ...

else:
    History = history.History


class ParamError(LingoError, AttributeError, ValueError):
    """A mistake in parameters: says where, what was given and what was wanted.

    Attributes:
        path: the path of the Params that the message already names, or None.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


def suggest(word: str, words: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the nearest words, whatever their case, or ""."""
    if len(word) > MAX_SHOWN:
        return ""
    known = {known.lower(): known for known in words}
    close = [known[near] for near in difflib.get_close_matches(word.lower(), known, 3, 0.6)]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def _given(value: Any) -> str:
    """Returns a value in an error, shortened, with its type."""
    if isinstance(value, Params):
        return value.cls.__name__
    try:
        shown = repr(value)[:MAX_SHOWN]
    except ValueError:  # of an int with more digits than Python writes
        shown = "a number of many digits"
    return f"{shown} ({type(value).__name__})"


class Field:
    """One annotated attribute of a Configurable class.

    The type is read on first use, so that forward references and import order do not matter.

    Attributes:
        name: the attribute.
        owner: the class whose body declares it.
        annotation: its type, as written.
        default: its value when nobody sets it; Params for a template; REQUIRED for none.
    """

    def __init__(self, name: str, owner: type, annotation: Any, default: Any) -> None:
        self.name, self.owner, self.annotation, self.default = name, owner, annotation, default
        self._fit: types.Fit | None = None
        self._hint: Any = None
        self._operational = False

    @property
    def hint(self) -> Any:
        """The type, as an object."""
        if self._fit is None:
            self._resolve()
        return self._hint

    @property
    def operational(self) -> bool:
        """Whether the field says how a run is carried out, not what it computes."""
        if self._fit is None:
            self._resolve()
        return self._operational

    def fit(self, value: Any) -> Any:
        """Returns the value as stored; raises ParamError if it is not of the field's type."""
        if self._fit is None:
            self._resolve()
        try:
            return self._fit(value)  # pyright: ignore[reportOptionalCall]
        except TypeError as error:
            raise self._refused(value, error) from None

    def fresh(self) -> Any:
        """Returns the default; one that could change is copied."""
        return _copy(self.default, {}) if self.mutable else self.default

    @property
    def mutable(self) -> bool:
        """Whether the default is a template or a container, so that each Params has its own."""
        return isinstance(self.default, (Params, list, dict, tuple))

    def _resolve(self) -> None:
        hint = self.annotation
        if isinstance(hint, str):
            names = vars(sys.modules[self.owner.__module__])
            try:
                hint = eval(hint, dict(names), {self.owner.__name__: self.owner})  # noqa: S307  # source code
            except NameError as error:
                raise TypeError(
                    f"{self.owner.__name__}.{self.name}: {error}, in its type {hint!r}: a type is"
                    f" looked up at the top level of {self.owner.__module__}"
                ) from None
        fit, self._hint = types.fitter(hint), hint
        self._operational = types.is_operational(hint)
        if self.default is not REQUIRED:
            try:
                self.default = fit(self.default)
            except TypeError as error:
                raise self._refused(self.default, error) from None
        self._fit = fit  # last: another thread takes it as the sign that all is there

    def _refused(self, value: Any, error: TypeError) -> ParamError:
        wanted = types.describe(self._hint)
        said = f" {error}" if error.args else ""
        return ParamError(
            f"{self.owner.__name__}.{self.name} takes {wanted}, got {_given(value)}.{said}"
        )


class Configurable:
    """Anything that is built from parameters.

    Subclasses declare fields as annotated attributes and may define `check` and `setup`. A class
    defined with `kind=True` is a kind: a field of its type, or of a subclass's, takes any class of
    the same kind. A parent depends on what a child does, not on its class.

    Attributes:
        p: the parameters this object was built from, with all offers filled in; they cannot change.
    """

    p: Any
    _fields: ClassVar[dict[str, Field]] = {}
    _kind: ClassVar[type]
    _wrapped: ClassVar[str | None] = None
    _fits_parent: ClassVar[bool] = False  # whether a required field must be what a parent offers
    _prototype: ClassVar[Params | None] = None

    def __init_subclass__(cls, kind: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if kind or Configurable in cls.__bases__:
            cls._kind = cls
        cls._prototype = None
        bases = reversed(cls.__mro__[1:])  # of several bases, the fields of all
        owned = ((base, f) for base in bases for f in vars(base).get("_fields", {}).values())
        cls._fields = {f.name: f for base, f in owned if f.owner is base}
        for name, annotation in inspect.get_annotations(cls).items():
            if name.startswith("_") or "ClassVar" in str(annotation):
                continue
            default = vars(cls).get(name, REQUIRED)
            if name in vars(cls):
                delattr(
                    cls, name
                )  # `layer.rate` must not read the default past the configured value
            elif inherited := cls._fields.get(name):
                default = inherited.default
            if name == "p" or hasattr(Params, name) or hasattr(cls, name):
                raise TypeError(
                    f"{cls.__name__}.{name}: the name is taken by Params or by a base class"
                )
            if types.is_configurable(default):
                default = Params(default)
            cls._fields[name] = Field(name, cls, annotation, default)
            if str(annotation) in ("Wrapped", "types.Wrapped") or types.is_wrapped(annotation):
                cls._wrapped = name
        cls.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    f.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=REQUIRED if f.mutable else f.default,
                )
                for f in cls._fields.values()
            ]
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        raise TypeError(f"{name} is built from parameters: {name}.params(...).build()")

    def __getattr__(self, name: str) -> Any:
        if name in type(self)._fields:
            raise AttributeError(f"{type(self).__name__}.{name} is a parameter: read self.p.{name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def params(cls, **values: Any) -> Params:
        """Returns the parameters of this class, with some of them set.

        Raises:
            ParamError: for an unknown name or a value of the wrong type.
        """
        return Params(cls, **values)

    def check(self) -> None:
        """Raises ParamError if the values do not go together. Called before `setup`."""

    def setup(self) -> None:
        """Builds children and declares what the object needs. `self.p` is complete."""

    def _finish(self, parent: Configurable | None) -> None:
        """Called after `setup`, with the object that builds this one."""


class Build(NamedTuple):
    """A record of one node built: where it stands, its complete parameters, who offered what."""

    path: str
    params: Params
    offers: dict[str, str]  # field -> class name of the parent whose offer filled it


class _Frame(NamedTuple):
    """One object under construction."""

    built: Configurable
    offers: dict[str, tuple[Any, str]]  # all it received: value, class name of who offered
    offered: dict[str, str]  # those that filled a field of its own
    records: list[Build]


_frame: contextvars.ContextVar[_Frame | None] = contextvars.ContextVar("frame", default=None)


class Params(fdl.Config[Any]):
    """The parameters of one Configurable: read and set as attributes, checked when set."""

    __params__ = True  # see `types.is_params`
    __fn_or_cls__: type[Configurable]
    __arguments__: dict[str, Value]
    __argument_history__: History
    __argument_tags__: defaultdict[str, set[Any]]

    def __init__(self, cls: type[Configurable], /, **values: Any) -> None:
        vars(self).update(vars(_prototype(cls).copy()))
        for name, value in values.items():
            setattr(self, name, value)

    @property
    def cls(self) -> type[Configurable]:
        """The class these are the parameters of."""
        return self.__fn_or_cls__

    def __setattr__(self, name: str, value: Any) -> None:
        state = vars(self)
        if "_frozen" in state:
            raise ParamError(f"{self._where(name)}: {FROZEN}")
        value = self._field(name).fit(value)
        if isinstance(value, Params) and any(node is self for node in nodes(value)):
            raise ParamError(f"{self._where(name)} cannot contain itself.")
        state["__arguments__"][name] = value
        state["__argument_history__"].add_new_value(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        arguments = vars(self)["__arguments__"]
        if name in arguments:
            return arguments[name]
        default = self._field(name).default
        if default is REQUIRED:
            raise ParamError(
                f"{self._where(name)} is not set; a parent may offer it when it builds this."
            )
        return default

    def __delattr__(self, name: str) -> None:
        if "_frozen" in vars(self):
            raise ParamError(f"{self._where(name)}: {FROZEN}")
        field = self._field(name)
        self.__arguments__.pop(name, None)
        self.__argument_history__.pop(name, None)
        if field.mutable:
            self.__arguments__[name] = field.fresh()

    def __copy__(self) -> Params:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Params:
        return _copy(self, memo)

    def _field(self, name: str) -> Field:
        return field_of(self.cls, name)

    def _where(self, name: str) -> str:
        path = vars(self).get("_path")
        return f"{path}.{name}" if path else f"{self.cls.__name__}.{name}"

    def is_given(self, name: str) -> bool:
        """Returns whether the field was set, or something inside the default that it holds."""
        if self.__argument_history__.get(name):
            return True
        field = self._field(name)
        return field.mutable and not same(self.__arguments__[name], field.default)

    def set(self, **values: Any) -> Params:
        """Sets several fields and returns self."""
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def copy(self) -> Params:
        """Returns a deep copy that can be changed, also of the parameters of what is built."""
        return _copy(self, {})

    def all(self, cls: type[Configurable]) -> Any:
        """Returns the `Selection` of all Params of a class and its subclasses, from here down."""
        from lingo.config.selection import Selection

        return Selection(
            [node for node in nodes(self) if issubclass(node.__fn_or_cls__, cls)], cls, self
        )

    def build(self, **offers: Any) -> Any:
        """Builds the object.

        At the root, the whole tree is first copied, so the caller's Params stay as they are and can
        be built again.

        Args:
            **offers: values for fields that the class declares and nobody set; others are ignored.
                `dtype` is offered downwards by itself.

        Raises:
            ParamError: a required field that is neither set nor offered, or whatever `check` and
                `setup` find; with the path.
        """
        parent = _frame.get()
        if parent is None:
            return _build_node(_frozen(_copy(self, None), ""), offers, None, [])
        if "_path" not in vars(self):
            raise ParamError(
                f"{type(parent.built).__name__} builds {self.cls.__name__} parameters that stand in"
                " none of its fields, where nobody could change them: declare a field for them."
            )
        return _build_node(self, offers, parent, parent.records)


def received() -> dict[str, Any]:
    """Returns all that was offered to the object under construction, also what fits no field of it.

    A stack hands it on to its layers: `self.p.layer.build(**received())`.
    """
    frame = _frame.get()
    return {name: value for name, (value, _) in frame.offers.items()} if frame else {}


def builds(params: Params) -> list[Build]:
    """Builds a tree and returns the record of every node, root first.

    Raises:
        ParamError: as `Params.build`.
    """
    records: list[Build] = []
    _build_node(_frozen(_copy(params, None), ""), {}, None, records)
    return records


def walk(value: Value, path: str = "") -> Iterator[tuple[str, Params]]:
    """Yields (path, Params) for every Params inside a value, parents first."""
    if isinstance(value, Params):
        yield path, value
    for part, child in items(value):
        if isinstance(child, (Params, list, tuple, dict)):
            yield from walk(child, f"{path}{part}" if path else part.removeprefix("."))


def nodes(value: Value) -> list[Params]:
    """Returns every Params inside a value, parents first; twice if it stands in two places."""
    found: list[Params] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        children: Iterable[Value] = ()
        if isinstance(value, Params):
            found.append(value)
            children = value.__arguments__.values()
        elif isinstance(value, dict):
            children = value.values()
        elif isinstance(value, (list, tuple)):
            children = value
        waiting += [v for v in children if type(v) not in types.SCALARS][::-1]
    return found


def restored(cls: type[Configurable], values: dict[str, Any], location: history.Location) -> Params:
    """Returns Params as they were saved: faster than setting one field after the other.

    Args:
        cls: their class.
        values: the fields that were set; becomes part of the Params.
        location: where they were saved.

    Raises:
        ParamError: as setting them does.
    """
    declared, entries = cls._fields, History()
    for name, value in values.items():
        if name not in declared:
            raise unknown_field(cls, name)
        values[name] = value = declared[name].fit(value)
        entries[name] = [_entry(name, value, location)]
    prototype = vars(_prototype(cls))
    for name, value in prototype["__arguments__"].items():
        if name not in values:
            values[name] = _copy(value, {})
    node = object.__new__(Params)
    state = vars(node)
    state.update(prototype)
    state["__arguments__"], state["__argument_history__"] = values, entries
    state["__argument_tags__"] = defaultdict(set)
    return node


def _entry(name: str, value: Any, location: history.Location) -> history.HistoryEntry:
    """Returns a history entry; filling it past its frozen constructor takes a fifth of the time."""
    entry = object.__new__(history.HistoryEntry)
    state = vars(entry)
    state["sequence_id"], state["param_name"], state["new_value"] = 0, name, value
    state["kind"], state["location"] = history.ChangeKind.NEW_VALUE, location
    return entry


def fields(cls: type[Configurable]) -> dict[str, Field]:
    """Returns the fields of a class by name, inherited ones first."""
    return cls._fields


def kind(cls: type[Configurable]) -> type[Configurable]:
    """Returns the kind of a class: a field of a class takes any class of the same kind."""
    return cls._kind


def field_of(cls: type[Configurable], name: str) -> Field:
    """Returns a field of a class.

    Raises:
        ParamError: with the nearest name and all there are, if there is none.
    """
    try:
        return cls._fields[name]
    except KeyError:
        raise unknown_field(cls, name) from None


def unknown_field(cls: type[Configurable], name: str) -> ParamError:
    """Returns the error for a field that a class does not have."""
    there = ", ".join(cls._fields) or "none"
    near = suggest(name, cls._fields)
    return ParamError(f"{cls.__name__} has no field {name!r}.{near} Fields: {there}.")


def detached(value: Value) -> Any:
    """Returns a deep copy of a parameter value, or of a dict of them."""
    return _copy(value, {})


def same(a: Value, b: Value) -> bool:
    """Returns whether two values have the same fields set, to equal values of the same types."""
    if isinstance(a, Params):
        if not isinstance(b, Params) or a.cls is not b.cls:
            return False
        a, b = a.__arguments__, b.__arguments__
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and a.keys() == b.keys()
            and all(same(v, b[k]) for k, v in a.items())
        )
    if isinstance(a, (list, tuple)):
        kind = list if isinstance(a, list) else tuple
        return isinstance(b, kind) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def items(value: Value) -> Iterable[tuple[str, Value]]:
    """Returns (path part, child) for what stands directly inside a Params or a container."""
    if isinstance(value, Params):
        return [(f".{name}", child) for name, child in value.__arguments__.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", child) for i, child in enumerate(value)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    return ()


# ---- copies and frozen copies ----------------------------------------------------------------


def _prototype(cls: type[Configurable]) -> Params:
    """Returns the Params of a class with only its default templates in them."""
    if cls._prototype is None:  # every class has its own
        prototype = object.__new__(Params)
        fdl.Config.__init__(prototype, cls)  # pyright: ignore[reportUnknownMemberType]
        for field in cls._fields.values():
            if field.mutable:
                _ = field.hint  # converts the default
                prototype.__arguments__[field.name] = field.default
        prototype.__argument_history__.clear()
        cls._prototype = prototype
    return cls._prototype


def _copy(value: Value, memo: dict[int, Any] | None) -> Any:
    """Copies deeply; Params that stand in two places stay one, or become two if `memo` is None."""
    if isinstance(value, Params):
        if memo and id(value) in memo:
            return memo[id(value)]
        new = object.__new__(Params)
        if memo is not None:
            memo[id(value)] = new
        state = vars(new)
        state.update(vars(value))
        state.pop("_frozen", None)
        state.pop("_path", None)
        state["__arguments__"] = {k: _copy(v, memo) for k, v in value.__arguments__.items()}
        state["__argument_tags__"] = defaultdict(
            set, {k: set(v) for k, v in value.__argument_tags__.items()}
        )
        state["__argument_history__"] = History(
            {k: list(entries) for k, entries in value.__argument_history__.items()}
        )
        return new
    if isinstance(value, list):
        return [_copy(v, memo) for v in value]
    if isinstance(value, tuple):
        return tuple(_copy(v, memo) for v in value)
    if isinstance(value, dict):
        return {k: _copy(v, memo) for k, v in value.items()}
    return value


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise ParamError(FROZEN)


def _frozen_kind(kind: type, writes: str) -> Any:
    """Returns a list or dict that refuses writes."""
    return type(f"Frozen{kind.__name__.title()}", (kind,), dict.fromkeys(writes.split(), _refuse))


_FrozenList = _frozen_kind(
    list,
    "__setitem__ __delitem__ __iadd__ __imul__ append extend insert pop remove clear sort reverse",
)
_FrozenDict = _frozen_kind(
    dict, "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update"
)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _frozen(value: Value, path: str) -> Any:
    """Checks and freezes, in place where it can; every Params learns its path."""
    if isinstance(value, Params):
        for name, child in value.__arguments__.items():
            if isinstance(child, (list, tuple, dict)):
                child = cast("Value", value._field(name).fit(child))  # it may have changed
            if isinstance(child, (Params, list, tuple, dict)):
                value.__arguments__[name] = _frozen(child, _join(path, name))
        vars(value).update(_frozen=True, _path=path)
        return value
    if isinstance(value, (list, tuple)):
        inside = [_frozen(v, f"{path}[{i}]") for i, v in enumerate(value)]
        return tuple(inside) if isinstance(value, tuple) else _FrozenList(inside)
    if isinstance(value, dict):
        return _FrozenDict({k: _frozen(v, f"{path}[{k!r}]") for k, v in value.items()})
    return value


# ---- building --------------------------------------------------------------------------------


def _build_node(
    template: Params, offers: dict[str, Any], parent: _Frame | None, records: list[Build]
) -> Any:
    received = _received(template, offers, parent)
    if parent is not None and template.cls._fits_parent and parent.built._fits_parent:
        _check_offers(template, received)
    node, offered = _filled(template, received)
    path, cls = vars(template)["_path"], template.cls
    if missing := [
        f.name
        for f in cls._fields.values()
        if f.default is REQUIRED and f.name not in node.__arguments__
    ]:
        by = (
            f"{type(parent.built).__name__}, which builds it, does not offer it"
            if parent
            else "it is built by itself"
        )
        what = f"{path or cls.__name__}: {cls.__name__} needs {' and '.join(missing)}"
        raise ParamError(f"{what}: nobody set it, and {by}.", path)
    if len(records) == MAX_PARTS:
        raise ParamError(
            f"{path}: the experiment has more than {MAX_PARTS:,} parts. Take fewer layers, or"
            " Repeat for Stack, which builds a layer once, however often it is used.",
            path,
        )
    built = object.__new__(cls)
    vars(built)["p"] = node
    records.append(Build(path, node, offered))
    token = _frame.set(_Frame(built, received, offered, records))
    try:
        built.check()
        built.setup()
        built._finish(parent.built if parent else None)
    except ParamError as error:
        if error.path is None:
            raise ParamError(f"{path or cls.__name__}: {error}", path) from None
        raise
    finally:
        _frame.reset(token)
    return built


def _received(
    template: Params, offers: dict[str, Any], parent: _Frame | None
) -> dict[str, tuple[Any, str]]:
    """Returns all that is offered to a node: by its parent, through a wrapper, and the dtype."""
    by = type(parent.built).__name__ if parent else "the caller"
    received: dict[str, tuple[Any, str]] = {}
    if parent is not None:
        above: Params = parent.built.p
        if "dtype" in above.cls._fields and (above.is_given("dtype") or "dtype" in parent.offered):
            received["dtype"] = (above.dtype, by)
        wrapped = type(parent.built)._wrapped
        if wrapped and vars(template)["_path"] == _join(vars(above)["_path"], wrapped):
            received |= parent.offers
    return received | {name: (value, by) for name, value in offers.items()}


def _check_offers(template: Params, received: dict[str, tuple[Any, str]]) -> None:
    """Refuses a required field that was set to another value than the parent has."""
    for name, (offer, by) in received.items():
        field = template.cls._fields.get(name)
        if field is None or field.default is not REQUIRED or not template.is_given(name):
            continue
        if not same(value := template.__arguments__[name], offer):
            path = vars(template)["_path"]
            raise ParamError(
                f"{_join(path, name)}={value!r:.80}, but {by}, which builds it, has"
                f" {name}={offer!r:.80}: leave it out, or set it there.",
                path,
            )


def _filled(
    template: Params, received: dict[str, tuple[Any, str]]
) -> tuple[Params, dict[str, str]]:
    """Returns the node with offers in its unset fields, and who offered each."""
    fields = template.cls._fields
    offered = {n: by for n, (_, by) in received.items() if n in fields and not template.is_given(n)}
    if not offered:
        return template, offered
    node = object.__new__(Params)
    vars(node).update(vars(template))
    arguments = dict(template.__arguments__)
    for name, by in offered.items():
        value = received[name][0]
        try:
            arguments[name] = fields[name].fit(value)
        except ParamError as error:
            path = vars(template)["_path"]
            raise ParamError(
                f"{path or template.cls.__name__}: {by} offers a wrong value: {error}", path
            ) from None
    vars(node)["__arguments__"] = arguments
    return node, offered
