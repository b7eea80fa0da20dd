"""A directory as TensorFlow Datasets writes it is read without that package."""

import json
import os

import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.index import open_index
from lingo.data.sources.tfds import TfdsDirectory
from tests.lingo.data import documents
from tests.lingo.data.documents import BYTES, example

MODULE = "tensorflow_datasets.core.features"
TEXT = {"pythonClassName": f"{MODULE}.text_feature.Text", "text": {}}
CLASSES = {"classLabel": {"numClasses": "2"}}
LABEL = {"pythonClassName": f"{MODULE}.class_label_feature.ClassLabel"} | CLASSES
SPLITS = {"train": [["a0", "a1"], ["a2"]], "test": [["b0"]]}  # the records of each shard


@pytest.fixture
def folder(tmp_path):
    """What tensorflow-datasets 4.9.10 wrote for a data set of two texts and a label."""
    folder = tmp_path / "tiny" / "1.0.0"
    folder.mkdir(parents=True)
    about = {"filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "numBytes": "99"}
    splits = [
        about | {"name": name, "shardLengths": [str(len(shard)) for shard in shards]}
        for name, shards in SPLITS.items()
    ]
    info = {"fileFormat": "tfrecord", "name": "tiny", "version": "1.0.0", "splits": splits}
    write(folder, "dataset_info.json", info)
    features = {"text": TEXT, "label": LABEL}
    write(folder, "features.json", {"featuresDict": {"features": features}})
    for name, shards in SPLITS.items():
        for i, shard in enumerate(shards):
            file = folder / f"tiny-{name}.tfrecord-{i:05d}-of-{len(shards):05d}"
            with tf.io.TFRecordWriter(str(file)) as writer:
                for text in shard:
                    writer.write(example(text, label=1))
    return folder


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def texts(folder, **fields):
    source = TfdsDirectory.params(directory=str(folder), **fields).build()
    return documents.texts(open_index(source, BYTES))


def test_all_shards_of_a_split_are_read_in_order(folder):
    assert texts(folder) == ["a0", "a1", "a2"]
    assert texts(folder, subset="test", feature="text") == ["b0"]


def test_an_unknown_split_names_those_there(folder):
    with pytest.raises(DataError, match=r"no split 'tset'\. Did you mean 'test'.*'train', 'test'"):
        texts(folder, subset="tset")


def test_a_feature_is_named_where_there_are_several(folder):
    features = {"text": TEXT, "title": TEXT, "label": LABEL}
    write(folder, "features.json", {"featuresDict": {"features": features}})
    with pytest.raises(DataError, match="feature is not set; texts: 'text', 'title'"):
        texts(folder)
    with pytest.raises(DataError, match="feature 'label' is not a text; texts: 'text', 'title'"):
        texts(folder, feature="label")
    assert texts(folder, feature="text") == ["a0", "a1", "a2"]


def test_a_plain_string_tensor_is_a_text(folder):
    tensor = {"dtype": "string", "encoding": "none", "shape": {}}
    several = {"dtype": "string", "encoding": "none", "shape": {"dimensions": ["3"]}}
    features = {"text": {"tensor": tensor}, "many": {"tensor": several}}
    write(folder, "features.json", {"featuresDict": {"features": features}})
    assert texts(folder) == ["a0", "a1", "a2"]


def test_a_missing_shard_is_an_error_not_a_shorter_epoch(folder):
    (folder / "tiny-train.tfrecord-00001-of-00002").unlink()
    with pytest.raises(DataError, match="00001-of-00002 is not there: 1 of the 2 shards"):
        texts(folder)


def test_a_shard_with_too_few_records_is_an_error(folder):
    with tf.io.TFRecordWriter(str(folder / "tiny-train.tfrecord-00000-of-00002")) as writer:
        writer.write(example("a0"))
    with pytest.raises(DataError, match=r"has 1 records, but dataset_info\.json says 2"):
        texts(folder)


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        ("train", "not as tensorflow-datasets writes it: TypeError"),
        ({}, "not as tensorflow-datasets writes it: KeyError: 'name'"),
        ({"name": "train"}, "'train' has no shards"),
        ({"name": "train", "shardLengths": ["many"]}, "not as .*: ValueError"),
        ({"name": "train", "shardLengths": ["2"], "filepathTemplate": 3}, "not as .*: Attr"),
        ({"name": "train", "shardLengths": ["-1"]}, "00000-of-00001 is not there"),
        (
            {"name": "train", "shardLengths": ["1"], "filepathTemplate": "../{SPLIT}"},
            r"'\.\./train' is not the name of a file",
        ),
    ],
)
def test_a_description_of_another_form_is_bad_data(folder, split, reason):
    write(folder, "dataset_info.json", {"name": "tiny", "splits": [split]})
    with pytest.raises(DataError, match=reason):
        texts(folder)


@pytest.mark.parametrize("features", [3, {"featuresDict": []}, {"featuresDict": {"features": 3}}])
def test_features_of_another_form_are_bad_data(folder, features):
    write(folder, "features.json", features)
    with pytest.raises(DataError, match=r"features\.json"):
        texts(folder)
    write(folder, "features.json", {"featuresDict": {"features": {"text": features}}})
    with pytest.raises(DataError, match=r"features\.json"):
        texts(folder)


def test_a_description_that_is_a_pipe_or_huge_is_an_error_not_a_wait(folder):
    (folder / "features.json").unlink()
    os.mkfifo(folder / "features.json")
    with pytest.raises(DataError, match=r"features\.json cannot be read: it is a named pipe"):
        texts(folder)
    (folder / "features.json").unlink()
    (folder / "features.json").touch()
    os.truncate(folder / "features.json", 10**12)
    with pytest.raises(DataError, match="more than 67,108,864 bytes: it describes no data"):
        texts(folder)


def test_what_is_not_such_a_directory_is_refused(folder):
    with pytest.raises(DataError, match=r"dataset_info\.json cannot be read: No such file"):
        texts(folder.parent)
    for file, content, reason in (
        ("features.json", "{", "not JSON"),
        ("features.json", '{"content": {}}', "no FeaturesDict"),
        ("features.json", "[]", "not a JSON object"),
        ("dataset_info.json", '{"fileFormat": "x"}', "fileFormat is 'x'; only 'tfrecord'"),
    ):
        (folder / file).write_text(content)
        with pytest.raises(DataError, match=f"{file}: {reason}"):
            texts(folder)
    with pytest.raises(ParamError, match="directory is empty"):
        TfdsDirectory.params(directory="").build()
