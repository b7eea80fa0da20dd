"""Describes values, for errors about what a user's function returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf


def describe_kind(value: Any) -> str:
    """Describes a value in words.

    >>> describe_kind(tf.zeros([4])), describe_kind((1, 2)), describe_kind({}), describe_kind(None)
    ('a float32 tensor of shape (4,)', 'a tuple', 'nothing', 'None')
    """
    if tf.is_tensor(value):
        article = "an" if value.dtype.is_integer else "a"
        return f"{article} {value.dtype.name} tensor of shape {value.shape}"
    if isinstance(value, Mapping) and not value:
        return "nothing"
    return "None" if value is None else f"a {type(value).__name__}"


def is_real(value: Any) -> bool:
    """Returns whether a value is a real number, or a tensor or array of real numbers, any shape.

    >>> is_real(1), is_real(tf.zeros([2])), is_real("1"), is_real(1j)
    (True, True, False, False)
    """
    if tf.is_tensor(value):
        return value.dtype.is_floating or value.dtype.is_integer
    return np.asarray(value).dtype.kind in "fiu"
