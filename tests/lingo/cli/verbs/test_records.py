"""`lingo records` writes a folder that the line it prints makes an experiment read."""

from __future__ import annotations

import os
import pathlib
import shlex
import signal

import pytest

from lingo.cli.main import main
from lingo.config import registry
from lingo.data.sources import tfrecord
from tests.lingo.data.images.pictures import write_folder

EXPERIMENT = """
from lingo import Experiment, experiment
from lingo.data import ImageFileInput, ImageFolder
from lingo.layers import Chain
from lingo.models.image.resnet import resnet
from lingo.optim import Sgd
from tasks.image.task import ImageClassification

@experiment
def mine():
    source = ImageFolder.params(folder="pets", num_classes=2)
    model = Chain.params(layers=resnet(num_layers=18, num_classes=2))
    return Experiment.params(
        task=ImageClassification.params(model=model),
        train_input=ImageFileInput.params(source=source, size=32, batch_size=2),
        optimizer=Sgd.params(learning_rate=0.1),
        max_steps=1,
    )
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "pets")
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    return tmp_path


@pytest.mark.parametrize("output", ["my-records", "a, b"])
def test_the_line_it_prints_makes_an_experiment_read_the_records(output, capsys, folder):
    assert main(["records", "--images=pets", f"--output={output}", "--shards=3"]) == 0
    made, use = capsys.readouterr().out.splitlines()[-2:]
    files = sorted((folder / output).glob("*.tfrecord"))
    size = sum(file.stat().st_size for file in files)
    assert made == f"{output}: 8 images of 2 classes in 3 files, {size:,} bytes"
    (flag,) = shlex.split(use.removeprefix("use: "))
    built = registry.get("mine.py:mine", [flag.removeprefix("--set=")]).params.build()
    assert built.train_input.source.class_names() == ["cat", "dog"]
    assert built.train_input.num_examples() == 8
    assert built.train_input.batch(0)["images"].shape == (2, 32, 32, 3)


def test_there_are_at_most_as_many_shards_as_images_and_else_one(folder):
    assert main(["records", "--images=pets", "--output=many", "--shards=100"]) == 0
    assert main(["records", "--images=pets", "--output=one", "--size=8"]) == 0
    assert len(list((folder / "many").glob("many-*-of-00008.tfrecord"))) == 8
    assert [f.name for f in (folder / "one").glob("one-*")] == ["one-00000-of-00001.tfrecord"]


def test_classes_of_another_folder_keep_their_labels(folder, capsys):
    (folder / "classes.txt").write_text("dog\nfox\ncat\n")
    flags = ["--images=pets", "--output=out", "--classes=classes.txt"]
    assert main(["records", *flags]) == 0
    assert "8 images of 3 classes in 1 files" in capsys.readouterr().out
    assert (folder / "out" / "classes.txt").read_text() == "dog\nfox\ncat\n"


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--images=pets", 2, "no output given: lingo records --images=FOLDER --output=FOLDER"),
        ("--output=out", 2, "no images given"),
        ("--images=pets --output=pets", 2, "--output=pets exists: name another folder"),
        ("--images=pets --output=no/out", 2, "--output=no/out: there is no directory no"),
        ("--images=pets --output=out --shards=0", 2, "shards"),
        ("--images=nowhere --output=out", 5, "nowhere cannot be listed"),
        ("--images=pets --output=out --classes=no.txt", 5, "no.txt cannot be read"),
    ],
)
def test_a_mistake_is_one_clear_error_and_nothing_is_written(flags, code, message, folder, capsys):
    before = sorted(folder.iterdir())
    assert main(["records", *flags.split()]) == code
    assert message in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


def test_a_signal_while_shards_are_written_leaves_nothing(folder, monkeypatch, capsys):
    def interrupt(data):
        assert len(list(folder.glob(".out.*/*"))) == 2  # the classes, and the first shard
        os.kill(os.getpid(), signal.SIGTERM)
        return data

    monkeypatch.setattr(tfrecord, "frame", interrupt)
    assert main(["records", "--images=pets", "--output=out"]) == 128 + signal.SIGTERM
    assert "SIGTERM" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {"cache", "pets", "mine.py"}
