"""Encoded images in TFRecord files: in the layout of ImageNet, and of TensorFlow Datasets."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from lingo.config.base.types import FilePath
from lingo.config.params import ParamError
from lingo.data.files import DataError, File, Read, refuse_empty
from lingo.data.images.encoded import EncodedImage, EncodedImages, check_classes, read_classes
from lingo.data.record_source import MatchingFiles
from lingo.data.sources.tfds import TfdsRecords
from lingo.data.sources.tfrecord import one_integer, one_string, parse_example, payload, records

IMAGE, LABEL = "image/encoded", "image/class/label"
"""The features of ImageNet's records: the bytes of an image, and the number of its class."""


class ImageRecords(EncodedImages, MatchingFiles):
    """The image and the label in the tf.train.Example of each record: by default as ImageNet's."""

    feature: str = IMAGE  # the name of the feature with the bytes of a JPEG or PNG
    label_feature: str = LABEL  # the name of the feature with the number of the class
    first_label: int = 1  # the number of the first class in the records; its label is 0
    classes: FilePath | None = None  # names by label, one a line; None: the classes have no names

    checksums: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        if self.p.feature == self.p.label_feature:
            raise ParamError(f"feature and label_feature are both {self.p.feature!r}")

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        refuse_empty(file)
        return records(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        features = parse_example(payload(data, where), where)
        label = one_integer(features, self.p.label_feature, where) - self.p.first_label
        image = one_string(features, self.p.feature, where)
        return self.to_document(EncodedImage(label, image), where)

    def class_names(self) -> list[str]:
        if self.p.classes is None:
            return []
        path = os.path.expanduser(self.p.classes)
        return check_classes(read_classes(path), self.p.num_classes, path)


class TfdsImages(EncodedImages, TfdsRecords):
    """The images and classes of a data set that TensorFlow Datasets prepared."""

    feature: str | None = None  # the name of the image's feature; None: the only image there is
    label_feature: str | None = None  # of the class's; None: the only class there is

    checksums: ClassVar[bool] = True

    def text(self, data: bytes, where: str) -> bytes:
        features = parse_example(payload(data, where), where)
        label = one_integer(features, self._label_feature, where)
        image = one_string(features, self._feature, where)
        return self.to_document(EncodedImage(label, image), where)

    def class_names(self) -> list[str]:
        name = self._label_feature
        file = self.path(f"{name}.labels.txt")
        if os.path.exists(file):
            return check_classes(read_classes(file), self.p.num_classes, file)
        known = int(self.features[name]["classLabel"]["numClasses"])
        if known != self.p.num_classes:
            raise DataError(
                f"{self.path('features.json')}: {name!r} has {known} classes, but num_classes="
                f"{self.p.num_classes}."
            )
        return []

    @functools.cached_property
    def _feature(self) -> str:
        return self.find_feature("feature", _is_image, "an image")

    @functools.cached_property
    def _label_feature(self) -> str:
        return self.find_feature("label_feature", _is_class, "a label")


def _is_image(feature: Mapping[str, Any]) -> bool:
    """Returns whether an entry of features.json is one image per example."""
    return feature.get("pythonClassName", "").endswith(".Image") or "image" in feature


def _is_class(feature: Mapping[str, Any]) -> bool:
    """Returns whether an entry of features.json is one class per example."""
    return "numClasses" in feature.get("classLabel", {})
