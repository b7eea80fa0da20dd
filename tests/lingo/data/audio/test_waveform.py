"""Audio files of every kind are converted, or refused by one sentence."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.data.audio.waveform import BrokenAudio, check_audio_packages, decode, read_header
from tests.lingo.data.audio.recordings import RATE, encode, tone

SAMPLES = tone(0.5)
WAV, FLAC = encode(SAMPLES), encode(SAMPLES, kind="FLAC")


def read(data: bytes, rate: int = RATE) -> np.ndarray:
    return decode(data, sample_rate=rate, max_seconds=10)


def patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    """Returns a file with other numbers in its header."""
    content = bytearray(data)
    struct.pack_into(f"<{form}", content, at, *values)
    return bytes(content)


@pytest.mark.parametrize(
    ("kind", "encoding", "step"),
    [
        ("WAV", "PCM_U8", 2**-7),
        ("WAV", "PCM_16", 2**-15),
        ("WAV", "PCM_24", 2**-23),
        ("WAV", "PCM_32", 2**-31),
        ("WAV", "FLOAT", 2**-24),
        ("WAV", "DOUBLE", 2**-50),
        ("WAV", "ALAW", 2**-6),
        ("WAV", "ULAW", 2**-6),
        ("WAVEX", "PCM_16", 2**-15),
        ("RF64", "PCM_16", 2**-15),
        ("FLAC", "PCM_S8", 2**-7),
        ("FLAC", "PCM_16", 2**-15),
        ("FLAC", "PCM_24", 2**-23),
    ],
)
def test_every_encoding_becomes_units_of_16_bits(kind: str, encoding: str, step: float) -> None:
    data = encode(SAMPLES, kind=kind, encoding=encoding)
    header = read_header(data, max_seconds=10)
    assert header[:3] == (RATE, 1, len(SAMPLES))
    np.testing.assert_allclose(read(data) / 32_768, SAMPLES, atol=1.1 * step)


def test_16_bits_are_read_exactly() -> None:
    numbers = np.array([-32768, -1, 0, 1, 32767, 12345])
    found = read(encode(numbers.astype(np.int16)))
    np.testing.assert_array_equal(found, numbers)


def test_channels_are_averaged() -> None:
    other = tone(0.5, hertz=900, seed=1)
    found = read(encode(np.stack([SAMPLES, other], axis=1), kind="FLAC"))
    np.testing.assert_allclose(found / 32_768, (SAMPLES + other) / 2, atol=2**-15)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_a_tone_is_resampled_to_the_same_tone(rate: int) -> None:
    data = encode(tone(0.5, rate=rate), rate=rate)
    found = read(data) / 32_768
    assert len(found) == read_header(data, max_seconds=10).samples_at(RATE)
    expected = 0.3 * np.sin(2 * np.pi * 440 * np.arange(len(found)) / RATE)
    middle = slice(800, -800)
    assert np.abs(found[middle] - expected[middle]).std() < 0.015  # the noise of `tone`


CONVERTED = {
    "sizes of a pipe": patched(patched(WAV, 40, "I", 0x7FFFF000), 4, "I", 0x7FFFF024),
    "the largest size": patched(WAV, 40, "I", 0xFFFFFFFF),
    "no bytes per second": patched(WAV, 28, "I", 0),
    "an unknown part": WAV[:36] + b"LIST\x05\0\0\0abcde\0" + WAV[36:],
    "text at the end": WAV + b"LIST\x04\0\0\0abcd",
    "a wrong size of the whole": patched(WAV, 4, "I", 12),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_harmless_oddities_are_read(name: str) -> None:
    np.testing.assert_array_equal(read(CONVERTED[name])[: len(SAMPLES)], read(WAV))


REFUSED: dict[str, tuple[Callable[[], bytes] | bytes, str]] = {
    "empty": (b"", "it is empty"),
    "a text": (b"hello, world", "neither WAV nor FLAC: it begins with b'hello, w'"),
    "an MP3": (b"ID3\x03" + bytes(99), "neither WAV nor FLAC"),
    "an MP3 without a tag": (b"\xff\xfb\x90\x00" + bytes(99), "neither WAV nor FLAC"),
    "an Ogg": (b"OggS" + bytes(99), "neither WAV nor FLAC"),
    "a page of HTML": (b"<!DOCTYPE html>", "neither WAV nor FLAC"),
    "a video": (b"RIFF\x40\0\0\0AVI LIST" + bytes(99), "RIFF file of b'AVI ', not of WAVE"),
    "a magic alone": (b"RIFF", "RIFF file of b'', not of WAVE"),
    "FLAC's magic alone": (b"fLaC", "damaged or cut off: libsndfile says"),
    "noise after FLAC's magic": (b"fLaC" + bytes(range(200)), "damaged or cut off"),
    "a cut header": (WAV[:30], "cut off: it ends in its header"),
    "a header without sound": (WAV[:36], "cut off: it has a header, but no sound"),
    "a cut WAV": (
        WAV[:1000],
        "cut off: its header declares 16,000 bytes of sound, but 956 are there",
    ),
    "a cut FLAC": (FLAC[: len(FLAC) // 2], "damaged or cut off"),
    "a flipped byte of FLAC": (
        FLAC[: len(FLAC) // 2] + bytes([FLAC[len(FLAC) // 2] ^ 255]) + FLAC[len(FLAC) // 2 + 1 :],
        "damaged or cut off",
    ),
    "no samples": (lambda: encode(SAMPLES[:0]), "it has no samples"),
    "an unfinished header": (
        patched(WAV, 40, "I", 0),
        "declares no sound, but 16,000 bytes follow",
    ),
    "sound before its format": (WAV[:12] + WAV[36:], "sound comes before the format"),
    "a rate of 0": (patched(WAV, 24, "I", 0), "header contradicts itself: 0 samples"),
    "another rate": (
        patched(WAV, 24, "I", 8000),
        "header contradicts itself: 8,000 samples of 2 bytes per second are not 32,000 bytes",
    ),
    "a rate that no recording has": (
        patched(WAV, 24, "II", 2_000_000_000, 4_000_000_000),
        "declares 2,000,000,000 samples per second, which is not in 1,000..768,000",
    ),
    "a rate of a clock": (patched(WAV, 24, "II", 50, 100), "declares 50 samples per second"),
    "two channels that are one": (
        patched(WAV, 22, "H", 2),
        "header contradicts itself: 2 channels of 16 bits do not take 2 bytes",
    ),
    "no channels": (patched(WAV, 22, "H", 0), "0 channels of 16 bits"),
    "8 bits that are 16": (patched(WAV, 34, "H", 8), "1 channels of 8 bits"),
    "500 channels": (
        patched(patched(WAV, 22, "H", 500), 28, "IH", 16_000_000, 1000),
        "declares 500 channels",
    ),
    "an unknown encoding": (patched(WAV, 20, "H", 0x161), "damaged or cut off"),
    "ADPCM": (lambda: encode(SAMPLES, encoding="IMA_ADPCM"), "encoding is IMA_ADPCM: convert it"),
    "not numbers": (
        lambda: encode(np.array([0.0, np.nan, 0.5]), encoding="FLOAT"),
        "samples that are not finite",
    ),
    "floats as large as integers": (
        lambda: encode(SAMPLES / 0.3 * 20_000, encoding="FLOAT"),
        "but audio in floating point lies in -1..1",
    ),
    "a FLAC of an unknown length": (
        FLAC[:21] + bytes([FLAC[21] & 0xF0, 0, 0, 0, 0]) + FLAC[26:],
        "does not say how long it is",
    ),
    "a FLAC of a huge length": (
        FLAC[:21] + bytes([FLAC[21] | 0x0F, 255, 255, 255, 255]) + FLAC[26:],
        "more than max_seconds=10",
    ),
    "too long": (lambda: encode(np.zeros(11 * RATE)), "declares 11 seconds, more than max_seconds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_recording_is_refused_by_one_sentence(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(BrokenAudio) as raised:
        read(data() if callable(data) else data)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    without = {"soxr": lambda: None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: without.get(name, lambda: find(name))()
    )
    with pytest.raises(MissingPackage, match=r"reading audio needs soxr.*'lingo-tf\[audio\]'"):
        check_audio_packages()


def test_two_thousand_damaged_files_are_read_or_refused() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        for whole in (WAV[:1200], FLAC[:1500], WAV, FLAC):
            data = bytearray(whole)
            for at in rng.integers(0, min(len(data), 60), 3):
                data[at] = rng.integers(256)
            try:
                assert np.isfinite(read(bytes(data))).all()
            except BrokenAudio:
                continue
