"""tf.train.Example, read without TensorFlow: the strings in a record's features.

The messages, and the numbers of their fields (example.proto, feature.proto of TensorFlow):

    Example      1 features: Features
    Features     1 feature: map<string, Feature>, each entry a message of 1 key and 2 value
    Feature      1 bytes_list, 2 float_list or 3 int64_list
    BytesList    1 value: repeated bytes
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST = 1
_MAX_VARINT_BYTES = 10


class NoExample(ValueError):
    """Bytes that are no tf.train.Example."""


def features(data: bytes) -> dict[str, list[bytes] | None]:
    """Returns the strings of each feature by name; None for one that holds numbers, or nothing.

    Args:
        data: a serialized tf.train.Example.

    Raises:
        NoExample: if it is none.
    """
    found: dict[str, list[bytes] | None] = {}
    for message in _messages(data, 1):
        for entry in _messages(message, 1):
            name = b"".join(_messages(entry, 1)[-1:])  # the last one counts
            value = b"".join(_messages(entry, 2))  # messages of one field are merged
            lists = [v for number, v in _fields(value) if number == _BYTES_LIST]
            strings = [s for each in lists for s in _messages(_bytes(each), 1)]
            found[_decoded(name)] = strings if lists else None
    return found


def _messages(data: bytes, number: int) -> list[bytes]:
    """Returns what stands in the fields of a number, which hold bytes."""
    return [_bytes(value) for n, value in _fields(data) if n == number]


def _fields(data: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yields (number, value) of the fields of a message; None for a value that is a number.

    The wire format: a varint of 8 * number + type, then a value of that type.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind == _VARINT:
            value, (_, at) = None, _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            value, at = None, at + (4 if kind == _FIXED32 else 8)
        else:
            raise NoExample(f"field of type {kind}")
        if at > len(data):
            raise NoExample("a field ends after the record")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number and the place after it: seven bits a byte, the lowest first."""
    value = 0
    for i, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise NoExample("a number does not end")


def _bytes(value: bytes | None) -> bytes:
    if value is None:
        raise NoExample("a number where a message should be")
    return value


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise NoExample("a feature's name is no text") from None
