"""Digits that programs speak: synthesized voices, not people's.

    AudioInput.params(source=SpokenDigits.params(split="train"), batch_size=16)

Axes: L samples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.data.audio.source import AudioSource, JsonlAudio, Recording
from lingo.data.audio.waveform import BrokenAudio, check_audio_packages, decode
from lingo.data.files import DataError
from lingo.data.index_cache import cache_folder
from lingo.datasets.synthesizer import SYNTHESIZERS, Manner, Name, Voice, find_voices
from lingo.datasets.tones import WORDS
from lingo.metrics.media import wav_file
from lingo.ops import random
from lingo.storage.files import StorageError, explain_write_errors, new_folder

SAMPLE_RATE = 16_000
"""Samples per second of the recordings."""

LIST = "recordings.jsonl"
"""The file of a set that lists its recordings, for `JsonlAudio`, with voice and synthesizer."""

_VERSION = 1  # of the recordings; another number makes new files
_MAX_PROCESSES = 8
_MAX_SECONDS = 60.0  # of a recording
_SPEED = (140, 200)  # words per minute
_PITCH = (30, 70)
_SILENCE = (0.0, 0.25)  # seconds before and after a recording's words
_LOUDNESS = (1_500.0, 8_000.0)  # least and greatest amplitude of a recording
_NOISE = (5.0, 100.0)  # least and greatest standard deviation of a recording's noise


class Utterance(NamedTuple):
    """The words of a recording, and how they sound."""

    number: int  # of the recording
    synthesizer: Name
    voice: Voice
    text: str
    manner: Manner
    silences: tuple[float, float]  # seconds before and after the words
    amplitude: float  # of the loudest sample
    noise_stddev: float  # in units of 16-bit samples


class SpokenDigits(AudioSource):
    """Recordings of one to four digits by a speech synthesizer, with their names as transcripts.

    Voice, speed, pitch, loudness, noise and the silence around the words differ between recordings.
    Each speaker has a folder, and each folder is in one split: no held-out voice has a speaker of
    the training recordings. eSpeak NG's 101 variants in eight accents are 98 speakers. Flite's
    voices are for evaluations with another synthesizer. The recordings are written into the user's
    cache directory at first use, for which the synthesizer must be installed.
    """

    synthesizer: Name = "espeak-ng"  # the program that speaks
    num_recordings: int = 3_000  # in all splits
    split_by: Literal["file", "document", "folder"] = "folder"  # folder: the speaker

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_recordings")

    def root(self) -> str:
        name = f"{_VERSION}-{self.p.synthesizer}-{self.p.num_recordings}"
        return str(cache_folder("spoken_digits") / name)

    def recordings(self) -> Iterator[Recording]:
        folder = Path(self.root())
        if not folder.is_dir():
            write_spoken_digits(
                folder, synthesizer=self.p.synthesizer, num_recordings=self.p.num_recordings
            )
        yield from JsonlAudio.params(file=str(folder / LIST)).build().recordings()


def write_spoken_digits(folder: Path, *, synthesizer: Name, num_recordings: int) -> None:
    """Writes recordings 0, 1, ... as WAV files into a new folder, and `LIST`.

    If another process writes the folder first, its files stay. Raises DataError if the synthesizer
    is missing or fails, StorageError if the folder cannot be written.
    """
    check_audio_packages()
    try:
        with explain_write_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as partial:
            _write(partial, synthesizer, num_recordings)
    except (ParamError, StorageError):
        if not folder.is_dir():
            raise


def draw_utterance(number: int, synthesizer: Name, voices: Sequence[Voice]) -> Utterance:
    """Returns the words of a recording, and how they sound; it depends on the arguments alone.

    >>> draw_utterance(3, "flite", [Voice("kal", "1")]).text
    'nine'
    """
    voice, count, *words = random.uniform(_key(number, synthesizer, "words"), 6).tolist()
    manner = random.uniform(_key(number, synthesizer, "manner"), 6).tolist()
    speed, pitch, before, after, loudness, noise = manner
    chosen = words[: 1 + int(len(words) * count)]
    return Utterance(
        number,
        synthesizer,
        voices[int(len(voices) * voice)],
        " ".join(WORDS[int(len(WORDS) * word)] for word in chosen),
        Manner(round(_between(_SPEED, speed)), round(_between(_PITCH, pitch))),
        (_between(_SILENCE, before), _between(_SILENCE, after)),
        _between(_LOUDNESS, loudness),
        _between(_NOISE, noise),
    )


def _write(folder: Path, synthesizer: Name, num_recordings: int) -> None:
    program = SYNTHESIZERS[synthesizer]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_PROCESSES)) as pool:
        voices = find_voices(program, pool)

        def write(number: int) -> str:
            said = draw_utterance(number, synthesizer, voices)
            speech = program.speak(said.voice.name, said.text, said.manner)
            path = folder / said.voice.speaker[:12] / f"{number:05d}.wav"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(wav_file(_disturb(speech, said)[:, None], sample_rate=SAMPLE_RATE))
            row = {"audio": f"{path.parent.name}/{path.name}", "text": said.text}
            return json.dumps(row | {"voice": said.voice.name, "synthesizer": synthesizer})

        rows = list(pool.map(write, range(num_recordings)))
    (folder / LIST).write_text("".join(f"{row}\n" for row in rows))


def _disturb(speech: bytes, said: Utterance) -> np.ndarray:
    """Returns samples with an utterance's silences, loudness and noise, int16 [L]."""
    try:
        sound = decode(speech, sample_rate=SAMPLE_RATE, max_seconds=_MAX_SECONDS)
    except BrokenAudio as error:
        raise DataError(f"{said.synthesizer} wrote sound that cannot be read: {error}.") from None
    sound = np.pad(sound, [round(seconds * SAMPLE_RATE) for seconds in said.silences])
    sound *= said.amplitude / max(1.0, np.abs(sound).max())
    noise = random.normal(_key(said.number, said.synthesizer, "noise"), len(sound))
    return np.clip(np.round(sound + said.noise_stddev * noise), -32768, 32767).astype(np.int16)


def _between(ends: tuple[float, float], share: float) -> float:
    """Returns the number at a share of the way from the first end to the second."""
    return ends[0] + share * (ends[1] - ends[0])


def _key(number: int, synthesizer: Name, name: str) -> random.Key:
    text = f"spoken digits {_VERSION} {synthesizer} {name}"
    return random.fold(random.fold(random.root_key(0), random.text_hash(text)), number)
