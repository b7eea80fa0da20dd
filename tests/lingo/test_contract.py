"""Experiments that cannot run are refused when they are built, with the field to change."""

from __future__ import annotations

import pytest

from lingo.config.overrides import apply
from lingo.config.params import ParamError, Params
from lingo.contract import Checkpointing, Experiment
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.optim.adam import AdamW
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


def experiment() -> Params:
    layer = TransformerLayer.params(attention=Attention.params(num_heads=2))
    model = LanguageModel.params(dim=4, stack=Stack.params(layer=layer))
    data = TextInput.params(batch_size=4, length=8, source=TextFiles.params(pattern="none/*.txt"))
    return Experiment.params(
        task=LanguageModeling.params(model=model),
        train_input=data,
        eval_inputs={"held_out": data.copy().set(repeat=False)},
        optimizer=AdamW.params(learning_rate=0.01),
    )


def test_an_experiment_is_built_without_its_data() -> None:
    built = experiment().set(seed=5, accumulation_steps=2).build()
    assert built.train_input.p.seed == 5
    assert not built.eval_inputs["held_out"].p.repeat
    assert built.task.p.vocab_size == built.train_input.vocab_size
    learner = built.learner
    assert (learner.task, learner.optimizer) == (built.task, built.optimizer)
    assert (learner.seed, learner.accumulation_steps) == (5, 2)
    assert learner.specs == built.train_input.specs()


def test_evaluation_inputs_make_one_pass_unless_they_say_otherwise() -> None:
    params = experiment()
    data = TextInput.params(batch_size=4, length=8)
    assert not params.set(eval_inputs={"a": data}).build().eval_inputs["a"].p.repeat


STEPS = ["max_steps=0", "steps_per_loop=0", "accumulation_steps=0"]
INTERVALS = ["checkpoint.every_steps=-1", "checkpoint.keep=-1", "summary.every_steps=-1"]
INTERVALS += ["evaluate.every_steps=-1", "evaluate.patience=-1", "guard.max_skipped_steps=-1"]
METRICS = ["heldout/loss", "held_out", "held_out/", "/loss"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        *((text, f"{text.rpartition('.')[2]} is not positive") for text in STEPS + INTERVALS),
        ("max_steps=2147483648", "max_steps=2147483648 is more than 2147483647"),
        ("evaluate.weights=ema", r"evaluate\.weights='ema' needs optimizer\.ema_decay"),
        ("train_input.repeat=false", r"train_input\.repeat=False: training needs data"),
        ("eval_inputs[held_out].repeat=true", r"\['held_out'\]\.repeat=True: .* has to end"),
        ("accumulation_steps=3", r"batch_size=4 does not split .* accumulation_steps=3"),
        ("task.vocab_size=10", r"task\.vocab_size=10, but the input has \d+ token ids"),
        ("optimizer.no_decay=nothing", "'nothing' matches none of"),
        *((f"evaluate.metric={m}", "one of eval_inputs: held_out[.]") for m in METRICS),
        ("evaluate.patience=2", "patience=2 needs a metric"),
        ("evaluate.reach=0.97", r"reach=0\.97 needs a metric"),
        ("checkpoint.keep_best=1", r"keep_best=1 needs evaluate\.metric"),
    ],
)
def test_what_cannot_run_is_refused_with_the_field(override: str, message: str) -> None:
    apply(params := experiment(), [override])
    with pytest.raises(ParamError, match=message):
        params.build()


def test_names_of_evaluation_inputs_are_parts_of_paths() -> None:
    data = TextInput.params(batch_size=4, length=8, repeat=False)
    for name in ("a/b", "a b", "..", "", "-a", "a\n", "\0", "x" * 65, "\x1b[31m"):
        with pytest.raises(ParamError, match=r"eval_inputs\['.*\]: .* up to 64 letters, digits"):
            experiment().set(eval_inputs={name: data.copy()}).build()


@pytest.mark.parametrize(
    "overrides",
    [["evaluate.weights=ema", "optimizer.ema_decay=0.9"], ["evaluate.metric=held_out/loss"]],
)
def test_an_evaluation_by_metric_or_of_the_moving_average_is_built(overrides: list[str]) -> None:
    apply(params := experiment(), overrides)
    params.build()


def test_the_number_of_best_checkpoints_is_not_negative() -> None:
    with pytest.raises(ParamError, match="keep_best=-1 is negative"):
        Checkpointing.params(keep_best=-1).build()


def test_a_step_takes_three_times_the_operations_of_the_forward_pass() -> None:
    built = experiment().build()
    assert built.step_flops() == 3 * built.task.flops([4, 8]) > 0
