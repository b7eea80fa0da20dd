"""A directory that TensorFlow Datasets wrote, read without that package.

`dataset_info.json` lists the splits and the number of records in each of their shards;
`features.json` describes the features of a record; the shards are TFRecord files of
tf.train.Example. Versions since 4.5 (2022) write this format.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lingo.config.base.types import FilePath
from lingo.config.params import ParamError, suggest
from lingo.data.files import DataError, File, FilePattern, Read, open_file
from lingo.data.record_source import DecodedRecords
from lingo.data.sources.tfrecord import one_string, parse_example, payload, records
from lingo.data.store import store_of

_JSON_BYTES = 1 << 26
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class TfdsRecords(DecodedRecords):
    """The records of a data set that TensorFlow Datasets prepared."""

    directory: FilePath  # a version's folder, such as ~/tensorflow_datasets/ag_news_subset/1.0.0
    subset: str = "train"  # the data set's own split

    def check(self) -> None:
        super().check()
        if not self.p.directory:
            raise ParamError("directory is empty: give the directory of a data set's version")

    def places(self) -> list[FilePattern]:
        if not self._shards:
            raise DataError(f"{self.path('dataset_info.json')}: {self.p.subset!r} has no shards.")
        present = {*store_of(self._root).names(self._root)}
        missing = [name for name in self._shards if name not in present]
        if missing:
            raise DataError(
                f"{self.path(missing[0])} is not there: {len(missing)} of the"
                f" {len(self._shards)} shards of {self.p.subset!r} are missing."
            )
        return [FilePattern(self._root, glob.escape(name)) for name in self._shards]

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        number, expected = 0, self._shards[file.name]
        for span in records(file, read):
            number += 1
            yield span
        if number != expected:
            raise DataError(
                f"{file.path} has {number} records, but dataset_info.json says {expected}."
            )

    @property
    def _root(self) -> str:
        return os.path.expanduser(self.p.directory)

    def path(self, name: str) -> str:
        """Returns the path of a file in the directory."""
        return os.path.join(self._root, name)

    @functools.cached_property
    def _shards(self) -> dict[str, int]:
        path, info = self.path("dataset_info.json"), self._json("dataset_info.json")
        with _explain_errors(path):
            kind = info.get("fileFormat", "tfrecord")
            if kind != "tfrecord":
                raise DataError(f"{path}: fileFormat is {kind!r}; only 'tfrecord' can be read.")
            splits = {split["name"]: split for split in info.get("splits", [])}
            if self.p.subset not in splits:
                names = ", ".join(map(repr, splits)) or "none"
                near = suggest(self.p.subset, splits)
                raise DataError(
                    f"{path}: there is no split {self.p.subset!r}.{near} Splits: {names}."
                )
            split = splits[self.p.subset]
            lengths = [int(length) for length in split.get("shardLengths", [])]
            template = split.get("filepathTemplate", _TEMPLATE)
            words = {"DATASET": info["name"], "SPLIT": split["name"], "FILEFORMAT": kind}
            names = [_shard(template, words, i, len(lengths)) for i in range(len(lengths))]
            return dict(zip(names, lengths, strict=True))

    @functools.cached_property
    def features(self) -> dict[str, Any]:
        """The description of each feature in features.json, by name."""
        path, content = self.path("features.json"), self._json("features.json")
        with _explain_errors(path):
            features = content.get("featuresDict", {}).get("features")
            if not isinstance(features, dict):
                raise DataError(
                    f"{path}: no FeaturesDict as tensorflow-datasets since 4.5 writes it."
                )
            return features

    def find_feature(self, field: str, is_kind: Callable[[Any], bool], kind: str) -> str:
        """Returns the name of a feature of some kind: the one that the params field `field` names.

        If that field is None, it is the only feature of this kind. Raises DataError, which names
        the `kind` ("a text"), if the field names a feature of another kind, or if the field is None
        and there is not exactly one feature of this kind.
        """
        path, name = self.path("features.json"), getattr(self.p, field)
        with _explain_errors(path):
            names = [other for other, feature in self.features.items() if is_kind(feature)]
        if name in names:
            return name
        if name is None and len(names) == 1:
            return names[0]
        problem = f"{field} is not set" if name is None else f"feature {name!r} is not {kind}"
        plural, known = f"{kind.split()[-1]}s", ", ".join(map(repr, names)) or "none"
        raise DataError(f"{path}: {problem}; {plural}: {known}.")

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path(name)
        try:
            with open_file(path) as file:
                content = file.read(_JSON_BYTES + 1)
        except DataError as error:
            raise DataError(
                f"{error} directory must be the folder of one version of a data set, which has"
                " dataset_info.json and features.json."
            ) from None
        if len(content) > _JSON_BYTES:
            raise DataError(f"{path} has more than {_JSON_BYTES:,} bytes: it describes no data.")
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not JSON: {error}.") from None
        if not isinstance(value, dict):
            raise DataError(f"{path}: not a JSON object.")
        return value


class TfdsDirectory(TfdsRecords):
    """A text feature of a data set that TensorFlow Datasets prepared.

    The package itself is not needed. The directory has a `dataset_info.json`, its file format is
    tfrecord (the default), and the feature is not nested.
    """

    feature: str | None = None  # the name of the feature; None: the only text

    def text(self, data: bytes, where: str) -> bytes:
        return one_string(parse_example(payload(data, where), where), self._feature, where)

    @functools.cached_property
    def _feature(self) -> str:
        return self.find_feature("feature", _is_text, "a text")


@contextlib.contextmanager
def _explain_errors(path: str) -> Iterator[None]:
    """Turns errors about a JSON description with an unknown layout into DataError."""
    try:
        yield
    except DataError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is not as tensorflow-datasets writes it: {type(error).__name__}: {error}."
        ) from None


def _shard(template: str, words: dict[str, str], number: int, total: int) -> str:
    index, num_shards = f"{number:05d}", f"{total:05d}"
    numbers = {"SHARD_INDEX": index, "NUM_SHARDS": num_shards}
    for word, value in (words | numbers | {"SHARD_X_OF_Y": f"{index}-of-{num_shards}"}).items():
        template = template.replace(f"{{{word}}}", value)
    if os.path.basename(template) != template:
        raise DataError(f"dataset_info.json: {template!r} is not the name of a file.")
    return template


def _is_text(feature: Mapping[str, Any]) -> bool:
    """Returns whether an entry of features.json is one string per example."""
    if feature.get("pythonClassName", "").endswith(".Text"):
        return True
    tensor = feature.get("tensor", {})
    plain = tensor.get("encoding", "none") == "none" and not tensor.get("shape", {})
    return tensor.get("dtype") in ("string", "object") and plain
