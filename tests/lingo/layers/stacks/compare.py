"""Compares stacks by the names of their single layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        tolerance = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=tolerance, err_msg=name)
