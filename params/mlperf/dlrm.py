"""DLRM as in round 0.7 of MLPerf training.

A run ends at an area under the curve of 80.25 % on half of the last day's clicks, evaluated twenty
times in its only pass. It was not run, and Criteo's clicks are not included: only learning rates,
sizes and the logged values are checked.
"""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation
from lingo.optim import scale_by_root
from lingo.trainer.mlperf.run_log import MlperfLog
from params.click import dlrm

TARGET = 0.8025


@experiment
def v07_pod(batch_size: int = 55_296, data: int = 256):
    """DLRM in batches of 55,296, with the target of round 0.7.

    The recipe is `click.dlrm.dlrm`: SGD with a rate of 0.887 per 2,048 examples, which falls from
    step 49,315 on. The clicks are a planted model's, for which the target has no meaning.

    lingo show --exp=mlperf.dlrm.v07_pod --plot_schedule
    """
    cfg = dlrm.dlrm(batch_size=batch_size, data=data)
    cfg.evaluate.set(metric="heldout/auc", goal="max", reach=TARGET)
    return cfg.set(observers=[MlperfLog.params(benchmark="dlrm@0.7.0")])


@experiment
def planted(batch_size: int = 2048, num_steps: int = 600):
    """A small form: `click.dlrm.clicks`, by the rules of DLRM; 47,041 weights.

    Planted logits have a standard deviation of 2, so that the benchmark's own target of 80.25 % can
    be reached. An evaluation follows every 30 steps of 2,048 examples. The log says that it is a
    small form.

    lingo train --exp=mlperf.dlrm.planted --logdir=runs/planted
    """
    cfg = dlrm.clicks(num_steps=num_steps * 2048 // batch_size, batch_size=batch_size)
    for data in (cfg.train_input, cfg.eval_inputs["heldout"]):
        data.scale = 2.0
    every_steps = max(1, 30 * 2048 // batch_size)
    cfg.optimizer.learning_rate = scale_by_root(1e-2, batch_size=batch_size, base_batch_size=2048)
    return cfg.set(
        observers=[MlperfLog.params(benchmark="dlrm@0.7.0")],
        evaluate=Evaluation.params(
            every_steps=every_steps, metric="heldout/auc", goal="max", reach=TARGET
        ),
        checkpoint=Checkpointing.params(every_steps=every_steps),
    )
