"""Observers: each gets every event, a broken one is left out, and any may stop a run."""

import signal

import numpy as np
import pytest

from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Evaluation, Experiment, Guard, RunEvents, RunObserver, Summary
from lingo.data import ArrayInput
from lingo.layers import Linear
from lingo.learner.task import Task
from lingo.optim import Sgd
from lingo.trainer.observers import ObserverError, Observers

CALLS = []

EVENTS = [name for name in vars(RunEvents) if name.startswith("on_")]


class Square(Task):
    """Half the square of a number that is to become zero."""

    linear: Linear = Linear.params(dim=1, output_dim=1)

    def setup(self):
        self.linear = self.p.linear.build()

    def loss(self, batch):
        return {"square": tf.reduce_sum(batch["weights"][:, None] * self.linear(batch["x"]) ** 2)}


def ones():
    return {"x": np.ones([4, 1], np.float32)}


class Recorder(RunObserver):
    """Records its calls."""

    name: str = "a"


def recorded(event):
    def record(self, run, *values):
        CALLS.append((self.p.name, event, *values))

    return record


for event in EVENTS:
    setattr(Recorder, event, recorded(event))


class Broken(Recorder):
    """Fails at the report of step 2."""

    def on_report(self, run, report):
        super().on_report(run, report)
        if report.step == 2:
            raise RuntimeError("the service is gone")


class Stopper(RunObserver):
    """Stops the run at an evaluation."""

    at: int = 2

    def on_evaluation_end(self, run, report):
        if report.step == self.p.at:
            run.stop("good enough")


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


@pytest.fixture
def params():
    """An experiment of four steps, each reported, with an evaluation after every second."""
    data = ArrayInput.params(function=ones, batch_size=2)
    return Experiment.params(
        task=Square,
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False)},
        optimizer=Sgd.params(learning_rate=0.01),
        max_steps=4,
        summary=Summary.params(every_steps=1, histograms=False),
        evaluate=Evaluation.params(every_steps=2),
        observers=[Recorder],
    )


def events(name="a"):
    """Returns the events that an observer got, each with its step."""
    found = []
    for who, event, *values in CALLS:
        if who == name:
            step = getattr(values[0], "step", values[0])
            found.append(f"{event.removeprefix('on_')} {step}")
    return found


def test_a_run_tells_every_event_in_order(params, run, directory):
    run(params, directory)
    steps = "steps_start {0}|report {1}|steps_end {1}"
    evaluation = "evaluation_start {0}|evaluation_end {0}"
    expected = "|".join(
        [
            *("begin 0|start 0", steps.format(0, 1), steps.format(1, 2), evaluation.format(2)),
            *(steps.format(2, 3), steps.format(3, 4), evaluation.format(4), "save 4|end done"),
        ]
    )
    assert events() == expected.split("|")
    CALLS.clear()
    run(params, directory)
    assert CALLS == [("a", "on_skip", 4, "done")]
    CALLS.clear()
    run(params.copy().set(max_steps=5), directory)
    assert events()[:4] == ["begin 4", "start 4", "steps_start 4", "report 5"]


def test_reports_are_what_the_run_writes(params, run, directory, rows):
    run(params, directory)
    reports = [value for _, event, value in CALLS if event == "on_report"]
    evaluations = [value for _, event, value in CALLS if event == "on_evaluation_end"]
    for report, row in zip(reports, rows(directory), strict=True):
        assert report.step == row["step"]
        assert report.scalars.items() <= row.items()
    assert [(one.step, one.is_last) for one in evaluations] == [(2, False), (4, True)]
    assert evaluations[-1].results == {"same": {"loss/square": row["eval/loss/square"]}}


def test_an_observer_knows_the_run(params, run, directory):
    seen = []

    class Curious(RunObserver):
        """Keeps the run."""

        def on_begin(self, run, step):
            seen.append(run)

    run(params.set(observers=[Curious]), directory)
    assert seen[0].directory == directory
    assert seen[0].parameters["optimizer.learning_rate"] == 0.01
    assert seen[0].parameters["class"] == "Experiment"
    assert seen[0].experiment.train_input.num_examples() == 4


def test_a_broken_observer_is_named_once_and_left_out(params, run, directory, caplog):
    run(params.set(observers=[Broken, Recorder.params(name="b")]), directory)
    assert events()[-1] == "report 2"
    assert events("b")[-1] == "end done"
    line = Broken.on_report.__code__.co_firstlineno + 3
    assert caplog.messages == [
        f"{__file__}:{line}: left out from here on: Broken: RuntimeError: the service is gone"
    ]


def test_a_required_observer_ends_the_run_and_what_was_done_is_saved(params, run, directory):
    broken = Broken.params(is_required=True)
    with pytest.raises(ObserverError, match="Broken: RuntimeError: the service is gone"):
        run(params.set(observers=[broken, Recorder.params(name="b")]), directory)
    assert events("b")[-1] == "end failed"
    CALLS.clear()
    assert run(params.set(observers=[Recorder]), directory).state == "done"
    assert events()[:2] == ["begin 2", "start 2"]


def test_an_evaluation_that_a_required_observer_has_not_taken_is_repeated(params, run, directory):
    class Refusing(RunObserver):
        """Takes no evaluation."""

        is_required: bool = True

        def on_evaluation_end(self, run, report):
            raise LingoError("not taken")

    with pytest.raises(LingoError, match="not taken"):
        run(params.set(observers=[Refusing]), directory)
    run(params.set(observers=[Recorder]), directory)
    assert "evaluation_end 2" in events()


def test_an_observer_stops_a_run_as_a_signal_does(params, run, directory, capsys):
    outcome = run(params.set(observers=[Stopper, Recorder]), directory)
    assert (outcome.step, outcome.state, outcome.signal) == (2, "stopped", signal.SIGTERM)
    assert events()[-2:] == ["save 2", "end stopped"]
    assert "stopping: good enough" in capsys.readouterr().out
    outcome = run(params.set(observers=[Stopper.params(at=4)]), directory)
    assert (outcome.state, outcome.signal) == ("done", None)


def test_a_run_that_rewinds_says_to_where(params, run, directory):
    params.guard = Guard.params(on_non_finite="rewind", max_skipped_steps=1)
    params.train_input.function = one_of_sixteen_is_not_finite
    run(params.set(eval_inputs={}, max_steps=8), directory)
    assert events().count("rewind 0") == 1
    assert events()[-1] == "end done"


def one_of_sixteen_is_not_finite():
    return {"x": np.array([[np.nan]] + [[1.0]] * 15, np.float32)}


def test_another_process_tells_only_lingos_own(params):
    observers = Observers(None, [])
    observers.add(Recorder.params(name="own").build())
    observers.tell(RunEvents.on_begin, 3)
    assert CALLS == [("own", "on_begin", 3)]


def test_observers_change_no_number(params, run, tmp_path):
    alone, followed = tmp_path / "alone", tmp_path / "followed"
    run(params.copy().set(observers=[]), alone)
    run(params.set(observers=[Recorder, Recorder.params(name="b"), Broken]), followed)
    file = "checkpoints/step_00000004/tensors.data-00000-of-00001"
    assert (alone / file).read_bytes() == (followed / file).read_bytes()


def test_an_observer_may_refuse_an_experiment(params):
    class Picky(RunObserver):
        """Wants many steps."""

        def check_experiment(self, experiment):
            if experiment.p.max_steps < 100:
                raise ParamError("max_steps is below 100")

    with pytest.raises(ParamError, match="max_steps is below 100"):
        params.set(observers=[Picky]).build()
