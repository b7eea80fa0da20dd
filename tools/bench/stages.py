"""Stages of an AmoebaNet on two devices of one thread each, against one device of one thread.

Both compute the same step: two stages, M micro-batches, every activation inside a stage twice. At
best, without transfers and with equal stages, the two devices are 2 M / (M + 1) times as fast.
Devices are virtual ones of the processor. Their threads come from one pool: while one stage waits,
branches of the other's cells may use both. One device with the two threads shows what these
branches alone gain.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.stacks.chain import Chain
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.state import initial_state
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from params.image.amoebanet import digits
from tools.harness import Report, Turns, measure

STAGES = 2
NUM_FILTERS, BATCH_SIZE, SIZE = 48, 32, 16
ROUNDS = 20


class Form(NamedTuple):
    """How a step is computed."""

    num: int  # M
    devices: int
    threads: int

    def __str__(self) -> str:
        return f"M = {self.num}, {self.devices} devices, {self.threads} threads"


FORMS = [Form(m, d, t) for m in (2, 8) for d, t in ((1, 1), (1, 2), (2, 2))]


def experiment(form: Form) -> Params:
    """Returns AmoebaNet-D of three cells and two reductions on images of 16 x 16."""
    cfg = digits(num_filters=NUM_FILTERS)
    cfg.train_input.set(batch_size=BATCH_SIZE, enlarged_to=(SIZE, SIZE, 1))
    cfg.all(Chain).swap(PipelinedChain, num_stages=STAGES, num_micro_batches=form.num)
    cfg.runtime = Local.params(stage_devices=form.devices)
    return cfg.set(eval_inputs={})


def train_steps(turns: Turns, *, form: Form) -> None:
    """A turn is a step of the compiled program."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(form.threads)
    split_processor(form.devices)
    built = experiment(form).build()
    program = built.runtime.start(built.learner, initial_state(built.learner))
    batches = {name: value[None] for name, value in built.train_input.batch(0).items()}
    while True:
        with turns.turn():
            float(program.train(batches)["scalars"]["loss/total"][0])


def run(report: Report) -> None:
    """Compares the seconds of a step; forms take turns, so that other work slows all of them."""
    measured = measure({str(f): functools.partial(train_steps, form=f) for f in FORMS}, num=ROUNDS)
    report.times("a step", measured)
    report.table("one device, one thread / the same M", "of processor seconds, best")
    for form in FORMS:
        one = form._replace(devices=1, threads=1)
        if form != one:
            best = STAGES * form.num / (form.num + STAGES - 1)
            name = f"{form}, at best {best:.2f}" if form.devices > 1 else str(form)
            report.ratio(name, measured.rounds[str(one)], measured.rounds[str(form)])
