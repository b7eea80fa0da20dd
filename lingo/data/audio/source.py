"""Sources of recordings: WAV and FLAC files, each with its transcript.

A document of such a source is the content of an audio file, so recordings use the same index,
split, fingerprint and treatment of damaged files as texts. Transcripts are read apart from it.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import FilePath
from lingo.config.params import ParamError
from lingo.data.audio.waveform import (
    MAX_BYTES,
    BrokenAudio,
    Header,
    check_audio_packages,
    read_header,
)
from lingo.data.files import (
    DataError,
    File,
    FilePattern,
    Read,
    list_files,
    open_file,
    place_of,
    short_path,
)
from lingo.data.record_source import CorruptRecord, DecodedRecords, MatchingFiles, split_hash
from lingo.data.sources.jsonl import check_field, read_objects, text_of
from lingo.data.store import FILE, Store, Stores, is_address, is_folder, store_of
from lingo.data.tokenizer import TokenCounts, Tokenizer

EXTENSIONS = (".wav", ".flac")
_TRANSCRIPTS = ".trans.txt"  # how the names of LibriSpeech's transcripts end


class Recording(NamedTuple):
    """An audio file, as its transcript names it."""

    path: str
    text: str  # the transcript; "" if it is not known
    where: str  # where the transcript is, for errors


class AudioSource(DecodedRecords, interface=True):
    """WAV and FLAC files, one recording each.

    A subclass defines `recordings`, and `root`, the folder from which files have their names. The
    bytes of a file decide its split, so that equal recordings are in the same split. With
    `split_by=folder`, the first folder of a file's name decides, such as a speaker's. A damaged
    file is an error; `max_damaged` leaves out up to that many and reports them.
    """

    split_by: Literal["file", "document", "folder"] = "document"  # document: the file's bytes
    max_seconds: float = 3_600.0  # a longer recording is damaged

    unit: ClassVar[str] = "recording"
    longest_bytes: ClassVar[int] = MAX_BYTES
    has_transcripts: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "max_seconds")

    def recordings(self) -> Iterator[Recording]:
        """Yields the recordings; raises DataError if their list cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} has no recordings")

    def root(self) -> str:
        """Returns the folder from which files have their names."""
        raise NotImplementedError(f"{type(self).__name__} has no root")

    def transcripts(self) -> dict[str, str]:
        """Returns name of file -> transcript; raises DataError as `recordings` does."""
        return {self._name(one.path): one.text for one in self.recordings()}

    def all_files(self) -> list[File]:
        check_audio_packages()
        found, stores = dict[str, tuple[File, str]](), Stores()
        for one in self.recordings():
            file = _listed_file(self._name(one.path), one, stores.of(one.path))
            if file.name in found:
                raise DataError(
                    f"{one.where} names {one.path}, which {found[file.name][1]} names, too: leave"
                    " one of them out."
                )
            found[file.name] = file, one.where
        if not found:
            raise DataError(f"{self.describe()}: there are no recordings.")
        return sorted(file for file, _ in found.values())

    def files_in_split(self, files: list[File]) -> np.ndarray:
        if self.p.split_by != "folder":
            return super().files_in_split(files)
        folders = [file.name.partition("/")[0] for file in files]
        return self.in_split(np.array([split_hash(os.fsencode(f)) for f in folders], np.uint64))

    def document(self, file: File, data: bytes, where: str) -> bytes:
        del file
        self.header(data, where)
        return data

    def header(self, data: bytes, where: str) -> Header:
        """Returns the header of an audio file; raises CorruptRecord, which begins with `where`."""
        try:
            return read_header(data, max_seconds=self.p.max_seconds)
        except BrokenAudio as error:
            raise CorruptRecord(
                f"{where}: the recording cannot be decoded: {error}. Replace it, or leave it out."
            ) from None

    def where(self, file: File, number: int, start: int) -> str:
        del number, start  # a file is a recording
        return short_path(file.path)

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.root()).replace(os.sep, "/")


class SampleCounter(Tokenizer):
    """Counts a recording's samples at one rate, so that an index holds durations."""

    sample_rate: int  # samples per second
    max_seconds: float  # of a recording

    vocab_size = 0

    def describe(self) -> str:
        return f"samples at {self.p.sample_rate} Hz"

    def measure(self, read: Read, size: int) -> TokenCounts:
        header = read_header(read(0, size), max_seconds=self.p.max_seconds)
        return TokenCounts(header.samples_at(self.p.sample_rate))


class AudioFiles(AudioSource, MatchingFiles):
    """Recordings without transcripts: all in a folder, at any depth; one file; or a glob.

    Files in a folder that are neither .wav nor .flac, and hidden files, are ignored.
    """

    has_transcripts = False

    def root(self) -> str:
        return self._place().root

    def recordings(self) -> Iterator[Recording]:
        has_folder = is_folder(os.path.expanduser(self.p.pattern))
        for file in list_files([self._place()]):
            if not has_folder or file.path.lower().endswith(EXTENSIONS):
                yield Recording(file.path, "", self.p.pattern)

    def _place(self) -> FilePattern:
        folder = os.path.expanduser(self.p.pattern)
        if is_folder(folder):
            return FilePattern(folder, os.path.join("**", "*"))
        return place_of(self.p.pattern)


