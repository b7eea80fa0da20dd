"""Where a run stands is recorded in JSON and read back to the last bit; nonsense is refused."""

import json

import numpy as np
import pytest

from lingo.checkpoints.run_counters import Health, HealthSnapshot, Level, RunCounters, read_counters
from lingo.contract import Guard
from lingo.data.input import Input


class Numbers(Input):
    """Ten examples, five a batch."""

    def num_examples(self):
        return 10


INPUT = Numbers.params(batch_size=5).build()


def recorded(at):
    return json.loads(json.dumps(at.metadata(INPUT), allow_nan=False))


def test_a_position_survives_json_bit_for_bit():
    level = Level(7, 0.1 + 0.2, 1e-300)
    health = Health(2, 1, 3, 5, 4, level)
    states = {"moe/load": {"sum": np.array([0.1, 1 / 3]), "weight": np.float64(3)}}
    at = RunCounters(9, 4, 2, health, states, HealthSnapshot(7, health._replace(num_skipped=1)))
    back = read_counters(9, recorded(at))
    assert back._replace(states={}) == at._replace(states={})
    for key, value in states["moe/load"].items():
        np.testing.assert_array_equal(back.states["moe/load"][key], value)
        assert np.shape(back.states["moe/load"][key]) == np.shape(value)


def test_a_metric_may_be_what_it_is():
    states = {"odd": {"sum": np.float64("nan"), "weight": np.float64("inf")}}
    back = read_counters(1, recorded(RunCounters(1, states=states))).states["odd"]
    assert (str(back["sum"]), str(back["weight"])) == ("nan", "inf")


def test_what_is_not_recorded_is_as_at_the_beginning():
    assert read_counters(3, {}) == RunCounters(3)


def test_people_see_what_comes_next_in_the_data_after_what_was_passed_over():
    expected = {"step": 3, "examples": 35, "epoch": 3, "offset": 4, "rewinds": 0}
    assert recorded(RunCounters(3, 4))["data_position"] == expected


@pytest.mark.parametrize(
    "mistake",
    [
        {"data_position": {"offset": -1}},
        {"data_position": {"rewinds": 1.5}},
        {"skipped_steps": 4},
        {"guard": {"anomalous": 2**70}},
        {"pending_anomaly": {"step": 4}},
        {"pending_anomaly": {"step": 2, "skipped_steps": 3}},
        {"guard": {"level": [1, "0x1p+0"]}},
        {"guard": {"level": [1, "nan", "0x1p+0"]}},
        {"guard": {"level": [1, "0x1p+0", "-0x1p+0"]}},
        {"metrics": {"x": {"sum": [[2], ["0x1p+0"]]}}},
        {"metrics": {"x": {"sum": "0x1p+0"}}},
    ],
    ids=str,
)
def test_what_no_run_records_is_refused(mistake):
    with pytest.raises(ValueError):
        read_counters(3, mistake)


def test_each_of_several_tasks_has_its_own_level():
    """A spike of one task is told from the losses of another; a checkpoint keeps all levels."""
    guard, health, alone = Guard.params(spike_steps=5), Health(), Health()
    for step in range(40):
        health = health.add_step(1.0 + step % 3, is_finite=True, guard=guard, task="a")
        alone = alone.add_step(1.0 + step % 3, is_finite=True, guard=guard)
        health = health.add_step(100.0 + step % 3, is_finite=True, guard=guard, task="b")
        assert not health.num_spiked
    assert health.levels["a"] == alone.level
    assert health.level == health.levels["b"]
    spiked = health.add_step(100.0, is_finite=True, guard=guard, task="a")
    assert spiked.num_spiked == 1
    assert spiked.levels == health.levels
    assert spiked.level == health.levels["a"]
    counters = RunCounters(step=90, health=spiked)
    assert read_counters(90, recorded(counters)) == counters
    with pytest.raises(ValueError, match="its level of losses is impossible"):
        read_counters(9, {"guard": {"levels": {"a": [1, "0x0p+0", "-0x1p+0"]}}})
