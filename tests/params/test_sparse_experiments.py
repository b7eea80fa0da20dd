"""The small sparse experiments: what each changes, and what it leaves as it was."""

from __future__ import annotations

import functools
from typing import get_args

import pytest

import lingo
from lingo.config.params import ParamError, Params
from lingo.config.text import resolve
from lingo.layers.moe.moe import MoE
from lingo.learner.state import slot_shapes
from params.lm import source, st_moe

ABLATIONS = [name for name in get_args(st_moe.Ablation) if name != "baseline"]
ALL_SPARSE = "FeedForward=MoE(expert=_, num_experts=2)"


def settings(params: Params, part: str = "") -> set[tuple[str, str]]:
    return {(line.path, line.value) for line in resolve(params) if line.path.startswith(part)}


def trained(params: Params) -> dict[str, bool]:
    experiment = params.build()
    return {
        name: changes
        for weight in experiment.learner.weights().values()
        for name, changes in zip(
            weight.names, experiment.optimizer.trainable_layers(weight), strict=True
        )
    }


@pytest.mark.parametrize(
    ("sparse", "dense"), [(source.tiny_moe, source.tiny), (source.small_moe, source.small)]
)
def test_the_sparse_model_computes_as_much_as_the_dense_one(sparse, dense) -> None:
    assert sparse().build().step_flops() == pytest.approx(dense().build().step_flops(), rel=0.01)


def test_one_expert_is_the_dense_model() -> None:
    dense, sparse = source.domains(num_experts=1), source.domains(num_experts=8)
    assert settings(dense, "task") == settings(source.tiny(), "task")
    assert settings(dense, "train_input") == settings(sparse, "train_input")
    assert sparse.all(MoE)


def test_the_small_st_moe_is_trained_as_the_large_ones_are() -> None:
    large = settings(st_moe.st_moe_l(), "optimizer")
    assert settings(st_moe.tiny_pretrain(), "optimizer") == large


@pytest.mark.parametrize(
    "make",
    [
        st_moe.tiny_pretrain,
        st_moe.tiny_finetune,
        functools.partial(st_moe.tiny_generate, task="summary"),
        functools.partial(st_moe.tiny_generate, task="answer"),
    ],
)
def test_the_dense_st_moe_computes_as_much_as_the_sparse_one(make) -> None:
    dense, sparse = make(num_experts=1), make(num_experts=8)
    assert not dense.all(MoE)
    assert dense.build().step_flops() == pytest.approx(sparse.build().step_flops(), rel=0.02)
    assert settings(dense, "optimizer") == settings(sparse, "optimizer")
    assert settings(dense, "train_input") == settings(sparse, "train_input")


@pytest.mark.parametrize("part", get_args(st_moe.Part))
def test_kept_slots_are_those_of_the_optimizer_that_pretrains(part: st_moe.Part) -> None:
    before = st_moe.tiny_pretrain().build()
    kept = st_moe.tiny_finetune("runs/a", trained=part, keeps_slots=True).build()
    slots, shapes = slot_shapes(kept.learner), slot_shapes(before.learner)
    assert slots == {name: shapes[name] for name in named(part, set(shapes))}
    groups = [*kept.optimizer.groups.values()]
    assert groups[0].rates(0) == before.optimizer.rates(0)
    assert {group.p.slot_steps for group in groups} == {before.p.max_steps}
    assert kept.p.init_from.slots


def test_slots_that_begin_anew_have_no_steps_behind_them() -> None:
    for params in (st_moe.tiny_finetune("runs/a"), st_moe.tiny_finetune(keeps_slots=True)):
        assert params.optimizer.slot_steps == 0
        assert params.init_from is None or not params.init_from.slots


def test_one_number_compares_fine_tunings() -> None:
    params = st_moe.tiny_finetune()
    assert params.evaluate.averages == {"all": [*params.eval_inputs]}
    assert len(params.eval_inputs) == 5


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablation_changes_the_model_and_nothing_else(ablation: st_moe.Ablation) -> None:
    changed = settings(st_moe.stability(ablation)) ^ settings(st_moe.stability())
    assert changed
    assert {path.split(".")[0] for path, _ in changed} == {"task"}


@pytest.mark.parametrize("part", get_args(st_moe.Part))
def test_fine_tuning_changes_the_weights_that_it_names(part: st_moe.Part) -> None:
    changes = trained(st_moe.tiny_finetune(trained=part))
    assert {name for name, changed in changes.items() if changed} == named(part, set(changes))


# ALL_SPARSE replaces mixtures, too, and so drops their numbers of experts.
drops = pytest.mark.filterwarnings("ignore:.*dropped. task.model.encoder.layer:UserWarning")


@drops
@pytest.mark.parametrize("part", [part for part in get_args(st_moe.Part) if part != "ffn"])
def test_fine_tuning_does_so_where_every_network_is_a_mixture(part: st_moe.Part) -> None:
    changes = trained(lingo.get(f"lm.st_moe.tiny_finetune(trained={part!r})", ALL_SPARSE))
    assert any("extra_ffn/experts/" in name for name in changes)
    assert {name for name, changed in changes.items() if changed} == named(part, set(changes))


@drops
def test_where_every_network_is_a_mixture_there_is_no_dense_one_to_fine_tune() -> None:
    params = lingo.get("lm.st_moe.tiny_finetune(trained='ffn')", ALL_SPARSE)
    with pytest.raises(ParamError, match=r"optimizer\.groups: '\.\*ffn/w_\.\*' matches none"):
        params.build()


def named(part: st_moe.Part, names: set[str]) -> set[str]:
    """Returns the weights of a part, at least one."""
    in_mixture = {name for name in names if {"experts", "router"} & set(name.split("/"))}
    found = {
        "all": names,
        "moe": in_mixture,
        "non_moe": names - in_mixture,
        "attention": {name for name in names if "attention/" in name},
        "ffn": {name for name in names if "ffn/w_" in name} - in_mixture,
    }[part]
    assert found
    return found


def test_experts_have_a_dropout_of_their_own_in_fine_tuning() -> None:
    model = st_moe.tiny_finetune(expert_dropout_rate=0.3).task.model
    assert {mixture.expert.dropout_rate for mixture in model.all(MoE)} == {0.3}
    assert model.decoder.layer[0].ffn.dropout_rate == 0.1


def test_only_encoders_give_slots_by_priority() -> None:
    model = st_moe.st_moe_32b().task.model
    assert {mixture.router.priority for mixture in model.encoder.all(MoE)} == {"gate"}
    assert {mixture.router.priority for mixture in model.decoder.all(MoE)} == {"position"}
