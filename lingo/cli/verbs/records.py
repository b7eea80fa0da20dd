"""Writes a folder of images as TFRecord files.

    lingo records --images=flowers --output=flowers_records
    lingo records --images=flowers --output=flowers_256 --size=256 --shards=16
    lingo records --images=val --classes=train_records/classes.txt --output=val_records

The folder of images has a folder for each class, with JPEG and PNG files. The records are shuffled,
have the layout of ImageNet's, and are faster to read than many small files. The command prints the
--set that makes an experiment read them. --size shrinks larger images, so that decoding them is
faster, too. The new folder appears only when it is complete, and no folder is overwritten.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from lingo.cli.command import UsageError, VerbOptions, new_output
from lingo.config.options import option, option_class
from lingo.config.params import Params
from lingo.data.images.encoded import open_images, read_classes
from lingo.data.images.image_folder import ImageFolder, class_folders
from lingo.data.images.image_records import CLASSES, write_records
from lingo.trainer.progress import Progress

SHARD_BYTES = 128 * 2**20  # about the size of ImageNet's shards

_PLAIN = re.compile(r"[\w./~*-]+")


@option_class
class Options(VerbOptions):
    """The options of `lingo records`."""

    images: str | None = option("The folder that has a folder of images for each class.")
    output: str | None = option("The folder to write; it must not exist.")
    classes: str | None = option("File with a class per line; else the folders' names, sorted.")
    shards: int | None = option("Number of files; else one per 128 MiB.", minimum=1)
    size: int | None = option(
        "Shrink larger images to this number of pixels on the shorter side.", minimum=1
    )


def run(options: Options) -> int:
    """Writes the TFRecord files, and prints the --set that makes an experiment read them."""
    images, output = _check(options)
    source = _source(images, options.classes).build()
    with Progress() as progress:
        with progress.work(f"reading {images}") as advance:
            index = open_images(source, progress=advance)
        total = len(index.size)
        num_shards = min(total, options.shards or -(-int(index.size.sum()) // SHARD_BYTES))
        with progress.work(f"writing {output}") as advance:
            write_records(
                source, output, num_shards=num_shards, size=options.size, progress=advance
            )
    shards = sorted(output.glob("*.tfrecord"))
    size = sum(file.stat().st_size for file in shards)
    num_classes = source.p.num_classes
    print(
        f"{output}: {total:,} images of {num_classes:,} classes in {len(shards):,} files,"
        f" {size:,} bytes"
    )
    print(f"use: {_usage(output, num_classes)}")
    return 0


def _check(options: Options) -> tuple[str, Path]:
    """Returns --images and --output; raises UsageError if one of them is missing."""
    if options.images is None or options.output is None:
        name = "images" if options.images is None else "output"
        raise UsageError(f"no {name} given: lingo records --images=FOLDER --output=FOLDER")
    return options.images, new_output(options.output, "folder")


def _source(images: str, classes: str | None) -> Params:
    """Returns the Params of a source that reads the images, with the number of classes set."""
    names = read_classes(classes) if classes else class_folders(images)
    return ImageFolder.params(folder=images, num_classes=len(names), classes=classes)


def _usage(output: Path, num_classes: int) -> str:
    """Returns the --set flag that makes an experiment read the records."""
    pattern, classes = (_quote(str(output / name)) for name in ("*.tfrecord", CLASSES))
    source = f"ImageRecords(pattern={pattern},classes={classes},num_classes={num_classes})"
    return f"--set={shlex.quote(f'train_input.source={source}')}"


def _quote(path: str) -> str:
    """Returns a path as text for an override, in quotes if it needs them."""
    return path if _PLAIN.fullmatch(path) else repr(path)
