"""Synthetic text and SentencePiece models of all settings.

The text has random words of fourteen scripts, some without blanks between them for hundreds of
characters, runs of blanks, combining marks, emoji, and characters that normalization changes.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lingo.data.sentence_piece import package

KEEP = MappingProxyType({"remove_extra_whitespaces": False})
PLAIN = MappingProxyType({**KEEP, "normalization_rule_name": "identity", "byte_fallback": True})
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "unigram": {"model_type": "unigram"},
    "unigram, blanks kept": {"model_type": "unigram", **PLAIN},
    "unigram, across words": {"model_type": "unigram", "split_by_whitespace": False},
    "unigram, no dummy prefix": {"model_type": "unigram", "add_dummy_prefix": False, **KEEP},
    "unigram, blank after": {"model_type": "unigram", "treat_whitespace_as_suffix": True, **KEEP},
    "bpe, as Llama": {
        "model_type": "bpe",
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        **PLAIN,
    },
    "bpe, blank after": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
    "bpe, blank after, none added": {
        "model_type": "bpe",
        "treat_whitespace_as_suffix": True,
        "add_dummy_prefix": False,
    },
    "bpe, case folded, user symbols": {
        "model_type": "bpe",
        "normalization_rule_name": "nmt_nfkc_cf",
        "user_defined_symbols": ["=====", "<sep>", "a b"],
    },
    "characters": {"model_type": "char", "vocab_size": 300},
    "words": {"model_type": "word", "vocab_size": 200},
}
"""Arguments of the package's trainer, by what they are about."""

SCRIPTS = "aA0\u00e0\u03b1\u0430\u05d0\u0627\u0905\u4e00\u3041\uac00\uff21\U0001f600"
"""The first character of each script."""
SEPARATORS = (
    *[" "] * 40,
    *["\n"] * 4,
    *("  ", "   ", "        ", "\t", "\n\n", "", ", ", ". ", "-----", "====="),
    *("\u3001", "\u3002", "\u3000", "e\u0301", "\u1100\u1161", "\u2581", "\u200b", "\ufb01"),
)


def mixed_text(seed: int, num_bytes: int) -> str:
    """Returns a text of at least so many bytes in UTF-8."""
    rng = random.Random(seed)
    words = ["".join(_characters(rng, rng.randint(1, 9))) for _ in range(800)]
    parts, size = [], 0
    while size < num_bytes:
        if rng.random() < 0.02:
            part = "".join(rng.choices(words, k=rng.randint(1, 900)))
        else:
            part = rng.choice(words) + rng.choice(SEPARATORS)
        parts.append(part)
        size += len(part.encode())
    return "".join(parts)


def _characters(rng: random.Random, num: int) -> list[str]:
    first = ord(rng.choice(SCRIPTS))
    return [chr(first + min(25, int(rng.expovariate(0.15)))) for _ in range(num)]


def train(settings: Mapping[str, Any], text: str) -> bytes:
    """Returns the content of a model file that is learned from the lines of a text."""
    model = io.BytesIO()
    arguments = {"vocab_size": 1000, "character_coverage": 0.999, "minloglevel": 2, **settings}
    if arguments["model_type"] in ("unigram", "bpe"):
        arguments["hard_vocab_limit"] = False
    lines = iter(text.split("\n"))
    package().SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **arguments)
    return model.getvalue()
