"""An experiment whose layers tell what mixtures of experts tell: `test_shown.py` trains it.

    python loaded.py FOLDER     trains it on every runtime: a run directory each, FOLDER/<runtime>;
                                and with a stop and a rewind: FOLDER/resumed, FOLDER/rewound

A process of its own for this, because TensorFlow and JAX choose their devices once a process.
"""

import pathlib
import sys

import jax
import numpy as np

from lingo.config.base.types import Wrapped
from lingo.config.lazy import tf
from lingo.contract import Checkpointing, Evaluation, Experiment, Guard, Summary
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.layers.feed_forward import FeedForward
from lingo.layers.layer import Layer
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.optim.adam import AdamW
from lingo.runtimes.devices import split_processor
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from lingo.storage import injection
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.request import Request
from lingo.trainer.run import train
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

NUM_EXPERTS, NUM_LAYERS, NUM_STEPS = 3, 2, 6
DECAY = 0.5
BALANCE = 0.25  # loss of each layer and example

LAYER = TransformerLayer.params(attention=Attention.params(num_heads=2))
RUNTIMES = {
    "local": (Stack.params(layer=LAYER), {}),
    "repeat": (
        Repeat.params(layer=Remat.params(layer=LAYER)),
        {"accumulation_steps": 2, "steps_per_loop": 3},
    ),
    "replicated": (Repeat.params(layer=LAYER), {"runtime": Replicated.params()}),
    "mesh": (Repeat.params(layer=LAYER), {"runtime": Mesh.params(data=2, model=2)}),
}
"""How layers are stacked and what else differs, by name."""


class Loaded(Layer):
    """Adds to a layer what a router tells: the load of some experts, a loss, a metric."""

    layer: Wrapped  # the layer that computes

    def setup(self):
        self.layer = self.p.layer.build()
        self.load = self.state("load", [NUM_EXPERTS], decay=DECAY, shown=True)
        self.hidden = self.state("hidden", [NUM_EXPERTS], decay=DECAY)

    def __call__(self, x, **inputs):
        loads = tf.reduce_mean(tf.nn.softmax(10.0 * x[..., :NUM_EXPERTS]), axis=1)
        num = tf.cast(tf.shape(x)[0], tf.float32)
        for name in ("load", "hidden"):
            self.batch_statistic(name, tf.reduce_sum(loads, 0), num)
        most = tf.reduce_sum(tf.reduce_max(loads, 1))
        self.side_metric("toy/max_load", {"sum": most, "weight": num})
        self.side_loss("toy_balance", BALANCE * num)
        return self.layer(x, **inputs)


def experiment(text, stack=RUNTIMES["local"][0], **fields):
    """Returns an experiment of some steps, each reported, all feed-forward networks loaded."""
    data = TextInput.params(batch_size=4, length=8, source=TextFiles.params(pattern=text))
    stack = stack.copy().set(num_layers=NUM_LAYERS)
    stack.all(FeedForward).wrap(Loaded, "layer")
    params = Experiment.params(
        task=LanguageModeling.params(model=LanguageModel.params(dim=8, stack=stack)),
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False)},
        optimizer=AdamW.params(learning_rate=0.03),
        max_steps=NUM_STEPS,
        checkpoint=Checkpointing.params(every_steps=2),
        summary=Summary.params(every_steps=1, histograms=False),
        evaluate=Evaluation.params(every_steps=3),
    )
    return params.set(**fields)


def write_text(folder):
    text, draw = folder / "text.txt", np.random.RandomState(0)
    text.write_bytes(bytes(draw.randint(97, 107, 640).tolist()))
    return str(text)


def main(folder):
    split_processor(2)
    jax.config.update("jax_num_cpu_devices", 4)
    text = write_text(folder)
    for name, (stack, fields) in RUNTIMES.items():
        train(Request(experiment(text, stack, **fields), "{}", ""), RunDirectory(folder / name))
    resumed = RunDirectory(folder / "resumed")
    train(Request(experiment(text, max_steps=4), "{}", ""), resumed)
    with open(resumed.vectors.path, "a") as file:  # as a process leaves it that was killed later
        file.write('{"step": 5, "state/late": [1.0]}\n{"step": 6, "sta')
    train(Request(experiment(text), "{}", ""), resumed)
    injection._FAULTS = injection._parse("batch:nan@3-4")
    guard = Guard.params(max_skipped_steps=2, on_non_finite="rewind")
    train(Request(experiment(text, guard=guard), "{}", ""), RunDirectory(folder / "rewound"))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
