"""Bounds how much longer the normalizers and decoders of a `tokenizer.json` make a text.

A few replacements of a character by a thousand would take all memory, and the library runs all
steps in one call. If the patterns allow a large growth, the steps first run here one by one, and a
step whose result may be too long is refused. Only Replace and Prepend are bounded: NFKC and NFKD
lengthen a text at most 18 times, and the table of Precompiled is not read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

MAX_CHARACTERS = 1 << 22
"""The longest normalized text, for which the library needs nearly a gigabyte."""

_MAX_FACTOR = 16  # by which texts may become longer without being measured first
_MAX_DECODED_FACTOR = 1000  # by which decoders may make a token longer


class Step(NamedTuple):
    """A normalizer of a sequence, and how long a text may become by it."""

    settings: dict[str, Any]  # as tokenizer.json has them
    normalizer: Any  # of the library

    def longest(self, text: str) -> int:
        """Returns the most characters that a text may have afterwards."""
        match self.settings:
            case {"type": "Prepend", "prepend": str(prefix)}:
                return len(text) + len(prefix)
            case {"pattern": {"String": str(pattern)}, "content": str(content)}:
                return len(text) + text.count(pattern) * max(0, len(content) - len(pattern))
            case _:
                return math.ceil((len(text) + 1) * _factor(self.settings))


def growing_steps(library: ModuleType, normalizer: Any) -> list[Step]:
    """Returns the steps of a tokenizer's normalizer; none if they cannot make a text much longer.

    `library` is the module `tokenizers`; `normalizer` is an object of it, or None.
    """
    parts = list(_parts(_settings(normalizer), "normalizers"))
    factors = [_factor(part) for part in parts]
    added = [len(part["prepend"]) for part in parts if part["type"] == "Prepend"]
    if math.prod(factors) <= _MAX_FACTOR and sum(added) <= _MAX_FACTOR:
        return []
    return [Step(part, _build(library, part)) for part in parts]


def check_length(text: str, steps: Sequence[Step]) -> None:
    """Raises ValueError if the steps would make a text too long; each runs, in turn."""
    for number, step in enumerate(steps, 1):
        if (longest := step.longest(text)) > MAX_CHARACTERS:
            raise ValueError(
                f"its normalizer {number}, {step.settings['type']}, may turn {len(text):,}"
                f" characters into {longest:,}, and at most {MAX_CHARACTERS:,} are encoded"
            )
        text = step.normalizer.normalize_str(text)


def check_decoder(decoder: Any) -> None:
    """Raises ValueError if the decoders of a tokenizer may make a token too long."""
    factor = math.prod(_factor(part) for part in _parts(_settings(decoder), "decoders"))
    if factor > _MAX_DECODED_FACTOR:
        raise ValueError(
            f"its decoders may make a token {factor:,.0f} times as long, and at most"
            f" {_MAX_DECODED_FACTOR:,} times is allowed"
        )


def _settings(component: Any) -> dict[str, Any]:
    """Returns the settings of a normalizer or decoder, as tokenizer.json has them; {} for None."""
    return {} if component is None else json.loads(component.__getstate__())


def _parts(settings: dict[str, Any], inner: str) -> Iterator[dict[str, Any]]:
    """Yields the settings of the steps of a sequence, also inside of another."""
    if settings.get("type") == "Sequence":
        for part in settings[inner]:
            yield from _parts(part, inner)
    elif settings:
        yield settings


def _factor(part: dict[str, Any]) -> float:
    """Returns by how much a step may multiply the number of characters."""
    if part["type"] != "Replace":
        return 1.0
    length = len(part["content"])
    match part["pattern"]:
        case {"String": str(pattern)} if pattern:
            return max(1.0, length / len(pattern))
        case _:  # a regular expression may match nothing between two characters
            return 1.0 + length


def _build(library: ModuleType, part: dict[str, Any]) -> Any:
    """Returns the normalizer of the library with some settings."""
    absent = ("truncation", "padding", "pre_tokenizer", "post_processor", "decoder")
    model = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "added_tokens": [], "normalizer": part, "model": model}
    return library.Tokenizer.from_str(json.dumps(dict.fromkeys(absent) | whole)).normalizer
