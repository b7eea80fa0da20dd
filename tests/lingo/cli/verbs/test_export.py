"""Runs exported for other programs."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import lingo as api
from lingo.checkpoints.sources.warm_start import weight_shapes
from lingo.config.params import ParamError

MODELS = pathlib.Path(__file__).parents[3] / "params" / "huggingface"
FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a folder with a tiny T5 and a tokenizer of 96 characters."""
    folder = tmp_path / "t5"
    shutil.copytree(MODELS / "t5", folder)
    vocabulary = {"<pad>": 0, "</s>": 95} | {chr(32 + i): i for i in range(1, 95)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def read_weights(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the weights of the model in a folder, as an import reads them."""
    params = api.get(f"huggingface.pretrained_model(path={str(folder)!r})")
    shapes = weight_shapes(params.task.build())
    transfer = params.init_from.build().transfer(shapes)
    return {name: transfer.value(name) for name in transfer.reads}


def test_a_trained_t5_is_exported_and_read_again(lingo: Callable, folder: pathlib.Path) -> None:
    pathlib.Path("pairs.tsv").write_text("Is this a text?\tIt is one.\n" * 8)
    pairs = "--set=train_input.source=TsvPairs(pattern=pairs.tsv)"
    faster = "--set=optimizer=AdamW(learning_rate=0.1, ema_decay=0.5)"
    made = lingo("import", f"--from={folder}", "--run=run", "--set=exp.length=32", pairs, faster)
    assert (made.code, made.err) == (0, "")
    trained = lingo("train", "--run=run", "--set=max_steps=1")
    assert (trained.code, trained.err) == (0, "")
    done = lingo("export", "--run=run", "--format=huggingface", "--output=out")
    assert (done.code, done.err) == (0, "")
    assert "out: 51 weights of step 1, " in done.out
    out = pathlib.Path("out")
    assert sorted(file.name for file in out.iterdir()) == FILES
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    model, before, after = api.load("run"), read_weights(folder), read_weights(out)
    assert {*after} == {*model.weights}
    assert model.experiment.train_input.tokenizer.start_id == 0  # T5's decoder reads <pad> first
    for name, value in model.weights.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
        assert (after[name] != before[name]).any(), name
    lingo("export", "--run=run", "--output=start", "--step=0")
    lingo("export", "--run=run", "--output=average", "--weights=ema")
    start, average = (read_weights(pathlib.Path(output)) for output in ("start", "average"))
    for name, value in before.items():
        np.testing.assert_array_equal(start[name], value, err_msg=name)
        assert (average[name] != after[name]).any(), name
    again = lingo("export", "--run=run", "--output=out")
    assert (again.code, "--output=out exists" in again.err) == (2, True)
    with pytest.raises(
        ParamError, match="format='pickle' is not one of huggingface, savedmodel, stablehlo, tflite"
    ):
        model.export("other", format="pickle")  # type: ignore[arg-type]
    with pytest.raises(ParamError, match=r"cannot be read"):
        model.export("other", config=".")
    eight = lingo("export", "--run=run", "--output=other", "--quantize=int8")
    assert (eight.code, eight.out) == (2, "")
    assert "quantize='int8' is for format=tflite, not for huggingface" in eight.err
    assert not pathlib.Path("other").exists()


def test_a_program_is_exported_with_lines_of_progress_and_verified(lingo: Callable) -> None:
    settings = ("--set=max_steps=1", "--set=train_input.length=32", "--set=eval_inputs={}")
    made = lingo("train", "--exp=tiny(model_dim=16,num_layers=1)", "--logdir=run", *settings)
    assert made.code == 0
    program = ("--format=stablehlo", "--signature=predict", "--batch_size=16", "--output=out")
    done = lingo("export", "--run=run", *program)
    assert (done.code, done.err) == (0, "")
    first, second, third, last = done.out.splitlines()
    assert first == "write predict as stablehlo"
    assert second == "compare 64 examples of train_input in a process without lingo"
    assert third.startswith("out: 11 weights of step 1, ")
    assert last.startswith("  predict(positions, segments, tokens): numbers differ by ")
    same = lingo("export", "--verify=out")
    assert (same.code, same.out) == (0, "out: 1 files of step 1, as they were written\n")
    with open("out/predict.stablehlo", "ab") as file:
        file.write(b"!")
    other = lingo("export", "--verify=out")
    words = "lingo export: out is not as it was exported: predict.stablehlo\n"
    assert (other.code, other.err) == (1, words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "no run given"),
        (("--run=run",), "no output given"),
        (("--run=run", "--output=a/b"), "there is no directory a"),
        (
            ("--run=run", "--output=a", "--format=pickle"),
            "should be one of <huggingface|savedmodel|stablehlo|tflite>",
        ),
        (("--run=run", "--output=a", "--config=none"), "--config=none: there is no such folder"),
        (("--run=run", "--output=a"), "run is not a run directory"),
        (("--run=run", "--output=a", "--batch_size=0"), "--batch_size"),
        (("--run=run", "--output=a", "--prompt_length=0"), "--prompt_length"),
        (("--verify=none",), "none is not an export"),
        (("--verify=none", "--step=3"), "--verify reads nothing but a folder: leave out --step"),
        (
            ("--run=run", "--output=a", "--quantize=int4"),
            "<none|float16|int8_dynamic|int8|int8_weights>",
        ),
    ],
)
def test_mistakes_are_told_and_leave_nothing(lingo: Callable, flags, words) -> None:
    done = lingo("export", *flags)
    assert done.code == 2
    assert words in done.err
    assert not pathlib.Path("a").exists()
