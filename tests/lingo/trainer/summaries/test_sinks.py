"""Sinks: each gets every row, and none can end a run."""

import pathlib

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment, Summary
from lingo.data import ArrayInput
from lingo.layers import Linear
from lingo.learner.task import Task
from lingo.metrics.sink import Sink
from lingo.optim import Sgd
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.summaries.sinks import Sinks
from lingo.trainer.summaries.summaries import Summaries

CALLS = []


class Square(Task):
    """Half the square of a number that is to become zero."""

    linear: Linear = Linear.params(dim=1, output_dim=1)

    def setup(self):
        self.linear = self.p.linear.build()

    def loss(self, batch):
        return {"square": tf.reduce_sum(batch["weights"][:, None] * self.linear(batch["x"]) ** 2)}


def ones():
    return {"x": np.ones([4, 1], np.float32)}


class Recorder(Sink):
    """Records its calls."""

    name: str = "a"

    def start(self, directory, parameters):
        CALLS.append((self.p.name, "start", directory, parameters))

    def write(self, step, values, *, time):
        CALLS.append((self.p.name, step, values, time))

    def end(self, state):
        CALLS.append((self.p.name, state))


class Broken(Recorder):
    """Fails at step 2."""

    def write(self, step, values, *, time):
        if step in (2, 3):
            raise RuntimeError("the service is gone")
        super().write(step, values, time=time)


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def test_every_sink_gets_start_rows_and_end():
    sinks = Sinks([Recorder.params(name=name).build() for name in "ab"])
    sinks.start(pathlib.Path("run"), {"seed": 1})
    sinks.write({"step": 3, "time": 5.0, "loss/total": 2.0})
    sinks.end("done")
    expected = [
        ("start", pathlib.Path("run"), {"seed": 1}),
        (3, {"loss/total": 2.0}, 5.0),
        ("done",),
    ]
    assert [call[1:] for call in CALLS if call[0] == "a"] == expected
    assert [call[1:] for call in CALLS if call[0] == "b"] == expected


def test_an_exception_is_one_warning_until_it_works_again_and_the_next_sink_is_called(caplog):
    sinks = Sinks([Broken.params().build(), Recorder.params(name="b").build()])
    for step in (1, 2, 3, 4, 2):
        sinks.write({"step": step, "time": 0.0})
    assert [call[:2] for call in CALLS if call[0] == "a"] == [("a", 1), ("a", 4)]
    assert [call[1] for call in CALLS if call[0] == "b"] == [1, 2, 3, 4, 2]
    assert caplog.messages == ["Broken lacks reports: RuntimeError: the service is gone"] * 2


def test_a_run_reports_to_its_sinks_what_it_writes_and_the_next_steps_after_a_resume(
    run, directory, rows
):
    def reported():
        return [call[1:3] for call in CALLS if isinstance(call[1], int)]

    data = ArrayInput.params(function=ones, batch_size=2)
    params = Experiment.params(
        task=Square,
        train_input=data,
        optimizer=Sgd.params(learning_rate=0.01),
        max_steps=4,
        summary=Summary.params(every_steps=1, histograms=False, sinks=[Recorder]),
    )
    run(params, directory)
    assert CALLS[0][:3] == ("a", "start", directory)
    assert CALLS[0][3]["optimizer.learning_rate"] == 0.01
    assert CALLS[0][3]["class"] == "Experiment"
    assert CALLS[-1] == ("a", "done")
    expected = [(row.pop("step"), row) for row in rows(directory)]
    assert reported() == expected
    CALLS.clear()
    run(params.copy().set(max_steps=6), directory)
    assert [step for step, _ in reported()] == [5, 6]


def test_a_run_that_fails_says_so_and_another_process_calls_no_sink(tmp_path):
    sinks = [Recorder.params().build()]
    one = Summaries(RunDirectory(tmp_path), step=0, sinks=sinks)
    one.start_run({})
    one.__exit__(OSError, OSError("broken"), None)
    assert CALLS[-1] == ("a", "failed")
    CALLS.clear()
    with Summaries(RunDirectory(tmp_path, enabled=False), step=0, sinks=sinks) as other:
        other.start_run({})
        other.write_step(1, {"a": 1.0})
        other.end_run("done")
    assert not CALLS


def test_a_sink_without_write_is_told():
    class Empty(Sink):
        """Has nothing."""

    with pytest.raises(ParamError, match=r"Empty has no `write`: it takes \(step"):
        Empty.params().build().write(1, {}, time=0.0)
