"""Rows of MLPerf's records are read as they are; a record of another form is one clear error."""

import gzip

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.sources.tfrecord import frame
from tasks.bert.input import BertInput
from tasks.bert.records import BertExamples, BertRecords
from tests.lingo.data.documents import assert_starts_anywhere, specs_of
from tests.tasks.bert.letters import Letters

T, K, SIZE = 6, 2, 50
INTEGERS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")
FEATURES = {
    "tokens": "input_ids",
    "segments": "input_mask",
    "types": "segment_ids",
    "masked_positions": "masked_lm_positions",
    "masked_ids": "masked_lm_ids",
    "masked_weights": "masked_lm_weights",
    "is_random": "next_sentence_labels",
}


def values(number):
    """Returns the features of a row as lists."""
    rng = np.random.default_rng(number)
    return {
        "input_ids": rng.integers(0, SIZE, T).tolist(),
        "input_mask": [1] * (T - 1) + [0],
        "segment_ids": [0, 0, 0, 1, 1, 0],
        "masked_lm_positions": [2, 0],
        "masked_lm_ids": [number, 0],
        "masked_lm_weights": [1.0, 0.0],
        "next_sentence_labels": [number % 2],
    }


def serialize(features):
    """Returns a tf.train.Example of lists of numbers."""
    lists = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=value))
        if any(isinstance(v, float) for v in value)
        else tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for name, value in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def write(path, rows):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(serialize(row))


@pytest.fixture
def folder(tmp_path):
    """Two files, with rows 0 to 4 and 5 to 8."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "a.tfrecord", map(values, range(5)))
    write(tmp_path / "data" / "b.tfrecord", map(values, range(5, 9)))
    return tmp_path / "data"


@pytest.fixture
def make(folder):
    def make(pattern=f"{folder}/*.tfrecord", max_damaged=0, **fields):
        source = BertExamples.params(pattern=pattern, max_damaged=max_damaged)
        given = {"source": source, "batch_size": 3, "length": T}
        given |= {"max_predictions": K, "vocab_size": SIZE}
        return BertRecords.params(**{**given, **fields}).build()

    return make


def test_rows_are_those_that_were_written(make):
    input = make(shuffle=False, batch_size=9)
    batch = input.batch(0)
    for i in range(9):
        for name, feature in FEATURES.items():
            wanted = values(i)[feature] if name != "is_random" else values(i)[feature][0]
            np.testing.assert_array_equal(batch[name][i], wanted)
    assert input.specs() == specs_of(batch)
    assert input.offers() == {"vocab_size": SIZE}
    assert not input.declares_late


def test_a_batch_has_the_arrays_of_rows_that_are_made_of_documents(make):
    fields = {"batch_size": 3, "length": T, "max_predictions": K, "tokenizer": Letters}
    assert make().specs() == BertInput.params(**fields).build().specs()


def test_an_epoch_has_every_row_once_in_a_new_order(make):
    input = make()
    epochs = [
        [int(n) for step in range(3) for n in input.batch(3 * e + step)["masked_ids"][:, 0]]
        for e in range(4)
    ]
    assert all(sorted(epoch) == [*range(9)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert epochs != [
        [int(n) for step in range(3) for n in make(seed=1).batch(step)["masked_ids"][:, 0]]
    ]
    assert_starts_anywhere(make, range(8))


def test_a_single_pass_ends_with_padding(make):
    input = make(repeat=False, batch_size=5)
    last = input.batch(input.num_batches() - 1)
    assert last["weights"].tolist() == [1, 1, 1, 1, 0]
    assert not any(last[name][4].any() for name in FEATURES)


def test_compressed_files_are_read(make, folder):
    plain = make(shuffle=False).batch(0)
    for path in folder.iterdir():
        path.write_bytes(gzip.compress(path.read_bytes()))
    packed = make(shuffle=False)
    np.testing.assert_array_equal(packed.batch(0)["tokens"], plain["tokens"])
    assert packed.remarks()


def test_the_data_is_known_by_its_content(make, folder):
    first = make().fingerprint()
    assert (first["records"], first["damaged"]) == (9, 0)
    assert first["bytes"] == 9 * 4 * (3 * T + 3 * K + 1)
    write(folder / "b.tfrecord", map(values, range(6, 10)))
    assert make().fingerprint()["digest"] != first["digest"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input_ids": [1] * 5}, r"feature 'input_ids' has 5 integers, not length=6\."),
        ({"masked_lm_ids": [1] * 3}, "'masked_lm_ids' has 3 integers, not max_predictions=2"),
        ({"masked_lm_weights": [1.0]}, "'masked_lm_weights' has 1 floats, not max_predictions=2"),
        ({"masked_lm_weights": [1, 0]}, "'masked_lm_weights' has 0 floats, not max_predictions=2"),
        ({"next_sentence_labels": [0, 1]}, "'next_sentence_labels' has 2 integers, not one"),
        ({"next_sentence_labels": [2]}, "has 2, but its numbers are from 0 to 1"),
        ({"input_ids": [50] * T}, "has 50, but its numbers are from 0 to 49, as vocab_size=50"),
        ({"input_ids": [-1] * T}, "has -1, but its numbers are from 0 to 49"),
        ({"masked_lm_positions": [6, 0]}, "has 6, but its numbers are from 0 to 5, as length=6"),
        ({"masked_lm_weights": [float("nan"), 0.0]}, "has nan, but its numbers are from 0 to 1"),
        ({"segment_ids": None}, "there is no feature 'segment_ids'; features: 'input_ids'"),
    ],
)
def test_a_record_of_another_form_is_named_and_may_be_left_out(make, folder, change, reason):
    row = {name: v for name, v in (values(0) | change).items() if v is not None}
    write(folder / "c.tfrecord", [values(9), row])
    with pytest.raises(DataError, match=r"c\.tfrecord, record 2, byte \d+: .*" + reason) as caught:
        make().prepare()
    assert len(str(caught.value).splitlines()) == 1
    input = make(max_damaged=1)
    assert input.num_examples() == 10
    assert "left out 1 damaged record" in input.remarks()[0]


def test_a_flipped_bit_is_found(make, folder):
    data = bytearray((folder / "a.tfrecord").read_bytes())
    data[40] ^= 1
    (folder / "a.tfrecord").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.tfrecord, record 1, byte 0: .*checksum is wrong"):
        make().prepare()
    (folder / "a.tfrecord").write_bytes(frame(b"no example"))
    with pytest.raises(DataError, match=r"record 1, byte 0: not a tf\.train\.Example"):
        make().prepare()


def test_what_cannot_be_is_refused(make, tmp_path):
    for field in ("length", "max_predictions", "vocab_size"):
        with pytest.raises(ParamError, match=f"{field}=0 is not positive"):
            make(**{field: 0})
    with pytest.raises(DataError, match="no file matches"):
        make(pattern=f"{tmp_path}/nowhere/*").prepare()
