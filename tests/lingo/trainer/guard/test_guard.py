"""The guard counts, compares losses with those before, and says when a run may not go on."""

import json
import math

import numpy as np
import pytest

from lingo.checkpoints.run_counters import Health, Level
from lingo.config.params import ParamError
from lingo.contract import Guard
from lingo.trainer.guard.guard import Anomaly, Incidents, diagnose

NAN = float("nan")


def guard(**fields):
    return Guard.params(**{"spike_steps": 4, "spike_deviations": 3.0, **fields})


def after(losses, *, start=None, **fields):
    """Returns how a run is doing after some losses; one that is not finite was left out."""
    now = start or Health()
    for loss in losses:
        now = now.add_step(loss, is_finite=math.isfinite(loss), guard=guard(**fields))
    return now


# ---- the level of losses -----------------------------------------------------------------------


def test_until_memory_is_full_the_level_is_mean_and_variance():
    losses, level = [3.0, 1.0, 2.0, 6.0], Level()
    for i, loss in enumerate(losses, 1):
        level = level.add(loss, steps=10)
        assert level.count == i
        assert level.mean == pytest.approx(np.mean(losses[:i]))
        assert level.variance == pytest.approx(np.var(losses[:i]), abs=1e-12)


def test_then_each_loss_weighs_less_than_the_next():
    losses, level = [3.0, 1.0, 2.0, 6.0, 4.0], Level()
    for loss in losses:
        level = level.add(loss, steps=2)
    weights = np.array([0.5**4, 0.5**4, 0.5**3, 0.5**2, 0.5])  # the first two weigh the same
    mean = np.sum(weights * losses)
    assert level.mean == pytest.approx(mean)
    assert level.variance == pytest.approx(np.sum(weights * (losses - mean) ** 2))


def test_a_loss_is_compared_in_standard_deviations_above_the_mean():
    assert Level(9, 2.0, 0.25).deviations(3.5) == 3.0
    assert Level(9, 2.0, 0.25).deviations(0.5) == -3.0
    assert Level(9, 2.0, 0.0).deviations(2.001) == pytest.approx(0.5), "although they never vary"
    assert Level(9, 0.0, 0.0).deviations(1e-3) > 1e6


# ---- what is a spike ---------------------------------------------------------------------------


def test_a_loss_far_above_the_others_is_a_spike_and_one_far_below_is_none():
    calm = [2.0, 2.2, 1.8, 2.0]
    assert after([*calm, 9.0]).counters()["learner/loss_spike"] == 1
    assert after([*calm, 2.3]).num_spiked == after([*calm, 0.0]).num_spiked == 0
    assert after([2.0, 2.2, 1.8, 90.0]).spiked_total == 0, "the memory is not full"


def test_neither_spikes_nor_what_is_not_finite_change_the_level():
    calm = after([2.0, 2.2, 1.8, 2.0])
    assert after([9.0, NAN, math.inf, 9.5], start=calm).level == calm.level


def test_a_loss_that_stays_up_is_the_new_level():
    calm = after([2.0, 2.2, 1.8, 2.0])
    up = after([9.0] * 4, start=calm)
    assert (up.num_spiked, up.spiked_total) == (4, 4)
    settled = after([9.0], start=up)
    assert (settled.num_spiked, settled.spiked_total) == (0, 4)
    assert settled.level == Level().add(9.0, steps=4)


# ---- what is counted ---------------------------------------------------------------------------


def test_trouble_is_counted_from_its_first_step_through_spikes_and_left_out_updates():
    calm = after([2.0, 2.2, 1.8, 2.0])
    now = after([9.0, NAN, NAN], start=calm)
    assert (now.num_skipped, now.num_spiked, now.num_anomalous) == (2, 1, 3)
    assert now.counters() == {
        "learner/skipped": 1,
        "learner/skipped_total": 2,
        "learner/loss_spike": 0,
        "learner/loss_spike_total": 1,
    }
    assert after([9.0], start=now).num_skipped == 0
    assert after([9.0], start=now).num_anomalous == 4
    good = after([2.1], start=now)
    assert (good.num_skipped, good.num_spiked, good.num_anomalous) == (0, 0, 0)
    assert (good.skipped_total, good.spiked_total) == (2, 1)


# ---- when it is too much -----------------------------------------------------------------------


def wrong(losses, *, is_over=False, **fields):
    now, step = after(losses, **fields), len(losses)
    return diagnose(now, step=step, guard=guard(**fields), is_over=is_over)


def test_so_many_updates_left_out_in_a_row_are_too_many():
    assert wrong([1.0, NAN, NAN], max_skipped_steps=3) is None
    found = wrong([1.0, NAN, NAN, NAN], max_skipped_steps=3)
    assert (found.step, found.steps, found.action) == (4, 3, "stop")
    assert "3 times in a row" in found.reason
    assert wrong([NAN, NAN, 1.0, NAN], max_skipped_steps=3) is None
    assert wrong([1.0, NAN], on_non_finite="stop", max_skipped_steps=3).action == "stop"


