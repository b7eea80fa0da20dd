"""A run of the small recognizer: texts of files, sounds in TensorBoard."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import lingo
from lingo.cli.main import main
from lingo.data.audio.source import CsvAudio
from lingo.datasets.tones import tone_words, write_tones

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
