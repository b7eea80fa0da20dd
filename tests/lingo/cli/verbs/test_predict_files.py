"""Predictions for one's own files: the classes of a folder's images, by name."""

from __future__ import annotations

import csv
import json
import pathlib

import numpy as np
import pytest
from PIL import Image

import lingo
from lingo.checkpoints.store import steps
from lingo.cli.main import main
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.metrics.confusion_picture import confusion_image
from lingo.serving.codec import metadata_of, read_call, read_inputs, write_outputs
from lingo.serving.model import load_export, load_run
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.evaluate import evaluate_all
from tests.lingo.data.images.pictures import encode, picture, write_folder

pytestmark = [
    pytest.mark.xdist_group("predict_files"),  # the run of the fixture is done once
    pytest.mark.usefixtures("once_compiled"),
]
PETS = """
from lingo import Experiment, experiment
from lingo.data import CentralView, ImageFileInput, ImageFolder
from lingo.layers.vision.image_head import ImageHead
from lingo.optim import Sgd
from tasks.image.task import ImageClassification


@experiment
def pets():
    data = ImageFileInput.params(
        source=ImageFolder.params(folder="FOLDER/pets", num_classes=2),
        size=16,
        batch_size=4,
        view=CentralView.params(side=1.0),
    )
    head = ImageHead.params(dim=3, num_classes=2)
    return Experiment.params(
        task=ImageClassification.params(model=head, confusion=True),
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False)},
        optimizer=Sgd.params(learning_rate=0.1),
        max_steps=2,
    )
"""


MOODS = """
from lingo import Experiment, experiment
from lingo.data import ByteTokenizer, TsvPairs
from lingo.optim import Sgd
from tasks.bert.classification import ClassificationInput, TextClassification


@experiment
def moods():
    data = ClassificationInput.params(
        source=TsvPairs.params(pattern="FOLDER/moods.tsv"),
        tokenizer=ByteTokenizer,
        labels=["sad", "glad"],
        length=16,
        batch_size=2,
    )
    task = TextClassification.params()
    task.model.set(dim=8)
    task.model.stack.set(num_layers=1).layer.attention.num_heads = 2
    evaluation = {"same": data.copy().set(repeat=False)}
    optimizer = Sgd.params(learning_rate=0.1)
    return Experiment.params(
        task=task, train_input=data, eval_inputs=evaluation, optimizer=optimizer, max_steps=1
    )
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of two steps, whose classes are cat and dog, and files to predict."""
    folder = tmp_path_factory.mktemp("predict_files")
    write_folder(folder / "pets", classes=("dog", "cat"))
    (folder / "pets.py").write_text(PETS.replace("FOLDER", str(folder)))
    assert main(["train", f"--exp={folder}/pets.py:pets", f"--logdir={folder}/run"]) == 0
    (folder / "new" / "deep").mkdir(parents=True)
    for i, (name, form) in enumerate((("b.png", "PNG"), ("deep/a.jpg", "JPEG"))):
        (folder / "new" / name).write_bytes(encode(picture(16 << i, 16 << i, seed=i), form))
    return folder / "run"


@pytest.fixture
def command(run, monkeypatch) -> list[str]:
    monkeypatch.chdir(run.parent)
    return ["predict", f"--run={run}"]


def probabilities(run: pathlib.Path, images: np.ndarray) -> np.ndarray:
    """Returns the probabilities of the classes of images, uint8 [B, H, W, 3], by hand: [B, 2]."""
    weights = lingo.load(run).weights
    (kernel,), (bias,) = ([v for v in weights.values() if v.ndim == n] for n in (2, 1))
    logits = images.mean((1, 2)) / 255 @ kernel + bias
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def test_a_run_keeps_the_names_of_its_classes_in_order_of_labels(run):
    assert json.loads((run / "classes.json").read_text()) == ["cat", "dog"]
    assert lingo.load(run).class_names == ("cat", "dog")


