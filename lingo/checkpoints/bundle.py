"""Tensors in files: TensorFlow's TensorBundle, by SaveV2 and RestoreV2, whole or in parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.storage.shards import Box, Shards, whole_box

BUNDLE = "tensors"

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
"""Types of the tensors that a bundle holds here."""

_PART_BYTES = 128 << 20  # tensors gathered in memory before they are written
_STORED_AS = {"float16": "int16", "uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""Types of which RestoreV2 reads no slices, and those of the same size that hold their bits."""


def write_bundle(
    folder: Path,
    values: Iterable[tuple[str, np.ndarray | Shards]],
    table: dict[str, dict[str, Any]],
    *,
    name: str = "part",
) -> list[str]:
    """Writes tensors, or what a process has of them, as TensorBundles that `merge` makes one.

    Args:
        folder: where.
        values: (name, array of one of `DTYPES`, or parts of one), asked for one by one.
        table: receives name -> {"shape", "dtype", "parts"}: which boxes were written.
        name: what names of files begin with; each process has its own.

    Returns:
        The prefix of each bundle, in `folder`.

    Raises:
        tf.errors.OpError: if they cannot be written.
        ValueError: for two tensors of one name.
    """
    prefixes = []
    with tf.device("cpu:0"):
        for pieces in _collect_pieces(values, table):
            prefixes.append(f"{name}-{len(prefixes)}")
            tf.raw_ops.SaveV2(
                prefix=str(folder / prefixes[-1]),
                tensor_names=[piece.name for piece in pieces],
                shape_and_slices=[piece.spec for piece in pieces],
                tensors=[piece.tensor for piece in pieces],
            )
            del pieces  # before the next are gathered
    return prefixes


def merge(folder: Path, prefixes: Sequence[str]) -> None:
    """Makes one bundle of those that were written, by whichever process.

    Args:
        folder: where they are.
        prefixes: of at least one, each with the tensors or parts that no other has. The file with
            the elements of the i-th becomes `data_file(i, count)`.

    Raises:
        tf.errors.OpError: if that cannot be done.
    """
    with tf.device("cpu:0"):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[str(folder / prefix) for prefix in prefixes],
            destination_prefix=str(folder / BUNDLE),
            delete_old_dirs=False,
        )


def data_file(number: int, count: int, *, prefix: str = BUNDLE) -> str:
    """Returns the name of the file with the elements, one of `count`, of a bundle."""
    return f"{prefix}.data-{number:05d}-of-{count:05d}"


class _Piece(NamedTuple):
    """What is written at once: a tensor or a part of one.

    Attributes:
        name: of the tensor.
        spec: which part, as SaveV2 wants it: see `_spec`.
        tensor: its elements, of a type that is stored.
    """

    name: str
    spec: str
    tensor: tf.Tensor


def _collect_pieces(
    values: Iterable[tuple[str, np.ndarray | Shards]], table: dict[str, dict[str, Any]]
) -> Iterator[list[_Piece]]:
    """Yields all pieces, at most `_PART_BYTES` together, or one."""
    pieces: list[_Piece] = []
    gathered = 0
    for name, value in values:
        if name in table:
            raise ValueError(f"two tensors have the name {name!r}")
        table[name] = table_entry(value)
        for cut, array in _boxes(value):
            tensor, dtype, size = tf.convert_to_tensor(array), array.dtype.name, array.nbytes
            if pieces and gathered + size > _PART_BYTES:
                yield pieces
                pieces, gathered = [], 0
            stored = tf.bitcast(tensor, _STORED_AS[dtype]) if dtype in _STORED_AS else tensor
            pieces.append(_Piece(name, slice_spec(value.shape, cut), stored))
            gathered += size
    if pieces:
        yield pieces


def _boxes(value: np.ndarray | Shards) -> list[tuple[Box, np.ndarray]]:
    return value.boxes() if isinstance(value, Shards) else [(whole_box(value.shape), value)]


def slice_spec(shape: Sequence[int], cut: Box) -> str:
    """Returns a part of a tensor as SaveV2 and RestoreV2 name it: "4 8 0,2:0,8", or "" for all."""
    if tuple(cut) == whole_box(shape):
        return ""
    spans = ":".join(f"{start},{stop - start}" for start, stop in cut)
    return f"{' '.join(map(str, shape))} {spans}"


def table_entry(value: np.ndarray | Shards) -> dict[str, Any]:
    """Returns {"shape", "dtype", "parts"}: what a tensor is, and the boxes that are here."""
    shape, dtype = list(value.shape), np.dtype(value.dtype).name
    return {"shape": shape, "dtype": dtype, "parts": [cut for cut, _ in _boxes(value)]}


def num_bytes(table: Mapping[str, Mapping[str, Any]]) -> int:
    """Returns the size of tensors of which shapes and types are known."""
    return sum(math.prod(e["shape"]) * tf.as_dtype(e["dtype"]).size for e in table.values())


def restore(
    folder: Path, names: Sequence[str], specs: Sequence[str], dtypes: Sequence[str]
) -> list[np.ndarray]:
    """Returns tensors of a TensorBundle, or slices of them.

    Args:
        folder: where it is.
        names: of the tensors.
        specs: which slice of each, as `slice_spec` writes it.
        dtypes: of the tensors.

    Raises:
        tf.errors.OpError: if they cannot be read.
    """
    if not names:
        return []
    values = tf.raw_ops.RestoreV2(
        prefix=str(folder / BUNDLE),
        tensor_names=list(names),
        shape_and_slices=list(specs),
        dtypes=[tf.as_dtype(_STORED_AS.get(dtype, dtype)) for dtype in dtypes],
    )
    return [
        value.numpy().view(dtype) if dtype in _STORED_AS else value.numpy()
        for value, dtype in zip(values, dtypes, strict=True)
    ]
