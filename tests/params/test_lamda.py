"""LaMDA's sizes, counted by the formula of its table 27, and what its experiments train on.

Letters: d width, N heads, L layers, V token ids.
"""

from __future__ import annotations

import pytest

from lingo.config import registry
from lingo.config.params import Params
from lingo.data import Mixture
from lingo.runtimes.layout import bytes_per_device
from params.dialog import lamda

TABLE = {  # L, d, N, weights, of these not in the embedding as published, devices, steps
    "lamda_2b": (10, 2560, 40, 2_179_127_040, 2e9, 128, 501_000),
    "lamda_8b": (16, 4096, 64, 8_721_143_808, 8e9, 128, 521_000),
    "lamda_137b": (64, 8192, 128, 137_702_158_336, 137e9, 2048, 3_000_000),
}
DEVICE_BYTES = 16 * 2**30  # of a core of TPU v3, of which a chip has two


def get(name: str) -> Params:
    return registry.get(f"dialog.lamda.{name}").params


def num_weights(name: str) -> int:
    return sum(spec.size for spec in get(name).build().task.weights().values())


def count(num_layers: int, d: int, heads: int, *, head_dim: int = 128, vocab: int = 32_000) -> int:
    """One embedding, one table of positions, norms of a scale, gated networks of 8 d."""
    layer = 4 * d * heads * head_dim + 3 * d * 8 * d + 2 * d
    return vocab * d + 32 * heads + num_layers * layer + d


@pytest.mark.parametrize("name", TABLE)
def test_weights_are_those_of_the_formula_and_of_table_27(name: str) -> None:
    num_layers, d, heads, total, published, _, _ = TABLE[name]
    assert num_weights(name) == count(num_layers, d, heads) == total
    assert total - 32_000 * d == pytest.approx(published, rel=0.08)
    assert f"{total:,} weights" in (getattr(lamda, name).__doc__ or "")


@pytest.mark.parametrize("name", TABLE)
def test_pre_training_has_the_published_steps_and_batch_on_chips_that_hold_it(name: str) -> None:
    *_, devices, steps = TABLE[name]
    built = get(name).build()
    assert built.p.max_steps == steps
    assert built.train_input.specs()["tokens"][0] == (256, 1024)  # 256K tokens
    layout = built.runtime.layout(built.learner)
    assert built.runtime.topology().num_devices == devices
    found = bytes_per_device(built.learner, layout)
    assert sum(size.per_device for size in found.values()) < DEVICE_BYTES


def test_the_mixture_is_the_published_one_of_a_folder_for_each_part() -> None:
    data = registry.get("dialog.lamda.lamda_2b(folder='texts')").params.build().train_input
    assert isinstance(data, Mixture)
    shares = dict(zip(data.inputs, data.shares, strict=True))
    assert list(shares.values()) == [0.5, 0.125, 0.125, 0.125, 0.0625, 0.0625]
    for name, part in data.inputs.items():
        assert part.source.p.pattern.endswith(f"/texts/{name}/*.jsonl*")
        assert part.vocab_size == 32_000


@pytest.mark.parametrize("name", ["lamda_tiny", "lamda_tiny_finetune"])
def test_the_small_ones_have_at_most_two_million_weights(name: str) -> None:
    assert num_weights(name) == count(4, 96, 6, head_dim=32, vocab=1024 + 9) == 1_279_872


def test_fine_tuning_begins_with_every_weight_of_the_pre_trained_run() -> None:
    name = "dialog.lamda.lamda_tiny_finetune(pretrained='runs/lamda_tiny')"
    tuned = registry.get(name).params
    assert tuned.init_from.path.endswith("/runs/lamda_tiny")
    assert get("lamda_tiny_finetune").init_from is None
    weights = [get("lamda_tiny").build(), tuned.build()]
    first, second = ({k: v.shape for k, v in e.task.weights().items()} for e in weights)
    assert first == second


@pytest.mark.parametrize(
    ("has_tools", "source", "num_steps"),
    [(True, "ResearchDialogs", 8000), (False, "TemplateDialogs", 2000)],
)
def test_tools_decide_the_dialogs_and_the_steps_of_fine_tuning(
    has_tools: bool, source: str, num_steps: int
) -> None:
    cfg = registry.get(f"dialog.lamda.lamda_tiny_finetune(has_tools={has_tools})").params
    generative = cfg.train_input.inputs["generative"].source
    assert (generative.cls.__name__, cfg.max_steps) == (source, num_steps)


def test_no_evaluation_has_invented_names() -> None:
    inputs = get("lamda_tiny_finetune").eval_inputs.values()
    assert [getattr(data.source, "invented_share", 0.0) for data in inputs] == [0.0] * 4


def test_what_is_evaluated_is_held_out_by_fact_and_by_template() -> None:
    for name, objectives in (
        ("lamda_tiny", ["text"]),
        ("lamda_tiny_finetune", ["generative", "discriminative"]),
    ):
        inputs = get(name).eval_inputs
        splits = {f"{o}_{s}": f"heldout_{s}" for o in objectives for s in ("facts", "templates")}
        assert {key: data.source.split for key, data in inputs.items()} == splits
        assert all(data.objective == key.partition("_")[0] for key, data in inputs.items())
