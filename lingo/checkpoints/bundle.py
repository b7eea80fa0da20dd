"""Reads and writes TensorFlow's TensorBundle files, whole tensors or shards (SaveV2, RestoreV2)."""

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
"""Types of tensors that lingo writes into bundles."""

_GROUP_BYTES = 128 << 20  # memory of the tensors that are collected for one write
_STORED_AS = {"float16": "int16", "uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""Types whose slices RestoreV2 cannot read -> types of the same size that store their bits."""


def write_bundle(
    folder: Path,
    values: Iterable[tuple[str, np.ndarray | Shards]],
    table: dict[str, dict[str, Any]],
    *,
    name: str = "part",
) -> list[str]:
    """Writes tensors, or shards of tensors, as TensorBundles; returns their prefixes for `merge`.

    Raises ValueError for a repeated name.

    Args:
        folder: directory of the bundles; the prefixes returned are relative to it.
        values: (name, array of any shape and a type in `DTYPES`, or its Shards), consumed lazily.
        table: the dict that gets the `table_entry` of each name.
        name: start of all file names; different for each process.
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
            del pieces  # frees the memory before the next pieces are collected
    return prefixes


def merge(folder: Path, prefixes: Sequence[str]) -> None:
    """Merges the bundles of all processes, at least one bundle, into the checkpoint's bundle.

    No two bundles may have the same shard of a tensor. The i-th bundle's data file becomes
    `data_file(i, count)`.
    """
    with tf.device("cpu:0"):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[str(folder / prefix) for prefix in prefixes],
            destination_prefix=str(folder / BUNDLE),
            delete_old_dirs=False,
        )


def data_file(number: int, count: int, *, prefix: str = BUNDLE) -> str:
    """Returns the name of data file `number` of a bundle that has `count` data files."""
    return f"{prefix}.data-{number:05d}-of-{count:05d}"


class _Piece(NamedTuple):
    """A tensor, or a shard of a tensor, as SaveV2 writes it."""

    name: str
    spec: str  # the shard's position in the tensor, as `slice_spec` writes it
    tensor: tf.Tensor  # of any shape, in the type in which it is stored


def _collect_pieces(
    values: Iterable[tuple[str, np.ndarray | Shards]], table: dict[str, dict[str, Any]]
) -> Iterator[list[_Piece]]:
    """Yields lists of pieces, each of at most `_GROUP_BYTES` in total or with a single piece."""
    pieces: list[_Piece] = []
    num_bytes = 0
    for name, value in values:
        if name in table:
            raise ValueError(f"two tensors have the name {name!r}")
        table[name] = table_entry(value)
        for cut, array in _boxes(value):
            tensor, dtype, size = tf.convert_to_tensor(array), array.dtype.name, array.nbytes
            if pieces and num_bytes + size > _GROUP_BYTES:
                yield pieces
                pieces, num_bytes = [], 0
            stored = tf.bitcast(tensor, _STORED_AS[dtype]) if dtype in _STORED_AS else tensor
            pieces.append(_Piece(name, slice_spec(value.shape, cut), stored))
            num_bytes += size
    if pieces:
        yield pieces


def _boxes(value: np.ndarray | Shards) -> list[tuple[Box, np.ndarray]]:
    return value.boxes() if isinstance(value, Shards) else [(whole_box(value.shape), value)]


def slice_spec(shape: Sequence[int], cut: Box) -> str:
    """Returns a tensor's slice in the form of SaveV2 and RestoreV2: "4 8 0,2:0,8"; "" for all."""
    if tuple(cut) == whole_box(shape):
        return ""
    spans = ":".join(f"{start},{stop - start}" for start, stop in cut)
    return f"{' '.join(map(str, shape))} {spans}"


def table_entry(value: np.ndarray | Shards) -> dict[str, Any]:
    """Returns a tensor's {"shape", "dtype", "boxes"}; Shards have boxes of only some elements."""
    shape, dtype = list(value.shape), np.dtype(value.dtype).name
    return {"shape": shape, "dtype": dtype, "boxes": [cut for cut, _ in _boxes(value)]}


def num_bytes(table: Mapping[str, Mapping[str, Any]]) -> int:
    """Returns the size of tensors in bytes, from name -> {"shape", "dtype"}."""
    return sum(math.prod(e["shape"]) * tf.as_dtype(e["dtype"]).size for e in table.values())


def restore(
    folder: Path, names: Sequence[str], specs: Sequence[str], dtypes: Sequence[str]
) -> list[np.ndarray]:
    """Reads tensors, or slices of tensors, from the TensorBundle in a directory.

    `specs` are the slices, as `slice_spec` writes them. An array has its slice's shape and dtype.
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
