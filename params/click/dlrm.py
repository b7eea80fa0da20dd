"""DLRM (Naumov et al. 2019): MLPerf's on Criteo's terabyte of clicks, and a small one that learns.

Criteo's log is not included. Clicks of a planted model take its place: they show that steps can be
computed, their cost, and how close a model comes to the best one.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.params import Params
from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.layers import EmbeddingTables
from lingo.optim import (
    Adam,
    Cosine,
    Polynomial,
    SequentialSchedule,
    Sgd,
    Warmup,
    epochs_to_steps,
    scale_linearly,
)
from lingo.runtimes.mesh.mesh import Mesh
from tasks.click.click_input import ClickInput
from tasks.click.model import Dlrm, Mlp
from tasks.click.task import ClickPrediction

CRITEO = (
    39_884_406,
    39_043,
    17_289,
    7_420,
    20_263,
    3,
    7_120,
    1_543,
    63,
    38_532_951,
    2_953_546,
    403_346,
    10,
    2_208,
    11_938,
    155,
    4,
    976,
    14,
    39_979_771,
    25_641_295,
    39_664_984,
    585_935,
    12_972,
    108,
    36,
)
"""Rows of the tables of MLPerf's reference: the categories of each feature, at most 40 million."""
TRAIN_CLICKS = 4_195_197_692  # examples from 23 days
EVAL_CLICKS = 89_137_319  # from half of the last day


@experiment
def dlrm(batch_size: int = 55_296, data: int = 256):
    """MLPerf's DLRM for Criteo's clicks: 24,036,595,969 weights, all but 2,368,897 in 26 tables.

    It is the model of MLPerf's reference, with the settings of Google's entry to training 0.7
    (Kumar et al. 2021). SGD's rate is 0.887 per 2,048 examples (here 23.9). It rises for 2,750
    steps, and falls from step 49,315 on with the square of the remaining part of 27,772 steps. A
    run is one pass over 4.2 billion clicks. MLPerf's target is an area under the curve of 80.25 %
    on 89,137,319 clicks of the last day. Tables of at least 100,000 rows are split by rows over all
    devices, which also share the batch; the other tables, 0.06 GB in all, are whole on each device.
    A step updates only the rows of these large tables that its batch looks up. The area is computed
    from a histogram, with its error.

    A forward pass takes 4.9 MFLOPs an example. Each of 256 devices has 0.45 GB of the 96 GB of
    weights. It has not been run.

    lingo show --exp=click.dlrm.dlrm --weights
    """
    warmup_steps, decay_start, decay_steps = 2_750, 49_315, 27_772
    cfg = _predict_clicks(
        vocab_sizes=CRITEO,
        bottom=(512, 256, 128),
        top=(1024, 1024, 512, 256, 1),
        batch_size=batch_size,
        num_clicks=TRAIN_CLICKS,
        num_eval_clicks=EVAL_CLICKS,
    )
    cfg.task.num_eval_examples = 0  # three numbers for each of these clicks would be 2 GB a batch
    num_steps = epochs_to_steps(1, num_examples=TRAIN_CLICKS, batch_size=batch_size)
    cfg.all(EmbeddingTables).set(whole_below=100_000, sparse_from=100_000)
    return cfg.set(
        optimizer=Sgd.params(
            learning_rate=scale_linearly(0.887, batch_size=batch_size, base_batch_size=2048),
            schedule=SequentialSchedule.params(
                parts=[
                    (Warmup.params(num_steps=warmup_steps), decay_start),
                    (Polynomial.params(num_steps=decay_steps, power=2), decay_steps),
                ]
            ),
        ),
        runtime=Mesh.params(data=data, weight_rules={"vocab": ["data"]}),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=num_steps // 20),
        checkpoint=Checkpointing.params(every_steps=num_steps // 20),
    )


@experiment
def clicks(num_steps: int = 600, batch_size: int = 2048):
    """A small DLRM that learns who clicks from a planted model; 47,041 weights.

    After 600 steps of 2,048 examples, less than a minute on two cores, the area under the curve on
    32,768 held-out examples is 79.6 % (mean of three seeds); with the planted logits it is 80.0 %.
    Tables have at most 50 rows: Criteo's features, with fewer categories.

    lingo train --exp=click.dlrm.clicks --logdir=runs/clicks
    """
    cfg = _predict_clicks(
        vocab_sizes=tuple(min(size, 50) for size in CRITEO),
        bottom=(64, 32, 16),
        top=(64, 32, 1),
        batch_size=batch_size,
        num_clicks=2**20,
        num_eval_clicks=2**15,
    )
    warmup_steps = num_steps // 10
    fall = Cosine.params(num_steps=num_steps - warmup_steps)
    return cfg.set(
        optimizer=Adam.params(
            learning_rate=1e-2, schedule=Warmup.params(num_steps=warmup_steps, then=fall)
        ),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=max(1, num_steps // 3)),
        checkpoint=Checkpointing.params(every_steps=max(1, num_steps // 3)),
    )


def _predict_clicks(
    *,
    vocab_sizes: Sequence[int],
    bottom: Sequence[int],
    top: Sequence[int],
    batch_size: int,
    num_clicks: int,
    num_eval_clicks: int,
) -> Params:
    """Returns an experiment that predicts clicks, without its optimizer."""
    train = ClickInput.params(
        split="train",
        vocab_sizes=tuple(vocab_sizes),
        num_clicks=num_clicks,
        batch_size=batch_size,
    )
    heldout = train.copy().set(split="heldout", num_clicks=num_eval_clicks, repeat=False)
    model = Dlrm.params(
        bottom=Mlp.params(output_dims=tuple(bottom)), top=Mlp.params(output_dims=tuple(top))
    )
    return Experiment.params(
        task=ClickPrediction.params(model=model, num_eval_examples=num_eval_clicks),
        train_input=train,
        eval_inputs={"heldout": heldout},
    )
