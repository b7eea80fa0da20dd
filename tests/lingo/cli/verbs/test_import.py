"""Runs from models of other programs: made without training, then decoded, trained, written."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import lingo as api
from tools.oracles.image_networks import FOLDER as NETWORKS
from tools.oracles.image_networks import draw_tensors

MODELS = pathlib.Path(__file__).parents[3] / "params" / "huggingface"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a folder with a tiny Llama and a tokenizer of 96 characters."""
    folder = tmp_path / "llama"
    shutil.copytree(MODELS / "llama2", folder)
    vocabulary = {chr(32 + i): i for i in range(95)} | {"</s>": 95}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


def test_a_model_becomes_a_run_at_step_0_that_holds_its_weights(
    lingo: Callable, folder: pathlib.Path
) -> None:
    pathlib.Path("text.txt").write_text("Is this a text? It is one. " * 40)
    source = "--set=train_input.source=TextFiles(pattern=text.txt)"
    done = lingo("import", f"--from={folder}", "--run=run", "--set=exp.length=32", source)
    assert (done.code, done.err) == (0, "")
    assert pathlib.Path("run/STATUS").read_text() == "stopped at step 0\n"
    assert "read 21 of 21 weights" in done.out
    model = api.load("run")
    ours = model.weights
    theirs = load_file(folder / "model.safetensors")
    np.testing.assert_array_equal(
        ours["model/embedding/table"], theirs["model.embed_tokens.weight"]
    )
    np.testing.assert_array_equal(ours["model/head/w"], theirs["lm_head.weight"].T)
    texts = lingo("decode", "--run=run", "--prompt=Is", "--max_tokens=3", "--temperature=0")
    assert (texts.code, texts.err) == (0, "")
    trained = lingo("train", "--run=run", "--set=max_steps=1", "--set=train_input.batch_size=8")
    assert (trained.code, trained.err) == (0, "")
    assert pathlib.Path("run/STATUS").read_text() == "done at step 1\n"
    again = lingo("import", f"--from={folder}", "--run=run")
    assert again.code == 2
    assert "holds a run already" in again.err
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    exported = lingo("export", "--run=run", "--format=huggingface", "--output=out")
    assert exported.code == 2
    assert f"{folder}/tokenizer.json cannot be read: it is a named pipe" in exported.err
    assert not pathlib.Path("out").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "no from given"),
        (("--from=nowhere", "--run=run"), "--from=nowhere: there is no such folder"),
        (("--from=.",), "no run given"),
        (("--from=.", "--run=run"), "config.json cannot be read"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(lingo: Callable, flags, words) -> None:
    done = lingo("import", *flags)
    assert done.code == 2
    assert words in done.err
    assert not pathlib.Path("run").exists()


@pytest.mark.parametrize(
    ("make", "reason"),
    [(None, "No such file"), (os.mkfifo, "it is a named pipe, not a file")],
)
def test_a_folder_without_a_tokenizer_that_its_few_ids_need_is_told(
    lingo: Callable, folder: pathlib.Path, make, reason
) -> None:
    (folder / "tokenizer.json").unlink()
    if make is not None:
        make(folder / "tokenizer.json")
    pathlib.Path("text.txt").write_text("Is this a text? It is one. " * 40)
    source = "--set=train_input.source=TextFiles(pattern=text.txt)"
    done = lingo("import", f"--from={folder}", "--run=run", source)
    assert done.code == 5
    assert f"{folder}/tokenizer.json cannot be read: {reason}" in done.err
    assert not pathlib.Path("run").exists()


NETWORK = "torchvision.resnet18"


@pytest.fixture
def weights(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns the file of a ResNet-18 of ten classes, as PyTorch's safetensors writes it."""
    content = json.loads((NETWORKS / f"{NETWORK}.json").read_text())
    tensors = draw_tensors(content["shapes"], content["gain"])
    save_file(tensors, tmp_path / "weights.safetensors", metadata={"format": "pt"})
    return tmp_path / "weights.safetensors"


def test_a_file_of_an_image_classifier_becomes_a_run_and_the_same_file_again(
    lingo: Callable, weights: pathlib.Path
) -> None:
    size = "--set=exp.image_size=32"
    done = lingo("import", f"--from={weights}", "--run=run", size)
    assert (done.code, done.err) == (0, "")
    assert "read 102 of 102 weights" in done.out
    saved = json.loads(pathlib.Path("run/config.json").read_text())
    assert saved["params"]["init_from"]["layout"]["architecture"] == NETWORK
    exported = lingo("export", "--run=run", "--format=huggingface", "--output=out")
    assert (exported.code, exported.err) == (0, "")
    assert pathlib.Path("out/model.safetensors").read_bytes() == weights.read_bytes()
    settings = json.loads(pathlib.Path("out/config.json").read_text())
    assert settings["architecture"] == NETWORK
    assert settings["pretrained_cfg"]["input_size"] == [3, 32, 32]
    again = lingo("import", "--from=out", "--run=again")
    assert (again.code, again.err) == (0, "")
    np.testing.assert_equal(dict(api.load("again").weights), dict(api.load("run").weights))
    changed = lingo(
        "export",
        "--run=run",
        "--format=huggingface",
        "--output=changed",
        "--set=Conv2D.padding=SAME",
    )
    assert changed.code == 2
    assert "conv.padding: 'SAME', but 'CENTERED' there" in changed.err
    assert not pathlib.Path("changed").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--architecture=timm.resnet50",),
            f"no timm.resnet50: its tensors fit {NETWORK} and timm",
        ),
        (("--architecture=resnet18",), "Did you mean"),
        (("--set=exp.num_classes=3",), "--set=exp.new_head=true"),
        (("--exp=lm.source.tiny",), "path"),
    ],
)
def test_mistakes_about_image_classifiers_leave_nothing(
    lingo: Callable, weights: pathlib.Path, flags, words
) -> None:
    done = lingo("import", f"--from={weights}", "--run=run", *flags)
    assert done.code == 2
    assert words in done.err
    assert not pathlib.Path("run").exists()


def test_a_pickle_is_refused_in_one_line(lingo: Callable, tmp_path: pathlib.Path) -> None:
    (tmp_path / "resnet18.pth").write_bytes(b"\x80\x02}q\x00.")
    done = lingo("import", f"--from={tmp_path}/resnet18.pth", "--run=run")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "resnet18.pth is a pickle" in done.err
