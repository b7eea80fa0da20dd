"""Transformer-big as in rounds 0.6 and 0.7 of MLPerf training: English to German.

reference                               MLPerf's own settings, 4,096 tokens a step
v06_pod, v07_pod, v07_jax, v07_small    settings of Google's entries
numbers                                 a small form, on number words, in minutes

A run ends at an uncased BLEU of 25.0 on the 3,003 sentences of newstest2014, which are translated
after every epoch, with 4 beams, a length penalty of 0.6, and at most 50 tokens more than the source
has. The number of weights, with one table of V = 33,708 tokens for sources, targets and logits:

    V d + 6 (12 d^2 + 2 (8 d^2 + 5 d) + 10 d) + 4 d, with d = 1024

The data are your own, in a folder: train*.tsv (in the benchmark, pairs of WMT17), newstest2014.tsv
and pieces.model, as in `params/mt/wmt14.py`. Google's entries packed WMT17 into 566,340 rows of 256
tokens; an epoch has as many here. They left out pairs of more than 80 tokens; lingo leaves out
pairs that do not fit into a row. The full forms were not run: only learning rates and sizes are
checked.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from lingo.config.registry import experiment
from lingo.contract import Answers, Checkpointing, Evaluation, Experiment
from lingo.data import LearnedPieces, PairInput
from lingo.decode.beam import Beam
from lingo.layers import FeedForward, LayerNorm
from lingo.optim import Adam, Transformer, scale_by_root
from lingo.runtimes.mesh.mesh import Mesh
from lingo.trainer.mlperf.rules import Benchmark
from lingo.trainer.mlperf.run_log import MlperfLog
from params.mt.wmt14 import pairs, transformer
from tasks.mt.number_words import NumberWords
from tasks.seq2seq.task import SequenceToSequence

TARGET = 25.0  # of both rounds
VOCAB_SIZE = 33_708
TRAIN_ROWS = 566_340  # of Google's entries
LENGTH = 256  # tokens of a row
DIM = 1024


class Recipe(NamedTuple):
    """The numbers in which entries differ."""

    rows: int  # of 256 tokens, per step
    rate: float  # times d^-0.5 min(1, t / warmup_steps) / sqrt(max(t, warmup_steps)), t from 0
    warmup_steps: int
    beta1: float
    beta2: float
    epochs: int  # at most


REFERENCE = Recipe(16, 2.0, 16_000, 0.9, 0.997, 10)
V06_POD = Recipe(2048, 1.3, 550, 0.86, 0.92, 10)
V07_POD = Recipe(2048, 1.875, 831, 0.88, 0.92, 10)
V07_JAX = Recipe(2048, 3.3092, 664, 0.9087, 0.9199, 7)
V07_SMALL = Recipe(512, 1.875, 1107, 0.9, 0.98, 6)


def _model():
    """Returns the benchmark's model: attention without bias, and both sides end with a norm."""
    params = transformer(
        dim=DIM,
        hidden_dim=4 * DIM,
        num_layers=6,
        layer_dropout_rate=0.1,
        heads={"num_heads": 16, "dropout_rate": 0.1},
        norm=LayerNorm,
        dropout_rate=0.1,
    )
    params.all(FeedForward).set(dropout_rate=0.1)
    return params


def _experiment(recipe: Recipe, benchmark: Benchmark, *, folder: str, **axes: int) -> Any:
    """Returns an experiment that ends at the target, evaluated after every epoch."""
    epoch = math.ceil(TRAIN_ROWS / recipe.rows)
    train = pairs(
        folder, "train*.tsv", vocab_size=VOCAB_SIZE, batch_size=recipe.rows, length=LENGTH
    )
    heldout = pairs(folder, "newstest2014.tsv", vocab_size=VOCAB_SIZE, batch_size=64, length=LENGTH)
    beam = Beam.params(num_beams=4, length_penalty=0.6, max_extra_tokens=50, max_tokens=306)
    return Experiment.params(
        task=SequenceToSequence.params(
            model=_model(), vocab_size=VOCAB_SIZE, label_smoothing=0.1, dtype="bfloat16"
        ),
        train_input=train.set(too_long="leave_out"),
        eval_inputs={"heldout": heldout.set(repeat=False)},
        optimizer=Adam.params(
            learning_rate=recipe.rate,
            schedule=Transformer.params(
                model_dim=DIM, warmup_steps=recipe.warmup_steps, first_step=0
            ),
            beta1=recipe.beta1,
            beta2=recipe.beta2,
            epsilon=1e-9,
        ),
        runtime=Mesh.params(**axes),
        max_steps=recipe.epochs * epoch,
        observers=[MlperfLog.params(benchmark=benchmark)],
        evaluate=evaluation(beam, every_steps=epoch, target=TARGET),
        checkpoint=Checkpointing.params(every_steps=epoch),
    )


