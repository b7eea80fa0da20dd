"""Ten experiments of different kinds, updated in shards: each device has 1/N of every slot."""

import json
import math

import numpy as np
import pytest

import lingo
from lingo.cli.main import main
from lingo.learner.state import FLOAT_BYTES, Learner
from lingo.optim.adafactor import Adafactor
from lingo.optim.adagrad import Adagrad
from lingo.optim.adam import Adam, AdamW
from lingo.optim.layerwise import Lamb, Lars
from lingo.optim.lion import Lion
from lingo.optim.rmsprop import RmsProp
from lingo.optim.sgd import Momentum
from lingo.runtimes.layout import Layout
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated

EXPERIMENTS = (
    "image.botnet.bot50",
    "image.efficientnet.b0",
    "image.resnet.lamb",
    "image.ssd.r34",
    "image.lenet.lenet5",
    "image.vit.s16",
    "lm.lingvo_dense.dense_1t",
    "lm.source.tiny_moe",
    "lm.switch.switch_base",
    "seq2seq.source.signatures",
)
OPTIMIZERS = (Adafactor, Adagrad, Adam, AdamW, Lamb, Lars, Lion, Momentum, RmsProp)
N = 8
RUNTIMES = {
    "mesh": (Mesh.params(data=N, shard_update=True), f"Mesh(data={N},shard_update=True)"),
    "replicas": (
        Replicated.params(devices=[f"CPU:{i}" for i in range(N)], shard_update=True),
        f"Replicated(devices={[f'CPU:{i}' for i in range(N)]},shard_update=True)".replace(" ", ""),
    ),
}


def least_size(shape: tuple[int, ...], num_stacked: int, *, by_axis: bool) -> int:
    """Returns how many elements of a slot [*stacked axes, ...] one of N devices has, at least.

    ceil(n / N) of each layer's n; with `by_axis` 1/N of all if N divides an axis.
    """
    if by_axis and any(size % N == 0 for size in shape):
        return math.prod(shape) // N
    layers, own = shape[:num_stacked], shape[num_stacked:]
    return math.prod(layers) * -(-math.prod(own) // N)


def check_slots(learner: Learner, layout: Layout, *, by_axis: bool) -> int:
    """Checks the number of elements of each slot on a device; returns their sum."""
    specs, total = {**learner.task.weights(), **learner.task.states()}, 0
    for where, slots in learner.slots().items():
        num_stacked = specs[where].num_stacked
        for name, slot in slots.items():
            expected = least_size(slot.shape, num_stacked, by_axis=by_axis)
            found = layout.slots[where][name].part_size(slot.shape, layout.mesh)
            assert found == expected, (where, name, slot.shape)
            total += found
    assert total > 0
    return total


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_device_has_one_nth_of_every_slot_and_show_says_so(name, kind, capsys):
    runtime, flag = RUNTIMES[kind]
    learner = lingo.get(name).build().learner
    layout = runtime.build().layout(learner)
    assert layout is not None
    total = check_slots(learner, layout, by_axis=kind == "mesh")
    assert (
        main(["show", f"--exp={name}", f"--set=runtime={flag}", "--weights", "--format=json"]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown["num_devices"] == N
    assert shown["bytes_per_device"]["slots"] == FLOAT_BYTES * total
    whole = FLOAT_BYTES * sum(np.prod(w.shape, dtype=int) for w in learner.weights().values())
    gradients = shown["bytes_per_device"]["gradients"]
    assert gradients == whole if kind == "replicas" else gradients <= whole / 7


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("cls", OPTIMIZERS)
def test_each_device_has_an_nth_of_the_slots_of_every_optimizer(cls, kind):
    params = lingo.get("image.vit.s16").set(optimizer=cls.params(learning_rate=0.1, ema_decay=0.9))
    learner = params.build().learner
    layout = RUNTIMES[kind][0].build().layout(learner)
    assert layout is not None
    check_slots(learner, layout, by_axis=kind == "mesh")