def test_a_run_none_of_whose_steps_was_applied_is_no_success():
    assert wrong([NAN, NAN], max_skipped_steps=3) is None
    for policy in ("skip", "rewind"):
        found = wrong([NAN, NAN], max_skipped_steps=3, is_over=True, on_non_finite=policy)
        assert found.action == "stop"
    assert wrong([1.0, NAN, NAN], max_skipped_steps=3, is_over=True) is None


def test_the_guard_goes_back_where_it_is_told_to():
    fields = {"max_skipped_steps": 2, "on_non_finite": "rewind"}
    found = wrong([2.0, 2.2, 1.8, 2.0, 9.0, NAN, NAN], **fields)
    assert (found.action, found.steps) == ("rewind", 3), "trouble began with the spike"


@pytest.mark.parametrize("answer", ["stop", "rewind"])
def test_spikes_in_a_row_call_for_what_is_set(answer):
    calm = [2.0, 2.2, 1.8, 2.0]
    assert wrong([*calm, 9.0, 9.0]) is None
    assert wrong([*calm, 9.0], on_spike=answer, max_spiked_steps=2) is None
    found = wrong([*calm, 9.0, 9.0], on_spike=answer, max_spiked_steps=2)
    assert (found.action, found.steps) == (answer, 2)
    assert wrong([*calm, 9.0, 9.0, 2.0], on_spike=answer, max_spiked_steps=2) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_skipped_steps", 0),
        ("max_spiked_steps", 0),
        ("spike_steps", 0),
        ("spike_deviations", 0.0),
        ("spike_deviations", math.inf),
        ("max_rewinds", -1),
    ],
)
def test_numbers_that_make_no_sense_are_refused(field, value):
    with pytest.raises(ParamError, match=field):
        Guard.params(**{field: value}).build()


TROUBLE = Anomaly(6, 2, "stop", "it was bad", "Do better.")


def report(incidents, step, *, anomalous=1, not_finite="gradients/w"):
    incidents.add(
        step,
        {"loss/total": math.nan if not_finite else 9.0, "learner/learning_rate": 0.5},
        number=step + 10,
        examples=[2 * step, 2 * step + 1],
        health=Health(num_anomalous=anomalous, level=Level(9, 2.0, 1.0)),
        not_finite=not_finite,
    )


@pytest.fixture
def said():
    return []


@pytest.fixture
def incidents(tmp_path, said):
    return Incidents(tmp_path / "dump.json", report=said.append)


def test_the_first_of_a_streak_is_said(incidents, said):
    report(incidents, 3)
    report(incidents, 4, anomalous=2)
    report(incidents, 8, not_finite=None)
    assert said == [
        "step 3  gradients/w is not finite; nothing was changed",
        "step 8  loss 9 is a spike: 7.0 deviations above 2",
    ]


def test_the_steps_that_ended_a_run_are_written_down(incidents, tmp_path):
    for step in (2, 5, 6):
        report(incidents, step)
    message = incidents.write(TROUBLE)
    assert message.startswith("step 6: it was bad; first gradients/w.")
    assert str(tmp_path / "dump.json") in message
    assert message.endswith("Do better.")
    dump = json.loads((tmp_path / "dump.json").read_text())
    assert {k: dump[k] for k in ("step", "reason", "first_non_finite", "advice")} == {
        "step": 6,
        "reason": "it was bad",
        "first_non_finite": "gradients/w",
        "advice": "Do better.",
    }
    assert [one["step"] for one in dump["steps"]] == [5, 6], "step 2 was another matter"
    assert dump["steps"][0]["batch"] == 15
    assert dump["steps"][0]["examples"] == [10, 11]
    assert dump["steps"][0]["scalars"] == {"loss/total": "nan", "learner/learning_rate": 0.5}


def test_a_later_process_that_did_no_step_leaves_what_was_written(incidents, tmp_path):
    report(incidents, 6)
    incidents.write(TROUBLE)
    before = (tmp_path / "dump.json").read_bytes()
    later = Incidents(tmp_path / "dump.json", report=print)
    assert str(tmp_path / "dump.json") in later.write(TROUBLE)
    assert (tmp_path / "dump.json").read_bytes() == before


def test_a_disk_that_takes_nothing_hides_no_failure(tmp_path, caplog):
    incidents = Incidents(tmp_path / "missing/dump.json", report=print)
    report(incidents, 6)
    assert incidents.write(TROUBLE) == "step 6: it was bad; first gradients/w. Do better."
    assert "cannot write" in caplog.text


def test_what_was_left_behind_or_came_later_is_not_part_of_it(incidents, tmp_path):
    report(incidents, 5)
    incidents.cut(4)
    for step in (6, 7):
        report(incidents, step)
    incidents.write(TROUBLE)
    steps = json.loads((tmp_path / "dump.json").read_text())["steps"]
    assert [one["step"] for one in steps] == [6]
