"""What the benchmark of predictions compares is the same, and what it prints."""

import contextlib

import numpy as np
import pytest

from lingo.config.lazy import tf
from tools.bench import predict
from tools.harness import Report
from tools.rivals.plain_lm import Size

SIZE = Size(dim=8, num_layers=1, num_heads=2, hidden_dim=12, vocab_size=300, length=6, batch_size=3)


class TwoTurns:
    """Two turns, and then the end of the rival."""

    def __init__(self):
        self.left = 2

    def turn(self):
        if not self.left:
            raise EOFError
        self.left -= 1
        return contextlib.nullcontext()


@pytest.mark.parametrize("rival", [predict.bare_pass, predict.of_arrays, predict.of_input])
def test_each_rival_takes_turns(monkeypatch, rival):
    monkeypatch.setattr(predict, "NUM_BATCHES", 2)
    turns = TwoTurns()
    with pytest.raises(EOFError):
        rival(turns, size=SIZE)
    assert turns.left == 0


def test_the_bare_pass_computes_what_the_program_does():
    built, program = predict.start(SIZE)
    batch = predict.batch(SIZE)
    weights = {where: tf.constant(value) for where, value in program.state().weights.items()}
    tensors = {name: tf.constant(value) for name, value in batch.items()}
    bare, found = predict.predict_batch(built.task, weights, {}, tensors), program.predict(batch)
    np.testing.assert_array_equal(found["tokens"], bare["tokens"])
    np.testing.assert_allclose(found["log_probs"], bare["log_probs"], rtol=1e-5)


def test_memory_is_compared_with_that_of_the_smaller_input(monkeypatch, capsys):
    peaks = {predict.INPUT_BATCHES: 500.0, predict.TIMES * predict.INPUT_BATCHES: 600.0}
    monkeypatch.setattr(predict, "peak_megabytes", lambda size, num: peaks[num])
    report = Report()
    predict.compare_memory(SIZE, report)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split() == [
        "10",
        "times",
        "the",
        "input",
        "/",
        "the",
        "input",
        "1.200",
        "600",
        "<=",
        "1.1",
    ]
    assert report.exit_code() == 1
