"""Steps without a guard do what those with it do, and costs add up."""

import contextlib

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.learner import step
from lingo.learner.state import initial_state
from tools.bench import faults, lm
from tools.bench.lm import Variant
from tools.rivals.plain_lm import Size

SIZE = Size(dim=8, num_layers=1, num_heads=2, hidden_dim=12, vocab_size=259, length=6, batch_size=2)


class Two:
    """Gives two turns."""

    def __init__(self):
        self._left = iter(range(2))

    @contextlib.contextmanager
    def turn(self):
        """Measures nothing."""
        if next(self._left, None) is None:
            raise RuntimeError("no more turns")
        yield


def test_an_update_without_guard_is_the_same_where_all_is_finite(monkeypatch):
    learner = lm.experiment(SIZE, Variant()).build().learner
    batch = {name: tf.constant(value) for name, value in lm.batch(SIZE).items()}
    state = tf.nest.map_structure(tf.constant, initial_state(learner))

    def after():
        train = tf.function(lambda s, b: step.train_step(learner, s, b)[0], autograph=False)
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), train(state, batch))

    guarded = after()
    monkeypatch.setattr(step, "update", faults.plain_update)
    tf.nest.map_structure(np.testing.assert_array_equal, after(), guarded)


def test_a_turn_with_an_audit_log_writes_its_row(monkeypatch):
    written = []
    monkeypatch.setattr(faults.Audit, "write", lambda log: written.append(len(log._rows)))
    small = ("exp.model_dim=8", "exp.num_layers=1")
    with pytest.raises(RuntimeError, match="no more turns"):
        faults.guarded_steps(Two(), name="lm.source.tiny", overrides=small, audited=True)
    assert written == [1, 2]


def test_every_part_of_a_save_takes_time(tmp_path):
    work = faults.start_work("lm.source.tiny", "exp.model_dim=8", "exp.num_layers=1")
    (times,) = faults.measure_saves(work, tmp_path, num=1)
    assert min(times._replace(stall=1.0)) > 0
