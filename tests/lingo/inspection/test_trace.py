"""Traces need no memory, do not grow with the number of layers, and find what does not fit."""

import pytest

from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data.document_input import TextInput
from lingo.inspection.trace import trace
from lingo.layers.linear import Linear
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.optim.sgd import Sgd
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


def experiment(stack: Params, dim: int = 4) -> Params:
    return Experiment.params(
        task=LanguageModeling.params(model=LanguageModel.params(dim=dim, stack=stack)),
        train_input=TextInput.params(batch_size=2, length=3),
        optimizer=Sgd.params(learning_rate=0.1),
    )


def repeated(num_layers: int, dim: int) -> Params:
    return Repeat.params(layer=Linear.params(output_dim=dim), num_layers=num_layers)


def test_a_trillion_parameters_trace_as_fast_as_a_few():
    dim = 100_000
    built = experiment(repeated(100, dim), dim).build()
    assert sum(s.size for s in built.task.weights().values()) > 10**12
    large, small = trace(built), trace(experiment(repeated(2, dim), dim).build())
    for one, other in zip(large, small, strict=True):
        assert len(one.get_operations()) == len(other.get_operations())


def test_layers_that_do_not_fit_together_are_found():
    wrong = Stack.params(layer=Linear.params(output_dim=5), num_layers=2)
    with pytest.raises(ValueError, match="Dimension"):
        trace(experiment(wrong).build())
