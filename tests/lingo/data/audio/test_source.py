"""Where recordings and transcripts are: JSONL, tables, LibriSpeech's layout, files alone."""

from __future__ import annotations

import itertools
import pathlib

import pytest

from lingo.config.params import ParamError
from lingo.data.audio.source import (
    AudioFiles,
    AudioSource,
    CsvAudio,
    JsonlAudio,
    LibriSpeech,
    SampleCounter,
)
from lingo.data.files import DataError
from lingo.data.index import open_index
from tests.lingo.data.audio.recordings import encode, tone, write_clips

TEXTS = {"b.wav": "one two", "a.flac": "three", "sub.wav": "four"}


@pytest.fixture
def clips(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_clips(tmp_path / "clips", TEXTS)


def names(source: AudioSource) -> list[str]:
    counter = SampleCounter.params(sample_rate=16_000, max_seconds=60.0).build()
    index = open_index(source, counter)
    return [index.files[file].name for file in index.file_id.tolist()]


def test_a_jsonl_file_lists_paths_relative_to_its_folder(clips: pathlib.Path) -> None:
    source = JsonlAudio.params(file=str(clips)).build()
    assert names(source) == sorted(TEXTS)
    assert source.transcripts() == TEXTS


def test_durations_are_samples_at_the_rate_that_is_asked_for(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.wav").write_bytes(encode(tone(0.5, rate=44_100), rate=44_100))
    counter = SampleCounter.params(sample_rate=16_000, max_seconds=60.0).build()
    index = open_index(AudioFiles.params(pattern=str(tmp_path)).build(), counter)
    assert index.units.tolist() == [8_000]


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("clips.csv", 'audio,text\nb.wav,one two\na.flac,three\n"sub.wav","four"\n', {}),
        ("clips.tsv", "text\taudio\none two\tb.wav\nthree\ta.flac\nfour\tsub.wav\n", {}),
        (
            "clips.tsv",
            "b.wav\tone two\na.flac\tthree\n\nsub.wav\tfour",
            {"columns": ["audio", "text"]},
        ),
        (
            "clips.csv",
            "path,sentence,age\nb.wav,one two,3\na.flac,three,4\nsub.wav,four,5",
            {"audio_column": "path", "text_column": "sentence"},
        ),
    ],
)
def test_tables_list_recordings(clips, name: str, content: str, fields: dict) -> None:
    file = clips.parent / name
    file.write_text(content)
    source = CsvAudio.params(file=str(file), **fields).build()
    assert names(source) == sorted(TEXTS)
    assert source.transcripts() == TEXTS


