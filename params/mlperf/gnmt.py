"""GNMT as in round 0.7 of MLPerf training: English to German by LSTMs with attention.

reference       batches of 4,096 pairs, and the rates of MLPerf's reference
v07_pod         batches of 8,192, Google's entry with 1,024 cores of TPU v3

A run ends at an uncased BLEU of 24.0 on the 3,003 sentences of newstest2014, which are translated
after every epoch, with 5 beams, a length penalty of 0.6 and a coverage penalty of 0.1.
`tasks/mt/gnmt.py` has the layers, here 4 and 4 of width d = 1024. Their LSTMs have two biases, like
PyTorch's. Sources and targets of V tokens share a table, and logits have a matrix and a bias:

    V d + 2 (8 d^2 + 8 d) + (12 d^2 + 8 d) + 2 (8 d^2 + 8 d)        table, encoder
    + (8 d^2 + 8 d) + 3 (12 d^2 + 8 d) + 2 d^2 + 2 d + 1 + V d + V  decoder, attention, logits

The data are your own, in a folder: train*.tsv (in the benchmark, pairs of WMT16 of at most 50
tokens), newstest2014.tsv and pieces.model, as in `params/mt/wmt14.py`. An epoch has 3,442,299
pairs, as in Google's entry. None was run: only learning rates and sizes are checked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Experiment
from lingo.decode.beam import Beam
from lingo.layers import AdditiveAttention, Embedding, Lstm, SoftmaxHead
from lingo.layers.initial import Uniform
from lingo.optim import Adam, Piecewise, Warmup
from lingo.runtimes.mesh.mesh import Mesh
from lingo.trainer.mlperf.run_log import MlperfLog
from params.mlperf.transformer import evaluation
from params.mt.wmt14 import pairs
from tasks.mt.gnmt import NETWORK, AttentionDecoder, RecurrentEncoder
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence

TARGET = 24.0
VOCAB_SIZE = 32_320
TRAIN_PAIRS = 3_442_299
NUM_DECAYS = 4


class Recipe(NamedTuple):
    """The numbers in which entries differ."""

    batch_size: int  # pairs
    rate: float
    warmup_steps: int  # from a hundredth of the rate, by a constant factor per step
    decay_step: int  # at which the rate is first halved
    decay_interval: int  # steps between halvings, four in all


REFERENCE = Recipe(4096, 1e-3, 200, 4000, 500)
V07_POD = Recipe(8192, 4.5e-3, 150, 1924, 241)


def gnmt(*, dim: int = 1024, num_layers: int = 4, dropout_rate: float = 0.2):
    """Returns an encoder-decoder of LSTMs; initial matrices are uniform in -0.1..0.1."""
    init = Uniform.params(limit=0.1)
    network = NETWORK.copy().set(use_hidden_bias=True)
    shape = {"num_layers": num_layers, "network": network, "dropout_rate": dropout_rate}
    model = EncoderDecoder.params(
        dim=dim,
        embedding=Embedding,
        scale_embedding=False,
        encoder=RecurrentEncoder.params(**shape),
        decoder=AttentionDecoder.params(attention=AdditiveAttention, **shape),
        norm=None,
        head=SoftmaxHead.params(use_bias=True),
        dropout_rate=dropout_rate,
        output_dropout_rate=0.0,
    )
    for cls in (Lstm, AdditiveAttention, Embedding, SoftmaxHead):
        model.all(cls).set(init=init)
    return model


def schedule(recipe: Recipe):
    """Returns a schedule that rises exponentially from 0.01, then is halved four times.

    Its boundaries are the last steps before a halving.
    """
    first = recipe.decay_step - 1 - recipe.warmup_steps
    return Warmup.params(
        num_steps=recipe.warmup_steps,
        start=0.01,
        curve="exponential",
        then=Piecewise.params(
            boundaries=[first + i * recipe.decay_interval for i in range(NUM_DECAYS)],
            values=[0.5**i for i in range(NUM_DECAYS + 1)],
        ),
    )


def _experiment(recipe: Recipe, *, folder: str, vocab_size: int, data: int, epochs: int) -> Any:
    """Returns an experiment that ends at the target, evaluated after every epoch."""
    epoch = TRAIN_PAIRS // recipe.batch_size
    train = pairs(
        folder, "train*.tsv", vocab_size=vocab_size, batch_size=recipe.batch_size, length=50
    )
    heldout = pairs(folder, "newstest2014.tsv", vocab_size=vocab_size, batch_size=64, length=150)
    beam = Beam.params(num_beams=5, length_penalty=0.6, coverage_penalty=0.1, max_tokens=150)
    return Experiment.params(
        task=SequenceToSequence.params(
            model=gnmt(), vocab_size=vocab_size, label_smoothing=0.1, dtype="bfloat16"
        ),
        train_input=train.set(packing="none", too_long="leave_out"),
        eval_inputs={"heldout": heldout.set(packing="none", repeat=False)},
        optimizer=Adam.params(
            learning_rate=recipe.rate,
            schedule=schedule(recipe),
            epsilon=1e-8,
            max_grad_norm=5.0,
        ),
        runtime=Mesh.params(data=data),
        max_steps=epochs * epoch,
        observers=[MlperfLog.params(benchmark="gnmt@0.7.0")],
        evaluate=evaluation(beam, every_steps=epoch, target=TARGET),
        checkpoint=Checkpointing.params(every_steps=epoch),
    )


@experiment
def reference(folder: str = "~/wmt16", vocab_size: int = VOCAB_SIZE, data: int = 32):
    """GNMT of MLPerf: 4 + 4 LSTMs of width 1024; 160,671,297 weights.

    With 32,317 tokens, `vocab_size=32317`, it has 160,665,150 weights. The rate is 0.001. It is
    halved at step 4,000, and three more times, every 500 steps. MLPerf leaves the batch size open:
    with 4,096 pairs the last halving comes after 6.5 epochs.

    lingo show --exp=mlperf.gnmt.reference --weights
    lingo train --exp='mlperf.gnmt.reference(folder="~/wmt16")' --logdir=runs/gnmt
    """
    return _experiment(REFERENCE, folder=folder, vocab_size=vocab_size, data=data, epochs=10)


@experiment
def v07_pod(folder: str = "~/wmt16", vocab_size: int = VOCAB_SIZE, data: int = 1024):
    """GNMT in batches of 8,192 pairs, by round 0.7; 160,671,297 weights.

    It has the settings of Google's entry with 1,024 cores of TPU v3. The entry's result was
    2.101 minutes (MLCommons' training_results_v0.7).

    lingo show --exp=mlperf.gnmt.v07_pod --plot_schedule
    """
    return _experiment(V07_POD, folder=folder, vocab_size=vocab_size, data=data, epochs=10)
