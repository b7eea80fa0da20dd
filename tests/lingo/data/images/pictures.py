"""What tests of encoded images share: smooth pictures, and files of them."""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
from PIL import Image

from lingo.config.lazy import tf


def picture(height: int = 24, width: int = 32, *, seed: int = 0) -> np.ndarray:
    """Returns a smooth picture of random colours, uint8 [height, width, 3]."""
    coarse = np.random.default_rng(seed).integers(0, 256, [4, 4, 3], np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encode(pixels: np.ndarray | Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    """Returns an encoded image; a JPEG of quality 95."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    stream = io.BytesIO()
    image.save(stream, form, **{"quality": 95} | options)
    return stream.getvalue()


def decode_by_pillow(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Returns a whole image, uint8 [H, W, C] or [H, W]."""
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def write_folder(root: pathlib.Path, *, num: int = 4, classes: tuple[str, ...] = ("cat", "dog")):
    """Writes `num` images of each class, JPEG and PNG in turn; returns the folder."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(num):
            form = ("JPEG", "PNG")[i % 2]
            data = encode(picture(20 + i, 30, seed=100 * label + i), form)
            (root / name / f"{i}.{form.lower()}").write_bytes(data)
    return root


def write_example(writer: Any, data: bytes, label: int, image: str, label_name: str) -> None:
    """Writes a tf.train.Example with an image and a label, as TensorFlow does."""
    feature = {
        image: tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
        label_name: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    writer.write(example.SerializeToString())
