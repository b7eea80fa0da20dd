"""Compares stacks by the names of their single layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.layers import path


def by_name(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns tensors by program path as arrays by the names of single layers."""
    found = {}
    for where, value in tensors.items():
        parts = value.numpy().reshape(-1, *value.shape[len(path.stack_shape(where)) :])
        found |= dict(zip(path.names(where), parts, strict=True))
    return found


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        tolerance = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=tolerance, err_msg=name)
