"""Invented speech: words that are spelled in tones, not spoken by people.

    AudioInput.params(source=Tones.params(split="train"), batch_size=16)

Axes: L samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.data.audio.source import AudioSource, Recording
from lingo.data.index_cache import cache_folder
from lingo.metrics.media import wav_file
from lingo.ops import random
from lingo.storage.files import StorageError, explain_write_errors, new_folder

SAMPLE_RATE = 8_000
"""Samples per second of the recordings."""

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_VERSION = 1  # of the sounds; another number makes new files
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STEPS = 6  # tones of the scale; a letter is two of them
_LOWEST, _RATIO = 300.0, 2**0.5  # hertz of the lowest tone, and ratio between neighbours
_DETUNE = 0.3  # a recording's pitch is off by up to this share of a step
_SECONDS = (0.04, 0.09)  # shortest and longest tone
_LOUDNESS = (1_500.0, 8_000.0)  # least and greatest amplitude of a recording
_NOISE = (20.0, 300.0)  # least and greatest standard deviation of a recording's noise
_FADE = 0.005  # seconds in which a tone swells and fades


class Tones(AudioSource):
    """Recordings of one to three words, each letter two tones, with the words as transcripts.

    Pitch, speed, loudness and noise differ between recordings. A recording is a function of its
    number, so that `num_recordings` recordings begin with those of a smaller number. They are
    written as WAV files into the user's cache directory at first use.
    """

    num_recordings: int = 1_000  # in all splits

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_recordings")

    def root(self) -> str:
        return str(cache_folder("tones") / f"{_VERSION}-{self.p.num_recordings}")

    def recordings(self) -> Iterator[Recording]:
        folder = Path(self.root())
        if not folder.is_dir():
            write_tones(folder, num_recordings=self.p.num_recordings)
        for number in range(self.p.num_recordings):
            path = os.path.join(folder, _file_name(number))
            yield Recording(path, tone_words(number), self.describe())


def write_tones(folder: Path, *, num_recordings: int) -> None:
    """Writes recordings 0, 1, ... as WAV files into a new folder.

    If another process does so at the same time, its files stay. Raises StorageError if the folder
    cannot be written.
    """
    try:
        with explain_write_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as partial:
            for number in range(num_recordings):
                file = wav_file(tone_samples(number)[:, None], sample_rate=SAMPLE_RATE)
                (partial / _file_name(number)).write_bytes(file)
    except (ParamError, StorageError):
        if not folder.is_dir():
            raise


def tone_words(number: int) -> str:
    """Returns the words of a recording.

    >>> tone_words(3)
    'zero four four'
    """
    drawn = random.uniform(_key(number, "words"), 4)
    count = 1 + int(3 * drawn[0])
    return " ".join(WORDS[int(len(WORDS) * x)] for x in drawn[1 : 1 + count])


def tone_samples(number: int) -> np.ndarray:
    """Returns the sound of a recording, int16 [L], at `SAMPLE_RATE`.

    >>> bool(np.array_equal(tone_samples(3), tone_samples(3)))
    True
    """
    detune, speed, loudness, noise = random.uniform(_key(number, "voice"), 4).tolist()
    text = tone_words(number)
    jitter = random.uniform(_key(number, "jitter"), len(text) + 2, 2)
    pitch = _RATIO ** (_DETUNE * (2 * detune - 1))
    silence = np.zeros(int(0.05 * SAMPLE_RATE))
    parts = [silence]
    for letter, lengths in zip(text, jitter[2:].tolist(), strict=True):
        for step, length in zip(_letter_steps(letter), lengths, strict=True):
            seconds = _between(_SECONDS, 0.7 * speed + 0.3 * length)
            parts.append(_tone(step and pitch * _LOWEST * _RATIO ** (step - 1), seconds))
    sound = _between(_LOUDNESS, loudness) * np.concatenate([*parts, silence])
    hiss = _between(_NOISE, noise) * random.normal(_key(number, "noise"), len(sound))
    return np.clip(np.round(sound + hiss), -32768, 32767).astype(np.int16)


def _between(ends: tuple[float, float], share: float) -> float:
    """Returns the number at a share of the way from the first end to the second."""
    return ends[0] + share * (ends[1] - ends[0])


def _letter_steps(letter: str) -> tuple[int, int]:
    """Returns the two tones of a letter, each in 1.._STEPS and unequal; a space is silence, 0."""
    if letter == " ":
        return 0, 0
    first, other = divmod(_LETTERS.index(letter), _STEPS - 1)
    return first + 1, other + 1 + (other >= first)


def _tone(hertz: float, seconds: float) -> np.ndarray:
    """Returns a tone of amplitude 1 that swells and fades, float64 [L]; 0 hertz: silence."""
    t = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    envelope = np.minimum(1.0, np.minimum(t, t[::-1]) / _FADE)
    return envelope * np.sin(2 * np.pi * hertz * t)


def _file_name(number: int) -> str:
    return f"{number:05d}.wav"


def _key(number: int, name: str) -> random.Key:
    root = random.fold(random.root_key(0), random.text_hash(f"tones {_VERSION} {name}"))
    return random.fold(root, number)
