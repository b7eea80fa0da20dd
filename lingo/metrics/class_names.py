"""Names of classes: in pictures of evaluations, and in predictions.

Some names are known only from the data, such as the names of folders. An evaluation sets its
input's names around the task's summaries, so that every task's confusion matrix shows them.

Axes: B examples, K classes.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_CLASS_NAMES = contextvars.ContextVar[tuple[str, ...]]("class_names", default=())


@contextlib.contextmanager
def use_class_names(names: Sequence[str]) -> Iterator[None]:
    """Makes pictures of the body show these names of classes, by label, where a task sets none."""
    token = _CLASS_NAMES.set(tuple(names))
    try:
        yield
    finally:
        _CLASS_NAMES.reset(token)


def name_classes(num_classes: int, names: Sequence[str] = ()) -> list[str]:
    """Returns the names of all K classes, [K]: `names`, or else the data's names.

    The data's names count only if there are K of them. A class without a name has its number.

    >>> with use_class_names(["cat", "dog"]):
    ...     name_classes(2), name_classes(2, ["ant"]), name_classes(3)
    (['cat', 'dog'], ['ant', '1'], ['0', '1', '2'])
    """
    known = list(names or _CLASS_NAMES.get())
    if not names and len(known) != num_classes:
        known = []
    return [*known, *map(str, range(len(known), num_classes))]


def predicts_classes(predictions: Mapping[str, Any]) -> bool:
    """Returns whether predictions, arrays or tensors, are a classifier's.

    A classifier predicts `logits`, float [B, K], and `labels`, int [B] in 0..K-1, and maybe more.
    """
    return [predictions[n].ndim for n in ("logits", "labels") if n in predictions] == [2, 1]


def add_classes(
    predictions: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Returns a classifier's predictions, with the `class` and `probability` of each example.

    `class`, str [B], is the name of the label, or its number without names; `probability`, float32
    [B], is the softmax of the logits at the label. Other predictions are returned as they are.

    >>> one = {"logits": np.log([[1.0, 3.0]]), "labels": np.array([1])}
    >>> both = add_classes(one, ["cat", "dog"])
    >>> both["class"].tolist(), both["probability"].round(3).tolist()
    (['dog'], [0.75])
    """
    if not predicts_classes(predictions):
        return dict(predictions)
    logits, labels = predictions["logits"], predictions["labels"]
    if labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(logits.shape[1])).all():
        return dict(predictions)  # labels of a user's task with another meaning
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    known = name_classes(logits.shape[1], names)
    added = {
        "class": np.array([known[label] for label in labels], str),
        "probability": shares[np.arange(len(labels)), labels].astype(np.float32),
    }
    first = {"file": predictions["file"]} if "file" in predictions else {}
    return {**first, **added, **predictions}
