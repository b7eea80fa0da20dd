"""Training a SentencePiece model on the documents of some sources.

The models are lossless: text is not normalized, and characters that are in no piece become bytes. A
newline or a tab is always a byte piece of its own, so no piece spans two lines.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from lingo.config.params import ParamError
from lingo.data.epoch_order import permutation
from lingo.data.files import DataError
from lingo.data.index import Index, Progress
from lingo.data.piece_model import package

PAD_ID, END_ID, START_ID, UNKNOWN_ID = range(4)
NUM_RESERVED = 4 + 256  # the four special ids and the bytes

_MAX_SENTENCE_BYTES = 4000  # the trainer leaves out longer ones
_SEPARATOR = re.compile(rb"[\n\t\x1e]")  # U+001E separates the sides of a pair
_TOO_LARGE = re.compile(r"value <= (\d+)|required_chars\. \d+ vs (\d+)")


def sample(
    indices: Sequence[Index], *, max_bytes: int, progress: Progress | None = None
) -> list[bytes]:
    """Returns the texts of documents of all indices, in random order, up to `max_bytes` in all.

    Every document is equally likely; the last one is cut at the limit.
    """
    sizes = np.concatenate([index.size for index in indices])
    owner = np.repeat(np.arange(len(indices)), [len(index.size) for index in indices])
    number = np.concatenate([np.arange(len(index.size)) for index in indices])
    order = permutation(len(sizes), seed=0, epoch=0, name="tokenizer")
    total, done, texts = min(int(sizes.sum()), max_bytes), 0, []
    for i, document in zip(owner[order].tolist(), number[order].tolist(), strict=True):
        if done >= total:
            break
        size = min(int(indices[i].size[document]), total - done)
        texts.append(indices[i].read(document, 0, size))
        done += size
        if progress is not None:
            progress(done, total)
    return texts


def train(
    documents: Iterable[bytes],
    *,
    vocab_size: int,
    model_type: Literal["unigram", "bpe"] = "unigram",
) -> bytes:
    """Trains a SentencePiece model and returns the content of its file.

    Its type is unigram (Kudo 2018) or bpe (Sennrich et al. 2016). `vocab_size` counts 4 ids for
    padding, end, start and unknown, and 256 for bytes. Raises ParamError if it has no room for
    pieces, DataError if the text is too small for it or too varied.
    """
    if vocab_size <= NUM_RESERVED:
        raise ParamError(
            f"{vocab_size=} leaves no piece beside the {NUM_RESERVED} ids of any model"
        )
    model, sentences = io.BytesIO(), list(_sentences(documents))
    try:
        package().SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            pad_id=PAD_ID,
            eos_id=END_ID,
            bos_id=START_ID,
            unk_id=UNKNOWN_ID,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            num_threads=os.cpu_count() or 1,
            minloglevel=2,
        )
    except RuntimeError as error:
        num_bytes = sum(map(len, sentences))
        raise DataError(_reason(str(error), vocab_size, num_bytes)) from None
    return model.getvalue()


def _sentences(documents: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the trainer's sentences: lines, long ones in parts."""
    for document in documents:
        for line in _SEPARATOR.split(document):
            for begin in range(0, len(line), _MAX_SENTENCE_BYTES):
                yield line[begin : begin + _MAX_SENTENCE_BYTES]


def _reason(error: str, vocab_size: int, num_bytes: int) -> str:
    """Returns the meaning of the trainer's error in a sentence."""
    match = _TOO_LARGE.search(error)
    if match is None:
        return f"{num_bytes} bytes of text train no tokenizer: {error.strip() or 'no reason given'}"
    if match[1]:
        return (
            f"{num_bytes} bytes of text are too few for vocab_size={vocab_size}: they make at most"
            f" {match[1]} pieces. Give more text, or vocab_size={match[1]}."
        )
    return (
        f"vocab_size={vocab_size} is too small for the characters of the text:"
        f" it takes more than {match[2]}."
    )
