"""A sequence as an input: a list, or a dataset of PyTorch, Hugging Face or Grain.

    SequenceInput.params(function=load_rows, names=["image", "label"], batch_size=32)

Axes: N examples per epoch, B examples per batch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config.base.types import Function
from lingo.config.node.label import label
from lingo.config.params import ParamError
from lingo.data.example_input import (
    IndexedInput,
    array_bytes,
    call_function,
    code_of,
    stack_examples,
    to_arrays,
)
from lingo.data.files import DataError
from lingo.data.index import Progress
from lingo.data.input import describe_kind

_PROBED = 16  # number of examples whose content identifies the data


class SequenceInput(IndexedInput):
    """The entries of a sequence that a function of the user's file returns.

    The sequence has `__len__`, and `__getitem__` for an index from 0: a map-style dataset of
    PyTorch, a dataset of Hugging Face, a data source of Grain, a list. An entry is a dict of
    arrays, tensors, numbers or texts, or a tuple or list of these, which get their names from
    `names`. All entries have the same names, shapes and types, and an entry is the same each time
    it is read: make random changes in `augment`.
    """

    function: Function  # returns the sequence
    arguments: dict[str, Any] = {}  # the function's keyword arguments
    names: list[str] = []  # names of an entry's parts, if entries are tuples or lists

    def setup(self) -> None:
        super().setup()
        self._sequence = functools.cache(self._open)

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Calls the function and reads the first entry; raises ParamError if that is impossible."""
        del progress
        self._entry(0)

    def num_examples(self) -> int:
        return len(self._sequence())

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return stack_examples([self._entry(i) for i in indices.tolist()], label(self.p.function))

    def fingerprint(self) -> dict[str, Any]:
        """Returns the function, the number of examples and a digest of a few of them.

        The few examples are spread evenly; reading all might take hours.
        """
        digest, size = hashlib.sha256(), self.num_examples()
        for index in np.unique(np.linspace(0, size - 1, _PROBED).astype(int)).tolist():
            for name, array in sorted(self._entry(index).items()):
                digest.update(f"{index} {name} {array.dtype} {array.shape}".encode())
                digest.update(array_bytes(array))
        return {"source": label(self.p.function), "examples": size, "digest": digest.hexdigest()}

    def _open(self) -> Any:
        """Returns the function's sequence, checked."""
        sequence, where = call_function(self.p.function, self.p.arguments), label(self.p.function)
        if isinstance(sequence, Mapping):
            raise ParamError(f"{where} returned a dict: for a dict of arrays there is ArrayInput")
        if not (hasattr(sequence, "__len__") and hasattr(sequence, "__getitem__")):
            raise ParamError(
                f"{where} returned {describe_kind(sequence)}, which lacks __len__ or __getitem__:"
                " for a tf.data.Dataset there is DatasetInput"
            )
        if not len(sequence):
            raise DataError(f"{where} returned a sequence without entries.")
        return sequence

    def _entry(self, index: int) -> dict[str, np.ndarray]:
        """Returns an entry as {name: array}; raises ParamError if it has another form."""
        sequence, where = self._sequence(), f"{label(self.p.function)}: entry {index}"
        with code_of(self.p.function):
            entry = sequence[index]
        return name_parts(entry, self.p.names, where)


def name_parts(entry: Any, names: Sequence[str], where: str) -> dict[str, np.ndarray]:
    """Returns the parts of a dict, or of a tuple or list that has `names`, as arrays by name.

    Raises ParamError, which begins with `where`, for an entry of another form.
    """
    if isinstance(entry, Mapping):
        if names:
            raise ParamError(f"{where} is a dict and has names: leave out names={[*names]}")
        named = entry
    elif isinstance(entry, (tuple, list)):
        if len(entry) != len({*names}):
            raise ParamError(
                f"{where} has {len(entry)} parts, and names={[*names]} has {len({*names})}: give"
                " each part a name of its own"
            )
        named = dict(zip(names, entry, strict=True))
    else:
        raise ParamError(
            f"{where} is {describe_kind(entry)}: it must be a dict of arrays, or a tuple or list"
            " of them with `names`"
        )
    return to_arrays(named, where)
