"""Promise 9: bad data ends a run with the file, the byte and the record, or is counted; no wait."""

import bz2
import gzip
import json
import os
import struct
import time

import pytest

from lingo.config.lazy import tf
from lingo.data.sources.tfrecord import masked_crc32c

BAD_DATA, BAD_CONFIGURATION, OTHER_DATA = 5, 2, 7
SIZE = 48  # of a record
PATIENCE_SECONDS = 20  # beyond what it takes to start and to do a step


def framed(payload):
    length = struct.pack("<Q", len(payload))
    ends = (struct.pack("<I", masked_crc32c(data)) for data in (length, payload))
    return length + next(ends) + payload + next(ends)


def example(text):
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
    features = tf.train.Features(feature={"text": feature})
    return framed(tf.train.Example(features=features).SerializeToString())


@pytest.fixture
def shards(runs):
    """Five shards of ten records."""
    folder = runs.folder / "shards"
    folder.mkdir()
    paths = [folder / f"x-{i:05d}-of-00005.tfrecord" for i in range(5)]
    for i, path in enumerate(paths):
        path.write_bytes(b"".join(example(b"shard %d record %d" % (i, n)) for n in range(10)))
    assert paths[0].stat().st_size == 10 * SIZE
    return paths


def train(runs, name, source, *flags):
    """Trains on another source."""
    done = runs.train(name, f"--set=TextFiles={source}", *flags)
    assert "Traceback" not in done.stderr
    return done


def records(runs, limit=0):
    return f"TfRecords(pattern={runs.folder}/shards/x-*,max_damaged={limit})"


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def absurd(path):
    """Writes a file of 62 bytes whose record says it has 2**36, with the right checksum of that."""
    header = struct.pack("<Q", 2**36)
    path.write_bytes(header + struct.pack("<I", masked_crc32c(header)) + bytes(50))
    return f"record 1, byte 0: the record has {2**36} bytes, but the file only 46 more"


def missing(path):
    path.unlink()
    return f"1 of 5 shards are missing: {path.name}"


def truncated(path):
    os.truncate(path, 9 * SIZE + 5)
    return f"{path}, record 10, byte {9 * SIZE}: the file ends inside the record"


def flipped(path):
    flip(path, 3 * SIZE + 30)
    return f"{path}, record 4, byte {3 * SIZE}: the record is damaged: its checksum is wrong"


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)
    return f"{path} is a named pipe, not a file"


def a_directory(path):
    path.unlink()
    path.mkdir()
    return f"{path} is a directory, not a file"


def looped(path):
    path.unlink()
    path.symlink_to(path.name)
    return f"{path} cannot be read: Too many levels of symbolic links"


def flipped_in_gzip(path):
    data = bytearray(gzip.compress(path.read_bytes()))
    data[-8] ^= 1  # of the checksum
    path.write_bytes(data)
    return f"{path} is damaged, after {10 * SIZE} bytes of content, before byte {len(data)} of"


def truncated_gzip(path):
    data = gzip.compress(path.read_bytes())[:-9]
    path.write_bytes(data)
    return f"{path} is cut short: it ends at byte {len(data)}, inside its gzip data"


def compressed_otherwise(path):
    path.write_bytes(bz2.compress(path.read_bytes()))
    return f"{path} is compressed by bzip2, but lingo unpacks only gzip"


HARMS = [
    *(absurd, flipped, truncated),
    *(missing, a_pipe, a_directory, looped),
    *(flipped_in_gzip, truncated_gzip, compressed_otherwise),
]


@pytest.mark.parametrize("harm", HARMS)
def test_a_bad_file_ends_the_run_with_its_name_and_place(runs, shards, harm):
    said = harm(shards[2])
    done = train(runs, "run", records(runs))
    assert done.returncode == BAD_DATA
    assert said in done.stderr
    assert runs.checkpoints("run") == []


def test_bad_data_is_not_waited_for(runs, shards):
    start = time.monotonic()
    assert train(runs, "whole", records(runs), "--set=max_steps=1").returncode == 0
    plain_seconds = time.monotonic() - start
    flipped(shards[2])
    start = time.monotonic()
    assert train(runs, "run", records(runs)).returncode == BAD_DATA
    assert time.monotonic() - start < plain_seconds + PATIENCE_SECONDS


def test_damage_within_a_limit_is_counted_and_more_of_it_is_other_data(runs, shards):
    flipped(shards[0])
    half = train(runs, "run", records(runs, 2), "--set=max_steps=3")
    assert half.returncode == 0, half.stderr
    assert f"train data: left out 1 damaged record of {SIZE} bytes:" in half.stdout
    assert f"{shards[0]}, record 4, byte {3 * SIZE}: " in half.stdout
    environment = json.loads((runs.folder / "run/environment.json").read_text())
    assert environment["data"]["train"]["damaged"] == 1
    flipped(shards[1])
    resumed = train(runs, "run", records(runs, 2))
    assert resumed.returncode == OTHER_DATA
    assert "train.damaged: 1 -> 2" in resumed.stderr
    flip(shards[2], 4 * SIZE + 5)
    beyond = train(runs, "beyond", records(runs, 2))
    assert beyond.returncode == BAD_DATA
    assert "more than max_damaged=2: 8 damaged records" in beyond.stderr


UNSEEDED = """
import numpy as np
from lingo.data.document_input import TextInput


class Noise(TextInput):
    \"\"\"Leaves out tokens by chance.\"\"\"

    def examples(self, numbers):
        found = super().examples(numbers)
        kept = np.random.rand(*found["tokens"].shape) > 0.1
        return found | {"tokens": found["tokens"] * kept.astype(np.int32)}
"""


def test_an_input_that_is_no_function_of_seed_and_step_is_refused(runs):
    """`tests/lingo/data/test_tensor_input.py` has those whose operations keep state."""
    text = (runs.folder / "small.py").read_text()
    (runs.folder / "small.py").write_text(UNSEEDED + text)
    done = runs.train("run", "--set=TextInput=Noise")
    assert done.returncode == BAD_CONFIGURATION
    assert "Noise: the first batch, made twice, differs in tokens" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (runs.folder / "run/config.json").exists()
