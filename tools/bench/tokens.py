"""SentencePiece: lingo's tokens and seconds beside the package's, for models of all settings.

The text is synthetic: random words of fourteen scripts, some without blanks between them for
hundreds of characters, runs of blanks, combining marks, emoji, characters that normalization
changes.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lingo.data.piece_model import package
from lingo.data.sentence_piece import SentencePiece
from tools.harness import Report, alternate, at_least, choose, ratios

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
NUM_TEXTS, ROUNDS = choose((10, 3), small=(2, 1))
TEXT_BYTES, SAMPLE_BYTES = choose((1_000_000, 300_000), small=(10_000, 100_000))


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


def run(report: Report) -> None:
    """Compares tokens, and the seconds of `encode` and of `measure`, on 10 texts of 1 MB."""
    sample = mixed_text(0, SAMPLE_BYTES)
    texts = [mixed_text(seed, TEXT_BYTES).encode() for seed in range(1, NUM_TEXTS + 1)]
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in SETTINGS.items():
            path = Path(folder) / "a.model"
            path.write_bytes(train(settings, sample))
            _compare(report, name, path, texts)


def _compare(report: Report, name: str, path: Path, texts: list[bytes]) -> None:
    processor = package().SentencePieceProcessor(model_file=str(path))
    size = processor.vocab_size()
    tokenizer = SentencePiece.params(model=str(path), vocab_size=size).build()

    def seconds(encode: Any) -> float:
        start = time.process_time()
        for text in texts:
            encode(text)
        return time.process_time() - start

    equal = [tokenizer.encode(text).tolist() == processor.encode(text) for text in texts]
    measured = alternate(
        {
            "package": lambda: seconds(processor.encode),
            "encode": lambda: seconds(tokenizer.encode),
            "measure": lambda: seconds(lambda text: tokenizer.measure(_reader(text), len(text))),
        },
        num=ROUNDS,
    )
    report.table(name)
    report.line("texts with equal tokens", float(np.mean(equal)), at_least(1))
    for own, wanted in (("encode", at_least(0.5)), ("measure", None)):
        report.line(f"speed of {own} / package", ratios(measured["package"], measured[own]), wanted)


def _reader(text: bytes) -> Any:
    return lambda start, stop: text[start:stop]
