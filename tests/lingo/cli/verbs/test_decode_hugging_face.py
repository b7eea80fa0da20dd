"""A run with a tokenizer.json learns a text, and continues it from the command line."""

from __future__ import annotations

import json
import pathlib

import pytest

import lingo
from lingo.cli.main import main

library = pytest.importorskip("tokenizers", reason="needs pip install 'lingo-tf[tokenizers]'")
tokenizer_files = pytest.importorskip("tests.lingo.data.tokenizer_files")
TEXT = "the cat sat on the mat, and größer things happened to all of them."
pytestmark = pytest.mark.xdist_group("decode_hugging_face")  # each model is trained once
EXPERIMENT = """
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from params.lm.source import tiny


@experiment
def mine():
    cfg = tiny(model_dim=32, num_layers=1).set(eval_inputs={}, max_steps=60)
    cfg.train_input.set(batch_size=4, length=64, source=TextFiles.params(pattern="FOLDER/*.txt"))
    cfg.task.model.stack.layer.attention.num_heads = 2
    return cfg
"""


@pytest.fixture(scope="module", params=["gpt2", "t5"])
def trained(request, tmp_path_factory) -> tuple[pathlib.Path, pathlib.Path]:
    """A run, and the tokenizer.json that it used."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer_files.write_tokenizers(folder, [TEXT])
    for i in range(4):
        (folder / f"{i}.txt").write_text(TEXT)
    (folder / "mine.py").write_text(EXPERIMENT.replace("FOLDER", str(folder)))
    file = folder / request.param / "tokenizer.json"
    size = library.Tokenizer.from_file(str(file)).get_vocab_size()
    flags = [
        f"--exp={folder}/mine.py:mine",
        f"--set=Tokenizer=HuggingFaceTokenizer(file={file},vocab_size={size})",
        "--set=optimizer.learning_rate=0.01",
        f"--logdir={folder}/run",
    ]
    assert main(["train", *flags]) == 0
    return folder / "run", file


def test_the_text_goes_on_and_ends(trained, capsys):
    run, file = trained
    command = ["decode", f"--run={run}", "--max_tokens=60", "--prompt=the cat"]
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out.rstrip("\n") == TEXT
    assert main([*command, "--format=json"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    of_library = library.Tokenizer.from_file(str(file))
    whole = of_library.encode(TEXT, add_special_tokens=False).ids
    start = of_library.encode("the cat", add_special_tokens=False).ids
    assert row["tokens"] == whole[len(start) :]
    assert row["is_ended"]


def test_python_gives_the_same_text(trained):
    model = lingo.load(trained[0])
    assert model.generate("the cat", max_tokens=60) == TEXT.removeprefix("the cat")
