"""A person's voice: prompts of a telephone system, from a package of Debian.

apt-get install asterisk-core-sounds-en-wav
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator, Mapping
from typing import Literal

from lingo.config.base.types import FilePath
from lingo.data.audio.source import AudioSource, Recording
from lingo.data.files import DataError
from lingo.datasets.tones import WORDS

FOLDER = "/usr/share/asterisk/sounds/en_US_f_Allison"
"""Where Debian's package has the recordings."""

Kind = Literal["digits", "letters"]

_TEXTS: Mapping[Kind, Mapping[str, str]] = {
    "digits": {str(digit): word for digit, word in enumerate(WORDS)},
    "letters": {letter: letter for letter in string.ascii_lowercase},
}
"""Folder of the package -> name of a file without .wav -> its words."""


class Prompts(AudioSource):
    """Digits or letters that a person says alone, as Asterisk announces numbers.

    These are 10 digits, with their names as transcripts, or 26 letters, by one speaker, Allison
    Smith, at 8,000 samples per second: too few to train on, or to measure a rate. lingo has no copy
    of them. Debian's `asterisk-core-sounds-en-wav` installs them, under CC BY-SA 3.0.
    """

    kind: Kind = "digits"
    folder: FilePath = FOLDER  # has the folders digits and letters

    def root(self) -> str:
        return os.path.join(os.path.expanduser(self.p.folder), self.p.kind)

    def recordings(self) -> Iterator[Recording]:
        root = self.root()
        if not os.path.isdir(root):
            raise DataError(
                f"{root} is missing: apt-get install asterisk-core-sounds-en-wav, or set folder."
            )
        for name, text in _TEXTS[self.p.kind].items():
            yield Recording(os.path.join(root, f"{name}.wav"), text, self.describe())
