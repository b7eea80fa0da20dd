"""A run: started, stopped, resumed, changed; in-process and small."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import numpy as np
import pytest

from lingo.config.params import ParamError, Params
from lingo.data.prefetch import Item, Prefetch
from lingo.data.source import DataError, TextFiles
from lingo.data.text_input import TextInput
from lingo.layers.initial import TruncatedNormal
from lingo.layers.repeat import Repeat
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.positions import LearnedPositions
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.optim.adam import AdamW
from lingo.optim.schedule import Cosine, Warmup
from lingo.train import loop
from lingo.train.experiment import Checkpointing, Evaluation, Experiment, Guard, Summary
from lingo.train.loop import NumericFailure, Outcome, spans
from lingo.train.record import checkpoint
from lingo.train.record.checkpoint import CheckpointMismatch
from lingo.train.record.run_directory import RunDirectory
from lingo.train.record.summaries import Summaries
from lingo.train.run import ChangedConfiguration, Request, train
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


@pytest.fixture
def text(tmp_path: pathlib.Path) -> str:
    folder = tmp_path / "text"
    folder.mkdir()
    draw = np.random.RandomState(0)
    for i in range(5):
        (folder / f"{i}.txt").write_bytes(bytes(draw.randint(97, 100, 40 + 7 * i).tolist()))
    return f"{folder}/*.txt"


def experiment(text: str, max_steps: int = 6) -> Params:
    layer = TransformerLayer.params(dropout_rate=0.2, attention=Attention.params(num_heads=2))
    model = LanguageModel.params(dim=8, stack=Stack.params(layer=layer, num_layers=2))
    data = TextInput.params(batch_size=4, length=8, source=TextFiles.params(pattern=text))
    return Experiment.params(
        task=LanguageModeling.params(model=model),
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False)},
        optimizer=AdamW.params(
            learning_rate=0.01,
            schedule=Warmup.params(num_steps=2, then=Cosine.params(num_steps=20)),
            ema_decay=0.5,
        ),
        max_steps=max_steps,
        checkpoint=Checkpointing.params(every_steps=2),
        summary=Summary.params(every_steps=1),
        evaluate=Evaluation.params(every_steps=4),
    )


def run(params: Params, directory: pathlib.Path, **kwargs: bool) -> Outcome:
    return train(Request(params, "{}", ""), RunDirectory(directory), **kwargs)


def rows(directory: pathlib.Path) -> list[dict[str, float]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def losses(directory: pathlib.Path) -> dict[float, float]:
    return {row["step"]: row["loss/total"] for row in rows(directory) if "loss/total" in row}


def weights(directory: pathlib.Path) -> dict[str, np.ndarray]:
    found = checkpoint.latest(directory / "checkpoints")
    assert found is not None
    return found.read(found.tensors)


def assert_same_weights(a: pathlib.Path, b: pathlib.Path) -> None:
    mine, yours = weights(a), weights(b)
    assert mine.keys() == yours.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, yours[name], err_msg=name)


def test_a_run_leaves_everything_that_is_needed_to_read_it(
    text: str, tmp_path: pathlib.Path
) -> None:
    outcome = run(experiment(text), tmp_path / "run")
    assert outcome.step == 6
    assert outcome.signal is None
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {
        ".lock", "STATUS", "checkpoints", "config.json", "config.txt", "environment.json",
        "eval_same", "flags.txt", "metrics.jsonl", "train", "weights.txt",
    }  # fmt: skip
    assert (tmp_path / "run/STATUS").read_text() == "done at step 6\n"
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in rows(tmp_path / "run") if "eval/loss" in r] == [4, 6]
    assert checkpoint.steps(tmp_path / "run/checkpoints") == [2, 4, 6]


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_run_stopped_at_any_step_and_resumed_is_the_same_bit_for_bit(
    text: str, tmp_path: pathlib.Path, stop: int
) -> None:
    run(experiment(text), tmp_path / "whole")
    run(experiment(text, max_steps=stop), tmp_path / "parts")
    assert run(experiment(text), tmp_path / "parts").step == 6
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")


def test_rows_past_the_checkpoint_are_cut_off_on_resuming(
    text: str, tmp_path: pathlib.Path
) -> None:
    directory = tmp_path / "run"
    run(experiment(text), directory)
    whole = losses(directory)
    checkpoint.delete(checkpoint.step_path(directory / "checkpoints", 6))
    run(experiment(text), directory)
    steps = [row["step"] for row in rows(directory) if "loss/total" in row]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert losses(directory) == whole


def test_a_signal_saves_and_ends(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Prefetch.__next__

    def terminated(self: Prefetch) -> object:
        item = made(self)
        if item.steps.start == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return item

    monkeypatch.setattr(Prefetch, "__next__", terminated)
    outcome = run(experiment(text), tmp_path / "run")
    assert (outcome.step, outcome.signal) == (3, signal.SIGTERM)
    assert (tmp_path / "run/STATUS").read_text() == "stopped at step 3\n"
    assert checkpoint.steps(tmp_path / "run/checkpoints") == [2, 3]


@pytest.mark.parametrize("at", [4, 6])
def test_an_evaluation_that_a_signal_ended_is_made_up(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    run(experiment(text), tmp_path / "whole")
    train_to = loop.Loop._advance

    def terminated(self: loop.Loop, item: Item, summaries: Summaries) -> None:
        train_to(self, item, summaries)
        if item.steps.stop == at:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_advance", terminated)
        assert run(experiment(text), tmp_path / "run").signal == signal.SIGTERM
    assert (tmp_path / "run/STATUS").read_text() == f"stopped at step {at}\n"
    assert run(experiment(text), tmp_path / "run").step == 6
    assert (tmp_path / "run/STATUS").read_text() == "done at step 6\n"
    for mine, whole in zip(rows(tmp_path / "run"), rows(tmp_path / "whole"), strict=True):
        for key in ("step", "loss/total", "eval/loss"):
            assert mine.get(key) == whole.get(key)


def test_an_error_loses_no_step_that_was_done(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Prefetch.__next__

    def damaged(self: Prefetch) -> Item:
        item = made(self)
        if item.steps.start == 3:
            raise DataError("a file is damaged")
        return item

    monkeypatch.setattr(Prefetch, "__next__", damaged)
    with pytest.raises(DataError):
        run(experiment(text), tmp_path / "run")
    assert checkpoint.steps(tmp_path / "run/checkpoints") == [2, 3]
    assert (tmp_path / "run/STATUS").read_text() == "failed at step 3\n"


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ({"accumulation_steps": 3}, "batch_size=4 does not split .* accumulation_steps=3"),
        ({"train_input.repeat": False}, "goes on until max_steps"),
        ({"eval_inputs.same.repeat": True}, "an evaluation has an end"),
        ({"task.vocab_size": 100}, "vocab_size=100, but the input has 259"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_is_written(
    text: str, tmp_path: pathlib.Path, mistake: dict[str, object], said: str
) -> None:
    params = experiment(text)
    for where, value in mistake.items():
        at = params
        *parents, last = where.split(".")
        for name in parents:
            at = at[name] if isinstance(at, dict) else getattr(at, name)
        setattr(at, last, value)
    with pytest.raises(ParamError, match=said):
        run(params, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_layers_that_do_not_fit_together_are_found_before_anything_is_written(
    text: str, tmp_path: pathlib.Path
) -> None:
    params = experiment(text)
    params.task.model.positions = LearnedPositions.params(max_length=4)
    with pytest.raises(ValueError, match="8 positions, but max_length=4"):
        run(params, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_row_of_a_loop_has_its_own_metrics_and_its_pace(
    text: str, tmp_path: pathlib.Path
) -> None:
    params = experiment(text).set(steps_per_loop=3)
    run(params, tmp_path / "run")
    paced = [row["step"] for row in rows(tmp_path / "run") if "perf/steps_per_sec" in row]
    assert paced == [3, 4, 5, 6]  # a checkpoint is due at 2, and the first call compiles


def test_a_run_without_evaluations_is_done_at_its_last_step(
    text: str, tmp_path: pathlib.Path
) -> None:
    run(experiment(text, max_steps=2).set(eval_inputs={}), tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text() == "done at step 2\n"


def test_a_run_that_is_done_is_left_alone(text: str, tmp_path: pathlib.Path) -> None:
    run(experiment(text), tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    assert run(experiment(text), tmp_path / "run").step == 6
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


def test_another_configuration_is_refused_field_by_field(text: str, tmp_path: pathlib.Path) -> None:
    run(experiment(text, max_steps=2), tmp_path / "run")
    changed = experiment(text)
    changed.optimizer.learning_rate = 0.02
    with pytest.raises(ChangedConfiguration, match=r"optimizer.learning_rate: 0.01 -> 0.02\n"):
        run(changed, tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text() == "done at step 2\n"
    assert run(changed, tmp_path / "run", allow_change=True).step == 6
    assert (tmp_path / "run/config.1.txt").exists()


def test_a_schedule_that_follows_max_steps_makes_it_a_change(
    text: str, tmp_path: pathlib.Path
) -> None:
    first, second = experiment(text, max_steps=2), experiment(text, max_steps=4)
    first.optimizer.schedule.then.num_steps, second.optimizer.schedule.then.num_steps = 2, 4
    run(first, tmp_path / "run")
    with pytest.raises(ChangedConfiguration, match=r"optimizer.schedule.then.num_steps: 2 -> 4"):
        run(second, tmp_path / "run")


def test_other_data_is_refused(text: str, tmp_path: pathlib.Path) -> None:
    run(experiment(text, max_steps=2), tmp_path / "run")
    (tmp_path / "text/9.txt").write_text("one more document")
    with pytest.raises(ChangedConfiguration, match="other data"):
        run(experiment(text), tmp_path / "run")


def test_a_checkpoint_of_another_model_is_refused_by_name(
    text: str, tmp_path: pathlib.Path
) -> None:
    run(experiment(text, max_steps=2), tmp_path / "run")
    wider = experiment(text)
    wider.task.model.dim = 16
    with pytest.raises(CheckpointMismatch, match=r"weights/model/embedding/table"):
        run(wider, tmp_path / "run", allow_change=True)


def test_how_the_program_is_made_changes_neither_losses_nor_checkpoints(
    text: str, tmp_path: pathlib.Path
) -> None:
    run(experiment(text), tmp_path / "plain")
    plain = losses(tmp_path / "plain")
    for i, change in enumerate(
        (
            lambda cfg: cfg.all(TransformerLayer).wrap(Remat, "layer"),
            lambda cfg: cfg.all(Stack).swap(Repeat),
            lambda cfg: (
                cfg.all(Stack).swap(Repeat) and cfg.all(TransformerLayer).wrap(Remat, "layer")
            ),
            lambda cfg: cfg.set(accumulation_steps=4),
            lambda cfg: cfg.set(steps_per_loop=10),
        )
    ):
        changed = experiment(text)
        change(changed)
        run(changed, tmp_path / str(i))
        for step, loss in losses(tmp_path / str(i)).items():
            assert loss == pytest.approx(plain[step], rel=1e-5), (i, step)
        read_by_other = experiment(text, max_steps=8)
        assert run(read_by_other, tmp_path / str(i), allow_change=True).step == 8


def test_steps_that_stay_not_finite_end_the_run_and_change_nothing(
    text: str, tmp_path: pathlib.Path
) -> None:
    broken = experiment(text)
    broken.task.model.embedding.init = TruncatedNormal.params(stddev=1e38)
    broken.guard = Guard.params(max_skipped_steps=3)
    with pytest.raises(NumericFailure, match=r"step 3: .* 3 times in a row"):
        run(broken, tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text().startswith("failed")


def test_evaluation_can_use_the_moving_average(text: str, tmp_path: pathlib.Path) -> None:
    trained, averaged = experiment(text), experiment(text)
    averaged.evaluate.weights = "ema"
    one = run(trained, tmp_path / "trained").evaluations["same"]["eval/loss"]
    other = run(averaged, tmp_path / "averaged").evaluations["same"]["eval/loss"]
    assert one != other


def test_loops_end_where_something_is_due() -> None:
    assert list(spans(3, 21, size=10, due=[6, 20])) == [
        range(3, 6), range(6, 12), range(12, 18), range(18, 20), range(20, 21),
    ]  # fmt: skip
