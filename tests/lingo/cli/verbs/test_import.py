"""Runs from models of Hugging Face's: made without training, then decoded and trained."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import lingo as api

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
    assert f"{folder}/tokenizer.json is not a file" in exported.err
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
