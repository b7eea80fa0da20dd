"""A picture as a PNG file (W3C 2003, ISO 15948): no more than is needed for one.

Axes: H height, W width, N colours.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_BITS = 8  # of each number of a pixel
_COLOURS, _INDEXED = 2, 3  # a pixel is red, green, blue; or the number of a colour


def png(pixels: np.ndarray, colours: np.ndarray) -> bytes:
    """Returns the file of a picture.

    Args:
        pixels: uint8 [H, W], which colour each pixel has; the first row is the top.
        colours: uint8 [N, 3], at most 256: red, green, blue.
    """
    return _file(pixels, _INDEXED, _chunk(b"PLTE", colours.tobytes()))


def png_of_colours(pixels: np.ndarray) -> bytes:
    """Returns the file of a picture of any number of colours.

    Args:
        pixels: uint8 [H, W, 3], red, green, blue; the first row is the top.
    """
    return _file(pixels, _COLOURS)


def _file(pixels: np.ndarray, kind: int, *chunks: bytes) -> bytes:
    height, width, *_ = pixels.shape
    # before each line how it is filtered: 0, not at all
    lines = np.pad(pixels.reshape(height, -1), [(0, 0), (1, 0)])
    header = _HEADER.pack(width, height, _BITS, kind, 0, 0, 0)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", header),
            *chunks,
            _chunk(b"IDAT", zlib.compress(lines.tobytes())),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
