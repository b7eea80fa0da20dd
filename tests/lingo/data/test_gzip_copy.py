"""A gzip file is read like the plain one; damage is one error; copies are kept and cleared."""

from __future__ import annotations

import functools
import gzip
import os
import re
import time
from unittest import mock

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.data import gzip_copy
from lingo.data.document_input import TextInput
from lingo.data.files import DataError
from lingo.data.pairs.pair_input import PairInput
from lingo.data.record_source import TextFiles
from lingo.data.sources.jsonl import JsonLines
from lingo.data.sources.pair_files import JsonlPairs, TsvPairs
from lingo.data.sources.tfrecord import TfRecords, frame
from lingo.storage.files import StorageError
from tests.lingo.data import documents
from tests.lingo.data.documents import assert_equal, example, texts

WORDS = [f"{i} " * (1 + i % 5) for i in range(23)]
CONTENTS = {
    TextFiles: "".join(WORDS).encode(),
    JsonLines: "".join(f'{{"text": "{word}"}}\n' for word in WORDS).encode(),
    TfRecords: b"".join(frame(example(word)) for word in WORDS),
    JsonlPairs: "".join(f'{{"source": "{w}", "target": "b"}}\n' for w in WORDS).encode(),
    TsvPairs: "".join(f"{word}\tb\n" for word in WORDS).encode(),
}


@pytest.fixture
def copies(cache):
    return cache.parent / "unpacked"


@pytest.fixture
def packed(tmp_path):
    """A gzip file of lines."""
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(CONTENTS[JsonLines]))
    return path


def input_of(kind, pattern, **fields):
    """Returns an input of batches of 3 rows that hold parts of several documents."""
    source, settings = kind.params(pattern=str(pattern), **fields), {"batch_size": 3, "seed": 4}
    if issubclass(kind, (JsonlPairs, TsvPairs)):
        return PairInput.params(source=source, source_length=12, target_length=4, **settings)
    return TextInput.params(source=source, length=8, **settings)


