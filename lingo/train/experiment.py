"""The contract of an experiment: everything a run needs, in one tree of parameters."""

from __future__ import annotations

from typing import Literal

from lingo.config.params import Configurable, ParamError
from lingo.config.types import Operational
from lingo.data.input import Input
from lingo.optim.optimizer import Optimizer
from lingo.train.record.storage import PATH_PART
from lingo.train.runtimes.local import Local
from lingo.train.runtimes.runtime import Runtime
from lingo.train.state import Learner
from lingo.train.task import Task


class Checkpointing(Configurable):
    """When checkpoints are written, and how many are kept. One is always written at the end."""

    every_steps: int = 500  # steps from one to the next
    keep: int = 3  # how many of the latest are kept

    def check(self) -> None:
        _positive(self.p, "every_steps", "keep")


class Summary(Configurable):
    """When a report is written: at step 1, then regularly, and at the end."""

    every_steps: int = 10  # steps from one row to the next

    def check(self) -> None:
        _positive(self.p, "every_steps")


class Evaluation(Configurable):
    """When the evaluation inputs are run through the model. They always are at the end."""

    every_steps: int = 500  # steps from one evaluation to the next
    weights: Literal["trained", "ema"] = "trained"  # ema: the average that the optimizer keeps

    def check(self) -> None:
        _positive(self.p, "every_steps")


class Guard(Configurable):
    """What happens when losses or gradients are not finite: the update is left out and counted."""

    max_skipped_steps: int = 10  # updates left out in a row that stop the run

    def check(self) -> None:
        _positive(self.p, "max_skipped_steps")


class Experiment(Configurable):
    """A task, its data, an optimizer, and how to run them."""

    task: Task  # what is learned
    train_input: Input  # what it is learned from
    eval_inputs: dict[str, Input] = {}  # by name: what it is evaluated on
    optimizer: Optimizer  # how weights change
    seed: int = 0  # of initial values, order of data and randomness in the step
    accumulation_steps: int = 1  # parts of a batch computed one after the other: less memory
    mesh: Operational[Runtime] = Local  # which devices compute, and how
    max_steps: Operational[int] = 1000  # steps to train
    steps_per_loop: Operational[int] = 1  # steps done by one call of the compiled program
    checkpoint: Operational[Checkpointing] = Checkpointing
    summary: Operational[Summary] = Summary
    evaluate: Operational[Evaluation] = Evaluation
    guard: Operational[Guard] = Guard

    def check(self) -> None:
        _positive(self.p, "max_steps", "steps_per_loop", "accumulation_steps")
        for name in self.p.eval_inputs:
            if not PATH_PART.fullmatch(f"eval_{name}"):
                raise ParamError(
                    f"eval_inputs[{name!r}]: the name becomes part of a path;"
                    " use letters, digits, '.', '_', '-'"
                )
        if self.p.evaluate.weights == "ema" and self.p.optimizer.ema_decay is None:
            raise ParamError("evaluate.weights='ema' needs optimizer.ema_decay, which is None")

    def setup(self) -> None:
        self.train_input = self.p.train_input.build(seed=self.p.seed)
        self.eval_inputs = {
            name: params.build(repeat=False) for name, params in self.p.eval_inputs.items()
        }
        self.task = self.p.task.build(**self.train_input.offers())
        self.optimizer = self.p.optimizer.build()
        self.mesh = self.p.mesh.build()
        self.checkpoint = self.p.checkpoint.build()
        self.summary = self.p.summary.build()
        self.evaluate = self.p.evaluate.build()
        self.guard = self.p.guard.build()
        self.learner = Learner(self.task, self.optimizer, self.p.seed, self.p.accumulation_steps)
        self._check_inputs()
        self.optimizer.check_weights(list(self.learner.weights().values()))

    def _check_inputs(self) -> None:
        p, size = self.p, self.train_input.p.batch_size
        if not self.train_input.p.repeat:
            raise ParamError("train_input.repeat=False: training goes on until max_steps")
        if size % p.accumulation_steps:
            raise ParamError(
                f"train_input.batch_size={size} does not split into"
                f" accumulation_steps={p.accumulation_steps} equal parts"
            )
        for name, input in self.eval_inputs.items():
            if input.p.repeat:
                raise ParamError(f"eval_inputs[{name!r}].repeat=True: an evaluation has an end")
        for input in (self.train_input, *self.eval_inputs.values()):
            self.task.check_input(input.offers())


def _positive(p: Configurable, *names: str) -> None:
    for name in names:
        if getattr(p, name) < 1:
            raise ParamError(f"{name}={getattr(p, name)} is not positive")
