"""Recordings that tests synthesize: tones in noise, in any format."""

from __future__ import annotations

import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import soundfile

RATE = 16_000


def tone(seconds: float, *, hertz: float = 440.0, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """Returns a tone in noise, float64 in -1..1."""
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(size=len(t))
    return 0.3 * np.sin(2 * np.pi * hertz * t) + 0.01 * noise


def encode(
    samples: np.ndarray, *, rate: int = RATE, kind: str = "WAV", encoding: str = "PCM_16"
) -> bytes:
    """Returns a file's content; samples are in -1..1, [L] or [L, channels]."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=encoding)
    return file.getvalue()


def write_clips(
    folder: pathlib.Path, texts: Mapping[str, str], *, seconds: Mapping[str, float] | None = None
) -> pathlib.Path:
    """Writes name.wav (.flac for names in "f") per text, and clips.jsonl, whose path it returns."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    for i, (name, text) in enumerate(texts.items()):
        duration = (seconds or {}).get(name, 0.2 + 0.1 * i)
        kind = "FLAC" if name.endswith(".flac") else "WAV"
        data = encode(tone(duration, hertz=200 + 100 * i, seed=i), kind=kind)
        (folder / name).write_bytes(data)
        lines.append({"audio": name, "text": text})
    file = folder / "clips.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
