"""Translation of 12 languages: models of equal compute, thirds by size, and a training of each."""

from __future__ import annotations

import json
import pathlib

import pytest

import lingo
from lingo.config import registry
from lingo.config.params import Params
from lingo.layers.moe.moe import MoE
from params.mt import catalogs
from tests.lingo.runtimes.child import printed

pytest.importorskip("sentencepiece", reason="needs pip install 'lingo-tf[text]'")

MODELS = {"dense": catalogs.dense, "moe_8": catalogs.moe_8, "moe_32": catalogs.moe_32}


def num_weights(d: int, F: int, V: int, N: int, num_experts: int) -> int:
    """The weights of 2 + 2 layers of T5 with ReLU; the second of each side may have experts."""
    attention, ffn = 4 * d * d, 2 * d * F
    second = ffn if num_experts == 1 else num_experts * d * F + d * num_experts
    sides = [attention + d, 2 * (attention + d)]
    return V * d + sum(2 * (a + d) + ffn + second + d + 32 * N for a in sides)


@pytest.mark.parametrize(("name", "num_experts"), [("dense", 1), ("moe_8", 8), ("moe_32", 32)])
def test_weights_are_those_of_the_formula(name: str, num_experts: int) -> None:
    weights = MODELS[name]().build().task.weights()
    expected = num_weights(d=96, F=384, V=2500, N=4, num_experts=num_experts)
    assert sum(spec.size for spec in weights.values()) == expected
    assert expected == {1: 757_504, 8: 1_201_408, 32: 2_975_488}[num_experts]


def test_experts_compute_as_much_for_a_token_as_the_dense_layer() -> None:
    dense = catalogs.dense().build().step_flops()
    for sparse in (catalogs.moe_8, catalogs.moe_32):
        assert sparse().build().step_flops() == pytest.approx(dense, rel=0.01)
    for mixture in catalogs.moe_8().all(MoE):
        assert mixture.expert.hidden_dim * 2 == catalogs.HIDDEN_DIM
        assert mixture.capacity_factor == 2.0


def test_every_language_is_in_one_third_and_all_are_averaged() -> None:
    params = catalogs.dense()
    thirds = params.evaluate.averages
    languages = [language for third in thirds.values() for language in third]
    assert len(set(languages)) == len(languages) == 12
    assert set(languages) == set(params.eval_inputs) == set(params.train_input.inputs)
    (vocabulary,) = {repr(data.tokenizer) for data in params.all(catalogs.PairInput)}
    assert "split='train'" in vocabulary
    assert all(language in vocabulary for language in languages)


def test_a_bilingual_model_has_its_own_vocabulary_and_no_average() -> None:
    params = catalogs.dense(only="hsb")
    assert set(params.eval_inputs) == set(params.train_input.inputs) == {"hsb"}
    assert params.train_input.inputs["hsb"].tokenizer.source.languages == ["hsb"]
    assert not params.evaluate.averages


def small(name: str, table: pathlib.Path, *overrides: str) -> Params:
    """Returns a model that trains for five steps on a table, in batches of eight rows."""
    expression = f"mt.catalogs.{name}(folder={str(table)!r}, only='de', num_steps=5, batch_size=8)"
    sizes = ["LearnedPieces.vocab_size=300", "PairInput.source_length=32"]
    lengths = ["PairInput.target_length=32", "evaluate.answers.max_examples=2"]
    schedule = ["optimizer.schedule.num_steps=2", "Mixture.temperature=1.0"]
    return registry.get(expression, [*sizes, *lengths, *schedule, *overrides]).params


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    rows = [f"de\tdie Zahl {a} und {b}\tthe number {a} and {b}" for a in words for b in words]
    file.write_text("\n".join(rows))
    return file


def test_a_sparse_model_trains_and_answers(table: pathlib.Path, tmp_path: pathlib.Path) -> None:
    outcome = lingo.train(small("moe_8", table), tmp_path / "run")
    assert outcome.step == 5
    assert {"eval/bleu", "eval/chrf", "eval/loss"} <= outcome.evaluations["de"].keys()
    english = lingo.load(tmp_path / "run").generate("die Zahl one und two", max_tokens=4)
    assert isinstance(english, str)


# A gate near the random number that it is compared with gives a second expert or none: where
# rounding differs, single tokens have another one.
@pytest.mark.parametrize(("name", "tolerance"), [("dense", 2e-5), ("moe_8", 3e-4)])
def test_it_trains_alike_on_a_mesh_on_replicas_and_in_a_pipeline(
    name: str, tolerance: float, table: pathlib.Path
) -> None:
    found = json.loads(printed("-m", "tests.params.same_losses", name, str(table)))
    for runtime, losses in found.items():
        assert losses == pytest.approx(found["local"], rel=tolerance), runtime
    assert len(found) == 4
    assert found["local"][-1] < found["local"][0]
