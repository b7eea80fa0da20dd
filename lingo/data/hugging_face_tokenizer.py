"""Tokenizers of Hugging Face's library `tokenizers`: a file `tokenizer.json`.

The library encodes whole texts, and may add a space before the first word of each. So a part from
the middle of a document is encoded after an extra character, whose tokens are then removed.

A few normalizers that replace a character by a thousand would take all memory, and the library
runs all normalizers in one call. So normalizers that may lengthen a text a lot first run here one
by one, and a result that may be too long raises an error. Only Replace and Prepend are measured:
NFKC and NFKD lengthen a text at most 18 times, and the table of Precompiled is not read.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from lingo.config.base.errors import MissingPackage, suggest
from lingo.config.base.types import FilePath
from lingo.data.files import DataError, open_file
from lingo.data.part_tokenizer import PartTokenizer

_WORD = rb"[0-9A-Za-z\x80-\xff]"
_CUTS = (
    re.compile(rb".*%b(?= %b)" % (_WORD, _WORD), re.DOTALL),  # cut before a space between two words
    re.compile(rb".*\S(?=\s)", re.DOTALL),
    re.compile(rb".+(?=[^\x80-\xbf])", re.DOTALL),  # cut before a character of UTF-8
)
FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
"""The files of a tokenizer in a folder of the hub."""

MAX_BYTES = 1 << 26
"""Size of the largest file that is read; the largest known tokenizer.json is half as large."""

CONTINUATION = "##"
"""The beginning of WordPiece's pieces that continue a word."""

_PANIC = "PanicException"  # raised by a panic of the library; it is no `Exception`
_SETTINGS = {
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "pad": ("pad_token",),
}

MAX_CHARACTERS = 1 << 22
"""Length of the longest normalized text, which takes the library nearly a gigabyte."""

_MAX_FACTOR = 16  # normalizers that make a text at most 16 times as long are not measured
_MAX_DECODED_FACTOR = 1000  # decoders may make a token this many times as long


