"""Byte-level models of docstrings: of their English, and of their examples."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.datasets.docstrings import Docstrings, Doctests
from params.lm.source import tiny


@experiment
def docstrings(model_dim: int = 128, num_layers: int = 4):
    """Like lm.source.tiny, on English: the docstrings of TensorFlow, Keras and NumPy, 10 MB.

    A twentieth of the texts, chosen by their hash, is held out; no text is in both parts. After
    1,200 steps, the loss of held-out texts is 1.25 nats or 1.81 bits a byte, and 64 % of bytes are
    right.

    lingo train --exp=lm.docstrings.docstrings --logdir=runs/docstrings
    """
    cfg = tiny(model_dim=model_dim, num_layers=num_layers)
    heldout = cfg.eval_inputs["heldout"]
    cfg.train_input.source = Docstrings.params(split="train")
    cfg.eval_inputs = {"heldout": heldout.set(source=Docstrings.params(split="heldout"))}
    return cfg


@experiment
def doctests(model_dim: int = 128, num_layers: int = 4):
    """Like docstrings, on their examples: 5,500 prompts with answers in 1,900 texts, 0.8 MB.

    A row has whole texts, so that a prompt is seen with earlier prompts. After 1,200 steps (one and
    a half passes), the loss of held-out texts is 1.01 nats or 1.47 bits a byte, and 72 % of bytes
    are right.

    lingo train --exp=lm.docstrings.doctests --logdir=runs/doctests
    """
    cfg = docstrings(model_dim=model_dim, num_layers=num_layers)
    cfg.train_input.source = Doctests.params(split="train")
    cfg.eval_inputs["heldout"].source = Doctests.params(split="heldout")
    cfg.train_input.set(batch_size=2, length=512, packing="bins")
    cfg.eval_inputs["heldout"].set(batch_size=8, length=512, packing="bins")
    return cfg
