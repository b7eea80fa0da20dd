"""What went wrong is said once a streak, and written down when it ends a run."""

import json
import math

import pytest

from lingo.checkpoints.run_counters import Health, Level
from lingo.trainer.guard.guard import Anomaly
from lingo.trainer.guard.incidents import Incidents

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
