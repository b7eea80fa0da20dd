"""Programs that speak a text: eSpeak NG, which synthesizes by formants, and Flite.

    apt-get install espeak-ng flite

Both are separate programs; their output is not part of lingo.
"""

from __future__ import annotations

import abc
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from lingo.data.files import DataError

Name = Literal["espeak-ng", "flite"]
"""The command of a synthesizer."""

PHRASE = "one two three four five"
"""Every voice says it once, to find voices that sound the same."""

_SECONDS = 60  # most seconds that a program may take for one text
_USUAL_SPEED, _USUAL_PITCH = 175, 50  # eSpeak NG's own


class Manner(NamedTuple):
    """How a text is spoken."""

    speed: int = _USUAL_SPEED  # words per minute
    pitch: int = _USUAL_PITCH  # 0 to 99, as eSpeak NG counts it


class Voice(NamedTuple):
    """A voice of a synthesizer."""

    name: str  # as the program takes it, such as en-us+f3
    speaker: str  # a digest; voices that may be one speaker have the same one


class Synthesizer(abc.ABC):
    """A program that writes WAV files."""

    name: ClassVar[Name]

    @abc.abstractmethod
    def voice_names(self) -> list[str]:
        """Returns the names of English voices; raises DataError without the program."""

    @abc.abstractmethod
    def speaker_of(self, voice: str) -> str:
        """Returns the part of a voice's name that all voices of its speaker share."""

    @abc.abstractmethod
    def arguments(self, voice: str, text: str, manner: Manner, file: str) -> list[str]:
        """Returns the arguments that make the program write a WAV file."""

    def speak(self, voice: str, text: str, manner: Manner) -> bytes:
        """Returns a WAV file; raises DataError if the program is missing or fails."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "speech.wav"
            self._run(*self.arguments(voice, text, manner, str(file)))
            try:
                return file.read_bytes()
            except OSError:
                raise DataError(f"{self.name} wrote no sound with the voice {voice!r}.") from None

    def _run(self, *arguments: str) -> str:
        """Runs the program, and returns its output."""
        command = [self.name, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, check=True, timeout=_SECONDS, text=True
            )
        except FileNotFoundError:
            raise DataError(
                f"{self.name} is not installed: apt-get install espeak-ng flite"
            ) from None
        except OSError as error:
            raise DataError(f"{self.name} cannot be run: {error.strerror}.") from None
        except subprocess.TimeoutExpired:
            raise DataError(f"{self.name} took over {_SECONDS} seconds for one text.") from None
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip().rpartition("\n")[2]
            raise DataError(
                f"{' '.join(command)} ended with code {error.returncode}: {reason}"
            ) from None
        return done.stdout


class EspeakNg(Synthesizer):
    """eSpeak NG: each of eight accents of English with each of its variants, such as en-us+f3."""

    name = "espeak-ng"

    # en is British English: with its other name, en-gb, eSpeak NG 1.51 ignores variants
    accents: ClassVar[Sequence[str]] = (
        "en",
        "en-029",
        "en-gb-scotland",
        "en-gb-x-gbclan",
        "en-gb-x-gbcwmd",
        "en-gb-x-rp",
        "en-us",
        "en-us-nyc",
    )

    def voice_names(self) -> list[str]:
        words = self._run("--voices=variant").split()
        variants = sorted(word.removeprefix("!v/") for word in words if word.startswith("!v/"))
        return [f"{accent}+{variant}" for accent in self.accents for variant in variants]

    def speaker_of(self, voice: str) -> str:
        return voice.partition("+")[2]  # a variant is a speaker with several accents

    def arguments(self, voice: str, text: str, manner: Manner, file: str) -> list[str]:
        speed, pitch = manner
        return ["-v", voice, "-s", str(speed), "-p", str(pitch), "-w", file, text]


class Flite(Synthesizer):
    """Flite (Black and Lenzo 2001): its voices come from recordings of people. Pitch is ignored."""

    name = "flite"

    def voice_names(self) -> list[str]:
        names = self._run("-lv").partition(":")[2].split()
        return sorted(name for name in names if not name.endswith("_time"))  # those say times only

    def speaker_of(self, voice: str) -> str:
        return voice.removesuffix("16")  # kal16 is kal at another sample rate

    def arguments(self, voice: str, text: str, manner: Manner, file: str) -> list[str]:
        stretch = f"duration_stretch={_USUAL_SPEED / manner.speed:.3f}"
        return ["-voice", voice, "--setf", stretch, "-t", text, "-o", file]


SYNTHESIZERS: Mapping[Name, Synthesizer] = {"espeak-ng": EspeakNg(), "flite": Flite()}


def find_voices(synthesizer: Synthesizer, pool: Executor) -> list[Voice]:
    """Returns the voices that differ, in the order of their names, each with its speaker.

    Names whose sounds of `PHRASE` are equal are one voice, which has the first of the names. Two
    voices have the same speaker if `speaker_of` says so, if a name of one sounds like a name of the
    other, or if both have the speaker of a third. Raises DataError if the program is missing or
    fails.
    """
    names = synthesizer.voice_names()
    sounds = pool.map(lambda name: synthesizer.speak(name, PHRASE, Manner()), names)
    digests = {
        name: hashlib.sha256(sound).hexdigest() for name, sound in zip(names, sounds, strict=True)
    }
    speakers = join_groups(digests, synthesizer.speaker_of)
    first = {digest: name for name, digest in reversed(digests.items())}
    return [Voice(name, speakers[name]) for name in sorted(first.values())]


def join_groups(digests: Mapping[str, str], group_of: Callable[[str], str]) -> dict[str, str]:
    """Returns name -> the least digest of its set of names.

    Names with the same digest or the same group are in the same set.

    >>> digests = {"us+a": "1", "us+b": "2", "gb+a": "3", "gb+b": "1", "us+c": "4"}
    >>> join_groups(digests, lambda name: name[-1])
    {'us+a': '1', 'us+b': '1', 'gb+a': '1', 'gb+b': '1', 'us+c': '4'}
    """
    found, before = dict(digests), dict[str, str]()
    while found != before:
        before = found
        found = _lower(found, {name: group_of(name) for name in found})
        found = _lower(found, digests)
    return found


def _lower(values: Mapping[str, str], groups: Mapping[str, str]) -> dict[str, str]:
    """Returns name -> least value of its group."""
    least = dict[str, str]()
    for name, value in values.items():
        group = groups[name]
        least[group] = min(least.get(group, value), value)
    return {name: least[groups[name]] for name in values}
