"""Files of images: a folder with a folder inside for each class, or any files without classes."""

from __future__ import annotations

import functools
import os

from lingo.config.base.types import FilePath
from lingo.config.params import ParamError
from lingo.data.files import DataError, File, FilePattern, short_path
from lingo.data.images.encoded import EncodedImage, EncodedImages, check_classes, read_classes
from lingo.data.record_source import MatchingFiles
from lingo.data.store import is_folder, is_folder_of, store_of

_EXTENSIONS = (".jpg", ".jpeg", ".png")


class ImageFolder(EncodedImages):
    """JPEG and PNG files; a class has its files in a folder of its name, at any depth.

    A label is the index of a folder's name in sorted order, or in the file `classes`. Hidden files
    and folders are ignored; any other file is an error, and so is a folder that `classes` lacks.
    """

    folder: FilePath  # has the folders of the classes
    classes: FilePath | None = None  # class names by label, one per line; None: sorted folders

    def check(self) -> None:
        super().check()
        if not self.p.folder:
            raise ParamError("folder is empty: give the folder that has a folder for each class")

    def places(self) -> list[FilePattern]:
        return [FilePattern(self._root, os.path.join("*", "**", "*"))]

    def files(self) -> list[File]:
        _ = self._labels  # first: its errors say more than "no file matches"
        return _check_extensions(super().files())

    def document(self, file: File, data: bytes, where: str) -> bytes:
        label = self._labels[file.name.partition("/")[0]]
        return self.to_document(EncodedImage(label, data), where)

    def where(self, file: File, number: int, start: int) -> str:
        del number, start  # a file is an image
        return short_path(file.path)

    def class_names(self) -> list[str]:
        return list(self._labels)

    @property
    def _root(self) -> str:
        return os.path.expanduser(self.p.folder)

    @functools.cached_property
    def _labels(self) -> dict[str, int]:
        """The label of each class by its name, in order of labels."""
        folders = class_folders(self._root)
        if self.p.classes is None:
            names = check_classes(folders, self.p.num_classes, self._root)
        else:
            path = os.path.expanduser(self.p.classes)
            names = check_classes(read_classes(path), self.p.num_classes, path)
            if strange := [name for name in folders if name not in names]:
                raise DataError(
                    f"{os.path.join(self._root, strange[0])} is not the folder of a class in"
                    f" {self.p.classes}: add its name there, or move it away."
                )
        return {name: label for label, name in enumerate(names)}


class ImageFiles(EncodedImages, MatchingFiles):
    """JPEG and PNG files without labels: all in a folder, at any depth; one file; or a glob.

    Files are in the order of their names. Hidden files in a folder are ignored, others are an error
    unless they are images.
    """

    has_labels = False

    def places(self) -> list[FilePattern]:
        folder = os.path.expanduser(self.p.pattern)
        if is_folder(folder):
            return [FilePattern(folder, os.path.join("**", "*"))]
        return super().places()

    def files(self) -> list[File]:
        return _check_extensions(super().files())

    def document(self, file: File, data: bytes, where: str) -> bytes:
        return self.to_document(EncodedImage(0, data), where)

    def where(self, file: File, number: int, start: int) -> str:
        del number, start  # a file is an image
        return short_path(file.path)

    def class_names(self) -> list[str]:
        return []


def _check_extensions(files: list[File]) -> list[File]:
    """Returns the files; raises DataError for one that does not have an image's extension."""
    for file in files:
        if not file.path.lower().endswith(_EXTENSIONS):
            raise DataError(
                f"{file.path} is not {', '.join(_EXTENSIONS[:-1])} or {_EXTENSIONS[-1]}: move"
                " it out of the folder, or convert it."
            )
    return files


def class_folders(root: str) -> list[str]:
    """Returns the sorted names of the folders directly in `root`, without hidden folders.

    Raises DataError if `root` cannot be listed, has no folder, or has an image outside of folders.
    """
    store = store_of(root)
    found = [name for name in sorted(store.names(root)) if not name.startswith(".")]
    names = [name for name in found if is_folder_of(store, os.path.join(root, name))]
    if not names:
        raise DataError(f"{root} has no folders: each class needs one, with its images.")
    images = (name for name in found if name.lower().endswith(_EXTENSIONS))
    if strays := sorted({*images}.difference(names)):
        stray = os.path.join(root, strays[0])
        raise DataError(f"{stray} is in no class: move it into the folder of its class.")
    return names
