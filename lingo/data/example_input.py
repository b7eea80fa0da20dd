"""Inputs that read examples by number, and augment them by a function of the user's.

Axes: B examples per batch, N examples per epoch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lingo.config.base.types import Function
from lingo.config.importing import user_code
from lingo.config.node.label import label
from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line
from lingo.data.array_spec import ArraySpec
from lingo.data.epoch_order import EpochOrder
from lingo.data.input import Input
from lingo.ops import random
from lingo.ops.kind import describe_kind

Example = Mapping[str, np.ndarray]
"""{name: array}, the arrays of one example."""

_RESERVED = ("example_id", "rows", "weights")  # arrays that every batch has


class ExampleInput(Input, interface=True):
    """Reads examples by number; subclasses define `read`, `num_examples`, `prepare`, `fingerprint`.

    The first example decides the names, shapes and dtypes of all examples.

    `augment(example, key, **augment_arguments)` is called for every example that is read. `example`
    is {name: array}; `key` is a random key of `lingo.ops.random`, made of the seed and the
    example's number (numbers continue from epoch to epoch), so a resumed run augments as an
    uninterrupted one does. `augment` returns {name: array}, always with the same names, shapes and
    dtypes. Two threads never call `augment` at once.
    """

    augment: Function | None = None  # augment(example, key) changes an example in training
    augment_arguments: dict[str, Any] = {}  # further keyword arguments of augment

    repeat_advice = (
        "make random changes in `augment`, from its key (lingo.ops.random); a shuffle needs a seed"
    )

    def check(self) -> None:
        super().check()
        augment, arguments = self.p.augment, dict(self.p.augment_arguments)
        if augment is not None:
            check_arguments(augment, arguments, field="augment_arguments", before=(None, None))
        elif arguments:
            raise ParamError(f"augment_arguments={arguments!r:.80} need augment, which is None")

    def setup(self) -> None:
        # Not a cached property: it would hide a ParamError, which is an AttributeError.
        self._first_arrays = functools.cache(self._read_first)

    @property
    def declares_late(self) -> bool:
        return True

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns {name: [B, ...]} for example numbers, int64 [B], as in `examples`."""
        raise self._missing_method("read", "it returns {name: [B, ...]} for numbers, int64 [B]")

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns {name: [B, ...]}; examples after the end of a single pass are zeros."""
        last = self.num_examples() - 1
        has_content = self.p.repeat | (numbers <= last)
        if has_content.all():
            return self._read_augmented(numbers)
        arrays = self._read_augmented(np.minimum(numbers, last))
        return {name: _blank(array, has_content) for name, array in arrays.items()}

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        return super().specs() | {
            name: ((size, *array.shape[1:]), _dtype_name(array))
            for name, array in self._first_arrays().items()
        }

    def check_specs(self) -> None:
        for name, (_, dtype) in self.specs().items():
            if dtype == "string":
                raise ParamError(
                    f"{self.code_line()}: {name!r} is a text, but a model takes numbers: encode it"
                    " in `augment`, or leave it out there"
                )
        super().check_specs()

    def code_line(self) -> str:
        function = self.p.augment or getattr(self.p, "function", None)
        return definition_line(function) if function else super().code_line()

    def _read_first(self) -> Mapping[str, np.ndarray]:
        """Returns the arrays of the first example, {name: [1, ...]}."""
        return check_names(type(self).__name__, self._read_augmented(np.zeros(1, np.int64)))

    def _read_augmented(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns augmented examples, {name: [B, ...]}, by their numbers, int64 [B]."""
        arrays, augment = self.read(numbers), self.p.augment
        if augment is None:
            return arrays
        root = random.fold(random.root_key(self.p.seed), random.text_hash("augment"))
        rows: list[dict[str, np.ndarray]] = []
        for i, number in enumerate(numbers.tolist()):
            key = random.fold(random.fold(root, number >> 32), number & 0xFFFFFFFF)
            with code_of(augment):
                example = {name: array[i] for name, array in arrays.items()}
                result = augment(example, key, **self.p.augment_arguments)
            if not isinstance(result, Mapping):
                raise ParamError(
                    f"{label(augment)} returned {describe_kind(result)}, not one example as a dict"
                    " of arrays"
                )
            rows.append(to_arrays(result, label(augment)))
        return stack_examples(rows, label(augment))


