"""WordPiece vocabularies (Schuster & Nakajima 2012; Devlin et al. 2019), from files or from text.

The library `tokenizers` learns pieces by byte pair encoding: it joins the most frequent pair of
pieces until there are enough. Of equally frequent pairs it takes the one with the smaller ids. It
numbers characters in the order of a hash table, which differs between processes, so lingo numbers
the characters itself. Then equal texts give equal pieces.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lingo.config.base.types import FilePath
from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.hugging_face_tokenizer import (
    CONFIG,
    CONTINUATION,
    FILE,
    LibraryModel,
    LibraryTokenizer,
    package,
    read_file,
)
from lingo.data.learned_tokenizer import LearnedTokenizer

PAD, UNKNOWN, START, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The special tokens by id, from 0."""

_LEARNED_FORMAT = 2  # version of learned vocabularies; files of other versions are not used
_MAX_CHARACTERS = 1000  # most frequent characters kept; a word with another is [UNK]


class WordPieceTokenizer(LibraryTokenizer, interface=True):
    """BERT's tokenizer: it splits a text into words and punctuation, then words into pieces.

    A piece that continues a word begins with ##. [CLS] is the start and [SEP] the end. `[SEP]`
    written in a text is encoded as plain text.
    """

    lowercase: bool = True  # lower-case text without accents, as in BERT's uncased models

    def find_ids(self) -> dict[str, int]:
        tokens = {"start": START, "end": END, "pad": PAD}
        return {name: self._model.tokenizer.token_to_id(token) for name, token in tokens.items()}

    def hub_files(self) -> dict[str, bytes]:
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.p.lowercase,
            **dict(zip(names, SPECIAL, strict=True)),
        }
        return {
            FILE: self._model.tokenizer.to_str().encode(),
            CONFIG: (json.dumps(config, indent=2) + "\n").encode(),
        }


class WordPieces(WordPieceTokenizer):
    """BERT's `vocab.txt`: a piece on each line. `pip install 'lingo-tf[tokenizers]'`.

    A piece's id is the number of its line, from 0. If a folder of the hub also has
    `tokenizer.json`, prefer a HuggingFaceTokenizer, as that file says how a text is split.
    """

    file: FilePath  # path of vocab.txt

    def open_model(self) -> LibraryModel:
        path = os.path.expanduser(self.p.file)
        try:
            lines = read_file(path).decode().split("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8: {error.reason} at byte {error.start}.") from None
        pieces = [line.removesuffix("\r") for line in lines]
        if pieces and not pieces[-1]:
            pieces.pop()
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        if missing := [token for token in SPECIAL if token not in vocabulary]:
            raise DataError(
                f"{path} has no piece {missing[0]}: a vocabulary of BERT has a piece on each line,"
                f" {', '.join(SPECIAL)} included."
            )
        if len(pieces) > self.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={self.vocab_size}, but {path} has {len(pieces)} pieces: set"
                f" vocab_size={len(pieces)}."
            )
        tokenizer = _make_tokenizer(package(), vocabulary, lowercase=self.p.lowercase)
        return _open(tokenizer.to_str().encode(), path)


class LearnedWordPieces(LearnedTokenizer, WordPieceTokenizer):
    """BERT's WordPiece, learned at first use. `pip install 'lingo-tf[tokenizers]'`.

    Ids 0 to 4 are [PAD], [UNK], [CLS], [SEP] and [MASK]. Equal texts give equal pieces. They stay
    in the user's cache directory for later starts with the same text.
    """

    def check(self) -> None:
        super().check()
        _check_vocab_size(self.p.vocab_size)

    def open_model(self) -> LibraryModel:
        size, lowercase = self.vocab_size, self.p.lowercase
        return self.open_learned(
            f"words {_LEARNED_FORMAT} {size} {lowercase}",
            learn=lambda: learn_word_pieces(self.texts(), vocab_size=size, lowercase=lowercase),
            load=self._open,
        )

    def _open(self, data: bytes) -> LibraryModel:
        model = _open(data, "the learned WordPiece")
        if model.num_ids != self.vocab_size:
            raise DataError(f"{model.name} has {model.num_ids} pieces, not {self.vocab_size}.")
        return model


def _open(data: bytes, name: str) -> LibraryModel:
    """Returns a tokenizer that encodes "[SEP]" in a text as plain text."""
    model = LibraryModel(data, name)
    model.tokenizer.encode_special_tokens = True
    return model


def learn_word_pieces(documents: Iterable[bytes], *, vocab_size: int, lowercase: bool) -> bytes:
    """Learns a WordPiece vocabulary from texts in UTF-8; returns its tokenizer.json.

    `vocab_size` includes the five special tokens. Raises ParamError if `vocab_size` leaves no room
    for pieces, DataError if the text has too few pieces or too many characters for `vocab_size`,
    and MissingPackage without the library.
    """
    _check_vocab_size(vocab_size)
    library = package()
    texts = [document.decode(errors="replace") for document in documents]
    untrained = _make_tokenizer(library, {}, lowercase=lowercase)
    alone, continuing = _characters(untrained, texts)
    if (least := len(SPECIAL) + len(alone) + len(continuing)) > vocab_size:
        raise DataError(
            f"vocab_size={vocab_size} is too small for the characters of the text, which need at"
            f" least {least} ids."
        )
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL, *continuing],  # the library keeps their order
        initial_alphabet=alone,
        limit_alphabet=len(alone),
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    untrained.train_from_iterator(texts, trainer)
    vocabulary = untrained.get_vocab()
    if (num_pieces := len(vocabulary)) < vocab_size:
        num_bytes = sum(len(text.encode()) for text in texts)
        raise DataError(
            f"{num_bytes:,} bytes of text are too few for vocab_size={vocab_size}: they make at"
            f" most {num_pieces} pieces. Give more text, or vocab_size={num_pieces}."
        )
    return _make_tokenizer(library, vocabulary, lowercase=lowercase).to_str().encode()


def _make_tokenizer(library: Any, vocabulary: dict[str, int], *, lowercase: bool) -> Any:
    """Returns a tokenizer of the library with BERT's steps and a vocabulary, piece -> id."""
    model = library.models.WordPiece(
        vocabulary, unk_token=UNKNOWN, continuing_subword_prefix=CONTINUATION
    )
    tokenizer = library.Tokenizer(model)
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece(prefix=CONTINUATION)
    if vocabulary:
        tokenizer.add_special_tokens(list(SPECIAL))
        tokenizer.post_processor = library.processors.BertProcessing(
            (END, vocabulary[END]), (START, vocabulary[START])
        )
    return tokenizer


def _characters(tokenizer: Any, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the most frequent characters, and the one-character pieces that continue a word."""
    runs, counts = Counter[str](), Counter[str]()
    for text in texts:
        runs.update(tokenizer.normalizer.normalize_str(text).split())
    inside = set[str]()
    for run, count in runs.items():
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(run):
            for character in word:
                counts[character] += count
            inside.update(word[1:])
    alone = sorted(counts, key=lambda character: (-counts[character], character))
    alone = sorted(alone[:_MAX_CHARACTERS])
    return alone, [CONTINUATION + character for character in alone if character in inside]


def _check_vocab_size(vocab_size: int) -> None:
    if vocab_size <= len(SPECIAL):
        raise ParamError(
            f"{vocab_size=} leaves no room for word pieces: five ids are special tokens"
        )
