"""A run of the small recognizer predicts labels of files."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

import lingo
from lingo.cli.main import main
from lingo.datasets.tones import write_tones

SMALL = ("Tones.num_recordings=40", "AudioInput.batch_size=4", "BatchNorm.statistics_over=4")


@pytest.mark.parametrize(
    ("experiment", "hypotheses"),
    [("asr.tones.words", ()), ("asr.tones.transducer", (4,)), ("asr.tones.attention", (8,))],
)
def test_a_file_of_ones_own_gets_labels(
    experiment: str,
    hypotheses: tuple[int, ...],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, clips = tmp_path / "run", tmp_path / "clips"
    overrides = [*SMALL, "max_steps=1", "exp.num_layers=1", "ConformerEncoder.output_dim=16"]
    flags = [f"--set={one}" for one in overrides]
    assert main(["train", f"--exp={experiment}", f"--logdir={run}", *flags]) == 0
    write_tones(clips, num_recordings=2)
    file, output = clips / "00001.wav", tmp_path / "labels.jsonl"
    assert main(["predict", f"--run={run}", f"--input={file}", f"--output={output}"]) == 0
    (line,) = map(json.loads, output.read_text().splitlines())
    assert line["file"] == str(file)
    found = lingo.load(run).predict(clips)
    assert found["labels"].shape == (2, *hypotheses, 20)
    assert line["labels"] == found["labels"][1].tolist()
    assert line["num_labels"] == found["num_labels"][1].tolist()
    if hypotheses:
        assert (np.diff(found["scores"], axis=1) <= 0).all()
