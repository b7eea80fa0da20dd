"""Examples that can be read by index, each once per epoch, in a new order.

Axes: B examples of a batch, N examples of an epoch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lingo.config.label import label
from lingo.config.params import ParamError
from lingo.config.roots.importing import user_code
from lingo.config.types import Function
from lingo.data.array_spec import ArraySpec
from lingo.data.input import Input, describe_kind
from lingo.data.packing import permutation
from lingo.ops import random

Example = Mapping[str, np.ndarray]
"""{name: array}, the arrays of one example."""

_RESERVED = ("example_id", "rows", "weights")  # what every batch has


class ExampleInput(Input, interface=True):
    """Examples by index. Subclasses define `read`, `num_examples`, `prepare` and `fingerprint`.

    The names, shapes and dtypes of a batch are those of the first example. `augment` is a function
    of (example, key), called for every example that is read: `example` is {name: array} of one
    example, `key` a random key of `lingo.ops.random` that depends on the seed and on the number of
    the example, which counts on through the epochs. It returns {name: array}, always of the same
    names, shapes and dtypes. So a resumed run augments as one that was not interrupted.
    """

    shuffle: bool = True  # a new order each epoch; False: as they stand
    augment: Function | None = None  # changes an example in training: of (example, key)

    def setup(self) -> None:
        self._order = functools.lru_cache(maxsize=2)(self._draw_order)
        self._first = functools.cache(self._read_first)

    @property
    def declares_late(self) -> bool:
        return True

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns {name: [B, ...]} of the examples at some indices, int64 [B] in 0..N - 1."""
        raise self._missing_method("read", "it returns {name: [B, ...]} for indices, int64 [B]")

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns {name: [B, ...]}; beyond a single pass, arrays are zeros."""
        has_content = self.p.repeat | (numbers < self.num_examples())
        arrays = self.read(self._indices(numbers))
        if self.p.augment is not None:
            arrays = self._augment(arrays, numbers)
        return self._blank(arrays, has_content)

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        return super().specs() | {
            name: ((size, *array.shape), array.dtype.name) for name, array in self._first().items()
        }

    def _read_first(self) -> dict[str, np.ndarray]:
        """Returns {name: array} of the first example, augmented; raises ParamError for no array."""
        arrays = self.read(np.zeros(1, np.int64))
        if self.p.augment is not None:
            arrays = self._augment(arrays, np.zeros(1, np.int64))
        return {name: array[0] for name, array in check_names(type(self).__name__, arrays).items()}

    def _blank(self, arrays: dict[str, np.ndarray], has_content: np.ndarray) -> dict[str, Any]:
        """Returns arrays {name: [B, ...]} with zeros where `has_content`, bool [B], is False."""
        if has_content.all():
            return arrays
        return {
            name: np.where(
                expand_like(has_content, array), array, b"" if array.dtype == object else 0
            ).astype(array.dtype)
            for name, array in arrays.items()
        }

    def _augment(self, arrays: Example, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns what `augment` makes of each example, {name: [B, ...]}; numbers: int64 [B]."""
        root = random.fold(random.root_key(self.p.seed), random.text_hash("augment"))
        rows: list[dict[str, np.ndarray]] = []
        for i, number in enumerate(numbers.tolist()):
            key = random.fold(random.fold(root, number >> 32), number & 0xFFFFFFFF)
            one = {name: array[i] for name, array in arrays.items()}
            with code_of(self.p.augment):
                result = self.p.augment(one, key)
            if not isinstance(result, Mapping):
                raise ParamError(
                    f"{label(self.p.augment)} returned {describe_kind(result)}, not a dict of the"
                    " arrays of one example"
                )
            rows.append({name: to_array(value) for name, value in result.items()})
        return stack_examples(rows, label(self.p.augment))

    def _indices(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the indices, int64 [B] in 0..N - 1, of example numbers, int64 [B]."""
        epochs, indices = np.divmod(numbers, self.num_examples())
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = self._order(epoch)[indices[here]]
        return indices

    def _draw_order(self, epoch: int) -> np.ndarray:
        """Returns the order of an epoch, int64 [N]."""
        if not self.p.shuffle:
            return np.arange(self.num_examples())
        return permutation(self.num_examples(), seed=self.p.seed, epoch=epoch, name="examples")


def code_of(function: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Returns the context for code of a user's function: errors name the line, as ParamError."""
    return user_code(Path(function.__code__.co_filename))


def call_function(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Returns what a function of the user's returns; raises ParamError if arguments do not fit."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        given = f"arguments={dict(arguments)!r:.80}"
        raise ParamError(f"{given} do not fit {label(function)}: {error}") from None
    with code_of(function):
        return function(**arguments)


def to_array(value: Any) -> np.ndarray:
    """Returns a number, text, array or tensor as an array of any shape.

    Python's floats become float32, its integers int64; texts become bytes, of dtype object.
    """
    if isinstance(value, float):
        return np.asarray(value, np.float32)
    array = np.asarray(value)
    if array.dtype.kind not in "US":
        return array
    texts = np.empty(array.shape, object)
    for place, text in np.ndenumerate(array):
        texts[place] = text.encode() if isinstance(text, str) else bytes(text)
    return texts


def stack_examples(rows: list[dict[str, np.ndarray]], where: str) -> dict[str, np.ndarray]:
    """Returns {name: [B, ...]} of B examples; raises ParamError if they differ in form.

    `where` says in errors where the examples come from.
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
    """Returns arrays by name; raises ParamError if there is none or a name or type is refused."""
    if not arrays:
        raise ParamError(f"{where}: an example has no arrays")
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise ParamError(f"{where}: the name {name!r} is not a text")
        if name in _RESERVED:
            raise ParamError(
                f"{where}: {name!r} is a name that every batch has already: rename it (an example"
                " of weight 0 is padding)"
            )
        if array.dtype == object and not isinstance(array.ravel()[:1].tolist()[0], bytes):
            raise ParamError(
                f"{where}: {name!r} has the dtype object: its rows differ in length, or are neither"
                " numbers nor texts. Cut or pad them to one shape"
            )
        if array.dtype.kind not in "biufO" and array.dtype.name != "bfloat16":
            raise ParamError(f"{where}: {name!r} has the dtype {array.dtype}, which no tensor has")
    return arrays


def expand_like(mask: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Returns a mask [B] as [B, 1, ...], with as many axes as an array [B, ...]."""
    return mask.reshape(-1, *[1] * (array.ndim - 1))


def array_bytes(array: np.ndarray) -> bytes:
    """Returns the content of an array of any shape and type, for a digest."""
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
