"""tf.train.Example is read as TensorFlow writes it; what is none is refused."""

from __future__ import annotations

import contextlib

import pytest

from lingo.data.sources.example import NoExample, features
from lingo.lazy import tf


def example(**values: object) -> bytes:
    kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    found = {}
    for name, several in values.items():
        feature = tf.train.Feature()
        for value in several:
            getattr(feature, kinds[type(value)]).value.append(value)
        found[name] = feature
    return tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()


def test_strings_are_found_by_name_and_numbers_are_none() -> None:
    data = example(text=[b"a" * 300], two=[b"x", b""], label=[7, -1], weight=[0.5], empty=[])
    assert features(data) == {
        "text": [b"a" * 300],
        "two": [b"x", b""],
        "label": None,
        "weight": None,
        "empty": None,
    }


def test_an_empty_record_has_no_features() -> None:
    assert features(b"") == {}
    assert features(example()) == {}


def test_every_record_that_is_cut_is_refused_or_has_fewer_features() -> None:
    data = example(text=[b"some text"], other=[b"more"])
    whole = features(data)
    for size in range(len(data)):
        with contextlib.suppress(NoExample):
            assert features(data[:size]) != whole


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff" * 20, "a number does not end"),
        (b"\x0b", "field of type 3"),
        (b"\x0a\xff\xff\xff\xff\x0f", "a field ends after the record"),
        (b"\x08\x01", "a number where a message should be"),
        (b"\x0a\x05\x0a\x03\x0a\x01\xff", "a feature's name is no text"),
    ],
)
def test_what_is_no_example_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(NoExample, match=reason):
        features(data)
