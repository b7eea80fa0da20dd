"""`lingo tokenizer` trains a file that the line it prints makes an experiment use."""

from __future__ import annotations

import pathlib
import shlex

import pytest

from lingo.cli.main import main
from lingo.config import registry
from lingo.data.sentence_piece import SentencePiece

pytest.importorskip("sentencepiece", reason="needs pip install 'lingo-tf[text]'")

EXPERIMENT = """
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from params.lm.source import tiny

@experiment
def mine():
    cfg = tiny(model_dim=32, num_layers=1)
    cfg.train_input.source = TextFiles.params(pattern="text/*.txt")
    cfg.eval_inputs = {}
    return cfg
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    words = ("the", "cat", "sat", "mat", "and", "dog")
    lines = [f"{a} {b} {c} {d}" for a in words for b in words for c in words for d in words]
    (tmp_path / "text" / "a.txt").write_text("\n".join(lines))
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    return tmp_path


@pytest.mark.parametrize("of", ["--exp=mine.py:mine", "--source=TextFiles(pattern=text/*.txt)"])
def test_the_line_it_prints_makes_an_experiment_use_the_file(of, capsys):
    assert main(["tokenizer", of, "--vocab_size=275", "--out=my.model"]) == 0
    made, use = capsys.readouterr().out.splitlines()[-2:]
    assert made.startswith("my.model: 275 pieces, ")
    (flag,) = shlex.split(use.removeprefix("use: "))
    params = registry.get("mine.py:mine", [flag.removeprefix("--set=")]).params
    tokenizer = params.build().train_input.tokenizer
    assert isinstance(tokenizer, SentencePiece)
    assert tokenizer.decode(tokenizer.encode("the cat sat")) == "the cat sat"
    assert params.build().task.p.vocab_size == 275


def test_a_path_that_would_confuse_the_grammar_is_quoted(capsys, folder):
    (folder / "a, b").mkdir()
    of = "--source=TextFiles(pattern=text/*.txt)"
    assert main(["tokenizer", of, "--vocab_size=275", "--out=a, b/my.model"]) == 0
    (flag,) = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("use: "))
    params = registry.get("mine.py:mine", [flag.removeprefix("--set=")]).params
    assert params.train_input.tokenizer.model == f"{folder}/a, b/my.model"


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--exp=mine.py:mine"], 2, "needs --vocab_size=NUMBER and --out=FILE"),
        (["--vocab_size=300", "--out=x.model"], 2, "no experiment given"),
        (["--exp=mine.py:mine", "--vocab_size=260", "--out=x.model"], 2, "integer >= 261"),
        (["--exp=mine.py:mine", "--vocab_size=300", "--out=mine.py"], 2, "exists already"),
        (["--exp=mine.py:mine", "--vocab_size=300", "--out=no/x.model"], 2, "no directory"),
        (["--exp=mine.py:mine", "--vocab_size=9999", "--out=x.model"], 5, "too few for vocab_size"),
        (
            ["--exp=mine.py:mine", "--source=TextFiles(pattern=x)", "--vocab_size=300", "--out=x"],
            2,
            "--source replaces the experiment",
        ),
        (
            ["--source=TextFiles(patern=x)", "--vocab_size=300", "--out=x"],
            2,
            "no field 'patern'. Did you mean 'pattern'",
        ),
        (["--source=TextFiles(pattern=gone)", "--vocab_size=300", "--out=x"], 5, "no file matches"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(arguments, code, reason, capsys, folder):
    before = sorted(folder.glob("*"))
    assert main(["tokenizer", *arguments]) == code
    assert reason in capsys.readouterr().err
    assert [f for f in sorted(folder.glob("*")) if f.name != "cache"] == before