@pytest.mark.parametrize("kind", CONTENTS)
def test_batches_of_two_epochs_are_those_of_the_plain_files_wherever_they_start(tmp_path, kind):
    content = CONTENTS[kind]
    for folder, change in (("plain", bytes), ("packed", gzip.compress)):
        (tmp_path / folder).mkdir()
        for i in range(4):  # by its name, each file is in the same split, too
            name = f"{i}.txt" + (".gz" if folder == "packed" else "")
            (tmp_path / folder / name).write_bytes(change(content[: len(content) if i else None]))
    split = {"split": "train", "heldout_fraction": 0.4, "split_by": "file"}
    plain, packed = (
        input_of(kind, tmp_path / folder / "*", **split).build() for folder in ("plain", "packed")
    )
    steps = range(-(-2 * plain.num_examples() // 3))
    for step in steps:
        assert_equal(packed.batch(step), plain.batch(step))
    anew = input_of(kind, tmp_path / "packed" / "*", **split).build()
    middle = steps[-1] // 2
    part = anew.batch(middle, rows=slice(1, 3))  # as another host reads it
    assert_equal(part, {name: array[1:3] for name, array in plain.batch(middle).items()})
    same = ("documents", "bytes", "tokens", "digest")
    assert [anew.fingerprint()[k] for k in same] == [plain.fingerprint()[k] for k in same]


def test_what_tensorflow_writes_with_gzip_is_read_whatever_its_name(tmp_path):
    path = tmp_path / "data.tfrecord"
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions("GZIP")) as writer:
        for word in WORDS:
            writer.write(example(word))
    assert texts(documents.opened(TfRecords, path)) == WORDS


def test_several_members_are_one_content(tmp_path):
    path, content = tmp_path / "a.txt.gz", CONTENTS[TextFiles]
    path.write_bytes(b"".join(map(gzip.compress, (content[:9], b"", content[9:]))) + bytes(7))
    assert texts(documents.opened(TextFiles, path)) == [content.decode()]


def test_a_file_is_unpacked_once_and_again_when_it_changes_or_the_copy_is_gone(
    packed, copies, monkeypatch
):
    made, write = [], gzip_copy._write_content
    monkeypatch.setattr(gzip_copy, "_write_content", lambda *a: made.append(1) or write(*a))
    for number in (1, 1):
        assert len(documents.opened(JsonLines, packed).units) == len(WORDS)
        assert len(made) == number
    (copy,) = copies.iterdir()
    assert copy.read_bytes() == CONTENTS[JsonLines]
    assert copy.stat().st_mode & 0o777 == 0o600
    copy.unlink()
    assert len(documents.opened(JsonLines, packed).units) == len(WORDS)
    packed.write_bytes(gzip.compress(CONTENTS[JsonLines] * 2))
    assert len(documents.opened(JsonLines, packed).units) == 2 * len(WORDS)
    assert len(made) == 3


def test_a_copy_that_is_gone_while_it_is_read_is_an_error_that_says_what_to_do(packed, copies):
    index = documents.opened(JsonLines, packed)
    (copy,) = copies.iterdir()
    copy.unlink()
    with pytest.raises(DataError, match=r"a copy of the content of .*\.gz, cannot .* Start again"):
        index.read(0, 0, 1)


def test_a_file_that_changes_after_it_was_listed_is_an_error(packed):
    index = documents.opened(JsonLines, packed)
    packed.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(DataError, match=r"data\.jsonl\.gz has changed since this run listed"):
        index.read(0, 0, 1)


def test_the_run_says_how_much_it_unpacked_and_shows_progress(packed, copies):
    input, seen = input_of(JsonLines, packed).build(), []
    input.prepare(progress=lambda *now: seen.append(now))
    size = packed.stat().st_size
    assert input.remarks() == [
        f"unpacked 1 gzip file of {size} bytes to {len(CONTENTS[JsonLines])} bytes in {copies}"
    ]
    assert seen[0] == (size, size)
    assert seen[-1] == (len(CONTENTS[JsonLines]),) * 2


# ---- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 99])
def test_a_truncated_or_changed_file_is_one_error_with_its_place(packed, copies, limit):
    opened = functools.partial(documents.opened, JsonLines, packed, max_damaged=limit)
    good = packed.read_bytes()
    for size in range(3, len(good)):
        packed.write_bytes(good[:size])
        message = rf"jsonl\.gz is cut short: it ends at byte {size}, inside its gzip data, after"
        with pytest.raises(DataError, match=message):
            opened()
    assert list(copies.iterdir()) == []
    errors = []
    for place in range(3, len(good)):
        packed.write_bytes(good[:place] + bytes([good[place] ^ 16]) + good[place + 1 :])
        os.utime(packed, (place, place))  # or two of them might have the same time
        try:
            assert texts(opened()) == WORDS
        except DataError as error:
            errors.append(str(error))
    place = re.compile(
        r"\.gz is (damaged, after \d+ bytes .* before byte \d+|cut short: it ends at)"
    )
    assert all(map(place.search, errors))
    harmless = len(good) - 3 - len(errors)
    assert harmless <= 7, "time, speed, system, and bits behind the last of the content"


def test_other_bytes_behind_the_gzip_data_are_damage(packed):
    packed.write_bytes(packed.read_bytes() + b"more")
    size = len(CONTENTS[JsonLines])
    with pytest.raises(DataError, match=rf"damaged, after {size} bytes .*: Not a gzipped file"):
        documents.opened(JsonLines, packed)


def test_damaged_records_in_a_sound_file_are_counted_at_their_byte_of_the_content(packed):
    packed.write_bytes(gzip.compress(b'{"text": "a"}\n{"text": \n{"text": "b"}\n'))
    with pytest.raises(DataError, match=r"data\.jsonl\.gz, line 2, byte 14: not JSON"):
        documents.opened(JsonLines, packed)
    index = documents.opened(JsonLines, packed, max_damaged=1)
    assert (texts(index), index.damage.records, index.damage.num_bytes) == (["a", "b"], 1, 10)


@pytest.mark.parametrize("content", [b"", b"plain text"])
def test_a_name_that_promises_gzip_is_kept_to_it(tmp_path, content):
    (tmp_path / "a.txt.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.txt\.gz does not begin as a gzip file does"):
        documents.opened(TextFiles, tmp_path / "a.txt.gz")


def test_a_file_both_plain_and_packed_is_not_read_twice(packed):
    packed.with_suffix("").write_bytes(CONTENTS[JsonLines])
    with pytest.raises(DataError, match=r"data\.jsonl and .*data\.jsonl\.gz both match: are they"):
        documents.opened(JsonLines, packed.with_name("*"))


def test_content_that_is_compressed_again_is_refused(packed):
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    with pytest.raises(DataError, match=r"twice, the second time by gzip, but .*gunzip"):
        documents.opened(JsonLines, packed)


def test_a_bomb_is_refused_before_it_fills_the_disk(packed, copies, monkeypatch):
    monkeypatch.setattr(gzip_copy, "_UNCHECKED_BYTES", 1 << 16)
    packed.write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(
        DataError, match=r"bytes unpack to more than [\d,]+, more than is plausible"
    ):
        documents.opened(JsonLines, packed)
    assert list(copies.iterdir()) == []


def test_a_full_disk_is_an_error_that_leaves_nothing_behind(packed, copies, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("lingo.storage.files.os.replace", full)
    message = (
        r"gz must be unpacked before it is read: cannot write .*: No space left.*XDG_CACHE_HOME"
    )
    with pytest.raises(StorageError, match=message):
        documents.opened(JsonLines, packed)
    assert list(copies.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error(packed, cache):
    cache.parent.parent.mkdir(parents=True, exist_ok=True)
    cache.parent.write_text("a file where the directory should be")
    with pytest.raises(StorageError, match=r"gz must be unpacked before it is read: cannot write"):
        documents.opened(JsonLines, packed)


def test_copies_that_nobody_reads_are_deleted_when_another_is_made(packed, copies):
    index = documents.opened(JsonLines, packed)
    (copy,) = copies.iterdir()
    long_ago = time.time() - 91 * 86400
    os.utime(copy, (long_ago, long_ago))
    index.read(0, 0, 1)
    assert copy.stat().st_mtime > time.time() - 1000, "it is in use"
    os.utime(copy, (long_ago, long_ago))
    other = packed.with_name("other.jsonl.gz")
    other.write_bytes(gzip.compress(CONTENTS[JsonLines]))
    documents.opened(JsonLines, other)
    assert not copy.exists()
    assert len(list(copies.iterdir())) == 1


def test_a_long_file_is_unpacked_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(gzip_copy, "_BLOCK_BYTES", 1000)
    content = np.random.default_rng(0).integers(97, 123, 300_000).astype(np.uint8).tobytes()
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    index, seen = documents.opened(TextFiles, tmp_path / "*.gz"), []
    assert index.read(0, 0, len(content)) == content
    file = TextFiles.params(pattern=f"{tmp_path}/*.gz").build().files()[0]
    os.unlink(index.files[0].copy.path)
    gzip_copy.unpack(file, progress=seen.append)
    assert len(seen) > 100
    assert seen == sorted(seen)
    assert seen[-1] == file.size
