"""Experiments that cannot run are refused when they are built, with the field to change."""

from __future__ import annotations

from typing import Any

import pytest

from lingo.config.params import ParamError, Params
from lingo.contract import Checkpointing, Evaluation, Experiment, Guard, Summary
from lingo.data.source import TextFiles
from lingo.data.text_input import TextInput
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
    assert built.learner == (built.task, built.optimizer, 5, 2, built.train_input.specs())


def test_evaluation_inputs_make_one_pass_unless_they_say_otherwise() -> None:
    params = experiment()
    data = TextInput.params(batch_size=4, length=8)
    assert not params.set(eval_inputs={"a": data}).build().eval_inputs["a"].p.repeat


@pytest.mark.parametrize("field", ["max_steps", "steps_per_loop", "accumulation_steps"])
def test_numbers_of_steps_are_positive(field: str) -> None:
    with pytest.raises(ParamError, match=f"{field}=0 is not positive"):
        experiment().set(**{field: 0}).build()


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (Checkpointing, "every_steps"),
        (Checkpointing, "keep"),
        (Summary, "every_steps"),
        (Evaluation, "every_steps"),
        (Evaluation, "patience"),
        (Guard, "max_skipped_steps"),
    ],
)
def test_intervals_are_positive(part: Any, field: str) -> None:
    with pytest.raises(ParamError, match=f"{field}=-1 is not positive"):
        part.params(**{field: -1}).build()


def test_names_of_evaluation_inputs_are_parts_of_paths() -> None:
    data = TextInput.params(batch_size=4, length=8, repeat=False)
    for name in ("a/b", "a b", "..", "", "-a", "a\n", "\0", "x" * 65, "\x1b[31m"):
        with pytest.raises(ParamError, match=r"eval_inputs\['.*\]: .* up to 64 letters, digits"):
            experiment().set(eval_inputs={name: data.copy()}).build()


def test_steps_are_as_many_as_can_be_counted() -> None:
    with pytest.raises(ParamError, match="max_steps=2147483648 is more than 2147483647"):
        experiment().set(max_steps=2**31).build()


def test_evaluating_the_moving_average_needs_one() -> None:
    params = experiment().set(evaluate=Evaluation.params(weights="ema"))
    with pytest.raises(ParamError, match=r"evaluate\.weights='ema' needs optimizer\.ema_decay"):
        params.build()
    params.optimizer.ema_decay = 0.9
    params.build()


def test_training_needs_an_input_without_end() -> None:
    params = experiment()
    params.train_input.repeat = False
    with pytest.raises(ParamError, match=r"train_input\.repeat=False: training goes on"):
        params.build()


def test_an_evaluation_needs_an_end() -> None:
    params = experiment()
    params.eval_inputs["held_out"].repeat = True
    with pytest.raises(ParamError, match=r"eval_inputs\['held_out'\]\.repeat=True: .* has an end"):
        params.build()


def test_a_batch_splits_into_equal_parts() -> None:
    with pytest.raises(ParamError, match=r"batch_size=4 does not split .* accumulation_steps=3"):
        experiment().set(accumulation_steps=3).build()


def test_the_inputs_suit_the_task() -> None:
    params = experiment()
    params.task.vocab_size = 10
    with pytest.raises(ParamError, match=r"task\.vocab_size=10, but the input has \d+ token ids"):
        params.build()


def test_patterns_of_the_optimizer_fit_the_weights() -> None:
    params = experiment()
    params.optimizer.no_decay = ["nothing"]
    with pytest.raises(ParamError, match="'nothing' matches none of"):
        params.build()


@pytest.mark.parametrize("metric", ["heldout/loss", "held_out", "held_out/", "/loss"])
def test_a_metric_names_an_evaluation_input(metric: str) -> None:
    params = experiment().set(evaluate=Evaluation.params(metric=metric))
    with pytest.raises(ParamError, match=r"not input/metric with one of eval_inputs: held_out\."):
        params.build()
    params.evaluate.metric = "held_out/loss"
    params.build()


def test_patience_and_best_checkpoints_need_a_metric() -> None:
    with pytest.raises(ParamError, match="patience=2 needs a metric"):
        experiment().set(evaluate=Evaluation.params(patience=2)).build()
    with pytest.raises(ParamError, match=r"keep_best=1 needs evaluate\.metric"):
        experiment().set(checkpoint=Checkpointing.params(keep_best=1)).build()
    with pytest.raises(ParamError, match="keep_best=-1 is negative"):
        Checkpointing.params(keep_best=-1).build()


def test_a_step_takes_three_times_the_operations_of_the_forward_pass() -> None:
    built = experiment().build()
    assert built.step_flops() == 3 * built.task.flops([4, 8]) > 0
