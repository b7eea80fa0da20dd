"""Recordings as batches: features, labels, buckets, exact resume, what is left out, scores."""

from __future__ import annotations

import io
import pathlib
import wave
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.audio.audio_input import AudioInput
from lingo.data.audio.source import JsonlAudio
from lingo.data.derived_input import RepeatedInput
from lingo.data.files import DataError
from lingo.data.tokenizer import CharacterTokenizer
from lingo.metrics.media import Audio, Table
from lingo.ops.speech.log_mel import LogMel
from tests.lingo.data.audio.recordings import encode, tone, write_clips
from tests.lingo.data.documents import assert_starts_anywhere
from tests.lingo.ops.speech.test_log_mel import slow_log_mel

SECONDS = {f"{i}.wav": 0.1 + 0.05 * i for i in range(12)}
TEXTS = {name: "word " * (1 + i % 3) for i, name in enumerate(SECONDS)}
BOUNDARIES = [20, 40, 80]


@pytest.fixture
def clips(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_clips(tmp_path / "clips", TEXTS, seconds=SECONDS)


def audio(clips: pathlib.Path, **fields: Any) -> AudioInput:
    given = {
        "source": JsonlAudio.params(file=str(clips)),
        "batch_size": 2,
        "boundaries": BOUNDARIES,
        "max_labels": 20,
        "tokenizer": CharacterTokenizer,
    }
    return AudioInput.params(**given | fields).build()


def rows(input: AudioInput, steps: range) -> list[dict[str, np.ndarray]]:
    """Returns the examples of some batches that are no padding."""
    found = []
    for step in steps:
        batch = input.batch(step)
        input.check_batch(batch)
        found += [
            {name: array[i] for name, array in batch.items()}
            for i in np.flatnonzero(batch["weights"])
        ]
    return found


def test_features_equal_an_independent_computation_of_the_file(clips: pathlib.Path) -> None:
    input = audio(clips, shuffle=False)
    input.prepare()
    for number, name in enumerate(sorted(SECONDS)):
        with wave.open(str(clips.parent / name)) as file:
            integers = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)
        found = input.features(number)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, slow_log_mel(integers), atol=1e-5)