def test_an_image_of_another_size_is_predicted_as_pillow_resizes_it(command, run):
    model = lingo.load(run)
    large = model.predict("new/deep/a.jpg")
    image = np.asarray(Image.open("new/deep/a.jpg").reduce(2))[None]
    expected = probabilities(run, image)[0]
    assert large["class"].tolist() == [("cat", "dog")[expected.argmax()]]
    np.testing.assert_allclose(large["probability"], [expected.max()], atol=2e-3)
    small = model.predict(pathlib.Path("new/b.png"))
    expected = probabilities(run, np.asarray(Image.open("new/b.png"))[None])[0]
    np.testing.assert_allclose(small["probability"], [expected.max()], atol=1e-5)
    assert list(small) == ["file", "class", "probability", "logits", "labels"]


def test_evaluations_show_the_names_of_the_folders(run):
    model = lingo.load(run)
    (result,) = evaluate_all(model.experiment, model._program)
    input = model.experiment.eval_inputs["same"]
    guesses = model.predict(input)["labels"]
    labels = np.concatenate([input.batch(step)["labels"] for step in range(2)])
    counts = np.zeros([2, 2])
    np.add.at(counts, (labels, guesses), 1)
    image = confusion_image(counts, class_names=["cat", "dog"])
    np.testing.assert_array_equal(result.summaries["classes/confusion"].pixels, image.pixels)


def test_a_folder_is_printed_as_a_table(command, capsys, run):
    assert main([*command, "--input=new"]) == 0
    out, err = capsys.readouterr()
    model = lingo.load(run).predict("new")
    table = [line.split() for line in out.splitlines()]
    table = table[table.index(["file", "class", "probability"]) :]
    assert table[1:3] == [
        [file, label, f"{share:.3f}"]
        for file, label, share in zip(
            ["new/b.png", "new/deep/a.jpg"], model["class"], model["probability"], strict=True
        )
    ]
    assert (" ".join(table[3]), err) == ("new: 2 examples at step 2", "")


