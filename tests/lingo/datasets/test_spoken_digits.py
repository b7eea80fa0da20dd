"""Spoken digits: splits share no speaker, voice or sound; a set is whole, or not there.

Scripts stand in for the synthesizers: each voice has one sound, whatever it says.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil
import wave
from typing import Any

import numpy as np
import pytest

from lingo.data.files import DataError
from lingo.datasets.spoken_digits import LIST, SAMPLE_RATE, SpokenDigits, write_spoken_digits
from lingo.datasets.synthesizer import SYNTHESIZERS, EspeakNg, Manner, join_groups
from lingo.datasets.tones import WORDS
from lingo.metrics.media import wav_file

VARIANTS = ("Adam", "caleb", "klatt", "klatt6", "f1", "f2", "f3", "m1", "m2", "m3", "m4", "whisper")
TWINS = {"en+klatt": "en+klatt6", "en-us+caleb": "en-us+klatt", "en-029+f1": "en-029+f2"}
"""Names of voices with the same sound."""

LIST_OF_VARIANTS = "Pty Language Age/Gender VoiceName File Other\n" + "".join(
    f" 5  variant  --/M  {name}  !v/{name}\n" for name in VARIANTS
)

ESPEAK = """#!/bin/sh
if [ "$1" = --voices=variant ]; then exec cat {home}/variants; fi
echo "$@" >> {home}/calls
exec cp "{home}/$2.wav" "$8"
"""
FLITE = """#!/bin/sh
if [ "$1" = -lv ]; then echo "Voices available: kal awb_time kal16 slt "; exit; fi
echo "$@" >> {home}/calls
exec cp "{home}/$2.wav" "$8"
"""


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns the folder with sounds and calls of stand-ins, which alone are on PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, script in (("espeak-ng", ESPEAK), ("flite", FLITE)):
        install(folder, name, script.format(home=tmp_path))
    for name in ("cat", "cp", "sh"):
        (folder / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder))
    (tmp_path / "variants").write_text(LIST_OF_VARIANTS)
    for number, voice in enumerate([*EspeakNg().voice_names(), "kal", "kal16", "slt"]):
        pitch = np.sin(np.arange(4_000) * (100 + number) / 4_000)
        sound = (9_000 * pitch).astype(np.int16)
        (tmp_path / f"{voice}.wav").write_bytes(wav_file(sound[:, None], sample_rate=22_050))
    for name, other in TWINS.items():
        shutil.copy(tmp_path / f"{name}.wav", tmp_path / f"{other}.wav")
    return tmp_path


def install(folder: pathlib.Path, name: str, script: str) -> None:
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def rows(folder: pathlib.Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / LIST).read_text().splitlines()]


def samples(path: pathlib.Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels()) == (SAMPLE_RATE, 1)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(int)


def split_rows(split: Any) -> list[dict[str, str]]:
    """Returns the rows of the recordings of a split."""
    source = SpokenDigits.params(num_recordings=150, split=split, heldout_fraction=0.3).build()
    names = {file.name for file in source.files()}
    return [row for row in rows(pathlib.Path(source.root())) if row["audio"] in names]


def test_splits_share_no_speaker_no_voice_and_no_sound(home: pathlib.Path) -> None:
    train, heldout = split_rows("train"), split_rows("heldout")
    assert len(train) + len(heldout) == 150
    assert min(len(train), len(heldout)) > 10
    parts = [{row["voice"] for row in part} for part in (train, heldout)]
    sounds = [{hashlib.sha256((home / f"{v}.wav").read_bytes()).digest() for v in p} for p in parts]
    joined = {"caleb": "klatt", "klatt6": "klatt", "f2": "f1"}  # by twins
    variants = [{joined.get(v := n.partition("+")[2], v) for n in part} for part in parts]
    for first, second in (parts, sounds, variants):
        assert not first & second
    folders = [{row["audio"].partition("/")[0] for row in part} for part in (train, heldout)]
    assert not folders[0] & folders[1]


def test_equal_sounds_are_one_voice(home: pathlib.Path) -> None:
    write_spoken_digits(home / "set", synthesizer="espeak-ng", num_recordings=150)
    names = {row["voice"] for row in rows(home / "set")}
    assert not any({name, other} <= names for name, other in TWINS.items())
    assert len(names) > 50
    assert not any(name.startswith("en-gb+") for name in names)  # eSpeak NG has one voice for them


def test_recordings_are_functions_of_their_numbers(home: pathlib.Path) -> None:
    for number in (10, 20):
        write_spoken_digits(home / f"{number}", synthesizer="flite", num_recordings=number)
    small, large = rows(home / "10"), rows(home / "20")
    assert small == large[:10]
    for row in small:
        assert (home / "10" / row["audio"]).read_bytes() == (
            home / "20" / row["audio"]
        ).read_bytes()


def test_texts_are_one_to_four_digits_and_sets_differ(home: pathlib.Path) -> None:
    kinds: tuple[Any, ...] = ("espeak-ng", "flite")
    for name in kinds:
        write_spoken_digits(home / name, synthesizer=name, num_recordings=60)
    texts = {name: [row["text"] for row in rows(home / name)] for name in kinds}
    for found in texts.values():
        assert {len(text.split()) for text in found} == {1, 2, 3, 4}
        assert {word for text in found for word in text.split()} == set(WORDS)
    assert texts["espeak-ng"] != texts["flite"]


def test_speed_and_pitch_reach_the_programs(home: pathlib.Path) -> None:
    write_spoken_digits(home / "one", synthesizer="espeak-ng", num_recordings=60)
    calls = [line.split() for line in (home / "calls").read_text().splitlines()][-60:]
    assert all(140 <= int(call[3]) <= 200 and 30 <= int(call[5]) <= 70 for call in calls)
    assert len({call[3] for call in calls}) > 10 < len({call[5] for call in calls})
    write_spoken_digits(home / "two", synthesizer="flite", num_recordings=60)
    calls = [line.split() for line in (home / "calls").read_text().splitlines()][-60:]
    stretches = [float(call[3].removeprefix("duration_stretch=")) for call in calls]
    assert 175 / 200 <= min(stretches) < 1 < max(stretches) <= 175 / 140
    assert {call[1] for call in calls} == {"kal", "kal16", "slt"}  # awb_time says times


def test_loudness_and_noise_differ_within_their_bounds(home: pathlib.Path) -> None:
    write_spoken_digits(home / "set", synthesizer="flite", num_recordings=30)
    peaks = [np.abs(samples(home / "set" / row["audio"])).max() for row in rows(home / "set")]
    assert min(peaks) >= 1_500 - 5 * 100
    assert max(peaks) <= 8_000 + 5 * 100
    assert np.std(peaks) > 1_000


def test_a_missing_program_is_one_sentence(home: pathlib.Path) -> None:
    (home / "programs" / "espeak-ng").unlink()
    with pytest.raises(DataError, match=r"^espeak-ng is not installed: apt-get install espeak-ng "):
        SpokenDigits.params(num_recordings=3).build().files()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such voice >&2; exit 3", r"^espeak-ng -v .* ended with code 3: no such voice$"),
        ("exit 0", r"^espeak-ng wrote no sound with the voice "),
        ('echo text > "$8"', r"^espeak-ng wrote sound that cannot be read: "),
    ],
)
def test_a_program_that_fails_leaves_no_half_of_a_set(
    home: pathlib.Path, script: str, message: str
) -> None:
    # it says the phrase, and fails in recordings
    usual = ESPEAK.format(home=home).replace("exec cp", '[ "$9" = "$PHRASE" ] && exec cp')
    usual = usual.replace("$PHRASE", "one two three four five")
    install(home / "programs", "espeak-ng", f"{usual}{script}\n")
    with pytest.raises(DataError, match=message):
        SpokenDigits.params(num_recordings=3).build().files()
    assert not [*(home / "cache" / "lingo" / "spoken_digits").iterdir()]


def test_files_of_another_process_stay(home: pathlib.Path) -> None:
    write_spoken_digits(home / "set", synthesizer="flite", num_recordings=2)
    write_spoken_digits(home / "set", synthesizer="flite", num_recordings=3)
    assert len(rows(home / "set")) == 2


def test_groups_are_the_connected_ones() -> None:
    draw = np.random.default_rng(0)
    for size in (1, 5, 20, 40):
        names = [f"{number}+{draw.integers(size)}" for number in range(size)]
        digests = {name: str(draw.integers(size)) for name in names}
        found = join_groups(digests, lambda name: name.partition("+")[2])
        links = np.array(
            [
                [a.split("+")[1] == b.split("+")[1] or digests[a] == digests[b] for b in names]
                for a in names
            ]
        )
        reach = np.linalg.matrix_power(links.astype(float), size) > 0
        for row, name in enumerate(names):
            group = [other for column, other in enumerate(names) if reach[row, column]]
            assert found[name] == min(digests[other] for other in group)


@pytest.mark.skipif(
    not (shutil.which("espeak-ng") and shutil.which("flite")),
    reason="espeak-ng or flite is not installed: apt-get install espeak-ng flite",
)
def test_the_programs_themselves_speak(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EspeakNg, "accents", ("en", "en-us"))
    for name in SYNTHESIZERS:
        write_spoken_digits(tmp_path / name, synthesizer=name, num_recordings=40)
        found = rows(tmp_path / name)
        seconds = [len(samples(tmp_path / name / row["audio"])) / SAMPLE_RATE for row in found]
        words = [len(row["text"].split()) for row in found]
        assert np.corrcoef(seconds, words)[0, 1] > 0.7
        assert len({row["voice"] for row in found}) > (25 if name == "espeak-ng" else 3)
    klatt = {name: EspeakNg().speak(f"en+{name}", "one", Manner()) for name in ("klatt", "klatt6")}
    assert klatt["klatt"] == klatt["klatt6"]
    assert len({len(EspeakNg().speak("en+f3", "one", Manner(speed=s))) for s in (140, 200)}) == 2
    ignored = {EspeakNg().speak(f"en-gb+{name}", "one", Manner()) for name in ("f3", "m3", "croak")}
    assert len(ignored) == 1  # why en stands for British English
