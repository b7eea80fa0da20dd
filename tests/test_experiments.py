"""Every registered experiment builds, takes overrides and has a current golden text."""

from __future__ import annotations

import pathlib

import pytest

from lingo.cli.main import main
from lingo.config import experiment_index, registry
from lingo.config.params import Params
from lingo.mesh.rules import RECIPES

PATTERNS = ("FeedForward.dropout_rate=0.1", "TransformerLayer=Remat(layer=_)", "Stack=Repeat")
SPARSE = ("FeedForward=MoE(expert=_, num_experts=2)", "Attention.positions=Rotary")
EXPERTS, ROTARY = "FeedForward=MoE(expert=_, num_experts=8)", "Attention.positions=Rotary"
NAMES = sorted(experiment_index.index().entries)

PUBLISHED = {
    "lm.lingvo_dense.dense_128b": 137_702_416_384,
    "lm.lingvo_dense.dense_1t": 1_100_041_175_040,
}


def test_goldens_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["golden"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "patterns",
    [PATTERNS, *((pattern,) for pattern in PATTERNS)],
    ids=" ".join,
)
def test_every_experiment_builds_with_flags(patterns, capsys):
    assert main(["check", *(f"--set={p}" for p in patterns)]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES)


def test_experts_and_rotary_positions_are_one_flag_each_for_all_transformers(capsys):
    flags = (EXPERTS, ROTARY)
    assert main(["check", *(f"--set={flag}" for flag in flags)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    for flag in flags:
        untouched = {name for name in NAMES if f"{flag}: not applicable" in lines[name]}
        others = ("asr.librispeech.", "click.", "gan.", "image.", "mlperf.", "table.")
        transformers = ("image.vit.", "mlperf.bert.", "mlperf.transformer.")
        without = {name for name in NAMES if name.startswith(others)}
        assert untouched == {name for name in without if not name.startswith(transformers)}


@pytest.mark.parametrize("flag", SPARSE)
def test_each_of_these_flags_alone_traces(flag: str) -> None:
    names = ("lm.source.tiny", "seq2seq.source.signatures")
    assert main(["check", "--trace", *(f"--exp={name}" for name in names), f"--set={flag}"]) == 0


@pytest.mark.parametrize("patterns", [PATTERNS, SPARSE], ids=" ".join)
def test_every_kind_of_transformer_traces(kind_of_transformer, patterns):
    flags = [f"--exp={kind_of_transformer}", *(f"--set={p}" for p in patterns)]
    assert main(["check", "--trace", *flags]) == 0


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("sharded", ["weights", "update"])
def test_every_experiment_fits_every_recipe_of_a_mesh(sharded: str, recipe: str) -> None:
    sizes = "data=2,model=4,expert=2,sequence=2,stage=2"
    mesh = f"Mesh({sizes},rules={recipe},shard_{sharded}=True)"
    assert main(["check", f"--set=runtime={mesh}"]) == 0


def num_weights(params: Params) -> int:
    return sum(spec.size for spec in params.build().task.weights().values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_exact(name: str) -> None:
    assert num_weights(registry.get(name).params) == PUBLISHED[name]


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("lm.lingvo_dense")])
def test_sizes_follow_the_formula(name: str) -> None:
    params = registry.get(name).params
    model = params.task.model
    layer = model.stack.layer.layer
    d, h, v = model.dim, layer.ffn.hidden_dim, params.task.vocab_size
    n, k = layer.attention.num_heads, layer.attention.head_dim
    bias = 32 * n if layer.attention.positions is not None else 0
    one = 4 * d * n * k + (3 if layer.ffn.gated else 2) * d * h + 2 * d + bias
    learned = model.positions.max_length * d if model.positions is not None else 0
    assert num_weights(params) == v * d + model.stack.num_layers * one + d + learned


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_says_what_it_is_and_how_to_run_it(name: str) -> None:
    doc = experiment_index.index().entries[name].doc
    assert f"--exp={name}" in doc


def test_folders_of_experiments_hold_no_tensors() -> None:
    for file in (pathlib.Path(__file__).parent.parent / "params").rglob("*.py"):
        assert "lingo.config.lazy" not in file.read_text(), file