def test_an_epoch_has_every_recording_once_in_its_bucket_with_its_labels(clips) -> None:
    input = audio(clips)
    size = input.pass_batches()
    for epoch in range(2):
        found = rows(input, range(epoch * size, (epoch + 1) * size))
        lengths = [int(row["num_frames"]) for row in found]
        expected = [1 + (round(16_000 * s) - 401) // 160 for s in SECONDS.values()]
        assert sorted(lengths) == sorted(expected)
        for row in found:
            frames = int(row["num_frames"])
            assert len(row["features"]) == min(b for b in BOUNDARIES if b >= frames)
            assert not row["features"][frames:].any()
            text = input.tokenizer.decode(row["labels"][: row["num_labels"]])
            assert text in {" ".join(text.split()) for text in TEXTS.values()}
            assert not row["labels"][row["num_labels"] :].any()
    assert {b["features"].shape[:2] for b in map(input.batch, range(size))} == {
        (8, 20),
        (4, 40),
        (2, 80),
    }
    equal = audio(clips, constant_frames=False)
    assert {len(equal.batch(step)["rows"]) for step in range(equal.pass_batches())} == {2}


def test_a_run_may_start_at_any_step_and_hosts_read_their_rows(clips: pathlib.Path) -> None:
    input = audio(clips)
    assert_starts_anywhere(lambda: audio(clips), range(7))
    for step in range(4):
        whole, size = input.batch(step), input.num_rows(step)
        parts = [input.batch(step, rows=slice(i, None, 2)) for i in range(2)]
        for name, array in whole.items():
            for i, part in enumerate(parts):
                np.testing.assert_array_equal(part[name], array[i::2])
        assert len(whole["rows"]) == size
    assert input.allows_threads()


def test_noise_depends_on_the_example_and_its_pass_alone(clips: pathlib.Path) -> None:
    noisy = {"front_end": LogMel.params(noise_stddev=8.0)}
    first, again = audio(clips, **noisy), audio(clips, **noisy)
    size = first.pass_batches()
    np.testing.assert_array_equal(first.batch(3)["features"], again.batch(3)["features"])

    def by_length(step: int) -> dict[int, np.ndarray]:
        found = rows(first, range(step, step + size))
        return {int(row["num_frames"]): row["features"] for row in found}

    one, two = by_length(0), by_length(size)
    assert all((one[length] != two[length]).any() for length in one)
    with pytest.raises(ParamError, match="cache=True keeps features, but front_end"):
        audio(clips, cache=True, **noisy)


def test_cached_features_are_the_same(clips: pathlib.Path) -> None:
    plain, kept = audio(clips), audio(clips, cache=True)
    for step in (0, 1, 2, 0, 1):
        np.testing.assert_array_equal(plain.batch(step)["features"], kept.batch(step)["features"])
    (clips.parent / "0.wav").unlink()
    kept_all = [kept.batch(step) for step in range(3)]
    assert kept_all


def test_later_runs_read_no_file_to_index_them(clips: pathlib.Path, measured: list[int]) -> None:
    first = audio(clips)
    first.prepare()
    again = audio(clips, front_end=LogMel.params(num_bins=40), batch_size=4)
    again.prepare()
    assert len(measured) == 1
    assert again.utterances.num_frames.tolist() == first.utterances.num_frames.tolist()


def test_statistics_normalize_the_features_of_the_data(clips: pathlib.Path) -> None:
    stacks = LogMel.params(left_context=1, frame_stride=2, mean=[3.0] * 80)
    mean, stddev = audio(clips, front_end=stacks).statistics()
    raw = audio(clips)
    raw.prepare()
    frames = np.concatenate([raw.features(i) for i in range(12)])
    np.testing.assert_allclose(mean, frames.mean(axis=0), atol=2e-4)
    np.testing.assert_allclose(stddev, frames.std(axis=0), atol=2e-3)
    normal = audio(clips, front_end=LogMel.params(mean=mean, stddev=stddev))
    frames = np.concatenate([normal.features(i) for i in range(12)])
    np.testing.assert_allclose(frames.mean(axis=0), 0, atol=2e-3)
    np.testing.assert_allclose(frames.std(axis=0), 1, atol=2e-3)


def test_stacked_frames_count_in_the_buckets(clips: pathlib.Path) -> None:
    front_end = LogMel.params(left_context=2, frame_stride=3)
    input = audio(clips, front_end=front_end, boundaries=[10, 30], shuffle=False)
    frames = sorted(int(row["num_frames"]) for row in rows(input, range(input.pass_batches())))
    whole = [1 + (round(16_000 * s) - 401) // 160 for s in SECONDS.values()]
    assert frames == sorted(-(-n // 3) for n in whole)
    assert input.specs()["features"] == ((2, 30, 240), "float32")
    assert input.offers() == {"vocab_size": 31, "feature_dim": 240, "max_labels": 20}


def test_what_is_left_out_is_told_with_counts(tmp_path: pathlib.Path) -> None:
    texts = {"a.wav": "fine", "b.wav": " ", "c.wav": "long", "d.wav": "short", "e.wav": "x" * 21}
    seconds = {"a.wav": 0.3, "b.wav": 0.3, "c.wav": 1.5, "d.wav": 0.01, "e.wav": 0.4}
    clips = write_clips(tmp_path / "clips", texts, seconds=seconds)
    (tmp_path / "clips/f.wav").write_bytes(b"nothing")
    with clips.open("a") as file:
        file.write('{"audio": "f.wav", "text": "damaged"}\n')
    input = audio(clips, source=JsonlAudio.params(file=str(clips), max_damaged=1))
    first, damaged, *others = input.remarks()
    assert first == "1 recording of 0.30 to 0.30 seconds, 0.0 minutes in all"
    assert damaged.startswith("left out 1 damaged record of 7 bytes:")
    assert others == [
        "left out 1 recording shorter than a frame",
        "left out 1 recording of more than 80 frames, the last of boundaries",
        "left out 1 recording with an empty transcript",
        "left out 1 recording with more than max_labels=20 labels",
    ]
    with pytest.raises(DataError, match="is left: 1 recording shorter than a frame; 4 record"):
        audio(clips, boundaries=[5], source=input.p.source).prepare()


def test_transcripts_may_be_normalized(tmp_path: pathlib.Path) -> None:
    clips = write_clips(tmp_path / "clips", {"a.wav": "HELLO,  World!", "b.wav": "Ünknown"})
    with pytest.raises(DataError, match="'hello, world!' has ',', which is not in characters"):
        audio(clips).prepare()
    tokenizer = CharacterTokenizer.params(unknown="leave_out")
    input = audio(clips, normalizes_text=True, tokenizer=tokenizer)
    input.prepare()
    assert input.utterances.texts == ["hello world", "ünknown"]
    assert [input.tokenizer.decode(ids) for ids in input.utterances.labels] == [
        "hello world",
        "nknown",
    ]


def test_the_fingerprint_sees_audio_and_transcripts(tmp_path: pathlib.Path) -> None:
    clips = write_clips(tmp_path / "clips", TEXTS, seconds=SECONDS)
    first = audio(clips).check_fingerprint()
    assert (first["recordings"], first["seconds"]) == (12, round(sum(SECONDS.values()), 3))
    clips.write_text(clips.read_text().replace("word word word", "word word wore"))
    changed_text = audio(clips).check_fingerprint()
    (clips.parent / "3.wav").write_bytes(encode(tone(SECONDS["3.wav"], seed=99)))
    changed_audio = audio(clips).check_fingerprint()
    assert len({one["digest"] for one in (first, changed_text, changed_audio)}) == 3


def test_a_file_that_changes_during_a_run_is_an_error(clips: pathlib.Path) -> None:
    input = audio(clips, shuffle=False)
    input.prepare()
    (clips.parent / "0.wav").write_bytes(encode(tone(0.1, seed=99))[:-2])
    with pytest.raises(DataError, match=r"0\.wav has changed since this run listed"):
        input.features(0)


def test_other_files_are_read_without_transcripts_in_the_order_of_names(clips) -> None:
    params = audio(clips, cache=True).unlabeled_params(str(clips.parent))
    input = params.build()
    input.prepare()
    assert not {"labels", "num_labels"} & {*input.specs(), *input.batch(0)}
    batches = [input.batch(step) for step in range(input.num_batches())]
    numbers = np.concatenate([b["example_id"][b["weights"] > 0] for b in batches])
    names = [name.rpartition("/")[2] for name in input.example_names(numbers)]
    assert names == sorted(SECONDS)
    assert {batch["features"].shape for batch in batches} == {(2, 80, 80)}
    short = audio(clips, boundaries=[20]).unlabeled_params(str(clips.parent / "11.wav"))
    assert short.build().batch(0)["features"].shape[:2] == (2, 63)


def test_predicted_labels_are_scored_by_words(clips: pathlib.Path) -> None:
    input = audio(clips, repeat=False, scores_text=True)
    assert input.measures == ("wer", "oracle_wer", "sentence_accuracy")
    assert audio(clips).measures == ()
    found = rows(input, range(input.num_batches()))
    right = {name: np.stack([row[name] for row in found]) for name in ("labels", "num_labels")}
    results, answers = input.score(right)
    assert results == {"wer": 0.0, "oracle_wer": 0.0, "sentence_accuracy": 1.0}
    assert len(answers) == 12
    assert all(one.text == one.target and one.source.endswith(".wav") for one in answers)
    none = np.zeros_like(right["num_labels"])
    both = {
        "labels": np.stack([right["labels"]] * 2, axis=1),
        "num_labels": np.stack([none, right["num_labels"]], axis=1),
    }
    results, _ = input.score(both)
    assert results == {"wer": 100.0, "oracle_wer": 0.0, "sentence_accuracy": 0.0}


def predictions_of(input: AudioInput, texts: list[str]) -> dict[str, np.ndarray]:
    ids = [input.tokenizer.encode(text) for text in texts]
    sizes = np.array([len(one) for one in ids], np.int32)
    labels = np.zeros([len(ids), sizes.max()], np.int32)
    for row, one in zip(labels, ids, strict=True):
        row[: len(one)] = one
    return {"labels": labels, "num_labels": sizes}


def test_predictions_get_texts_and_the_files_name(clips: pathlib.Path) -> None:
    input = audio(clips)
    given = predictions_of(input, ["a word", "none"]) | {"file": np.array(["x.wav", "y.wav"])}
    found = input.describe_predictions(given)
    assert list(found)[:2] == ["audio", "text"]
    assert "file" not in found
    assert found["audio"].tolist() == ["x.wav", "y.wav"]
    assert found["text"].tolist() == ["a word", "none"]
    best = {"labels": given["labels"][None], "num_labels": given["num_labels"][None]}
    found = input.describe_predictions(best)
    assert found["text"].tolist() == ["a word"]
    assert found["texts"].tolist() == [["a word", "none"]]
    others = {"labels": np.array([1, 0]), "logits": np.zeros([2, 2])}
    assert list(input.describe_predictions(others)) == ["labels", "logits"]
    wrapped = RepeatedInput.params(input=input.p.copy()).build()
    assert wrapped.describe_predictions(given)["text"].tolist() == ["a word", "none"]
    assert wrapped.text_ids == ("labels", "num_labels")


def test_summaries_have_the_samples_of_the_files_next_to_texts(clips: pathlib.Path) -> None:
    input = audio(clips, repeat=False, shuffle=False)
    batch = input.batch(0)
    numbers = batch["example_id"][batch["weights"] > 0]
    texts = ["guess" + "x" * i for i in range(len(numbers))]
    shown = input.summaries(numbers, predictions_of(input, texts))
    sounds, table = shown["recordings"], shown["transcripts"]
    assert isinstance(sounds, Audio)
    assert isinstance(table, Table)
    assert not sounds.problem()
    assert not table.problem()
    assert table.columns["hypothesis"] == texts
    assert len(sounds.waveforms) == min(4, len(numbers)) > 1
    for i, file in enumerate(sounds.to_wav()):
        name = pathlib.Path(table.columns["audio"][i]).name
        assert table.columns["reference"][i] == TEXTS[name].strip()
        assert sounds.captions[i].endswith(f"{name}: {TEXTS[name].strip()}")
        with wave.open(io.BytesIO(file)) as own, wave.open(str(clips.parent / name)) as source:
            assert own.getparams()[:4] == source.getparams()[:4]
            assert own.readframes(1 << 20) == source.readframes(1 << 20)


def test_batches_become_tensors(clips: pathlib.Path) -> None:
    input = audio(clips)
    input.check_specs()
    input.check_repeatable()
    for name, (shape, dtype) in input.specs().items():
        assert tf.TensorSpec(shape, dtype).dtype == tf.constant(input.batch(0)[name]).dtype
