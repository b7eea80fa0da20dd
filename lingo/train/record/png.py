"""A picture of few colours as a PNG file (W3C 2003, ISO 15948): no more than is needed for one.

Axes: H height, W width, N colours.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_BITS, _INDEXED = 8, 3  # of a pixel, which is the number of a colour


def png(pixels: np.ndarray, colours: np.ndarray) -> bytes:
    """Returns the file of a picture.

    Args:
        pixels: uint8 [H, W], which colour each pixel has; the first row is the top.
        colours: uint8 [N, 3], at most 256: red, green, blue.
    """
    height, width = pixels.shape
    lines = np.pad(pixels, [(0, 0), (1, 0)])  # before each line how it is filtered: 0, not at all
    header = _HEADER.pack(width, height, _BITS, _INDEXED, 0, 0, 0)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", colours.tobytes()),
            _chunk(b"IDAT", zlib.compress(lines.tobytes())),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
