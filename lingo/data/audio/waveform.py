"""Decodes WAV and FLAC by libsndfile, and converts them to one rate and one channel.

Samples are in units of 16-bit audio, -32,768..32,767, whatever the file holds: 8 to 32 bits,
floating point, A-law or mu-law. Channels are averaged.

Axes: L samples.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lingo.config.base.errors import check_package

MAX_BYTES = 1 << 30
"""The most bytes of an encoded recording."""

_RIFF = {b"RIFF": "<", b"RIFX": ">"}  # first bytes of a WAV file -> byte order
_MAGIC = (*_RIFF, b"RF64", b"fLaC")
_STREAMED_BYTES = 0x7FFF0000  # programs that write to a pipe declare this size, or more
_MIN_RATE, _MAX_RATE = 1_000, 768_000  # samples per second
_MAX_CHANNELS = 32
_MAX_FLOAT = 4.0  # floating-point audio lies in -1..1; louder peaks occur in mixes
_UNITS = 32_768
_UNKNOWN_SAMPLES = 1 << 60  # libsndfile's number where a header does not tell, or more
_PLAIN = (1, 3, 0xFFFE)  # formats in WAV whose samples have a fixed number of bytes
_ENCODINGS = ("PCM", "FLOAT", "DOUBLE", "ALAW", "ULAW")


class BrokenAudio(ValueError):
    """Bytes are no recording that can be decoded; the message is the reason."""


class Header(NamedTuple):
    """What the first bytes of a recording say."""

    sample_rate: int  # samples per second
    channels: int
    num_samples: int  # per channel
    encoding: str  # libsndfile's name, such as PCM_16

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.num_samples / self.sample_rate

    def samples_at(self, sample_rate: int) -> int:
        """Returns the number of samples after resampling."""
        return -(-self.num_samples * sample_rate // self.sample_rate)


def check_audio_packages() -> None:
    """Raises MissingPackage unless the packages that decode and resample are installed."""
    for name in ("soundfile", "soxr"):
        check_package(name, "reading audio", extra="audio")


def read_header(data: bytes, *, max_seconds: float) -> Header:
    """Returns the header of a WAV or FLAC file.

    Raises BrokenAudio if the data is neither, is cut off, is longer than `max_seconds`, or has a
    rate or number of channels that no recording has.
    """
    with _open(data) as file:
        header = Header(file.samplerate, file.channels, file.frames, file.subtype)
    _check_header(header, max_seconds)
    return header


def decode(data: bytes, *, sample_rate: int, max_seconds: float) -> np.ndarray:
    """Returns the samples of a WAV or FLAC file at a rate, float64 [L].

    L is `Header.samples_at`. Raises BrokenAudio as `read_header` does, and if the file ends before
    its header says, or its samples are no sound.
    """
    with _open(data) as file:
        header = Header(file.samplerate, file.channels, file.frames, file.subtype)
        _check_header(header, max_seconds)
        with _explain_errors():
            samples = file.read(dtype="float64", always_2d=True)
    if len(samples) != header.num_samples:
        raise BrokenAudio(
            f"it is cut off: its header declares {header.num_samples:,} samples, but"
            f" {len(samples):,} are there"
        )
    _check_samples(samples)
    mono = samples.mean(axis=1) * _UNITS
    if header.sample_rate == sample_rate:
        return mono
    import soxr

    # `soxr` may round the number of samples down, and the index knows it before.
    wanted = header.samples_at(sample_rate)
    resampled = soxr.resample(mono, header.sample_rate, sample_rate)[:wanted]
    return np.pad(resampled, [0, wanted - len(resampled)])


def _open(data: bytes) -> Any:
    """Returns a `soundfile.SoundFile` of encoded bytes; raises BrokenAudio for other bytes."""
    if not data:
        raise BrokenAudio("it is empty")
    if not data.startswith(_MAGIC):
        raise BrokenAudio(f"it is neither WAV nor FLAC: it begins with {data[:8]!r}")
    if data[:4] in _RIFF:
        _check_chunks(data, _RIFF[data[:4]])
    import soundfile

    with _explain_errors():
        return soundfile.SoundFile(io.BytesIO(data))


def _check_chunks(data: bytes, order: str) -> None:
    """Raises BrokenAudio if a WAV file lacks a part, or has fewer bytes than its header says."""
    if data[8:12] != b"WAVE":
        raise BrokenAudio(f"it is a RIFF file of {data[8:12]!r}, not of WAVE")
    at, has_format = 12, False
    while at + 8 <= len(data):
        name, (size,) = data[at : at + 4], struct.unpack_from(f"{order}I", data, at + 4)
        at += 8
        if name == b"data":
            if not has_format:
                raise BrokenAudio("its sound comes before the format of its samples")
            _check_size(size, len(data) - at)
            return
        if name == b"fmt ":
            _check_format(data[at : at + 16], order)
            has_format = True
        at += size + size % 2
    raise BrokenAudio("it is cut off: it has a header, but no sound")


def _check_size(declared: int, present: int) -> None:
    if not declared and present:
        raise BrokenAudio(
            f"its header declares no sound, but {present:,} bytes follow: the program that wrote it"
            " did not complete the header"
        )
    if present < declared < _STREAMED_BYTES:
        raise BrokenAudio(
            f"it is cut off: its header declares {declared:,} bytes of sound, but {present:,} are"
            " there"
        )


def _check_format(fmt: bytes, order: str) -> None:
    """Raises BrokenAudio if the numbers of a WAV file's format contradict each other."""
    if len(fmt) < 16:
        raise BrokenAudio("it is cut off: it ends in its header")
    kind, channels, rate, bytes_per_second, width, bits = struct.unpack(f"{order}HHIIHH", fmt)
    if kind not in _PLAIN:
        return
    if width != channels * -(-bits // 8):
        raise BrokenAudio(
            f"its header contradicts itself: {channels} channels of {bits} bits do not take {width}"
            " bytes"
        )
    if bytes_per_second not in (0, rate * width):
        raise BrokenAudio(
            f"its header contradicts itself: {rate:,} samples of {width} bytes per second are not"
            f" {bytes_per_second:,} bytes per second"
        )


def _check_header(header: Header, max_seconds: float) -> None:
    if not header.encoding.startswith(_ENCODINGS):
        raise BrokenAudio(f"its encoding is {header.encoding}: convert it to PCM of 16 bits")
    if header.num_samples >= _UNKNOWN_SAMPLES:
        raise BrokenAudio("its header does not say how long it is: write it again to a file")
    if not _MIN_RATE <= header.sample_rate <= _MAX_RATE:
        raise BrokenAudio(
            f"its header declares {header.sample_rate:,} samples per second, which is not in"
            f" {_MIN_RATE:,}..{_MAX_RATE:,}"
        )
    if not 1 <= header.channels <= _MAX_CHANNELS:
        raise BrokenAudio(f"its header declares {header.channels} channels")
    if not header.num_samples:
        raise BrokenAudio("it has no samples")
    if header.seconds > max_seconds:
        raise BrokenAudio(
            f"its header declares {header.seconds:,.0f} seconds, more than max_seconds="
            f"{max_seconds:g} of the source"
        )


def _check_samples(samples: np.ndarray) -> None:
    peak = float(np.abs(samples).max(initial=0.0))
    if not np.isfinite(peak):
        raise BrokenAudio("it has samples that are not finite")
    if peak > _MAX_FLOAT:
        raise BrokenAudio(
            f"its samples reach {peak:,.6g}, but audio in floating point lies in -1..1: divide them"
        )


@contextlib.contextmanager
def _explain_errors() -> Iterator[None]:
    """Turns errors of libsndfile into BrokenAudio."""
    import soundfile

    try:
        yield
    except (soundfile.SoundFileError, TypeError, ValueError) as error:
        reason = getattr(error, "error_string", str(error)).strip().rstrip(".")
        reason = reason.removeprefix("Error : ")
        raise BrokenAudio(f"it is damaged or cut off: libsndfile says {reason!r}") from None
