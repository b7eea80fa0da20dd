"""The page of the study of recognizers shows what is in the file of its results."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping

import numpy as np
import pytest

from lingo.config.base.errors import LingoError
from lingo.data import AudioInput, CharacterTokenizer, JsonlAudio
from lingo.metrics.media import wav_file
from tools.studies import speech
from tools.studies.__main__ import RESULTS
from tools.studies.page import NONE, fill_tables
from tools.studies.trial import SEEDS, Result, Results, Trial, identity


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "speech.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in speech.trials(results)}
    assert {result.digest for result in results} <= wanted
    assert len(wanted) == len(speech.ARMS) * len(SEEDS)


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = speech.PAGE.read_text()
    assert page == fill_tables(page, speech.tables(results))


def test_a_row_has_the_rates_of_each_set_and_what_is_missing(tmp_path: pathlib.Path) -> None:
    results = Results(tmp_path / "speech.jsonl")

    def add(trial: Trial, seed: int, **metrics: float) -> None:
        trial = trial._replace(seed=seed)
        results.add(Result(trial, identity(trial), "done", 9, metrics, 600.0, "commit"))

    for seed in SEEDS:
        add(speech.ARMS["CTC"], seed, **{"wer": 10.0 + seed, "wer@flite": 40.0, "int8/wer": 12.0})
    add(speech.ARMS["CTC, causal"], 0, **{"wer": 20.0, "people/wer": 90.0})
    tables = speech.tables(results)
    rows = {row.strip("| ").split(" | ")[0]: row.strip("| ").split(" | ") for row in tables["arms"]}
    assert rows["CTC"][1:] == ["11.0 (10.0 to 12.0)", "40.0 (40.0 to 40.0)", NONE, "10 (10 to 10)"]
    assert rows["CTC, causal"][3] == "90.0, 1 of 3 seeds"
    assert rows["CTC, SpecAugment"][1:] == [NONE] * 4
    files = [row.strip("| ").split(" | ") for row in tables["files"]]
    assert files[2][1:] == [NONE, NONE]
    assert files[3][1:] == ["12.0 (12.0 to 12.0)", NONE]


def test_word_errors_are_of_all_recordings(tmp_path: pathlib.Path) -> None:
    draw, texts = np.random.default_rng(0), ["one two", "six", "two two two", "nine one"]
    for number in range(len(texts)):
        sound = draw.integers(-999, 999, 4_000 + 400 * number).astype(np.int16)
        (tmp_path / f"{number}.wav").write_bytes(wav_file(sound[:, None], sample_rate=16_000))
    lines = [json.dumps({"audio": f"{i}.wav", "text": text}) for i, text in enumerate(texts)]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    tokenizer = CharacterTokenizer.params(characters=" abcdefghijklmnopqrstuvwxyz")
    data = AudioInput.params(
        source=JsonlAudio.params(file=str(tmp_path / "list.jsonl")),
        tokenizer=tokenizer,
        batch_size=3,
        repeat=False,
        scores_text=True,
        constant_frames=False,
    ).build()
    said = {text: tokenizer.build().encode(text) for text in ("one", "six", "two two two", "")}
    by_frames: dict[int, str] = dict(
        zip((23, 25, 28, 30), ("one", "six", "two two two", ""), strict=True)
    )

    def predict(batch: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        assert {*batch} == {"features", "num_frames"}
        found = [said[by_frames[int(n)]] for n in batch["num_frames"]]
        sizes = np.array([len(ids) for ids in found], np.int32)
        labels = np.zeros([len(found), 12], np.int32)
        for row, ids in zip(labels, found, strict=True):
            row[: len(ids)] = ids
        return {"labels": labels, "num_labels": sizes}

    assert speech.word_error_rate(data, predict) == pytest.approx(100 * 3 / 8)


def test_what_cannot_be_measured_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert speech._tell("a file in 8 bits", LingoError("it differs")) == {}
    assert capsys.readouterr().err == "without a file in 8 bits: it differs\n"
