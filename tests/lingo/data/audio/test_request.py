"""Recordings of requests become the features of a batch, or one sentence."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from lingo.data.audio import request
from lingo.data.audio.audio_input import AudioInput
from lingo.data.audio.source import JsonlAudio
from lingo.data.derived_input import RepeatedInput
from lingo.data.request import BadRequest
from lingo.ops.speech.log_mel import LogMel
from tests.lingo.data.audio.recordings import encode, tone, write_clips

TEXTS = {"a.wav": "one", "b.flac": "two", "c.wav": "three"}


def audio(file: pathlib.Path, **fields: Any) -> AudioInput:
    given = {"source": JsonlAudio.params(file=str(file)), "batch_size": 4, "boundaries": [20, 90]}
    return AudioInput.params(**given | fields).build()


def sent(*files: bytes) -> dict[str, np.ndarray]:
    return {"audio": np.array(files, object)}


def test_requests_have_the_features_of_the_same_files_in_batches(tmp_path: pathlib.Path) -> None:
    file = write_clips(tmp_path, TEXTS)
    input = audio(file, shuffle=False, repeat=False)
    reader = audio(file, front_end=LogMel.params(noise_stddev=8.0)).request_reader()
    found = reader.read(sent(*[(tmp_path / name).read_bytes() for name in TEXTS]))
    assert found["features"].shape == (3, 64, 80)
    assert {*found} == {*reader.arrays}
    for row in range(3):
        expected = input.features(row)
        size = int(found["num_frames"][row])
        np.testing.assert_array_equal(found["features"][row, :size], expected)
        assert not found["features"][row, size:].any()


def test_requests_of_a_repeated_input_are_those_of_its_input(tmp_path: pathlib.Path) -> None:
    params = audio(write_clips(tmp_path, TEXTS)).p.copy()
    reader = RepeatedInput.params(input=params).build().request_reader()
    assert isinstance(reader, request.AudioRequests)
    assert reader.read(sent(encode(tone(0.2))))["num_frames"].tolist() == [18]


@pytest.mark.parametrize(("seconds", "length"), [(0.05, 16), (0.2, 32), (0.7, 90)])
def test_lengths_are_powers_of_two_or_the_longest(tmp_path, seconds: float, length: int) -> None:
    reader = audio(write_clips(tmp_path, TEXTS)).request_reader()
    assert reader.read(sent(encode(tone(seconds))))["features"].shape == (1, length, 80)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "audio[1]: it is empty: send a WAV or FLAC file as"),
        (b"ID3 and then an mp3", "audio[1]: it is neither WAV nor FLAC: it begins with b'ID3"),
        (encode(tone(0.5))[:9000], "audio[1]: it is cut off: its header declares 16,000 bytes"),
        (encode(tone(0.5), kind="FLAC")[:900], "audio[1]: it is damaged or cut off: libsndfile"),
        (encode(tone(0.01)), "audio[1]: it is shorter than a frame: it has 160 samples"),
        (
            encode(tone(1.0, rate=8000), rate=8000),
            "its 1.0 seconds are 98 frames, and the model takes up to 90: send shorter parts",
        ),
        (encode(tone(0.1, rate=500), rate=500), "declares 500 samples per second"),
    ],
)
def test_a_bad_recording_is_one_sentence(tmp_path, data: bytes, message: str) -> None:
    reader = audio(write_clips(tmp_path, TEXTS)).request_reader()
    with pytest.raises(BadRequest) as error:
        reader.read(sent(encode(tone(0.2)), data))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_small_file_of_many_samples_is_not_decoded(tmp_path, monkeypatch) -> None:
    silence = encode(np.zeros([48_000, 8]), rate=96_000, kind="FLAC")
    assert len(silence) < 5_000
    reader = audio(write_clips(tmp_path, TEXTS)).request_reader()
    assert reader.read(sent(silence))["num_frames"].tolist() == [48]
    monkeypatch.setattr(request, "_MAX_VALUES", 100_000)
    monkeypatch.delattr(request, "decode")
    with pytest.raises(BadRequest, match="its 8 channels have 384,000 samples, more than 100,000"):
        reader.read(sent(silence))