class LibraryTokenizer(PartTokenizer, interface=True):
    """A tokenizer of the library `tokenizers`, opened at first use.

    The library encodes a text without the tokens that it can add at both ends, as lingo adds start
    and end itself.
    """

    vocab_size: int  # number of ids; checked when the tokenizer is opened
    segment_bytes = 2**18  # encoded at once; the library needs 200 times as much memory

    def setup(self) -> None:
        self.vocab_size = self.p.vocab_size

    @property
    def pad_id(self) -> int:
        return self._own_ids["pad"]

    @property
    def start_id(self) -> int:
        return self._own_ids["start"]

    @property
    def end_id(self) -> int:
        return self._own_ids["end"]

    def special_id(self, token: str) -> int | None:
        return self._model.tokenizer.token_to_id(token)

    def special_ids(self) -> np.ndarray:
        """Returns the ids of special tokens, and all ids beyond the library's last id."""
        added = self._model.tokenizer.get_added_tokens_decoder().items()
        special = [i for i, token in added if token.special]
        unused = range(self._model.num_ids, self.vocab_size)
        return np.unique([*special, *self._own_ids.values(), *unused]).astype(np.int32)

    def word_continuations(self) -> np.ndarray:
        """Returns whether each token continues a word (begins with ##), bool [vocab_size]."""
        continues = np.zeros(self.vocab_size, bool)
        for piece, i in self._model.tokenizer.get_vocab().items():
            continues[i] = piece.startswith(CONTINUATION) and piece != CONTINUATION
        if not continues.any():
            raise DataError(
                f"{self._model.name} has no piece that begins with {CONTINUATION}: unlike"
                " WordPiece, it does not tell which tokens continue a word."
            )
        return continues

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the token ids of a text, and each token's span of characters.

        Raises DataError if the library cannot encode the text.

        Returns:
            ids: int32 [number of tokens], as `encode` returns them.
            spans: int64 [number of tokens, 2], the indices of each token's first character, and of
                the character after its last.
        """
        encoding = self._model.encode(text)
        spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return np.array(encoding.ids, np.int32), spans

    def describe(self) -> str:
        is_special_in_text = not self._model.tokenizer.encode_special_tokens
        ids = [self.vocab_size, *self._own_ids.values(), int(is_special_in_text)]
        return f"tokenizers {','.join(map(str, ids))} sha256:{self._model.digest}"

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        special = set(self._own_ids.values())
        kept = [int(i) for i in ids if 0 <= i < self.vocab_size and i not in special]
        with library_errors(f"{self._model.name} cannot decode tokens"):
            return self._model.tokenizer.decode(kept, skip_special_tokens=True)

    def hub_files(self) -> Mapping[str, bytes]:
        """Returns the contents of the tokenizer's files in a folder of the hub, by name.

        Raises DataError if a file cannot be read, or the tokenizer cannot be opened.
        """
        raise NotImplementedError

    def open_model(self) -> LibraryModel:
        """Returns the tokenizer of the library; raises DataError if it cannot be read or made."""
        raise NotImplementedError

    def find_ids(self) -> dict[str, int]:
        """Returns the ids of `start`, `end` and `pad`; raises DataError if a token is missing."""
        raise NotImplementedError

    @functools.cached_property
    def _model(self) -> LibraryModel:
        return self.open_model()

    @functools.cached_property
    def _own_ids(self) -> dict[str, int]:
        return self.find_ids()


class HuggingFaceTokenizer(LibraryTokenizer):
    """A file `tokenizer.json` of the library `tokenizers`. `pip install 'lingo-tf[tokenizers]'`.

    Tokens that are not given come from `tokenizer_config.json` in the same folder. A missing start
    or padding token is replaced by the end token. BERT's cls_token and sep_token are start and end.
    Unigram models have special tokens in their vocabulary, and find them in a text even without
    `special_in_text`.
    """

    file: FilePath  # path of tokenizer.json
    vocab_size: int  # number of ids, or of a model's embeddings if more; checked when opened
    start: str = ""  # token before a document, such as <s>; "": bos_token of tokenizer_config.json
    end: str = ""  # token after a document; "": eos_token of tokenizer_config.json
    pad: str = ""  # token of padding; "": pad_token of tokenizer_config.json
    special_in_text: bool = True  # "</s>" in a text is this token; False: it is plain text

    @property
    def _path(self) -> str:
        return os.path.expanduser(self.p.file)

    @property
    def _config_path(self) -> str:
        return os.path.join(os.path.dirname(self._path), CONFIG)

    def hub_files(self) -> dict[str, bytes]:
        files = {FILE: self._path, CONFIG: self._config_path}
        return {name: read_file(path) for name, path in files.items() if os.path.lexists(path)}

    def open_model(self) -> LibraryModel:
        model = LibraryModel(read_file(self._path), self._path)
        if model.num_ids > self.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={self.vocab_size}, but {self._path} has {model.num_ids} ids:"
                f" set vocab_size={model.num_ids}, or the number of rows of a model that has more."
            )
        model.tokenizer.encode_special_tokens = not self.p.special_in_text
        return model

    def find_ids(self) -> dict[str, int]:
        tokenizer, config = self._model.tokenizer, None
        ids: dict[str, int] = {}
        for field, settings in _SETTINGS.items():
            token, place = getattr(self.p, field), f"tokenizer.{field}"
            if not token:
                config = self._read_config() if config is None else config
                setting = next((name for name in settings if config.get(name)), settings[0])
                token, place = _token(config.get(setting)), f"{setting} of {CONFIG}"
            if not token:
                continue
            found = tokenizer.token_to_id(token)
            if found is None:
                raise DataError(
                    f"{place} is {token!r}, but {self._path} has no such token."
                    f"{suggest(token, tokenizer.get_vocab())}"
                )
            ids[field] = found
        if "end" not in ids:
            raise DataError(
                f"{self._path}: no {CONFIG} beside it names the token after a document"
                " (eos_token): set tokenizer.end, such as end=</s>."
            )
        return {field: ids.get(field, ids["end"]) for field in _SETTINGS}

    def _read_config(self) -> dict[str, Any]:
        """Returns the content of `tokenizer_config.json` in the file's folder; {} without it."""
        path = self._config_path
        if not os.path.lexists(path):
            return {}
        data = read_file(path)
        try:
            config = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not JSON: {error}") from None
        if not isinstance(config, dict):
            raise DataError(f"{path} is not a JSON object.")
        return config


class LibraryModel:
    """A tokenizer of the library, which encodes a text whole or in parts.

    Attributes:
        tokenizer: the library's `Tokenizer`.
        num_ids: the number of ids, from 0 to the last.
        digest: SHA-256 of the file.
        name: how errors call the tokenizer.
    """

    def __init__(self, data: bytes, name: str) -> None:
        """Opens a tokenizer from its file's content; raises DataError for other content."""
        library = package()
        with library_errors(f"{name} is not a tokenizer.json"):
            tokenizer = library.Tokenizer.from_buffer(data)
            check_decoder(tokenizer.decoder)
        self.tokenizer, self.name = tokenizer, name
        self.num_ids = max(tokenizer.get_vocab().values(), default=-1) + 1
        self._growing = growing_steps(library, tokenizer.normalizer)
        self.digest = hashlib.sha256(data).hexdigest()
        tokenizer.no_truncation()  # the file's settings for batches would lose tokens
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):  # dropout leaves out merges at random
            tokenizer.model.dropout = None

    def encode_part(self, data: bytes, *, is_first: bool, is_last: bool) -> list[int]:
        del is_last
        text = data.decode(errors="replace")
        if is_first:
            return self.encode(text).ids
        # a character that the library does not join with the next one
        before = "\n" if "!" <= text[:1] <= "~" else "a"
        return self.encode(before + text).ids[len(self.encode(before).ids) :]

    def find_cut(self, window: bytes) -> int:
        """Returns after how many bytes a text that begins with `window` may be cut."""
        ends = (match.end() for cut in _CUTS if (match := cut.match(window)))
        return next(ends, len(window))

    def encode(self, text: str) -> Any:
        """Returns the library's `Encoding` of a text; raises DataError if the library fails."""
        with library_errors(f"{self.name} cannot encode a text"):
            check_length(text, self._growing)
            return self.tokenizer.encode(text, add_special_tokens=False)


