"""Options: one dataclass declares the flags of a verb and the parameters of a function.

    @option_class
    class TrainOptions:
        audit: bool = option("Write every step into audit.jsonl.", default=False)

    @dataclasses.dataclass(frozen=True)
    class TrainCall(TrainOptions):
        logdir: str

    @takes(TrainCall)
    def train(call: TrainCall) -> Outcome: ...

`lingo.cli.command` makes the flag `--audit` of it, and `takes` the function
`train(logdir, *, audit=False)`, whose docstring has the sentence under `Args:`. An option of one
side only stands in a subclass, of the verb's options or of the call.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, dataclass_transform

Parameters = ParamSpec("Parameters")
Owner = TypeVar("Owner")
Value = TypeVar("Value")
Call = TypeVar("Call")
Result = TypeVar("Result")

_WIDTH = 92  # of a sentence in a docstring
_ARGS = "Args:\n"


class Option(NamedTuple):
    """What the declaration says of an option."""

    help: str
    default: Any
    flag: str = ""  # the flag's name, if it is not the field's
    minimum: float | None = None
    maximum: float | None = None
    switch_value: Any = None  # the value of a flag that is given without one; None: it needs one


class Word(NamedTuple):
    """What the declaration says of the word that a verb takes besides its flags."""

    form: str  # in the usage line: "NAME", "[word]" if it is optional, "-- words" for a command


class Declaration(NamedTuple):
    """An option with the field that declares it."""

    field: str
    flag: str  # without dashes
    hint: Any  # its type
    option: Option

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of its values, without NoneType."""
        is_union = typing.get_origin(self.hint) in (types.UnionType, typing.Union)
        hints = typing.get_args(self.hint) if is_union else (self.hint,)
        return tuple(hint for hint in hints if hint is not types.NoneType)

    @property
    def choices(self) -> list[str]:
        """The words that are its values; none unless its type has a Literal."""
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
    """Declares an option by a sentence. The field's type says what its values may be.

    Without a default it is None unless it is given. To a type checker the constructor then needs
    it: what Python's functions share says `default=None`.
    """
    said = Option(help, default, flag, minimum, maximum, switch_value)
    found: Any = dataclasses.field(default=default, metadata={"said": said})
    return found


def word(form: str) -> Any:
    """Declares the word that a verb takes besides its flags."""
    return dataclasses.field(metadata={"said": Word(form)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, word))
def option_class(cls: type[Value]) -> type[Value]:
    """Makes a class of options a frozen dataclass, all of whose fields are given by name."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def declarations(cls: type) -> list[Declaration]:
    """Returns the options of a class in the order of the fields, inherited ones first."""
    hints = typing.get_type_hints(cls)
    return [
        Declaration(name, said.flag or name, hints[name], said)
        for name, said in _metadata(cls).items()
        if isinstance(said, Option)
    ]


def word_field(cls: type) -> tuple[str, str]:
    """Returns the field and the form of the word of a verb's options; "", "" without one."""
    words = [(name, said.form) for name, said in _metadata(cls).items() if isinstance(said, Word)]
    return words[0] if words else ("", "")


def _metadata(cls: Any) -> dict[str, Option | Word]:
    found = {field.name: field.metadata.get("said") for field in dataclasses.fields(cls)}
    return {name: said for name, said in found.items() if said is not None}


# ---- functions ---------------------------------------------------------------------------------


def takes(
    cls: Callable[Parameters, Call],
) -> Callable[[Callable[[Call], Result]], Callable[Parameters, Result]]:
    """Gives a function of one object the parameters of the dataclass `cls` in its place."""

    def decorate(function: Callable[[Call], Result]) -> Callable[Parameters, Result]:
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            return function(cls(*args, **kwargs))

        return _present(call, function, cls)

    return decorate


def method_takes(
    cls: Callable[Parameters, Call],
) -> Callable[[Callable[[Owner, Call], Result]], Callable[Concatenate[Owner, Parameters], Result]]:
    """Gives a method of one object the parameters of the dataclass `cls` in its place."""

    def decorate(
        function: Callable[[Owner, Call], Result],
    ) -> Callable[Concatenate[Owner, Parameters], Result]:
        def call(self: Owner, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            return function(self, cls(*args, **kwargs))

        return _present(call, function, cls)

    return decorate


def documents(cls: type) -> Callable[[Value], Value]:
    """Adds the sentences of a class of options to the docstring of a function with the same.

    The signature of the function repeats the options where it has `*values`, which no dataclass
    has, or several overloads.
    """

    def decorate(function: Value) -> Value:
        function.__doc__ = _docstring(function, cls)
        return function

    return decorate


def _present(call: Any, function: Any, cls: Any) -> Any:
    """Gives a wrapper the name of a function, and the signature and docstring of both."""
    functools.update_wrapper(call, function)
    del call.__wrapped__
    cls.__init__.__qualname__ = call.__name__  # in the errors of a wrong call
    own = inspect.signature(function)
    *owner, _ = own.parameters.values()
    parameters = [*owner, *inspect.signature(cls).parameters.values()]
    call.__signature__ = own.replace(parameters=parameters)
    call.__doc__ = _docstring(function, cls)
    return call


def _docstring(function: Any, cls: Any) -> str:
    """Returns the docstring of a function with the sentences of options at the end of `Args:`."""
    before, _, after = inspect.cleandoc(function.__doc__ or "").partition(_ARGS)
    own, gap, rest = after.partition("\n\n")
    lines = [
        textwrap.fill(f"{name}: {said.help}", _WIDTH, subsequent_indent=" " * 4)
        for name, said in _metadata(cls).items()
        if isinstance(said, Option)
    ]
    added = textwrap.indent("\n".join(lines), " " * 4)
    return "".join([before, _ARGS, own, "\n" if own else "", added, gap, rest])
