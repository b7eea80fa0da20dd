"""CRC-32C (Castagnoli), the checksum of TFRecord files (RFC 3720, appendix B.4).

A CRC is linear over bits: that of a message is the exclusive or of what each of its bytes
contributes at its distance from the end. So a table of contributions, [distance, byte], turns a
block into one gather, at hundreds of MB/s in NumPy; the states of a long message's blocks are then
joined, each moved on over the block that follows: four more look-ups.
"""

from __future__ import annotations

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # bits reversed
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8
_SHORT_BYTES = 64  # up to here a loop over the bytes is faster
_BLOCK_BYTES = 1024


def masked_crc32c(data: bytes) -> int:
    """Returns the CRC-32C as TFRecord stores it: rotated, plus a constant.

    A CRC over data that holds its own CRC says little; masking keeps the two apart.
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C of some bytes."""
    if len(data) <= _SHORT_BYTES:
        return _by_byte(data) ^ _ONES
    size = -len(data) % _BLOCK_BYTES if len(data) > _BLOCK_BYTES else 0
    message = np.frombuffer(bytes(size) + data, np.uint8)  # zeros first leave a state of zero
    message = message.copy()
    message[size : size + 4] ^= 0xFF  # the same as to begin in a state of ones
    blocks = message.reshape(-1, min(len(message), _BLOCK_BYTES))
    state, over_block = 0, _over_block()
    for contribution in _contributions_of(blocks):
        for row, byte in zip(over_block, state.to_bytes(4, "little"), strict=True):
            contribution ^= row[byte]
        state = contribution
    return state ^ _ONES


def _by_byte(data: bytes) -> int:
    state, table = _ONES, _table()
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state


def _contributions_of(blocks: np.ndarray) -> list[int]:
    """Returns the state after each block from one of zero, [N].

    Args:
        blocks: uint8 [N, S], S at most `_BLOCK_BYTES`.
    """
    places = np.arange(blocks.shape[1] - 1, -1, -1, dtype=np.int32) << 8
    return np.bitwise_xor.reduce(_contributions().ravel().take(places + blocks), axis=1).tolist()


@functools.cache
def _contributions() -> np.ndarray:
    """Returns the state after each byte and a number of zeros: uint32 [zeros, byte]."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(_POLYNOMIAL), first >> 1)
    rows = [first]
    for _ in range(_BLOCK_BYTES - 1):
        rows.append(first[rows[-1] & 0xFF] ^ rows[-1] >> 8)
    return np.stack(rows)


@functools.cache
def _table() -> list[int]:
    return _contributions()[0].tolist()


@functools.cache
def _over_block() -> list[list[int]]:
    """Returns what a state's bytes, lowest first, become over a block."""
    return _contributions()[-1:-5:-1].tolist()
