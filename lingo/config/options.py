"""Options: one dataclass declares the flags of a verb (`lingo train`) and a function's parameters.

    @option_class
    class TrainOptions:
        audit: bool = option("Write every step into audit.jsonl.", default=False)

    @dataclasses.dataclass(frozen=True)
    class TrainCall(TrainOptions):
        logdir: str

    @takes(TrainCall)
    def train(call: TrainCall) -> Outcome: ...

`lingo.cli.command` makes the flag `--audit` of `lingo train` from the declaration. `takes` makes
the function `train(logdir, *, audit=False)` from it, whose docstring has the help sentence under
`Args:`. An option that only the command or only the function has is declared in a subclass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Generator
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, dataclass_transform

from lingo.config.base.hints import name_arguments

Parameters = ParamSpec("Parameters")
Owner = TypeVar("Owner")
Value = TypeVar("Value")
Call = TypeVar("Call")
Result = TypeVar("Result")

INNER = "--"
"""The argument that separates a command from the command that it starts."""

_WIDTH = 92  # columns of a docstring's sentence
_ARGS = "Args:\n"


class Option(NamedTuple):
    """The arguments of `option`: an option's help sentence, default, and limits."""

    help: str
    default: Any
    flag: str = ""  # the flag's name, if it is not the field's
    minimum: float | None = None
    maximum: float | None = None
    switch_value: Any = None  # the value of a bare `--flag`; None: the flag needs a value


class Word(NamedTuple):
    """The positional argument of a verb, such as NAME in `lingo describe NAME`."""

    # The text in the usage line: "NAME", "[word]" if the argument is optional, or "-- words" if the
    # argument is another command.
    form: str


class Declaration(NamedTuple):
    """An option, and the dataclass field that declares it."""

    field: str
    flag: str  # the flag's name, without dashes
    hint: Any  # the field's type
    option: Option

    @property
    def types(self) -> tuple[Any, ...]:
        """The types that the option's value may have, without NoneType."""
        is_union = typing.get_origin(self.hint) in (types.UnionType, typing.Union)
        hints = typing.get_args(self.hint) if is_union else (self.hint,)
        return tuple(hint for hint in hints if hint is not types.NoneType)

    @property
    def choices(self) -> list[str]:
        """The words that a Literal in the option's type allows; [] if it has no Literal."""
        literals = (hint for hint in self.types if typing.get_origin(hint) is typing.Literal)
        return [choice for hint in literals for choice in typing.get_args(hint)]


def option(
    help: str,
    *,
    default: Value | None = None,
    flag: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    switch_value: Any = None,
) -> Value:
    """Declares an option of an option class; the field's type says which values it takes.

    Without `default`, an option that is not given is None. A type checker, however, then requires
    it in the constructor, so options of Python functions are declared with `default=None`.
    """
    declared = Option(help, default, flag, minimum, maximum, switch_value)
    field: Any = dataclasses.field(default=default, metadata={"declared": declared})
    return field


def word(form: str) -> Any:
    """Declares the positional argument of a command; `form` is its text in the usage line."""
    return dataclasses.field(metadata={"declared": Word(form)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, word))
def option_class(cls: type[Value]) -> type[Value]:
    """Makes a class of options a frozen dataclass with keyword-only fields."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def declarations(cls: type) -> list[Declaration]:
    """Returns the options of an option class in the order of its fields, inherited ones first."""
    hints = typing.get_type_hints(cls)
    return [
        Declaration(name, declared.flag or name, hints[name], declared)
        for name, declared in _metadata(cls).items()
        if isinstance(declared, Option)
    ]


def word_field(cls: type, *, inner: bool = False) -> tuple[str, str]:
    """Returns (field name, form) of a command's positional argument; ("", "") if it has none.

    If `inner`, it is the field of another command, which stands after `--`.
    """
    words = [(name, word.form) for name, word in _metadata(cls).items() if isinstance(word, Word)]
    return next((word for word in words if word[1].startswith(INNER) == inner), ("", ""))


def _metadata(cls: Any) -> dict[str, Option | Word]:
    metadata = {field.name: field.metadata.get("declared") for field in dataclasses.fields(cls)}
    return {name: declared for name, declared in metadata.items() if declared is not None}


# ---- functions ---------------------------------------------------------------------------------


def takes(
    cls: Callable[Parameters, Call],
) -> Callable[[Callable[[Call], Result]], Callable[Parameters, Result]]:
    """Returns a decorator that replaces a function's only parameter by the fields of `cls`.

    The function takes an instance of the dataclass `cls`, which the decorated function creates.
    """

    def decorate(function: Callable[[Call], Result]) -> Callable[Parameters, Result]:
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with _python_call(cls):
                return function(cls(*args, **kwargs))

        return _present(call, function, cls)

    return decorate


def method_takes(
    cls: Callable[Parameters, Call],
) -> Callable[[Callable[[Owner, Call], Result]], Callable[Concatenate[Owner, Parameters], Result]]:
    """Returns a decorator that replaces a method's only parameter by the fields of `cls`.

    The method takes an instance of the dataclass `cls`, which the decorated method creates.
    """

    def decorate(
        function: Callable[[Owner, Call], Result],
    ) -> Callable[Concatenate[Owner, Parameters], Result]:
        def call(self: Owner, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with _python_call(cls):
                return function(self, cls(*args, **kwargs))

        return _present(call, function, cls)

    return decorate


def shorten_errors(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function without an option class: in a notebook its errors are short."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with _short_errors():
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def _python_call(cls: Any) -> Generator[None]:
    """A call of a Python function with the options of `cls`; in a notebook its errors are short."""
    declared = _metadata(cls).items()
    names = {one.flag or name: name for name, one in declared if isinstance(one, Option)}
    with _short_errors(), name_arguments(names):
        yield


@contextlib.contextmanager
def _short_errors() -> Generator[None]:
    try:
        yield
    except Exception as error:
        from lingo.config.short_traceback import shorten_traceback  # imports much

        shorten_traceback(error)
        raise


def documents(cls: type) -> Callable[[Value], Value]:
    """Returns a decorator that adds the help sentences of `cls`'s options to a docstring.

    It is for functions that `takes` cannot make: those with `*values`, or with overloads. They
    declare the options' parameters themselves.
    """

    def decorate(function: Value) -> Value:
        function.__doc__ = _docstring(function, cls)
        return function

    return decorate


def _present(call: Any, function: Any, cls: Any) -> Any:
    """Gives a wrapper the function's name, with `cls`'s fields in its signature and docstring."""
    functools.update_wrapper(call, function)
    del call.__wrapped__
    cls.__init__.__qualname__ = call.__name__  # Python's error for a wrong call shows it
    own = inspect.signature(function)
    *owner, _ = own.parameters.values()
    parameters = [*owner, *inspect.signature(cls).parameters.values()]
    call.__signature__ = own.replace(parameters=parameters)
    call.__doc__ = _docstring(function, cls)
    return call


def _docstring(function: Any, cls: Any) -> str:
    """Returns a function's docstring with the help sentences of `cls` at the end of `Args:`."""
    before, _, after = inspect.cleandoc(function.__doc__ or "").partition(_ARGS)
    own, gap, rest = after.partition("\n\n")
    lines = [
        textwrap.fill(f"{name}: {declared.help}", _WIDTH, subsequent_indent=" " * 4)
        for name, declared in _metadata(cls).items()
        if isinstance(declared, Option)
    ]
    added = textwrap.indent("\n".join(lines), " " * 4)
    return "".join([before, _ARGS, own, "\n" if own else "", added, gap, rest])
