"""CRC-32C by table equals CRC-32C by bit."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.data.sources.checksum import crc32c, masked_crc32c


def by_bit(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_published_values_are_met() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("size", [0, 1, 4, 63, 64, 65, 66, 100, 1023, 1024, 1025, 1027, 2048, 3000])
def test_every_length_is_as_bit_by_bit(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == by_bit(data)


def test_the_masked_form_is_rotated_and_shifted() -> None:
    crc = crc32c(b"data")
    rotated = int(f"{crc:032b}"[-15:] + f"{crc:032b}"[:-15], 2)
    assert masked_crc32c(b"data") == (rotated + 0xA282EAD8) % 2**32