def evaluation(beam: Any, *, every_steps: int, target: float):
    """Returns an evaluation of all held-out sentences that ends a run at a BLEU of `target`.

    The BLEU is uncased.
    """
    return Evaluation.params(
        every_steps=every_steps,
        metric="heldout/bleu_uncased",
        goal="max",
        reach=target,
        answers=Answers.params(decoding=beam, max_examples=None, measures=["bleu_uncased"]),
    )


@experiment
def reference(folder: str = "~/wmt17", data: int = 8):
    """Transformer-big of MLPerf: 6 + 6 layers, width 1024, 16 heads; 210,804,736 weights.

    It has the settings of MLPerf's reference: 4,096 tokens a step, 16,000 steps of warm-up.

    lingo show --exp=mlperf.transformer.reference --weights
    lingo train --exp='mlperf.transformer.reference(folder="~/wmt17")' --logdir=runs/transformer
    """
    return _experiment(REFERENCE, "transformer@0.7.0", folder=folder, data=data)


@experiment
def v06_pod(folder: str = "~/wmt17", data: int = 512, model: int = 4):
    """Transformer-big in batches of 2,048 rows, by round 0.6; 210,804,736 weights.

    It has the settings of Google's entry with 2,048 cores of TPU v3, where four cores shared each
    part of the batch. The entry's result was 0.848 minutes (MLCommons' training_results_v0.6).

    lingo show --exp=mlperf.transformer.v06_pod --plot_schedule
    """
    return _experiment(V06_POD, "transformer@0.6.0", folder=folder, data=data, model=model)


@experiment
def v07_pod(folder: str = "~/wmt17", data: int = 2048, model: int = 4):
    """Transformer-big in batches of 2,048 rows, by round 0.7; 210,804,736 weights.

    It has the settings of Google's entry in TensorFlow with 8,192 cores of TPU v3. The entry's
    result was 0.355 minutes (MLCommons' training_results_v0.7).

    lingo show --exp=mlperf.transformer.v07_pod --plot_schedule
    """
    return _experiment(V07_POD, "transformer@0.7.0", folder=folder, data=data, model=model)


@experiment
def v07_jax(folder: str = "~/wmt17", data: int = 2048, model: int = 4):
    """Like `v07_pod`, with the settings of Google's entry in JAX; 210,804,736 weights.

    Its result with 8,192 cores of TPU v3 was 0.258 minutes (MLCommons' training_results_v0.7).

    lingo show --exp=mlperf.transformer.v07_jax --plot_schedule
    """
    return _experiment(V07_JAX, "transformer@0.7.0", folder=folder, data=data, model=model)


@experiment
def v07_small(folder: str = "~/wmt17", data: int = 32):
    """Transformer-big in batches of 512 rows, by round 0.7; 210,804,736 weights.

    It has the settings of Google's code of round 0.7 for batches of 512: an epoch has 1,107 steps.

    lingo show --exp=mlperf.transformer.v07_small --plot_schedule
    """
    return _experiment(V07_SMALL, "transformer@0.7.0", folder=folder, data=data)


NUMBERS = 3600  # training numbers, approximately


@experiment
def numbers(batch_size: int = 64, epochs: float = 40.0):
    """A small form: number words from English to Esperanto, by the rules of Transformer.

    The model has 2 + 2 of the benchmark's layers, of width 64, and 253,312 weights. The rate grows
    with the root of the batch. A run ends at 95 BLEU on 200 held-out numbers, which are translated
    after each epoch. Its log says that it is a small form. Needs `pip install 'lingo-tf[text]'`.

    lingo train --exp=mlperf.transformer.numbers --logdir=runs/numbers
    """
    dim, epoch = 64, math.ceil(NUMBERS / batch_size)
    words = NumberWords.params(num_numbers=4000, split="train", heldout_fraction=0.1)
    pieces = LearnedPieces.params(source=words.copy(), vocab_size=330)
    train = PairInput.params(
        source=words,
        tokenizer=pieces,
        packing="none",
        source_length=24,
        target_length=24,
        batch_size=batch_size,
    )
    heldout = train.copy().set(batch_size=100, repeat=False)
    heldout.source.split = "heldout"
    model = transformer(
        dim=dim,
        hidden_dim=4 * dim,
        num_layers=2,
        layer_dropout_rate=0.0,
        heads={"num_heads": 4},
        norm=LayerNorm,
    )
    evaluate = evaluation(Beam.params(num_beams=2, max_tokens=24), every_steps=epoch, target=95.0)
    evaluate.answers.max_examples = 200
    rate = scale_by_root(0.5, batch_size=batch_size, base_batch_size=64)
    return Experiment.params(
        task=SequenceToSequence.params(model=model, label_smoothing=0.1),
        train_input=train,
        eval_inputs={"heldout": heldout},
        optimizer=Adam.params(
            learning_rate=rate,
            schedule=Transformer.params(model_dim=dim, warmup_steps=4 * epoch, first_step=0),
            beta2=0.98,
            epsilon=1e-9,
        ),
        max_steps=round(epochs * epoch),
        observers=[MlperfLog.params(benchmark="transformer@0.7.0")],
        evaluate=evaluate,
        checkpoint=Checkpointing.params(every_steps=epoch),
    )
