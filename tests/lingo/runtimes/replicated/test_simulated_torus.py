"""Chips of a simulated torus fail while they train, and the losses stay those of one device."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data.array_spec import Specs
from lingo.layers.stacks.stack import Chain
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.state import Learner, initial_state, num_bytes
from lingo.mesh.allreduce.planner import PLANNERS
from lingo.models.image.amoebanet import AmoebaNetHead, AmoebaNetStem
from lingo.optim.adam import AdamW
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.program import LostState
from lingo.runtimes.replicated.simulated_torus import Planner, SimulatedTorus
from tasks.image.task import ImageClassification
from tests.lingo.runtimes.replicated.on_replicas import TwoTerms, two_terms

ADAM = AdamW.params(learning_rate=0.01, max_grad_norm=1.0, ema_decay=0.9)


def start(runtime: Params, optimizer: Params = ADAM) -> Any:
    learner = Learner(TwoTerms.params().build(), optimizer.build())
    return runtime.build().start(learner, initial_state(learner))


def batches(*steps: int, size: int = 16) -> dict[str, np.ndarray]:
    """Returns examples of some steps, all of which are finite."""
    found = [two_terms(step + 10, size=size) for step in steps]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def train(program: Any, num_steps: int, size: int = 16) -> np.ndarray:
    """Returns the loss of each step."""
    found = [program.train(batches(step, size=size)) for step in range(num_steps)]
    return np.concatenate([np.asarray(one["scalars"]["loss/total"]) for one in found])


def assert_same_state(one: Any, other: Any) -> None:
    pairs = [tf.nest.flatten(program.state()) for program in (one, other)]
    for a, b in zip(*pairs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_run_that_loses_a_board_after_50_of_100_steps_has_the_losses_of_others() -> None:
    failing = start(SimulatedTorus.params(failures={"50": "2x2@1,1"}))
    whole, local = start(SimulatedTorus.params()), start(Local.params())
    expected = train(local, 100)
    for program in (whole, failing):
        np.testing.assert_allclose(train(program, 100), expected, rtol=1e-5)
        assert_same_state(program, local)
    assert (len(whole._memory), len(failing._memory)) == (16, 12)


@pytest.mark.parametrize("size", [5, 16, 21])
def test_a_batch_that_chips_cannot_share_equally_has_the_same_losses(size: int) -> None:
    failures = {"1": "1x1@0,0", "2": "1x1@1,0"}  # 6, 5, then 4 chips
    failing = start(SimulatedTorus.params(shape=[2, 3], failures=failures))
    expected = train(start(Local.params()), 3, size)
    np.testing.assert_allclose(train(failing, 3, size), expected, rtol=1e-5)
    assert [*failing._memory] == [1, 2, 4, 5]


def test_15_of_16_chips_go_on_though_there_is_no_ring(caplog) -> None:
    program = start(SimulatedTorus.params(failures={"1": "1x1@2,2"}))
    expected = train(start(Local.params()), 2)
    np.testing.assert_allclose(train(program, 2), expected, rtol=1e-5)
    (message,) = caplog.messages
    assert "simulation: chip 10 (1x1@2,2) lost after step 1; all-reduce planned again" in message
    assert "row_pairs, 16 steps in place of 12 of torus2d; 15 chips go on from their" in message


def test_every_healthy_chip_has_the_same_bits_in_memory_of_its_own() -> None:
    program = start(SimulatedTorus.params(shape=[2, 4], failures={"1": "2x2@0,1"}))
    train(program, 2)
    assert [*program._memory] == [0, 3, 4, 7]
    first, *others = [tf.nest.flatten(state) for state in program._memory.values()]
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert a is not b
            np.testing.assert_array_equal(a, b)


def test_chips_fail_between_two_steps_of_a_call() -> None:
    program = start(SimulatedTorus.params(shape=[2, 4], failures={"2": "2x2@0,1"}))
    report = program.train(batches(0, 1, 2, 3))
    expected = train(start(Local.params()), 4)
    np.testing.assert_allclose(report["scalars"]["loss/total"], expected, rtol=1e-5)
    assert program.state().step == 4


def test_an_error_undoes_all_steps_of_a_call_but_chips_stay_lost(monkeypatch) -> None:
    program = start(SimulatedTorus.params(shape=[2, 4], failures={"2": "2x2@0,1"}))
    local = start(Local.params())
    for one in (program, local):
        train(one, 1)
    step = program._train_step

    def failing(batch):
        if program.state().step == 3:
            raise tf.errors.InvalidArgumentError(None, None, "no")
        return step(batch)

    monkeypatch.setattr(program, "_train_step", failing)
    with pytest.raises(tf.errors.InvalidArgumentError):
        program.train(batches(1, 2, 3))
    assert_same_state(program, local)
    assert [*program._memory] == [0, 3, 4, 7]


def test_a_run_that_starts_after_failures_names_the_chips_that_it_lacks(caplog) -> None:
    runtime = torus(failures={"1": "1x1@0,0", "2": "1x1@1,0"})
    learner = Learner(TwoTerms.params().build(), ADAM.build())
    runtime.build().start(learner, initial_state(learner)._replace(step=np.int32(3)))
    assert [one.split(";")[::2] for one in caplog.messages] == [
        ["simulation: chip 0 (1x1@0,0) lost after step 1", " this run starts on 7 chips"],
        ["simulation: chip 4 (1x1@1,0) lost after step 2", " this run starts on 6 chips"],
    ]


def test_chips_that_are_left_go_on_from_a_loaded_state_after_each_loss_of_pieces() -> None:
    program = start(torus(shard_update=True, failures={"1": "1x1@0,0", "2": "1x1@0,1"}))
    expected, found = train(start(Local.params()), 3), [train(program, 1)]
    for step in (1, 2):
        saved = program.state()
        with pytest.raises(LostState, match=f"lost after step {step}, with their pieces"):
            program.train(batches(step))
        with pytest.raises(LostState, match="with their pieces"):
            program.state()
        program.load(saved)
        found.append(program.train(batches(step))["scalars"]["loss/total"])
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5)
    assert len(program._memory) == 6


def test_no_piece_is_lost_of_an_optimizer_without_slots() -> None:
    optimizer = Sgd.params(learning_rate=0.1, momentum=0.0)
    failing = start(torus(shard_update=True, failures={"1": "1x1@0,0"}), optimizer)
    expected = train(start(Local.params(), optimizer), 2)
    np.testing.assert_allclose(train(failing, 2), expected, rtol=1e-5)


def test_chips_that_share_an_update_hold_the_slots_once() -> None:
    learner = Learner(TwoTerms.params().build(), ADAM.build())
    whole, cut = (torus(shard_update=cut).build().host_bytes(learner) for cut in (False, True))
    assert whole - cut == 7 * num_bytes(learner)["slots"] > 0


# ---- runs --------------------------------------------------------------------------------------


def torus(**fields: Any) -> Params:
    return SimulatedTorus.params(shape=[2, 4], **fields)


def test_a_run_with_dropout_loses_a_board_resumes_and_ends_as_on_one_device(
    experiment, text, run, losses, tmp_path
) -> None:
    local = run(experiment(text), tmp_path / "local")
    failing = experiment(text).set(runtime=torus(failures={"3": "2x2@0,1"}))
    run(failing.copy().set(max_steps=4), tmp_path / "lost")
    lost = run(failing, tmp_path / "lost")  # resumes without these chips
    expected = losses(tmp_path / "local")
    assert len(expected) == 6
    assert losses(tmp_path / "lost") == pytest.approx(expected, rel=1e-5)
    assert lost.evaluations["same"] == pytest.approx(local.evaluations["same"], rel=1e-5)


def test_pieces_of_slots_are_lost_with_their_chips_and_the_run_goes_back_as_by_a_second_command(
    experiment, text, run, rows, weights, losses, tmp_path, capsys
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    cut = experiment(text).set(runtime=torus(shard_update=True, failures={"3": "2x2@0,1"}))
    run(cut.copy(), one)
    (message,) = [line for line in capsys.readouterr().out.splitlines() if "lost after" in line]
    assert (
        "simulation: chips 1, 2, 5, 6 (2x2@0,1) lost after step 3, with their pieces of the"
        " optimizer's slots; all-reduce planned again around them: "
    ) in message
    assert message.endswith("; back to step 2")
    run(cut.copy().set(max_steps=2, runtime=torus(shard_update=True)), two)
    run(cut.copy().set(runtime=torus(shard_update=True, holes=["2x2@0,1"])), two)
    assert losses(one) == pytest.approx(losses(two), rel=1e-6)
    saved = weights(one)
    assert saved.keys() == weights(two).keys()
    for name, value in weights(two).items():
        np.testing.assert_allclose(saved[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    assert [row["step"] for row in rows(one) if "loss/total" in row] == [1, 2, 3, 4, 5, 6]
    events = EventAccumulator(str(one / "train")).Reload().Tensors("loss/total")
    assert [event.step for event in events] == [1, 2, 3, 4, 5, 6]


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": [32, 32]}, "has 1,024 chips: 256 at most are simulated"),
        ({"shape": [4, 0]}, "a size of 1 or more for each axis"),
        ({"holes": ["2x2"]}, "the hole '2x2' is not written as"),
        (
            {"failures": {"x": "2x2@1,1"}},
            "failures has 'x' where the number of steps before belongs",
        ),
        (
            {"failures": {"0": "2x2@1,1"}},
            "failures has '0' where the number of steps before belongs",
        ),
        ({"failures": {"5": "2x2@3,3"}}, "'2x2@3,3' is not inside a 4 x 4 torus"),
        ({"links": "mesh", "failures": {"5": "2x2@3,3"}}, "'2x2@3,3' is not inside a 4 x 4 mesh"),
        ({"failures": {"5": "4x4@0,0"}}, "leave no chip"),
        (
            {"failures": {"5": "2x2@1,1", "7": "1x1@1,1"}},
            "'1x1@1,1' at step 7 has failed already",
        ),
        (
            {"links": "mesh", "failures": {"5": "1x2@0,0", "9": "4x1@0,1"}},
            "the holes 1x2@0,0, 4x1@0,1 split a 4 x 4 mesh",
        ),
        (
            {"links": "mesh", "shape": [3, 3], "failures": {"5": "1x1@1,0", "9": "1x1@1,2"}},
            r"no all-reduce on 3 x 3 mesh without 2 chips: .* row_pairs needs .* has none",
        ),
        ({"planner": "torus2d", "failures": {"5": "2x2@1,1"}}, "torus2d needs every chip"),
    ],
)
def test_chips_without_an_all_reduce_are_refused_before_anything_is_trained(
    fields, message
) -> None:
    with pytest.raises(ParamError, match=message):
        SimulatedTorus.params(**fields).build()


def test_every_planner_of_all_reduces_has_its_name_in_the_field() -> None:
    assert get_args(Planner) == ("fastest", *PLANNERS)


def test_statistics_of_a_batch_that_the_chips_left_cannot_share_equally_are_refused() -> None:
    norm = BatchNorm.params(statistics_over=2)
    layers = [
        AmoebaNetStem.params(dim=1, output_dim=4, norm=norm),
        AmoebaNetHead.params(dim=4, num_classes=3),
    ]
    task = ImageClassification.params(
        model=Chain.params(layers=layers), num_classes=3, image_shape=(4, 4, 1)
    )
    specs: Specs = {"rows": ((32,), "int32")}
    learner = Learner(task.build(), Sgd.params(learning_rate=0.1).build(), specs=specs)
    SimulatedTorus.params().build().check_learner(learner)
    with pytest.raises(ParamError, match="32 examples do not divide into 12 equal parts"):
        SimulatedTorus.params(failures={"5": "2x2@1,1"}).build().check_learner(learner)
