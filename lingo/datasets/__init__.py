"""Data that is drawn, found or synthesized: letters, photographs, digits, docstrings, speech."""

from __future__ import annotations

from lingo.datasets.blob_input import BlobInput
from lingo.datasets.digits import Digits, MnistDigits
from lingo.datasets.docstrings import Docstrings, Doctests
from lingo.datasets.glyph_input import GlyphInput
from lingo.datasets.glyph_scene_input import GlyphSceneInput, LetterSceneInput
from lingo.datasets.photographs import Photographs
from lingo.datasets.prompts import Prompts
from lingo.datasets.sample_table import SampleTable, write_sample_table
from lingo.datasets.signatures import FirstParagraphs, Signatures
from lingo.datasets.spoken_digits import SpokenDigits, write_spoken_digits
from lingo.datasets.tones import Tones, write_tones

__all__ = [
    "BlobInput",
    "Digits",
    "Docstrings",
    "Doctests",
    "FirstParagraphs",
    "GlyphInput",
    "GlyphSceneInput",
    "LetterSceneInput",
    "MnistDigits",
    "Photographs",
    "Prompts",
    "SampleTable",
    "Signatures",
    "SpokenDigits",
    "Tones",
    "write_sample_table",
    "write_spoken_digits",
    "write_tones",
]