def _token(value: Any) -> str:
    """Returns a token's text; `tokenizer_config.json` has a string, an object or null for it."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def read_file(path: str) -> bytes:
    """Returns the content of a file; raises DataError if it is too large or unreadable."""
    with open_file(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DataError(f"{path} is larger than {MAX_BYTES >> 20} MiB: it is no tokenizer.")
    return data


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turns the library's errors, plain `Exception`s or panics, into DataErrors."""
    try:
        yield
    except BaseException as error:  # the library has no class of its own
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        reason = (str(error).rpartition("buffer: ")[2].splitlines() or [""])[0]
        raise DataError(f"{what}: {reason}") from None


def package() -> ModuleType:
    """Imports `tokenizers`; raises MissingPackage if it is not installed."""
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise MissingPackage(
            "a tokenizer of Hugging Face's library needs a package that is not installed:"
            " pip install 'lingo-tf[tokenizers]'"
        ) from None


# ---- how much longer a text may become -----------------------------------------------------------


class Step(NamedTuple):
    """One of a tokenizer's normalizers, which may lengthen a text."""

    settings: dict[str, Any]  # the settings in tokenizer.json
    normalizer: Any  # the library's object

    def longest(self, text: str) -> int:
        """Returns the largest number of characters that the normalized text may have."""
        match self.settings:
            case {"type": "Prepend", "prepend": str(prefix)}:
                return len(text) + len(prefix)
            case {"pattern": {"String": str(pattern)}, "content": str(content)}:
                return len(text) + text.count(pattern) * max(0, len(content) - len(pattern))
            case _:
                return math.ceil((len(text) + 1) * _factor(self.settings))


def growing_steps(library: ModuleType, normalizer: Any) -> list[Step]:
    """Returns the steps of a tokenizer's normalizer; [] if they cannot lengthen a text a lot.

    `library` is the module `tokenizers`; `normalizer` is an object of it, or None.
    """
    parts = list(_parts(_settings(normalizer), "normalizers"))
    factors = [_factor(part) for part in parts]
    added = [len(part["prepend"]) for part in parts if part["type"] == "Prepend"]
    if math.prod(factors) <= _MAX_FACTOR and sum(added) <= _MAX_FACTOR:
        return []
    return [Step(part, _build(library, part)) for part in parts]


def check_length(text: str, steps: Sequence[Step]) -> None:
    """Runs the steps one by one; raises ValueError if they may make a text too long."""
    for number, step in enumerate(steps, 1):
        if (longest := step.longest(text)) > MAX_CHARACTERS:
            raise ValueError(
                f"its normalizer {number}, {step.settings['type']}, may turn {len(text):,}"
                f" characters into {longest:,}, and at most {MAX_CHARACTERS:,} are encoded"
            )
        text = step.normalizer.normalize_str(text)


def check_decoder(decoder: Any) -> None:
    """Raises ValueError if a tokenizer's decoders may make a token too long."""
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
    """Yields the settings of each step of a `Sequence`, nested sequences included."""
    if settings.get("type") == "Sequence":
        for part in settings[inner]:
            yield from _parts(part, inner)
    elif settings:
        yield settings


def _factor(part: dict[str, Any]) -> float:
    """Returns the largest factor by which a step may multiply the number of characters."""
    if part["type"] != "Replace":
        return 1.0
    length = len(part["content"])
    match part["pattern"]:
        case {"String": str(pattern)} if pattern:
            return max(1.0, length / len(pattern))
        case _:  # a regular expression may match the empty text between two characters
            return 1.0 + length


def _build(library: ModuleType, part: dict[str, Any]) -> Any:
    """Returns the library's normalizer for some settings."""
    absent = ("truncation", "padding", "pre_tokenizer", "post_processor", "decoder")
    model = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "added_tokens": [], "normalizer": part, "model": model}
    return library.Tokenizer.from_str(json.dumps(dict.fromkeys(absent) | whole)).normalizer
