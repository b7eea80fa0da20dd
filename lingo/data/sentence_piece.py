"""SentencePiece tokenizers (Kudo & Richardson 2018): a vocabulary of pieces, learned from text.

The package adds a space before the first word of a text (or after the last, in some models), and
some models remove spaces at both ends. A part in the middle of a text needs neither. For such parts
there is a second processor of the same model, which adds a space only if the first one does not.

Models that `train` makes are lossless: text is not normalized, and characters that are in no piece
become bytes. A newline or a tab is always a byte piece of its own, so no piece spans two lines.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Literal

import numpy as np

from lingo.config.base.errors import MissingPackage
from lingo.config.base.types import FilePath
from lingo.config.params import ParamError
from lingo.data.files import DataError, open_file
from lingo.data.learned_tokenizer import LearnedTokenizer
from lingo.data.part_tokenizer import PartTokenizer

_WORD_END = re.compile(rb".*\S(?=\s)", re.DOTALL)
_SPACE_END = re.compile(rb".*\s(?=\S)", re.DOTALL)
_SPACES = (b" ", b"\n", b"\t")
_MAX_TRIED_CHARACTERS = 256
_TEXT_TYPES = (1, 4, 5)  # normal, user-defined, unused; other types are control symbols and bytes

PAD_ID, END_ID, START_ID, UNKNOWN_ID = range(4)
NUM_RESERVED = 4 + 256  # the four special ids and the bytes

_LEARNED_FORMAT = 1  # version of the models of LearnedPieces; a new one makes it learn anew
_MAX_SENTENCE_BYTES = 4000  # the trainer leaves out longer sentences
_SEPARATOR = re.compile(rb"[\n\t\x1e]")  # U+001E separates the sides of a pair
_TOO_LARGE = re.compile(r"value <= (\d+)|required_chars\. \d+ vs (\d+)")


class PieceTokenizer(PartTokenizer, interface=True):
    """A tokenizer that has a SentencePiece model, which it opens at first use.

    The ids of padding, start and end are the model's. If the model has no padding or start id, its
    end id is used instead.
    """

    vocab_size: int  # number of pieces; checked when the model is opened
    segment_bytes = 2**23  # the package needs up to a hundred times as much memory

    def setup(self) -> None:
        self.vocab_size = self.p.vocab_size

    @property
    def pad_id(self) -> int:
        return self._or_end(self._model.processor.pad_id())

    @property
    def start_id(self) -> int:
        return self._or_end(self._model.processor.bos_id())

    @property
    def end_id(self) -> int:
        return self._model.processor.eos_id()

    def describe(self) -> str:
        return f"SentencePiece {self.vocab_size} sha256:{self._model.digest}"

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        special = {self.pad_id, self.start_id, self.end_id}
        pieces = [int(i) for i in ids if 0 <= i < self.vocab_size and i not in special]
        return self._model.processor.decode(pieces)

    def open_model(self) -> PieceModel:
        """Returns the model; raises DataError if it cannot be read or learned."""
        raise NotImplementedError

    def _or_end(self, token: int) -> int:
        return token if token >= 0 else self.end_id

    @functools.cached_property
    def _model(self) -> PieceModel:
        return self.open_model()


class SentencePiece(PieceTokenizer):
    """A SentencePiece model file. `pip install 'lingo-tf[text]'`."""

    model: FilePath  # path of the .model file

    def open_model(self) -> PieceModel:
        path = os.path.expanduser(self.p.model)
        with open_file(path) as file:
            data = file.read()
        not_a_model = DataError(f"{path} is not a SentencePiece model.")
        if not data:  # the package would make an empty model
            raise not_a_model
        try:
            model = PieceModel(data)
        except RuntimeError:
            raise not_a_model from None
        num_pieces = model.processor.vocab_size()
        if num_pieces != self.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={self.vocab_size}, but {path} has {num_pieces} pieces:"
                f" set vocab_size={num_pieces}."
            )
        if model.processor.eos_id() < 0:
            raise DataError(f"tokenizer {path} has no piece for the end of a text (eos).")
        return model


class LearnedPieces(LearnedTokenizer, PieceTokenizer):
    """Pieces that are learned from a source of text at first use. `pip install 'lingo-tf[text]'`.

    `train` learns them by byte pair encoding. Every digit is a piece of its own. Equal texts give
    equal pieces. The user's cache directory keeps the model for later runs on the same text.
    """

    adds_space: bool = False  # puts a space before a text: its first word becomes like later words

    def check(self) -> None:
        super().check()
        _check_vocab_size(self.p.vocab_size)

    def open_model(self) -> PieceModel:
        adds_space = self.p.adds_space
        return self.open_learned(
            f"{_LEARNED_FORMAT} {self.vocab_size} {adds_space}",
            learn=lambda: train(
                self.texts(),
                vocab_size=self.vocab_size,
                model_type="bpe",
                split_digits=True,
                adds_space=adds_space,
            ),
            load=self._open,
        )

    def _open(self, data: bytes) -> PieceModel:
        model = PieceModel(data)
        if (num_pieces := model.processor.vocab_size()) != self.vocab_size:
            raise DataError(f"the model has {num_pieces} pieces, not {self.vocab_size}.")
        return model


# ---- the model -----------------------------------------------------------------------------------


class PieceModel:
    """A SentencePiece model.

    Attributes:
        processor: the package's `SentencePieceProcessor`.
        digest: SHA-256 of the file.
    """

    def __init__(self, data: bytes) -> None:
        """Opens a model from the content of its file; raises RuntimeError if it is not a model."""
        self.processor = package().SentencePieceProcessor(model_proto=data)
        self.digest = hashlib.sha256(data).hexdigest()
        proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
        proto.ParseFromString(data)
        self._space_is_last = proto.trainer_spec.treat_whitespace_as_suffix
        self._removes_spaces = proto.normalizer_spec.remove_extra_whitespaces
        self._adds_space = proto.normalizer_spec.add_dummy_prefix
        proto.normalizer_spec.add_dummy_prefix = not self._adds_space
        self._other = package().SentencePieceProcessor(model_proto=proto.SerializeToString())
        self._pieces = [piece.piece for piece in proto.pieces if piece.type in _TEXT_TYPES]

    def encode_part(self, data: bytes, *, is_first: bool, is_last: bool) -> list[int]:
        """Returns the ids of a part of a text that was cut at `find_cut`."""
        has_outer_edge = is_last if self._space_is_last else is_first
        if has_outer_edge:  # the package treats this edge like the edge of a whole text
            return self.processor.encode(data)
        edge = data[-1:] if self._space_is_last else data[:1]
        # The model removes a space at the edge, so that the package has to add one in its place.
        needs_space = self._removes_spaces and edge in self._spaces
        processor = self.processor if needs_space == self._adds_space else self._other
        return processor.encode(data)

    def find_cut(self, window: bytes) -> int:
        """Returns where a text that begins with `window` may be cut, in bytes after its start.

        The cut is at the last end of a word. Without one, it is at the last place where no piece of
        the model joins the characters on both sides; else at the last place between two characters.
        """
        match = (_SPACE_END if self._space_is_last else _WORD_END).match(window)
        if match:
            return match.end()
        starts = list(itertools.islice(_character_starts(window), _MAX_TRIED_CHARACTERS))
        bounds = [len(window), *starts]
        for right, cut, left in zip(bounds, bounds[1:], bounds[2:], strict=False):
            if window[left:right].decode(errors="replace") not in self._pairs:
                return cut
        return starts[0] if starts else len(window)

    @functools.cached_property
    def _spaces(self) -> set[bytes]:
        """The characters that the model takes for a space."""
        normalize = self.processor.normalize
        return {c for c in _SPACES if normalize(f"a{c.decode()}a") == normalize("a a")}

    @functools.cached_property
    def _pairs(self) -> set[str]:
        """All neighbouring characters in pieces of the model."""
        return {a + b for piece in self._pieces for a, b in itertools.pairwise(piece)}


def _character_starts(window: bytes) -> Iterator[int]:
    """Yields the index of each character's first byte, from the last character to the second."""
    return (i for i in range(len(window) - 1, 0, -1) if window[i] & 0xC0 != 0x80)


