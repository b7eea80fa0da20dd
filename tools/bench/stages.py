"""Stages of an AmoebaNet on two devices of one thread each, against one device of one thread.

Both compute the same step: two stages, M micro-batches, every activation inside a stage twice. At
best, without transfers and with equal stages, the two devices are 2 M / (M + 1) times as fast.
Devices are virtual ones of the processor. Their threads come from one pool: while one stage waits,
branches of the other's cells may use both. One device with the two threads shows what these
branches alone gain. Last, both stages only wait: that needs no processor, so it shows how stages
overlap on a machine that has other work, too, also in the loop that one device computes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.stacks.chain import Chain
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.state import initial_state
from lingo.ops.stage_loop import Stage, run_stages
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from params.image.amoebanet import digits
from tools.harness import Report, Turns, choose, measure

STAGES = 2
NUM_FILTERS, BATCH_SIZE, SIZE = choose((48, 32, 16), small=(8, 4, 16))
ROUNDS = choose(20, small=1)
WAIT_SECONDS = 0.02


class Form(NamedTuple):
    """How a step is computed."""

    num: int  # M
    devices: int
    threads: int

    def __str__(self) -> str:
        return f"M = {self.num}, {self.devices} devices, {self.threads} threads"


FORMS = choose(
    [Form(m, d, t) for m in (2, 8) for d, t in ((1, 1), (1, 2), (2, 2))],
    small=[Form(2, 1, 1), Form(2, 2, 2)],
)


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


def wait_steps(turns: Turns, *, form: Form) -> None:
    """A turn is a step of stages that wait, forward, and backward with what is computed again."""
    tf.config.threading.set_inter_op_parallelism_threads(form.threads)
    split_processor(form.devices)

    def wait(x: np.ndarray) -> np.ndarray:
        time.sleep(WAIT_SECONDS)
        return x

    def slow(x: tf.Tensor) -> tf.Tensor:  # not stateful, or TensorFlow would do one after another
        return tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32, stateful=False), x.shape)

    @tf.custom_gradient
    def identity(x: tf.Tensor) -> Any:
        return slow(x), slow

    def compute(weight: tf.Tensor, x: tf.Tensor, inputs: tuple[()]) -> Any:
        return tf.square(identity(weight * x)), {}  # the gradient needs what is inside

    @tf.function(autograph=False)
    def step(weights: list[tf.Tensor], x: tf.Tensor) -> Any:
        # without devices, it is a loop of the program
        devices = [f"CPU:{k}" if form.devices > 1 else None for k in range(STAGES)]
        stages = [Stage(compute, *pair) for pair in zip(weights, devices, strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y = run_stages(stages, x, ())[0]
            loss = tf.reduce_sum(tf.sin(y))  # its gradient needs y: backward begins after forward
        return loss, tape.gradient(loss, weights)

    while True:
        with turns.turn():
            float(step([tf.ones([])] * STAGES, tf.ones([form.num, 1]))[0])


def run(report: Report) -> None:
    """Compares the seconds of a step; forms take turns, so that other work slows all of them."""
    compare(train_steps, FORMS, "a step", report)
    compare(wait_steps, FORMS, "a step of waiting", report)


def compare(rival: Callable[..., None], forms: Sequence[Form], title: str, report: Report) -> None:
    """Prints seconds, and how many times as fast as one device and thread a form is."""
    measured = measure({str(f): functools.partial(rival, form=f) for f in forms}, num=ROUNDS)
    report.times(title, measured)
    report.table(f"{title}: one device, one thread / others", "of processor seconds")
    for form in forms:
        one = form._replace(devices=1, threads=1)
        if form != one:
            best = STAGES * form.num / (form.num + STAGES - 1)
            name = f"{form}, at best {best:.2f}" if form.devices > 1 else str(form)
            report.ratio(name, measured.rounds[str(one)], measured.rounds[str(form)])
