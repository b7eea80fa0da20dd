"""A run of the small recognizer: texts of files, sounds in TensorBoard."""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import lingo
from lingo.cli.main import main
from lingo.data.audio.source import CsvAudio
from lingo.datasets.tones import tone_words, write_tones
from lingo.metrics.media import Audio
from lingo.serving.app import Limits, Service
from lingo.serving.batcher import BatchLimits
from lingo.serving.model import load_export, load_run
from tests.lingo.serving.test_app import Answer, Client

SMALL = ("Tones.num_recordings=40", "AudioInput.batch_size=4", "BatchNorm.statistics_over=4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A folder with a run of one step, `run`, and two recordings, `clips`."""
    folder = tmp_path_factory.mktemp("tones")
    overrides = [*SMALL, "max_steps=1", "exp.num_layers=1", "ConformerEncoder.output_dim=16"]
    flags = [f"--set={one}" for one in overrides]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        write_tones(folder / "clips", num_recordings=2)
        assert main(["train", "--exp=asr.tones.words", f"--logdir={folder}/run", *flags]) == 0
        yield folder


def test_files_of_ones_own_get_texts(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = folder / "clips/00001.wav", tmp_path / "texts.jsonl"
    command = ["predict", f"--run={folder}/run"]
    found = lingo.load(folder / "run").predict(folder / "clips")
    ids, size = found["labels"][1], found["num_labels"][1]
    tokenizer = lingo.load(folder / "run").experiment.train_input.tokenizer
    text = tokenizer.decode(ids[:size])
    assert found["text"].tolist()[1] == text
    assert main([*command, f"--input={file}", f"--output={output}"]) == 0
    line = {"audio": str(file), "text": text}
    assert output.read_text() == json.dumps(line) + "\n"
    capsys.readouterr()
    assert main([*command, f"--input={folder}/clips/*1.wav", "--output=-", "--ids"]) == 0
    more = {"labels": ids.tolist(), "num_labels": int(size)}
    assert json.loads(capsys.readouterr().out) == line | more
    assert main([*command, f"--input={folder}/clips"]) == 0
    names, first, second, last = capsys.readouterr().out.splitlines()[-4:]
    assert names.split() == ["audio", "text"]
    assert first.split()[0] == str(folder / "clips/00000.wav")
    assert second.split(maxsplit=1) == [str(file), text.strip()]
    assert last.endswith("clips: 2 examples at step 1")


def test_predictions_are_a_table_to_train_on(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "texts.csv"
    command = ["predict", f"--run={folder}/run", f"--input={folder}/clips", f"--output={output}"]
    assert main(command) == 0
    source = CsvAudio.params(file=str(output)).build()
    assert {pathlib.Path(one.path).name for one in source.recordings()} == {
        "00000.wav",
        "00001.wav",
    }


def test_tensorboard_plays_recordings_next_to_texts(folder: pathlib.Path) -> None:
    found = EventAccumulator(str(folder / "run/eval_heldout")).Reload()
    (event,) = found.Tensors("eval/recordings")
    rows = make_ndarray(event.tensor_proto).tolist()
    assert 1 <= len(rows) <= 4
    texts = {tone_words(number).encode() for number in range(40)}
    for file, caption in rows:
        assert file[:4] == b"RIFF"
        assert caption.split(b": ")[1] in texts
    (table,) = found.Tensors("eval/transcripts")
    (titles, *_) = make_ndarray(table.tensor_proto).item().decode().splitlines()
    assert titles == "| audio | reference | hypothesis |"


def ask(service: Service, audio: list[Any]) -> Answer:
    message = {"instances": [{"audio": one} for one in audio]}
    return Client(service).post(message, "/v1/models/run:predict")


def base64_of(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def test_a_server_answers_recordings_with_texts(folder: pathlib.Path) -> None:
    trained = lingo.load(folder / "run")
    files = [(folder / f"clips/0000{i}.wav").read_bytes() for i in range(2)]
    long = wave_of(seconds=30)
    limits = Limits(BatchLimits(4, 0.01, 256), 4, 1_000_000, 60.0, 10.0)
    service = Service(load_run(trained, folder / "run"), limits, report=pytest.fail)
    try:
        metadata = Client(service).get("/v1/models/run/metadata").json["metadata"]
        signature = metadata["signature_def"]["signature_def"]["predict"]
        assert {*signature["inputs"]} == {"audio"}
        assert {*signature["outputs"]} == {"text"}
        expected = trained.predict(folder / "clips")["text"].tolist()
        answer = ask(service, [base64_of(file) for file in files])
        assert (answer.status, answer.json) == (200, {"predictions": expected})
        for audio, status, text in (
            ([{"b64": "@"}], 400, "audio: b64 is not in base64: '@': wanted string [any]"),
            ([base64_of(files[0]), base64_of(b"")], 400, "audio[1]: it is empty: send a WAV or"),
            ([base64_of(long)], 400, "its 30.0 seconds are 2,998 frames, and the model takes up"),
            ([base64_of(files[0])] * 5, 413, "the request has 5 examples, more than 4"),
            ([base64_of(wave_of(seconds=2.7))], 413, "has 280 positions, more than 256: send a"),
        ):
            answer = ask(service, audio)
            assert answer.status == status
            assert text in answer.error
        answer = Client(service).post(b"x" * 1_000_001, "/v1/models/run:predict")
        assert answer.status == 413
    finally:
        service.close()


def wave_of(*, seconds: float) -> bytes:
    """Returns silence as a WAV file."""
    (file,) = Audio(np.zeros([1, int(8000 * seconds), 1]), 8000).to_wav()
    return file


def test_an_exported_model_takes_features(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    trained = lingo.load(folder / "run")
    trained.export(tmp_path / "out", format="savedmodel")
    predict = load_export(tmp_path / "out").signatures["predict"]
    assert str(predict.inputs["features"]) == "float32 [any, 280, 40]", "the last of boundaries"
    batch = trained.experiment.eval_inputs["heldout"].batch(0)
    features = np.zeros([4, 280, 40], np.float32)
    features[:, : batch["features"].shape[1]] = batch["features"]
    found = predict.compute({"features": features, "num_frames": batch["num_frames"]})
    np.testing.assert_array_equal(found["labels"], trained(batch)["labels"])


@pytest.mark.parametrize(
    ("experiment", "num_hypotheses"), [("asr.tones.transducer", 4), ("asr.tones.attention", 8)]
)
def test_the_best_of_several_hypotheses_is_the_text(
    experiment: str,
    num_hypotheses: int,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, clips = tmp_path / "run", tmp_path / "clips"
    overrides = [*SMALL, "max_steps=1", "exp.num_layers=1", "ConformerEncoder.output_dim=16"]
    flags = [f"--set={one}" for one in overrides]
    assert main(["train", f"--exp={experiment}", f"--logdir={run}", *flags]) == 0
    write_tones(clips, num_recordings=2)
    file, output = clips / "00001.wav", tmp_path / "texts.jsonl"
    assert main(["predict", f"--run={run}", f"--input={file}", f"--output={output}"]) == 0
    (line,) = map(json.loads, output.read_text().splitlines())
    found = lingo.load(run).predict(clips)
    assert found["labels"].shape == (2, num_hypotheses, 20)
    tokenizer = lingo.load(run).experiment.train_input.tokenizer
    best = tokenizer.decode(found["labels"][1, 0, : found["num_labels"][1, 0]])
    assert line["text"] == best
    assert (np.diff(found["scores"], axis=1) <= 0).all()