class _ListedAudio(AudioSource, interface=True):
    """Recordings that a file lists; their paths are relative to the file's folder."""

    file: FilePath  # lists the recordings

    def check(self) -> None:
        super().check()
        if not self.p.file:
            raise ParamError("file is empty: give the file that lists recordings and transcripts")

    def root(self) -> str:
        return os.path.dirname(self._path) or "."

    @property
    def _path(self) -> str:
        return os.path.expanduser(self.p.file)

    def _recording(self, audio: str, text: str, where: str) -> Recording:
        if not audio:
            raise DataError(f"{where}: it names no audio file.")
        path = os.path.expanduser(audio)
        if not is_address(path):
            path = os.path.join(self.root(), path)
        return Recording(path, text, where)


class JsonlAudio(_ListedAudio):
    """Recordings that a JSONL file lists: `{"audio": "a.wav", "text": "its transcript"}`."""

    audio_field: str = "audio"  # field of the file's path; a.b for field b of the object in field a
    text_field: str = "text"  # field of the transcript

    def check(self) -> None:
        super().check()
        check_field(self.p, "audio_field")
        check_field(self.p, "text_field")

    def recordings(self) -> Iterator[Recording]:
        for where, value in read_objects(self._path):
            audio, text = (
                text_of(value, field, where) for field in (self.p.audio_field, self.p.text_field)
            )
            yield self._recording(audio, text, where)


class CsvAudio(_ListedAudio):
    """Recordings that a table lists: comma-separated, or tab-separated if its name ends in .tsv.

    The first row has the columns' names, unless `columns` has them. Fields may be quoted in
    comma-separated files alone.
    """

    audio_column: str = "audio"  # column of the file's path
    text_column: str = "text"  # column of the transcript
    columns: list[str] = []  # names of the columns of a file without a row of names

    def recordings(self) -> Iterator[Recording]:
        path = self._path
        with open_file(path) as file:
            content = file.read()
        try:
            lines = content.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not text in UTF-8: {error.reason}.") from None
        is_tsv = path.lower().endswith(".tsv")
        quoting = csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL
        rows = csv.reader(lines, delimiter="\t" if is_tsv else ",", quoting=quoting, strict=True)
        columns = list(self.p.columns) or next(rows, [])
        at = [self._column(columns, name) for name in (self.p.audio_column, self.p.text_column)]
        try:
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                if row and len(row) != len(columns):
                    raise DataError(f"{where}: it has {len(row)} fields, not {len(columns)}.")
                if row:
                    yield self._recording(row[at[0]], row[at[1]], where)
        except csv.Error as error:
            raise DataError(f"{path}, line {rows.line_num}: {error}.") from None

    def _column(self, columns: list[str], name: str) -> int:
        if columns.count(name) != 1:
            raise DataError(
                f"{self._path} has the columns {', '.join(columns) or 'none'}, not {name!r} once:"
                " set audio_column and text_column, or columns if the first row has no names."
            )
        return columns.index(name)


class LibriSpeech(AudioSource):
    """A folder in LibriSpeech's layout (Panayotov et al. 2015), at any depth.

    Each line of a file `*.trans.txt` has the name of an audio file in its folder, without .flac or
    .wav, and its transcript. With `split_by=folder`, each speaker is in one split.
    """

    folder: FilePath  # such as LibriSpeech/train-clean-100

    def check(self) -> None:
        super().check()
        if not self.p.folder:
            raise ParamError("folder is empty: give a folder such as LibriSpeech/train-clean-100")

    def root(self) -> str:
        return os.path.expanduser(self.p.folder)

    def recordings(self) -> Iterator[Recording]:
        files = list_files([FilePattern(self.root(), os.path.join("**", f"*{_TRANSCRIPTS}"))])
        if not files:
            raise DataError(f"{self.root()} has no file *{_TRANSCRIPTS}: give another folder.")
        store = store_of(self.root())
        for file in files:
            folder = os.path.dirname(file.path)
            for number, line in enumerate(_read_lines(file), 1):
                name, _, text = line.strip().partition(" ")
                where = f"{file.path}, line {number}"
                if name:
                    yield Recording(_audio_path(store, folder, name, where), text.strip(), where)


def _read_lines(file: File) -> list[str]:
    try:
        return file.read(0, file.size).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{file.path} is not text in UTF-8: {error.reason}.") from None


def _audio_path(store: Store, folder: str, name: str, where: str) -> str:
    """Returns the path of a recording; raises DataError if no file has it."""
    paths = [os.path.join(folder, name + extension) for extension in reversed(EXTENSIONS)]
    for path in paths:
        if store.exists(path):
            return path
    raise DataError(f"{where} names {name!r}, but there is no {paths[0]} and no {paths[1]}.")


def _listed_file(name: str, recording: Recording, store: Store) -> File:
    try:
        status = store.status(recording.path)
    except DataError as error:
        raise DataError(f"{recording.where} names a recording, but {error}") from None
    if status.kind != FILE:
        raise DataError(f"{recording.where} names {recording.path}, which is not a file.")
    return File(name, recording.path, status.size, status.version)
