"""What gradients keep, against programs: by how much twice as many examples need more bytes.

In this difference weights and what a program needs once cancel. Batches are small: from 8 examples
of a device on, a program for a processor keeps four to five more tensors of a norm. On one device
it computes the ReLU before a maximum of volumes again, which devices that share rows keep.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

import pytest

from lingo import layers as nn
from lingo.config import registry
from lingo.config.params import Params
from lingo.config.registry import ResolvedExperiment
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.report import compare
from lingo.inspection.plan.workload import workload
from lingo.mesh.topology import topology

Form = Callable[[Sequence[str]], ResolvedExperiment]
D = 128  # width of `tiny`


def images(*layers: Params) -> Form:
    """Returns networks of images of 28 x 28 pixels: a unit of 16 channels, then the layers."""

    def form(more: Sequence[str]) -> ResolvedExperiment:
        resolved = registry.get("image.lenet.digits", more)
        head = nn.ImageHead.params(dim=16, num_classes=10)
        inside = [layer.copy() for layer in layers]
        resolved.params.task.model.layers[:] = [unit(dim=1), *inside, head]
        return resolved

    return form


def unit(dim: int = 16, **fields: int) -> Params:
    return nn.ConvNorm.params(dim=dim, output_dim=16, **fields)


def sequences(layer: Params, num_layers: int = 4) -> Form:
    def form(more: Sequence[str]) -> ResolvedExperiment:
        resolved = registry.get("lm.source.tiny", more)
        stack = nn.Stack.params(layer=layer.copy(), num_layers=num_layers)
        resolved.params.task.model.stack = stack
        return resolved

    return form


def registered(name: str, *overrides: str) -> Form:
    return lambda more: registry.get(name, [*overrides, *more])


def growth(form: Form, batch_size: int) -> tuple[float, float]:
    """Returns the bytes that twice as many examples need more: planned, and of the program."""
    planned, compiled = zip(*(_bytes(form, n * batch_size) for n in (1, 2)), strict=True)
    return planned[1] - planned[0], compiled[1] - compiled[0]


def _bytes(form: Form, batch_size: int) -> tuple[float, float]:
    def build(more: Sequence[str]) -> Experiment:
        return build_experiment(form([f"train_input.batch_size={batch_size}", *more]))

    found, candidate = workload(build(())), Candidate(topology({}), "1d")
    assert found.unknown_residuals == ()
    estimate = Estimator(found, HARDWARE["h100"], build).estimate(candidate)
    compared = compare(estimate, build(["runtime=Mesh(data=1)"]))
    temporaries = {one.name: one for one in compared}["bytes of temporaries"]
    return temporaries.prediction, temporaries.program


TRANSPOSED = nn.TransposedConv2D.params(dim=16, output_dim=16)
FORMS = {
    "Resize": (
        images(nn.Resize.params(size=(14, 14)), unit(), nn.Resize.params(size=(28, 28)), unit()),
        32,
    ),
    "TransposedConv2D": (images(*[unit(stride=2), TRANSPOSED] * 3, unit()), 32),
    "Dropout": (images(*[nn.Dropout.params(), unit()] * 3), 32),
    "Gru": (sequences(nn.Gru.params(dim=D)), 2),
    "Lstm": (sequences(nn.Lstm.params(dim=D)), 2),
    "RecurrentLayer": (sequences(nn.RecurrentLayer.params(dim=D)), 2),
    "RecurrentLayer, wider": (
        sequences(nn.RecurrentLayer.params(dim=D, network=nn.Gru.params(hidden_dim=2 * D))),
        2,
    ),
    "Bert": (registered("lm.bert.tiny_bert", "task.model.stack.num_layers=2"), 2),
    "Dlrm": (registered("click.dlrm.clicks"), 256),
}


@pytest.mark.parametrize("name", FORMS)
def test_twice_the_examples_need_what_gradients_keep(name: str) -> None:
    planned, compiled = growth(*FORMS[name])
    assert planned == pytest.approx(compiled, rel=0.1)


def test_maxima_of_volumes_keep_at_most_their_input() -> None:
    planned, compiled = growth(registered("image.unet.blobs"), 2)
    assert planned == pytest.approx(compiled, rel=0.15)


def test_convolutions_of_sequences_keep_their_inputs() -> None:
    layer = nn.Conv1D.params(dim=D, output_dim=D)
    few, many = (growth(sequences(layer, num_layers), 8) for num_layers in (4, 8))
    assert many[0] - few[0] == pytest.approx(many[1] - few[1], rel=0.1)  # without the head


FILE = '''
from lingo.config.lazy import tf
from lingo.config.registry import experiment
from lingo.layers import Layer, Stack
from lingo.layers.residual import batch_residual
from params.lm.source import tiny


class Gate(Layer):
    """(x a) * sigmoid(x b)."""

    dim: int  # width of the input and of the output

    def setup(self):
        for name in ("a", "b"):
            self.weight(name, [self.p.dim, self.p.dim], axes=("embed", "mlp"))

    def __call__(self, x):
        return tf.tensordot(x, self.a, 1) * tf.sigmoid(tf.tensordot(x, self.b, 1))

    def flops(self, shape):
        batch, length, dim = shape
        return 2 * 2 * batch * length * dim * dim
RESIDUALS

@experiment
def gates():
    cfg = tiny()
    cfg.task.model.stack = Stack.params(layer=Gate, num_layers=8)
    return cfg
'''
RESIDUALS = """
    def residuals(self, call):
        return [batch_residual(1, call.shape, "input"), batch_residual(2, call.shape)]
"""


def test_a_layer_in_a_file_of_the_users_is_planned_by_what_it_says(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "gates.py"
    file.write_text(FILE.replace("RESIDUALS\n", RESIDUALS))
    planned, compiled = growth(registered(f"{file}:gates"), 2)
    assert planned == pytest.approx(compiled, rel=0.1)


def test_a_layer_in_a_file_of_the_users_that_says_nothing_is_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "gates.py"
    file.write_text(FILE.replace("RESIDUALS\n", ""))
    found = workload(build_experiment(registry.get(f"{file}:gates")))
    assert found.unknown_residuals == ("Gate",)
