"""Bytes are written in one way."""

from __future__ import annotations

import pytest

from lingo.inspection.units import size


@pytest.mark.parametrize(
    ("num", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1500 * 2**20, "1.46 GiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_sizes_have_few_digits_and_a_unit(num: int, shown: str) -> None:
    assert size(num) == shown