def write_librispeech(folder: pathlib.Path) -> pathlib.Path:
    seeds = itertools.count()
    for speaker in ("19", "26", "39", "40"):
        for chapter in ("198", "227"):
            place = folder / speaker / chapter
            place.mkdir(parents=True)
            lines = []
            for i in range(2):
                name = f"{speaker}-{chapter}-{i:04}"
                data = encode(tone(0.1, seed=next(seeds)), kind="FLAC")
                (place / f"{name}.flac").write_bytes(data)
                lines.append(f"{name} WORD {speaker}\n")
            (place / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return folder


def test_librispeech_has_transcripts_in_each_folder(tmp_path: pathlib.Path) -> None:
    source = LibriSpeech.params(folder=str(write_librispeech(tmp_path / "train"))).build()
    assert len(names(source)) == 16
    assert source.transcripts()["19/198/19-198-0000.flac"] == "WORD 19"


def test_a_speaker_is_in_one_split(tmp_path: pathlib.Path) -> None:
    folder = str(write_librispeech(tmp_path / "train"))
    parts = []
    for split in ("train", "heldout"):
        source = LibriSpeech.params(
            folder=folder, split=split, split_by="folder", heldout_fraction=0.5
        )
        parts.append({name.partition("/")[0] for name in names(source.build())})
    assert parts[0] | parts[1] == {"19", "26", "39", "40"}
    assert not parts[0] & parts[1]


def test_equal_recordings_are_in_the_same_split(tmp_path: pathlib.Path) -> None:
    for i in range(20):
        (tmp_path / f"{i:02}.wav").write_bytes(encode(tone(0.1, seed=i % 10)))
    held = AudioFiles.params(pattern=str(tmp_path), split="heldout", heldout_fraction=0.4).build()
    found = {int(name[:2]) for name in names(held)}
    assert found
    assert {i % 10 for i in found} == {i for i in range(10) if i in found and i + 10 in found}


def test_files_alone_are_a_folder_a_file_or_a_glob(clips: pathlib.Path) -> None:
    folder = clips.parent
    (folder / "notes.txt").write_text("not audio")
    assert names(AudioFiles.params(pattern=str(folder)).build()) == sorted(TEXTS)
    assert names(AudioFiles.params(pattern=str(folder / "b.wav")).build()) == ["b.wav"]
    assert names(AudioFiles.params(pattern=str(folder / "*.wav")).build()) == ["b.wav", "sub.wav"]


def test_damaged_files_are_an_error_or_left_out_and_told(clips: pathlib.Path) -> None:
    (clips.parent / "b.wav").write_bytes(b"not audio")
    with pytest.raises(DataError, match=r"b\.wav: the recording cannot be decoded: it is neither"):
        names(JsonlAudio.params(file=str(clips)).build())
    source = JsonlAudio.params(file=str(clips), max_damaged=1).build()
    assert names(source) == ["a.flac", "sub.wav"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"audio": "c.wav", "text": "x"}',
            "clips.jsonl, line 4 names a recording, but .*c.wav cannot be read: No such",
        ),
        ('{"audio": ".", "text": "x"}', "which is not a file"),
        ('{"audio": "", "text": "x"}', "line 4: it names no audio file"),
        ('{"audio": "b.wav", "text": "x"}', "line 4 names .*b.wav, which .*line 1 names, too"),
        ('{"audio": "c.wav"}', "line 4: the line has no field 'text'; fields: 'audio'"),
        ('{"audio": 3, "text": "x"}', "'audio' is a number, not a string"),
        ("b.wav", "line 4: not JSON"),
    ],
)
def test_wrong_lines_are_named(clips: pathlib.Path, line: str, message: str) -> None:
    with clips.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=message):
        names(JsonlAudio.params(file=str(clips)).build())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"path,text\nb.wav,x\n", "has the columns path, text, not 'audio' once"),
        (b"audio,text\nb.wav\n", "line 2: it has 1 fields, not 2"),
        (b"audio,text\nb.wav,\xff\n", "is not text in UTF-8"),
        (b'audio,text\n"b.wav,x\n', "line 2: unexpected end of data"),
        (b"", "has the columns none"),
        (b"audio,text\n", "there are no recordings"),
    ],
)
def test_wrong_tables_are_named(clips: pathlib.Path, content: bytes, message: str) -> None:
    file = clips.parent / "clips.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        names(CsvAudio.params(file=str(file)).build())


def test_a_transcript_without_a_recording_is_named(tmp_path: pathlib.Path) -> None:
    folder = write_librispeech(tmp_path / "train")
    (folder / "19/198/19-198-0001.flac").unlink()
    with pytest.raises(DataError, match=r"line 2 names '19-198-0001', but there is no .*\.flac"):
        names(LibriSpeech.params(folder=str(folder)).build())
    with pytest.raises(DataError, match=r"has no file \*\.trans\.txt"):
        names(LibriSpeech.params(folder=str(folder / "19/198/none")).build())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (JsonlAudio.params(file=""), "file is empty"),
        (LibriSpeech.params(folder=""), "folder is empty"),
        (AudioFiles.params(pattern="a", max_seconds=0.0), "max_seconds=0.0 is not positive"),
        (JsonlAudio.params(file="a", text_field="a..b"), "empty name"),
    ],
)
def test_settings_that_mean_nothing_are_refused(params, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        params.build()
