"""Byte-level language models of Python source: the installed TensorFlow's."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import InstalledSource, Mixture, TextInput
from lingo.datasets import Docstrings
from lingo.layers import (
    Attention,
    FeedForward,
    MoE,
    Quantized,
    Rotary,
    Stack,
    TopNRouter,
    TransformerLayer,
    WeightQDomain,
)
from lingo.optim import AdamW, Cosine, Warmup
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


@experiment(minutes=4)
def tiny(model_dim: int = 128, num_layers: int = 4):
    """Byte-level Transformer of 0.8 M weights: a first run, two minutes on two cores.

    After 1,200 steps (1.2 M tokens), the loss on held-out files of TensorFlow is 1.35 nats or 1.95
    bits a byte, and 63 % of bytes are right; on Keras' source it is 1.47 nats or 2.12 bits. `xz -9`
    takes 2.54 and 2.31 bits for the same bytes.

    lingo train --exp=lm.source.tiny --logdir=runs/tiny
    """
    layer = TransformerLayer.params()
    layer.attention.set(num_heads=4, positions=Rotary)
    hidden_dim = (8 * model_dim // 3 + 7) // 8 * 8  # three products cost as much as two with 4 dim
    layer.ffn.set(hidden_dim=hidden_dim, gated=True, activation="gelu_tanh")
    source = InstalledSource.params(package="tensorflow", split="train")
    data = TextInput.params(source=source, batch_size=4, length=256)
    once = data.copy().set(batch_size=16, repeat=False, max_batches=20)
    return Experiment.params(
        task=LanguageModeling.params(
            model=LanguageModel.params(
                dim=model_dim, stack=Stack.params(layer=layer, num_layers=num_layers)
            )
        ),
        train_input=data,
        eval_inputs={
            "heldout": once.copy().set(source=source.copy().set(split="heldout")),
            "keras": once.copy().set(source=InstalledSource.params(package="keras")),
        },
        optimizer=AdamW.params(
            learning_rate=2e-3,
            schedule=Warmup.params(
                num_steps=20, start=0.05, then=Cosine.params(num_steps=1180, end=0.1)
            ),
            epsilon=1e-6,
            weight_decay=0.1,
            max_grad_norm=1.0,
        ),
        max_steps=1200,
        evaluate=Evaluation.params(every_steps=400, prompts=["def "]),
        checkpoint=Checkpointing.params(every_steps=400),
    )


@experiment(minutes=4)
def tiny_int8():
    """Like tiny, trained with the weights that decoding stores in 8 bits.

    With seed 0, the loss on held-out files of TensorFlow is 1.950 bits a byte; `tiny` has 1.945.
    Results with 8-bit weights in memory are the same bit by bit. These weights take 0.29 of the
    bytes of all weights.

    lingo train --exp=lm.source.tiny_int8 --logdir=runs/tiny_int8
    lingo decode --run=runs/tiny_int8 --quantize=int8_weights --prompt='def '
    """
    cfg = tiny()
    cfg.task.model.stack = Quantized.params(layer=cfg.task.model.stack, domain=WeightQDomain)
    return cfg


@experiment
def small():
    """Like tiny, with 10 M weights and rows of 512 bytes; 1.1 s a step on two cores.

    After 1,500 steps (3.1 M tokens), the loss on held-out files of TensorFlow is 1.07 nats or 1.54
    bits a byte, and 70 % of bytes are right; on Keras' source it is 1.23 nats or 1.77 bits.

    lingo train --exp=lm.source.small --logdir=runs/small
    """
    cfg = tiny(model_dim=320, num_layers=8)
    cfg.all(Attention).set(num_heads=5)
    cfg.all(TextInput).set(length=512)
    cfg.optimizer.learning_rate = 1e-3
    cfg.optimizer.schedule.set(num_steps=50)
    cfg.optimizer.schedule.then.num_steps = 1450
    cfg.set(max_steps=1500)
    cfg.checkpoint.every_steps = cfg.evaluate.every_steps = 250
    return cfg


@experiment
def base():
    """Like small, with 86 M weights: the size of GPT-2 small, for an accelerator.

    lingo train --exp=lm.source.base --logdir=runs/base
    """
    cfg = small()
    cfg.task.model.dim = 768
    cfg.all(Attention).set(num_heads=12)
    cfg.all(FeedForward).set(hidden_dim=2048)
    cfg.all(Stack).set(num_layers=12)
    cfg.all(TextInput).set(batch_size=16, length=1024)
    cfg.optimizer.learning_rate = 3e-4
    cfg.optimizer.schedule.set(num_steps=200)
    cfg.optimizer.schedule.then.num_steps = 100_000
    cfg.set(max_steps=100_000)
    cfg.checkpoint.every_steps = cfg.evaluate.every_steps = 1000
    return cfg


@experiment
def mixture():
    """Like tiny, on two languages: two rows of source to one of English, from docstrings.

    The English is from Keras and NumPy, whose files are not in the source, so neither part was
    trained on the evaluation texts. After 1,200 steps, the loss of held-out source is 1.99 bits a
    byte, and of held-out English 2.05.

    lingo train --exp=lm.source.mixture --logdir=runs/mixture
    """
    cfg = tiny()
    english = Docstrings.params(packages=["keras", "numpy"], split="train")
    source, heldout = cfg.train_input.copy(), cfg.eval_inputs["heldout"]
    del source.batch_size  # the mixture has its own
    cfg.train_input = Mixture.params(
        batch_size=4,
        inputs={"source": source, "english": source.copy().set(source=english)},
        weights={"source": 2.0, "english": 1.0},
    )
    cfg.eval_inputs = {
        "source": heldout,
        "english": heldout.copy().set(source=english.copy().set(split="heldout")),
    }
    return cfg


@experiment
def tiny_moe(num_experts: int = 8):
    """Like tiny, with experts in place of every feed-forward network: equal active FLOPs.

    A token goes to two experts, each half as wide as the dense network. `domains` compares the two
    models on data on which experts can specialize.

    lingo train --exp=lm.source.tiny_moe --logdir=runs/tiny_moe
    """
    return _sparse(tiny(), num_experts)


@experiment
def small_moe(num_experts: int = 8):
    """Like small, with experts in place of every feed-forward network: equal active FLOPs.

    lingo train --exp=lm.source.small_moe --logdir=runs/small_moe
    """
    return _sparse(small(), num_experts)


@experiment
def domains(num_experts: int = 8):
    """Like tiny or tiny_moe, on three domains in equal parts: Python, C++, English.

    The Python is TensorFlow's, the C++ is the headers of Abseil that come with it, the English is
    the docstrings of Keras and NumPy. `num_experts=1` is the dense model, with equal active FLOPs.
    `heldout` has similar amounts of each domain, from files and texts that are not trained on.

    After 2,400 steps (2.5 M tokens) with seeds 0, 1, 2, the dense model has 1.338, 1.372, 1.353
    nats a byte, and eight experts have 1.324, 1.322, 1.339.

    lingo sweep --exp=lm.source.domains --logdir=runs/domains \\
        --sweep=exp.num_experts=1,8 --sweep=seed=0,1,2

    lingo train --exp=lm.source.domains --logdir=runs/domains_8
    """
    cfg = tiny() if num_experts == 1 else tiny_moe(num_experts)
    sources = {
        "python": InstalledSource.params(package="tensorflow", heldout_fraction=0.005),
        "cpp": InstalledSource.params(
            package="tensorflow", pattern="include/absl/**/*.h", heldout_fraction=0.025
        ),
        "english": Docstrings.params(packages=["keras", "numpy"]),
    }
    cfg.train_input = _mixed_input(sources, split="train", batch_size=4)
    cfg.eval_inputs = {"heldout": _mixed_input(sources, split="heldout", batch_size=16)}
    cfg.optimizer.schedule.then.num_steps = 2380
    cfg.evaluate.every_steps = 600
    return cfg.set(max_steps=2400)  # each of 8 experts sees a quarter of the tokens


def _mixed_input(sources, *, split: str, batch_size: int):
    """Returns an input of rows of 256 bytes from several sources.

    Training reads the sources in equal parts; an evaluation reads all of them once.
    """
    inputs = {
        name: TextInput.params(source=source.copy().set(split=split), length=256)
        for name, source in sources.items()
    }
    if split == "heldout":
        return Mixture.params(inputs=inputs, batch_size=batch_size, repeat=False)
    return Mixture.params(inputs=inputs, batch_size=batch_size, weights=dict.fromkeys(inputs, 1.0))


def _sparse(cfg, num_experts: int):
    """Replaces dense networks by experts of half their width, two per token; gates add up to 1."""
    cfg.task.model.stack.layer.ffn.hidden_dim //= 2
    cfg.all(FeedForward).wrap(
        MoE,
        "expert",
        num_experts=num_experts,
        router=TopNRouter.params(num_choices=2, threshold=0.001),  # both, if not negligible
        capacity_factor=2.5,  # two choices and a quarter more
    )
    return cfg
