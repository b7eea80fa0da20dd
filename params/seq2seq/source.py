"""Encoder-decoders on the source of installed packages."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.data import PairInput
from lingo.datasets import Signatures
from params.lm.source import tiny
from params.lm.switch import t5, t5_layer


@experiment
def signatures(model_dim: int = 128, num_layers: int = 3):
    """A function's purpose from its signature: the first paragraph of its docstring.

    A small T5 on the bytes of TensorFlow, Keras and NumPy, trained like lm.source.tiny. Evaluation
    texts are not in the training data.

    lingo train --exp=seq2seq.source.signatures --logdir=runs/signatures
    """
    layer = t5_layer(hidden_dim=8 * model_dim // 3, num_heads=4, head_dim=32, gated=True)
    model = t5([layer], dim=model_dim, num_layers=num_layers, dropout_rate=0.0)
    data = PairInput.params(
        source=Signatures.params(split="train"), batch_size=8, source_length=192, target_length=192
    )
    heldout = data.copy().set(batch_size=16, repeat=False, max_batches=20)
    heldout.source.split = "heldout"
    cfg = tiny().set(task=model.task, train_input=data, eval_inputs={"heldout": heldout})
    cfg.evaluate.prompts = ["def clip(x, low, high)"]
    return cfg
