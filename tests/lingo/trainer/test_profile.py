"""A profile of some steps, where TensorBoard looks for it."""

import logging
from typing import Any

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from lingo.config.lazy import tf
from lingo.trainer.profile import Profile


@pytest.fixture
def log(monkeypatch):
    """What is asked of TensorFlow's profiler, which is one a process."""
    log = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda _: log.append("start"))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: log.append("stop"))
    return log


def done(profile, log, spans):
    with profile:
        for steps in spans:
            with profile.record(steps):
                log.append(f"{steps.start}:{steps.stop}")


def test_the_steps_of_the_range_are_recorded_and_no_others(tmp_path, log):
    profile = Profile(tmp_path, range(2, 5))
    assert profile.bounds == (2, 5)
    done(profile, log, [range(0, 2), range(2, 4), range(4, 5), range(5, 8)])
    assert log == ["0:2", "start", "2:4", "4:5", "stop", "5:8"]


def test_a_range_that_the_run_ends_in_is_recorded_to_the_end(tmp_path, log):
    done(Profile(tmp_path, range(2, 9)), log, [range(3, 4)])
    assert log == ["start", "3:4", "stop"]


def test_a_range_that_was_never_reached_is_a_warning(tmp_path, log, caplog):
    with caplog.at_level(logging.WARNING):
        done(Profile(tmp_path, range(20, 25)), log, [range(0, 4)])
        done(Profile(tmp_path, range(0)), log, [range(0, 4)])
    assert log == ["0:4", "0:4"]
    assert caplog.messages == [
        "profile_steps=20:25: no such step was done, so there is no profile."
    ]


def test_each_span_is_a_marked_step_of_the_profile_with_an_event_inside(tmp_path):
    profile = Profile(tmp_path / "profile", range(2, 5))
    with profile:
        for steps in (range(0, 2), range(2, 4), range(4, 5), range(5, 6)):
            with profile.record(steps):
                tf.function(lambda: tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0]))()
    (file,) = (tmp_path / "profile").glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    events: list[Any] = []
    for plane in space.planes:
        names = {key: value.name for key, value in plane.event_metadata.items()}
        stats = {key: value.name for key, value in plane.stat_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            values = {stats[stat.metadata_id]: stat.int64_value for stat in event.stats}
            events.append((names[event.metadata_id], values))
    steps = [values for name, values in events if name == "train"]
    assert steps == [{"step_num": 3, "_r": 1}, {"step_num": 5, "_r": 1}]
    assert [name for name, _ in events].count("span") == 2
    stats = {name for _, values in events for name in values}
    assert "loop_num" in stats
    assert "iter_num" not in stats, "TensorBoard would take iterations of loops for steps"


def test_tensorboard_finds_what_was_recorded(tmp_path):
    with Profile(tmp_path / "profile", range(0, 1)) as profile, profile.record(range(0, 1)):
        tf.matmul(tf.ones([8, 8]), tf.ones([8, 8]))
    assert list((tmp_path / "profile").glob("plugins/profile/*/*.xplane.pb"))
    assert list((tmp_path / "profile").glob("events.out.tfevents.*")), "it is a run"


@pytest.mark.parametrize("name", ["profile", "profile/plugins", "profile/plugins/profile"])
def test_a_folder_that_is_a_link_gets_no_profile(tmp_path, log, caplog, name):
    (tmp_path / "elsewhere").mkdir()
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    (run / name).symlink_to(tmp_path / "elsewhere")
    done(Profile(run / "profile", range(0, 4)), log, [range(0, 4)])
    assert log == ["0:4"]
    assert "it is a link" in caplog.messages[-1]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_another_profiler_at_work_is_a_warning(tmp_path, monkeypatch, caplog):
    def busy(folder):
        raise tf.errors.AlreadyExistsError(None, None, "Another profiler is running.")

    monkeypatch.setattr(tf.profiler.experimental, "start", busy)
    with Profile(tmp_path, range(0, 1)) as profile, profile.record(range(0, 1)):
        pass
    assert caplog.messages == ["no profile: Another profiler is running."]
