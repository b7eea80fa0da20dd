"""Words in tones: letters differ, recordings differ, splits share none, files are as computed."""

from __future__ import annotations

import pathlib
import string
import wave
from typing import Any

import numpy as np
import pytest

from lingo.data import AudioInput, CharacterTokenizer
from lingo.datasets import tones
from lingo.datasets.tones import SAMPLE_RATE, WORDS, Tones, tone_samples, tone_words
from lingo.storage.files import StorageError


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def read(path: pathlib.Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert file.getframerate() == SAMPLE_RATE
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def test_each_letter_has_two_tones_of_its_own() -> None:
    letters = [tones._letter_steps(letter) for letter in string.ascii_lowercase]
    assert len(set(letters)) == 26
    assert all(1 <= a <= 6 and 1 <= b <= 6 and a != b for a, b in letters)
    assert tones._letter_steps(" ") == (0, 0)


def test_the_loudest_frequencies_are_the_ones_of_the_letters() -> None:
    number = next(n for n in range(50) if tone_words(n) == "four")
    samples = tone_samples(number).astype("d")
    spectrum = np.abs(np.fft.rfft(samples))
    hertz = np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)
    scale = 300 * 2 ** (np.arange(6) / 2)
    used = {step - 1 for letter in "four" for step in tones._letter_steps(letter)}
    power = [spectrum[abs(hertz / tone - 1) < 0.15].max() for tone in scale]
    unused = [power[i] for i in range(6) if i not in used]
    assert min(power[i] for i in used) > 2 * max(unused, default=0.0)


def test_recordings_have_one_to_three_words_and_differ() -> None:
    texts = [tone_words(number) for number in range(300)]
    assert {len(text.split()) for text in texts} == {1, 2, 3}
    assert {word for text in texts for word in text.split()} == set(WORDS)
    assert len({tone_samples(number).tobytes() for number in range(100)}) == 100


def test_splits_share_no_recording_and_files_are_as_computed() -> None:
    kept: dict[str, set[str]] = {}
    for split in ("train", "heldout"):
        source: dict[str, Any] = {"split": split, "num_recordings": 40, "heldout_fraction": 0.3}
        params = AudioInput.params(
            source=Tones.params(**source), tokenizer=CharacterTokenizer, batch_size=4
        )
        data = params.build()
        kept[split] = {*data.example_names(np.arange(data.num_examples()))}
    assert not kept["train"] & kept["heldout"]
    assert len(kept["train"] | kept["heldout"]) == 40
    folder = pathlib.Path(Tones.params(num_recordings=40).build().root())
    for path in sorted(folder.iterdir()):
        np.testing.assert_array_equal(read(path), tone_samples(int(path.stem)))


def test_files_of_another_process_stay(cache: pathlib.Path) -> None:
    folder = cache / "same"
    tones.write_tones(folder, num_recordings=2)
    tones.write_tones(folder, num_recordings=3)
    assert len(list(folder.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_told(cache: pathlib.Path) -> None:
    (cache / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file/tones"):
        tones.write_tones(cache / "file" / "tones", num_recordings=1)
