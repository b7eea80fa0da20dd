"""A program on one device: the same bits from the same state, whatever threads do."""

import copy

import numpy as np

from lingo.config import registry
from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.learner.state import TrainState, initial_state


def trained(experiment: Experiment, state: TrainState, spans: list[range]) -> TrainState:
    program = experiment.runtime.start(experiment.learner, state)
    for steps in spans:
        batches = [experiment.train_input.batch(step) for step in steps]
        program.train({k: np.stack([b[k] for b in batches]) for k in batches[0]})
    return program.state()


def assert_same_bits(a: TrainState, b: TrainState) -> None:
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)


def test_runs_and_loops_of_any_length_give_the_same_bits():
    experiment = registry.get("lm.source.tiny").params.build()  # large enough for several threads
    state = initial_state(experiment.learner)
    one_by_one = trained(experiment, state, [range(i, i + 1) for i in range(6)])
    assert one_by_one.step == 6
    assert_same_bits(one_by_one, trained(experiment, state, [range(0, 2), range(2, 6)]))
    half = trained(experiment, state, [range(0, 3)])
    assert_same_bits(one_by_one, trained(experiment, half, [range(3, 6)]))


def test_a_state_on_the_host_stays_what_it_is_while_training_goes_on(experiment, text):
    built = experiment(text).build()
    program = built.runtime.start(built.learner, initial_state(built.learner))
    data = {name: array[None] for name, array in built.train_input.batch(0).items()}
    program.train(data)
    state = program.state()
    before = copy.deepcopy(state)
    for _ in range(3):
        program.train(data)
    assert_same_bits(state, before)
    assert program.state().step == 4
    program.load(state)
    program.train(data)
    assert_same_bits(state, before)