class IndexedInput(ExampleInput, interface=True):
    """Reads each example once per epoch, in a new order; subclasses define `read_indices`."""

    shuffle: bool = True  # a new order each epoch; False: the order of indices

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns {name: [B, ...]} for the examples at `indices`, int64 [B] in 0..N - 1."""
        raise self._missing_method(
            "read_indices", "it returns {name: [B, ...]} for indices, int64 [B]"
        )

    def setup(self) -> None:
        super().setup()
        self._order = functools.cache(self._make_order)

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        return self.read_indices(self._order().indices(numbers))

    def _make_order(self) -> EpochOrder:
        size, p = self.num_examples(), self.p
        return EpochOrder(size, seed=p.seed, name="examples", shuffle=p.shuffle)


def code_of(function: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Returns a context for a user's function: its errors become ParamErrors that name the line."""
    return user_code(Path(function.__code__.co_filename))


def check_arguments(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    field: str,
    before: tuple[Any, ...] = (),
) -> None:
    """Raises ParamError unless a function takes `before`, then a field's keyword arguments."""
    try:
        inspect.signature(function).bind(*before, **arguments)
    except TypeError as error:
        given = f"{field}={dict(arguments)!r:.80}"
        raise ParamError(f"{given} do not fit {label(function)}: {error}") from None


def call_function(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a function of the user's; raises ParamError if it cannot take the arguments."""
    check_arguments(function, arguments, field="arguments")
    with code_of(function):
        return function(**arguments)


def to_arrays(named: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    """Converts numbers, texts, arrays or tensors, by name, to arrays of any shape.

    Python floats become float32, Python integers int64, and texts bytes (dtype object). Raises
    ParamError, which begins with `where`, for other objects, and for rows that differ in length.
    """
    return {name: _to_array(value, f"{where}: {name!r}") for name, value in named.items()}


def _to_array(value: Any, where: str) -> np.ndarray:
    if isinstance(value, float):
        return np.asarray(value, np.float32)
    try:
        array = np.asarray(value)
        if array.dtype.kind in "US" and not isinstance(value, np.ndarray):
            array = np.array(value, object)  # NumPy's types for texts drop zero bytes at the end
    except ValueError:
        raise ParamError(
            f"{where} has rows that differ in length: cut or pad them to one shape"
        ) from None
    return _encode_texts(array, where) if array.dtype.kind in "USO" else array


def _encode_texts(array: np.ndarray, where: str) -> np.ndarray:
    """Converts an array of str or bytes to an array of bytes (dtype object)."""
    texts = np.empty(array.shape, object)
    for place, text in np.ndenumerate(array):
        if not isinstance(text, (str, bytes)):
            raise ParamError(
                f"{where} holds {describe_kind(text)}, neither a number nor a text: cut or pad rows"
                " that differ in length, and leave out or replace missing values"
            )
        texts[place] = text.encode() if isinstance(text, str) else bytes(text)
    return texts


def stack_examples(rows: list[dict[str, np.ndarray]], where: str) -> dict[str, np.ndarray]:
    """Stacks B examples to {name: [B, ...]}.

    Raises ParamError, which begins with `where`, if they differ in names, shapes or dtypes.
    """
    first = rows[0]
    for row in rows[1:]:
        if row.keys() != first.keys():
            raise ParamError(
                f"{where}: one example has {sorted(first)}, another {sorted(row)}: all need the"
                " same names"
            )
        for name, array in row.items():
            if (array.shape, array.dtype) != (first[name].shape, first[name].dtype):
                raise ParamError(
                    f"{where}: {name!r} is {first[name].dtype} {list(first[name].shape)} in one"
                    f" example and {array.dtype} {list(array.shape)} in another: cut or pad them to"
                    " one shape, and convert them to one type"
                )
    return {name: np.stack([row[name] for row in rows]) for name in first}


def check_names(where: str, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns the arrays; raises ParamError if there are none, or for a bad name or dtype."""
    if not arrays:
        raise ParamError(f"{where}: an example has no arrays")
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise ParamError(f"{where}: the name {name!r} is not a text")
        if name in _RESERVED:
            raise ParamError(
                f"{where}: every batch has an array {name!r} already: rename yours (an example of"
                " weight 0 is padding)"
            )
        if array.dtype.kind not in "biufO" and array.dtype.name != "bfloat16":
            raise ParamError(f"{where}: {name!r} has the dtype {array.dtype}, which no tensor has")
    return arrays


def _blank(array: np.ndarray, has_content: np.ndarray) -> np.ndarray:
    """Returns an array [B, ...] with zeros where `has_content`, bool [B], is False."""
    mask = has_content.reshape(-1, *[1] * (array.ndim - 1))
    return np.where(mask, array, b"" if array.dtype == object else 0).astype(array.dtype)


def _dtype_name(array: np.ndarray) -> str:
    return "string" if array.dtype == object else array.dtype.name


def array_bytes(array: np.ndarray) -> bytes:
    """Returns the content of an array of any shape and type, for a digest."""
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
