"""TFRecord files are read as TensorFlow writes them; every kind of damage is an error."""

import functools
import os
import struct

import pytest

from lingo.config.lazy import tf
from lingo.data import index as index_module
from lingo.data.files import DataError
from lingo.data.sources.tfrecord import TfRecords, frame, masked_crc32c
from tests.lingo.data import documents
from tests.lingo.data.documents import example, texts

opened = functools.partial(documents.opened, TfRecords)
DOCUMENTS = ["one", "größer 🙂", "x" * 5000]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for text in DOCUMENTS:
            writer.write(example(text, label=1))
    return path


def test_what_tensorflow_writes_is_read_and_is_what_frame_makes(file):
    index = opened(file)
    assert texts(index) == DOCUMENTS
    assert index.read(2, 10, 14) == b"xxxx"
    assert file.read_bytes() == b"".join(frame(example(text, label=1)) for text in DOCUMENTS)


def test_every_flipped_byte_is_found(file):
    good = file.read_bytes()
    for place in range(51):  # the first record
        file.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(DataError, match=r"data\.tfrecord, record 1, byte 0: .*checksum"):
            opened(file)


def test_an_absurd_length_is_an_error_also_with_a_right_checksum(file):
    for length in (2**36, 2**63, 2**64 - 1):
        header = struct.pack("<Q", length)
        file.write_bytes(header + struct.pack("<I", masked_crc32c(header)) + bytes(50))
        with pytest.raises(DataError, match=f"has {length} bytes, but the file only 46 more"):
            opened(file)


def test_a_length_that_no_memory_holds_is_damage_also_where_the_file_has_it(file):
    header = struct.pack("<Q", 2**40)
    with file.open("ab") as end:
        end.write(header + struct.pack("<I", masked_crc32c(header)))
        end.truncate(2**40 + 10**5)  # a hole: the file takes no room
    source = TfRecords.params(pattern=str(file)).build()
    found = list(index_module._documents(source.files()[0], source))
    assert [type(f).__name__ for f in found] == ["_Document"] * 3 + ["_Unreadable"] * 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"data\.tfrecord is empty"),
        (b"\x1f\x8b\x08\x00", "is cut short: it ends at byte 4, inside its gzip data"),
        (b"\x28\xb5\x2f\xfd" + bytes(99), "is compressed by zstd, but lingo unpacks only gzip"),
        (b"just some text, no records", "not a TFRecord, or damaged"),
        (frame(b"just some text"), r"record 1, byte 0: not a tf\.train\.Example"),
    ],
)
def test_other_files_are_refused(file, content, reason):
    file.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        opened(file)


def test_a_feature_that_is_not_one_string_is_an_error(file):
    with pytest.raises(DataError, match="no feature 'body'; features: 'label', 'text'"):
        opened(file, feature="body")
    with pytest.raises(DataError, match="feature 'label' has 0 strings, not one"):
        opened(file, feature="label")


def test_damage_after_indexing_is_found_when_the_record_is_read(file):
    index, before = opened(file), file.stat()
    good = file.read_bytes()
    file.write_bytes(good[:70] + bytes([good[70] ^ 4]) + good[71:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match=r"record 2, byte 51: the record is damaged.*It was sound"):
        index.read(1, 0, 3)
    with pytest.raises(DataError, match=r"record 2, byte 51: the record is damaged"):
        opened(file)  # the index is made anew
    index = opened(file, max_damaged=1)
    assert (index.number.tolist(), index.damage.records) == ([1, 3], 1)


def test_the_checksum_is_that_of_the_standard():
    crc = 0xE3069283  # of "123456789" (RFC 3720, appendix B.4; Koopman's check value)
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_a_first_length_that_looks_like_gzip_is_one(file):
    others = len(example("x" * 0x080000)) - 0x080000
    file.write_bytes(frame(example("x" * (0x088B1F - others))))
    assert file.read_bytes()[:3] == b"\x1f\x8b\x08"
    assert len(opened(file).units) == 1