def package() -> ModuleType:
    """Imports `sentencepiece`; raises MissingPackage if it is not installed."""
    try:
        return importlib.import_module("sentencepiece")
    except ImportError:
        raise MissingPackage(
            "SentencePiece needs a package that is not installed: pip install 'lingo-tf[text]'"
        ) from None


# ---- training ------------------------------------------------------------------------------------


def train(
    documents: Iterable[bytes],
    *,
    vocab_size: int,
    model_type: Literal["unigram", "bpe"] = "unigram",
    split_digits: bool = False,
    adds_space: bool = False,
) -> bytes:
    """Trains a SentencePiece model and returns the content of its file.

    The model's type is unigram (Kudo 2018) or bpe (Sennrich et al. 2016). `vocab_size` includes 4
    ids for padding, end, start and unknown, and 256 for bytes. `split_digits` makes every digit a
    piece of its own. `adds_space` encodes a text with a space before it, which decoding removes.
    Raises ParamError if `vocab_size` has no room for pieces, and DataError if the text is too small
    or too varied for `vocab_size`.
    """
    _check_vocab_size(vocab_size)
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
            add_dummy_prefix=adds_space,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            split_digits=split_digits,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            num_threads=os.cpu_count() or 1,
            minloglevel=2,
        )
    except RuntimeError as error:
        num_bytes = sum(map(len, sentences))
        raise DataError(_reason(str(error), vocab_size, num_bytes)) from None
    return model.getvalue()


def _check_vocab_size(vocab_size: int) -> None:
    if vocab_size <= NUM_RESERVED:
        raise ParamError(
            f"{vocab_size=} leaves no room for pieces: every model needs {NUM_RESERVED} other ids"
        )


def _sentences(documents: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the trainer's sentences, which are lines; a long line is cut into several."""
    for document in documents:
        for line in _SEPARATOR.split(document):
            for begin in range(0, len(line), _MAX_SENTENCE_BYTES):
                yield line[begin : begin + _MAX_SENTENCE_BYTES]


def _reason(error: str, vocab_size: int, num_bytes: int) -> str:
    """Returns the meaning of the trainer's error in a sentence."""
    match = _TOO_LARGE.search(error)
    if match is None:
        reason = error.strip() or "no reason given"
        return f"{num_bytes} bytes of text cannot train a tokenizer: {reason}"
    if match[1]:
        return (
            f"{num_bytes} bytes of text are too few for vocab_size={vocab_size}: they make at most"
            f" {match[1]} pieces. Give more text, or vocab_size={match[1]}."
        )
    return (
        f"vocab_size={vocab_size} is too small for the characters of the text:"
        f" it must be more than {match[2]}."
    )
