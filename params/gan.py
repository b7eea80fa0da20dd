"""Generative adversarial networks of scikit-learn's digits."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment, Summary
from lingo.data import ImageInput
from lingo.datasets import Digits
from lingo.optim import Adam
from tasks.gan.task import ImageGan


@experiment
def digits():
    """Digits of 8 x 8 pixels from random vectors (Goodfellow et al. 2014).

    lingo train --exp=gan.digits --logdir=runs/gan
    """
    data = ImageInput.params(source=Digits.params(split="train"), batch_size=64)
    heldout = data.copy().set(source=Digits.params(split="heldout"), repeat=False)
    return Experiment.params(
        task=ImageGan.params(),
        train_input=data,
        eval_inputs={"heldout": heldout},
        optimizer=Adam.params(learning_rate=1e-3, beta1=0.5),
        max_steps=4000,
        evaluate=Evaluation.params(every_steps=500),
        checkpoint=Checkpointing.params(every_steps=1000),
        summary=Summary.params(num_examples=64),
    )


@experiment
def digits_wasserstein():
    """Like digits, with the loss of Wasserstein GANs (Gulrajani et al. 2017).

    lingo train --exp=gan.digits_wasserstein --logdir=runs/gan_wasserstein
    """
    cfg = digits()
    cfg.task.set(form="wasserstein", generator_every_steps=5)
    return cfg
