"""Byte-level language models of Python source: that of TensorFlow, as installed beside lingo."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.data.source import InstalledSource
from lingo.data.text_input import TextInput
from lingo.layers.sequence.positions import Rotary
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stack import Stack
from lingo.optim.adam import AdamW
from lingo.optim.schedule import Cosine, Warmup
from lingo.train.experiment import Experiment
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


@experiment
def tiny(model_dim: int = 128, num_layers: int = 4):
    """Byte-level Transformer of 0.8 M weights on TensorFlow's own source.

    lingo train --exp=lm.source.tiny --logdir=runs/tiny
    """
    layer = TransformerLayer.params()
    layer.attention.set(num_heads=4, positions=Rotary)
    source = InstalledSource.params(package="tensorflow")
    heldout = {
        "source": source.copy().set(split="heldout"),
        "keras": InstalledSource.params(package="keras"),
    }
    return Experiment.params(
        task=LanguageModeling.params(
            model=LanguageModel.params(
                dim=model_dim, stack=Stack.params(layer=layer, num_layers=num_layers)
            ),
        ),
        train_input=TextInput.params(source=source.set(split="train"), batch_size=16, length=256),
        eval_inputs={
            name: TextInput.params(
                source=held, batch_size=16, length=256, shuffle=False, repeat=False, max_batches=20
            )
            for name, held in heldout.items()
        },
        optimizer=AdamW.params(
            learning_rate=3e-3,
            schedule=Warmup.params(num_steps=20, then=Cosine.params(num_steps=1000)),
            weight_decay=0.1,
            max_grad_norm=1.0,
        ),
        max_steps=300,
    )
