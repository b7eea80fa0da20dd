"""Continuing texts from the command line."""

from __future__ import annotations

import io
import json
import pathlib
import types

import pytest

import lingo
from lingo.cli.main import main

pytestmark = [
    pytest.mark.xdist_group("decode"),  # the run of the fixture is done once
    pytest.mark.usefixtures("once_compiled"),
]
SMALL = """
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from params.lm.source import tiny


@experiment
def small():
    cfg = tiny(model_dim=8, num_layers=1).set(eval_inputs={}, max_steps=2)
    cfg.train_input.set(batch_size=2, length=16, source=TextFiles.params(pattern="FOLDER/*.txt"))
    cfg.task.model.stack.layer.attention.num_heads = 1
    cfg.evaluate.set(every_steps=1, prompts=["def ", "x"])
    cfg.evaluate.sampling.max_tokens = 4
    return cfg
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """A run of two steps, and what it printed."""
    folder = tmp_path_factory.mktemp("decode")
    (folder / "text.txt").write_text("def f(x):\n    return x\n" * 9)
    (folder / "small.py").write_text(SMALL.replace("FOLDER", str(folder)))
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        assert main(["train", f"--exp={folder}/small.py:small", f"--logdir={folder}/run"]) == 0
    return folder / "run", out.getvalue()


@pytest.fixture
def command(trained: tuple[pathlib.Path, str]) -> list[str]:
    return ["decode", f"--run={trained[0]}", "--max_tokens=6", "--temperature=1"]


def test_an_evaluation_shows_how_prompts_go_on(trained: tuple[pathlib.Path, str]) -> None:
    run, out = trained
    shown = [line for line in out.splitlines() if "sample" in line]
    assert [line.partition(" sample ")[0] for line in shown] == ["step 1 "] * 2 + ["step 2 "] * 2
    assert all("'def " in a and "'x" in b for a, b in zip(shown[::2], shown[1::2], strict=True))
    events = b"".join(f.read_bytes() for f in (run / "train").glob("events*"))
    assert events.count(b"continued") == 4


def test_texts_are_printed_with_their_prompts(command, capsys):
    assert main([*command, "--prompt=def f", "--prompt=class"]) == 0
    out, err = capsys.readouterr()
    first, second = out.split("\n--------\n")
    assert (first[:5], second[:5], err) == ("def f", "class", "")
    assert main([*command, "--prompt=def f", "--prompt=class", "--continuation_only"]) == 0
    assert capsys.readouterr().out == f"{first[5:]}\n--------\n{second[5:]}"


def test_json_has_a_line_for_each_text(command, trained, capsys):
    assert main([*command, "--prompt=def ", "--num_samples=2", "--seed=3", "--format=json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["prompt"], row["sample"]) for row in rows] == [("def ", 0), ("def ", 1)]
    model = lingo.load(trained[0])
    texts = model.generate("def ", max_tokens=6, temperature=1.0, num_samples=2, seed=3)
    assert [row["text"] for row in rows] == texts
    for row in rows:
        assert len(row["log_probs"]) == len(row["tokens"]) + row["is_ended"]
        assert all(value < 0 for value in row["log_probs"])
        assert row["score"] == pytest.approx(sum(row["log_probs"]))


def test_a_search_prints_its_best_texts(trained, capsys):
    flags = ["--num_beams=3", "--num_samples=3", "--length_penalty=0.6", "--format=json"]
    command = ["decode", f"--run={trained[0]}", "--max_tokens=4", "--prompt=def ", *flags]
    assert main(command) == 0
    scores = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    assert scores == sorted(scores, reverse=True)
    assert len({*scores}) == 3


def test_prompts_come_from_flags_then_from_a_file(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    stdin = types.SimpleNamespace(buffer=io.BytesIO(b"three\nlines\xff"))
    monkeypatch.setattr("sys.stdin", stdin)
    flags = ["--prompt=-", f"--prompts_file={tmp_path / 'prompts.txt'}", "--format=json"]
    assert main([*command, *flags]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["prompt"] for row in rows] == ["three\nlines\udcff", "one", "two"]


def test_the_checkpoint_may_be_chosen(command, capsys):
    assert main([*command, "--prompt=a", "--step=2"]) == 0
    assert main([*command, "--prompt=a", "--step=99"]) == 3
    assert "no checkpoint of step 99" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no prompt given: --prompt='def ' or --prompts_file=FILE"),
        (["--prompt=-", "--prompt=-"], "reads all of the standard input: give it once"),
        (["--prompts_file=nowhere"], "--prompts_file=nowhere cannot be read: No such file"),
        (["--prompts_file=prompts"], "byte 2 is not UTF-8"),
        (["--prompt=a", "--temperature=-1"], "--temperature=-1"),
        (["--prompt=a", "--temperature=nan"], "Sampling.temperature takes float"),
        (["--prompt=a", "--top_p=0"], "top_p=0.0 is not in (0, 1]"),
        (["--prompt=a", "--num_beams=2", "--num_samples=3"], "num_samples=3 is more than num_beam"),
        (["--prompt=a", "--num_beams=2", "--top_p=0.9"], "top_p=0.9 says how tokens are drawn"),
        (["--prompt=a", "--length_penalty=0.6"], "is for beam search: set num_beams, too"),
        (["--prompt=a", "--step=first"], "--step=first is not a step: a number, or best"),
    ],
)
def test_a_mistake_is_a_usage_error(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").write_bytes(b"ab\xff")
    assert main(["decode", "--run=nowhere", *flags]) == 2
    assert message in capsys.readouterr().err
