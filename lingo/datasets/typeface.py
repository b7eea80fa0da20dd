"""The typefaces that matplotlib installs, and the classes of their letters and digits."""

from __future__ import annotations

import importlib.util
import io
import os
from typing import Literal

from PIL import ImageFont

from lingo.config.base.errors import MissingPackage
from lingo.data.files import DataError, open_file

Split = Literal["all", "train", "heldout"]

FAMILIES = {
    "DejaVu": (
        "DejaVuSans",
        "DejaVuSans-Bold",
        "DejaVuSans-BoldOblique",
        "DejaVuSans-Oblique",
        "DejaVuSansMono",
        "DejaVuSansMono-Bold",
        "DejaVuSansMono-BoldOblique",
        "DejaVuSansMono-Oblique",
        "DejaVuSerif",
        "DejaVuSerif-Bold",
        "DejaVuSerif-BoldItalic",
        "DejaVuSerif-Italic",
    ),
    "STIX": ("STIXGeneral", "STIXGeneralBol", "STIXGeneralBolIta", "STIXGeneralItalic"),
    "Computer Modern": ("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10"),
}
"""Faces by family; all faces of a family were drawn by the same project.

These are the 22 of 40 faces in matplotlib 3.11 that have all letters and digits. Of the other
faces, `cmsy10` and `cmex10` have symbols instead of letters, `LastResortHE-Regular` has boxes, and
the rest have nothing there. `cmmi10` has old-style digits; some hang below the baseline.
"""

HELDOUT_FAMILIES = ("Computer Modern",)

_CLASS_NAMES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
CLASSES = tuple(
    name + name.lower() if name.lower() not in _CLASS_NAMES else name for name in _CLASS_NAMES
)
"""The characters of each class: "0", "A", "Cc", "a".

They are the 47 classes of EMNIST Balanced (Cohen et al. 2017): 15 small letters that look like
their capitals share a class with them.
"""


def list_faces(split: Split) -> list[str]:
    """Returns the faces of a split; training and held-out faces share no family.

    >>> list_faces("heldout")
    ['cmb10', 'cmmi10', 'cmr10', 'cmss10', 'cmti10', 'cmtt10']
    """
    return [
        face
        for family, faces in FAMILIES.items()
        for face in faces
        if split in ("all", "heldout" if family in HELDOUT_FAMILIES else "train")
    ]


def open_font(face: str, size: float) -> ImageFont.FreeTypeFont:
    """Returns a face as a font of Pillow, in a size in pixels.

    Raises DataError if the face's file is not a font, and the errors of `read_font`.
    """
    content = io.BytesIO(read_font(face))
    basic = ImageFont.Layout.BASIC  # this layout is the same on every machine
    try:
        return ImageFont.truetype(content, size, layout_engine=basic)
    except OSError as error:
        raise DataError(f"{face}.ttf of matplotlib is not a font: {error}.") from error


def read_font(face: str) -> bytes:
    """Returns the content of a face's file.

    Raises MissingPackage if matplotlib is not installed, DataError if the file cannot be read.
    """
    spec = importlib.util.find_spec("matplotlib")  # importing matplotlib would take long
    if spec is None or spec.origin is None:
        raise MissingPackage(
            "glyphs need the fonts of matplotlib, which is not installed:"
            " pip install 'lingo-tf[data]'"
        )
    folder = os.path.join(os.path.dirname(spec.origin), "mpl-data", "fonts", "ttf")
    with open_file(os.path.join(folder, f"{face}.ttf")) as file:
        return file.read()