def test_the_table_is_written_as_csv_and_whole_predictions_as_jsonl(command, tmp_path, run):
    expected = lingo.load(run).predict("new")
    assert main([*command, "--input=new", f"--output={tmp_path}/x.csv", "--batch_size=1"]) == 0
    with open(tmp_path / "x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "class", "probability", "labels"]
    assert [row["file"] for row in rows] == ["new/b.png", "new/deep/a.jpg"]
    shares = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(shares, expected["probability"], rtol=1e-5)
    assert main([*command, "--input=new/*.png", f"--output={tmp_path}/x.jsonl"]) == 0
    (row,) = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert row["class"] == expected["class"][0]
    assert list(row) == list(expected)


def test_lines_of_a_text_are_predicted_by_file_and_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moods.tsv").write_text("so nice\tglad\nawful\tsad\nlovely\tglad\n")
    (tmp_path / "moods.py").write_text(MOODS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "new.txt").write_text("a fine day\n\nthe worst\nnot bad\n")
    assert main(["train", "--exp=moods.py:moods", "--logdir=run"]) == 0
    assert main(["predict", "--run=run", "--input=new.txt", "--output=new.csv"]) == 0
    with open("new.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [f"new.txt, line {n}" for n in (1, 3, 4)]
    assert {row["class"] for row in rows} <= {"sad", "glad"}
    assert capsys.readouterr().err == ""


def test_an_evaluation_input_has_files_and_names_of_classes_too(command, tmp_path, run):
    assert main([*command, "--input=same", f"--output={tmp_path}/x.csv"]) == 0
    header, *rows = (tmp_path / "x.csv").read_text().splitlines()
    assert header == "file,class,probability,example_id,labels"
    cells = [row.split(",") for row in rows]
    files = [f"pets/{c}/{i}.{('jpeg', 'png')[i % 2]}" for c in ("cat", "dog") for i in range(4)]
    assert sorted(cell[0] for cell in cells) == files
    assert {cell[1] for cell in cells} <= {"cat", "dog"}


def test_a_broken_image_is_named_and_nothing_is_written(command, tmp_path, capsys):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.png").write_bytes(encode(picture(), "PNG"))
    (tmp_path / "own" / "b.png").write_bytes(encode(picture(), "PNG")[:200])
    assert main([*command, f"--input={tmp_path}/own", f"--output={tmp_path}/x.csv"]) == 5
    assert "own/b.png: the image cannot be decoded" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_folder_without_images_and_a_path_without_files_are_told(command, tmp_path, capsys):
    assert main([*command, f"--input={tmp_path}"]) == 5
    assert "no file matches" in capsys.readouterr().err
    assert main([*command, "--input=nowhere.png"]) == 2
    assert (
        "--input=nowhere.png is neither an evaluation input (same) nor" in capsys.readouterr().err
    )


def test_arrays_of_another_size_are_refused_with_the_advice_to_give_files(run):
    with pytest.raises(ParamError, match=r"images of \(8, 8, 3\), .* model\.predict\('cat\.png'\)"):
        lingo.load(run).predict({"images": np.zeros([1, 8, 8, 3], np.uint8)})


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory) -> pathlib.Path:
    """The run as a SavedModel."""
    folder = tmp_path_factory.mktemp("exported") / "pets"
    lingo.load(run).export(folder, format="savedmodel")
    return folder


def test_an_export_answers_with_names_and_keeps_them(run, exported, monkeypatch):
    monkeypatch.chdir(run.parent)
    assert json.loads((exported / "export.json").read_text())["class_names"] == ["cat", "dog"]
    images = np.asarray(Image.open("new/b.png"))[None]
    loaded = tf.saved_model.load(str(exported / "2"))
    outputs = loaded.signatures["predict"](images=tf.constant(images))
    expected = lingo.load(run).predict("new/b.png")
    assert outputs["class"].numpy().tolist() == [expected["class"][0].encode()]
    np.testing.assert_allclose(outputs["probability"], expected["probability"], rtol=1e-5)


@pytest.mark.parametrize("source", ["run", "export"])
def test_a_served_model_answers_with_names_in_tensorflow_servings_json(
    run, source, request, monkeypatch
):
    monkeypatch.chdir(run.parent)
    if source == "run":
        model = load_run(lingo.load(run), run)
    else:
        model = load_export(request.getfixturevalue("exported"))
    signature = model.signatures["predict"]
    image = np.asarray(Image.open("new/b.png"))
    body = json.dumps({"instances": [{"images": image.tolist()}]}).encode()
    outputs = signature.compute(read_inputs(read_call(body), signature.inputs))
    (row,) = json.loads(write_outputs(outputs, is_rows=True))["predictions"]
    assert set(row) == {"class", "labels", "logits", "probability"}
    assert row["class"] == lingo.load(run).predict("new/b.png")["class"][0]
    tensors = metadata_of(model)["metadata"]["signature_def"]["signature_def"]["predict"]
    assert tensors["outputs"]["class"]["dtype"] == "DT_STRING"


def test_names_survive_a_resumed_run_and_damage_is_told(command, run, tmp_path, capsys):
    assert main(["train", f"--run={run}", "--set=max_steps=3"]) == 0
    directory = RunDirectory(run)
    assert directory.class_names() == ("cat", "dog")
    assert max(steps(directory.checkpoints)) == 3
    for text in ("{}", "[1]", "["):
        (tmp_path / "classes.json").write_text(text)
        with pytest.raises(ParamError, match=r"classes\.json is not the list of names"):
            RunDirectory(tmp_path).class_names()


def test_an_evaluation_whose_labels_have_other_names_is_refused(command, run, tmp_path, capsys):
    write_folder(tmp_path / "birds", classes=("hen", "owl"))
    flags = [f"--exp={run.parent}/pets.py:pets", f"--logdir={tmp_path}/run"]
    change = f"--set=eval_inputs['same'].source.folder={tmp_path}/birds"
    assert main(["train", *flags, change]) == 2
    assert "same has the classes hen, owl, but training has cat, dog" in capsys.readouterr().err
