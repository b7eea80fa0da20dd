"""Several processes make one run as one does: here two threads, each with a program of its own."""

import json
import threading

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.config.base.errors import LingoError
from lingo.config.text import flatten, render
from lingo.contract import Guard
from lingo.learner.placement import Placement
from lingo.processes.group import Group, Patience
from lingo.processes.processes import Cluster, LostWorker
from lingo.runtimes.local import Local, LocalProgram
from lingo.trainer.changes import ChangedConfiguration
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.request import Request
from lingo.trainer.run import train

pytestmark = [
    pytest.mark.usefixtures("once_compiled"),
    pytest.mark.xdist_group("together"),  # they share programs
]

HERE = threading.local()  # the group of a thread, and the step at which its program dies
PATIENCE = Patience(beat=0.05, silence=5.0, blame=1.0, leave=1.0)


class Died(BaseException):
    """Ends a thread as SIGKILL ends a process."""


class Half(LocalProgram):
    """Does all of the work, but is asked to feed half of it only when it is to be seen."""

    def train(self, batches):
        if int(self._variables.step.numpy()) == HERE.dies_at:
            raise Died
        return super().train(batches)


PROGRAMS = {}


class Paired(Local):
    """A runtime whose processes are threads; each compiles a learner once for all runs."""

    def join(self):
        return HERE.group

    def start(self, learner, state):
        task, optimizer = (render(flatten(part.p)) for part in (learner.task, learner.optimizer))
        program = PROGRAMS.get(key := (HERE.group.index, task + optimizer))
        if program is None:
            return PROGRAMS.setdefault(key, Half(learner, state, Placement()))
        program.load(state)
        return program


class Own(LocalProgram):
    """Does the work of the rows that it feeds, and of no others."""

    def __init__(self, learner, state):
        super().__init__(learner, state, Placement())
        self._index = HERE.group.index  # of the thread that trains; batches are made in another

    def example_slice(self, size):
        half = size // 2
        return slice(self._index * half, (self._index + 1) * half)


class Divided(Paired):
    """Processes that share a batch."""

    def start(self, learner, state):
        return Own(learner, state)


class Table:
    """A coordination service in memory."""

    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def put(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key, *, timeout_seconds):
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, timeout_seconds)
            return self._values.get(key)

    def delete(self, key):
        with self._changed:
            self._values.pop(key, None)

    def abort(self, reason):
        del reason


def together(params, directory, *, dies=None, audit=False):
    """Trains in two threads, of which some die at a step; returns how each ended."""
    table, found = Table(), {}

    def work(index):
        HERE.group = Group(Cluster(("a:1", "b:2"), index), table, patience=PATIENCE)
        HERE.dies_at = (dies or {}).get(index)
        try:
            request = Request(params[index], "{}", "", audit=audit)
            found[index] = train(request, RunDirectory(directory))
        except (Died, LingoError) as error:
            found[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return [found[0], found[1]]


@pytest.fixture
def paired(experiment, text):
    """Makes the parameters of both processes."""

    def make(**fields):
        return [experiment(text).set(runtime=Paired.params(), **fields) for _ in range(2)]

    return make


def entries(directory):
    """Returns what is in a directory, event files without their numbers."""
    found = (str(path.relative_to(directory)) for path in directory.rglob("*"))
    return sorted(name.partition(".tfevents")[0] for name in found)


def lasting(shown):
    """Returns the lines of events, sorted: saving is done beside the steps."""
    events = ("saved", " eval ", "done at")
    return sorted(line for line in shown.splitlines() if any(event in line for event in events))


def same_weights(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_two_leave_what_one_does(paired, experiment, run, rows, weights, text, tmp_path, capsys):
    run(experiment(text), tmp_path / "one")
    said = capsys.readouterr().out
    ended = together(paired(), tmp_path / "two")
    assert [one.state for one in ended] == ["done", "done"]
    assert lasting(capsys.readouterr().out) == lasting(said)
    assert entries(tmp_path / "two") == entries(tmp_path / "one")
    for one, two in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        assert {k: v for k, v in two.items() if not k.startswith("perf/")} == {
            k: v for k, v in one.items() if not k.startswith("perf/")
        }
    assert same_weights(weights(tmp_path / "one"), weights(tmp_path / "two"))
    again = together(paired(), tmp_path / "two")
    assert [(one.state, one.step) for one in again] == [("done", 6)] * 2


def test_the_audit_of_two_that_share_batches_has_all_examples(paired, experiment, text, tmp_path):
    train(Request(experiment(text), "{}", "", audit=True), RunDirectory(tmp_path / "one"))
    both = paired(eval_inputs={})
    for params in both:
        params.runtime = Divided.params()
    ended = together(both, tmp_path / "two", audit=True)
    assert [one.state for one in ended] == ["done", "done"]
    logs = {name: (tmp_path / name / "audit.jsonl").read_text() for name in ("one", "two")}
    rows = {name: list(map(json.loads, text.splitlines())) for name, text in logs.items()}
    for key in ("step", "batch", "examples", "origins"):
        assert [row[key] for row in rows["two"]] == [row[key] for row in rows["one"]]
    assert [row["examples"] for row in rows["two"]] == np.arange(24).reshape(6, 4).tolist()
    assert all("digest" in row for row in rows["one"])
    assert not any("digest" in row for row in rows["two"])


@pytest.mark.parametrize("victim", [0, 1])
def test_the_one_that_is_left_saves(victim, paired, experiment, run, rows, weights, text, tmp_path):
    run(experiment(text), tmp_path / "one")
    ended = together(paired(), tmp_path / "two", dies={victim: 3})
    assert isinstance(ended[victim], Died)
    left = ended[1 - victim]
    assert isinstance(left, LostWorker)
    assert str(left).startswith(f"worker {victim} ({'ab'[victim]}:{victim + 1}) has ended")
    (saved,) = [s for s in store.steps(tmp_path / "two/checkpoints") if s > 2]
    assert saved in (3, 4)
    assert (tmp_path / "two/STATUS").read_text() == f"failed at step {saved}\n"
    assert [one.state for one in together(paired(), tmp_path / "two")] == ["done", "done"]
    assert same_weights(weights(tmp_path / "one"), weights(tmp_path / "two"))
    steps = [row["step"] for row in rows(tmp_path / "two") if "loss/total" in row]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_all_go_back_to_the_same_checkpoint(paired, tmp_path, inject):
    inject("batch:nan@3")
    guard = Guard.params(on_non_finite="rewind", max_skipped_steps=1)
    ended = together(paired(guard=guard, eval_inputs={}), tmp_path / "two")
    assert [(one.state, one.step) for one in ended] == [("done", 6)] * 2


def test_evaluations_that_get_no_better_end_all_at_the_same_step(paired, tmp_path):
    both = paired(max_steps=50)
    for params in both:
        params.optimizer.learning_rate = 0.0
        params.evaluate.set(metric="same/loss", patience=1, every_steps=2)
    ended = together(both, tmp_path / "two")
    assert [(one.state, one.step) for one in ended] == [("done (early)", 4)] * 2


def test_another_configuration_than_the_leaders_is_refused(paired, tmp_path):
    both = paired()
    both[1].optimizer.learning_rate = 0.5
    leader, other = together(both, tmp_path / "two")
    assert isinstance(other, ChangedConfiguration)
    assert "process 1 has another configuration than process 0" in str(other)
    assert isinstance(leader, ChangedConfiguration)
    assert "another process has another configuration, data or code" in str(leader)
    assert not (tmp_path / "two").exists()
