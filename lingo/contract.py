"""Declares Experiment: one tree of parameters with everything that a run needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np

from lingo.checkpoints.sources.hugging_face import check_rotary
from lingo.checkpoints.sources.transfer import Transfer
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.config import ranges
from lingo.config.base.types import Operational
from lingo.config.params import Configurable, ParamError, suggest
from lingo.config.registry import ResolvedExperiment
from lingo.data.array_spec import LateSpecs, Specs
from lingo.data.epochs import Cadence, RunLength, check_unit
from lingo.data.input import MAX_STEPS, Input
from lingo.decode.chat import ContinueText, Responder
from lingo.decode.decoding import Decoding
from lingo.decode.sampling import Sampling
from lingo.learner.state import Learner, slot_shapes
from lingo.learner.task import Task
from lingo.learner.weight_noise import WeightNoise
from lingo.metrics.text import Measure
from lingo.optim.optimizer import Optimizer
from lingo.runtimes.local import Local
from lingo.runtimes.runtime import Runtime
from lingo.storage.files import PATH_PART
from lingo.storage.rows import State


class Checkpointing(Configurable):
    """When checkpoints are written, and how many are kept. A run always ends with a checkpoint."""

    every_steps: int = 500  # steps between checkpoints
    keep: int = 3  # number of latest checkpoints that are kept
    keep_every_steps: int | None = None  # steps between checkpoints that are never deleted
    keep_best: int = 0  # number of best checkpoints by evaluate.metric that are kept, too
    asynchronous: bool = True  # whether training continues while a checkpoint is written
    upload_minutes: float = 10.0  # least time between uploads, if the run is in a bucket

    def check(self) -> None:
        ranges.check_positive(self.p, "every_steps", "keep", "keep_every_steps")
        ranges.check_not_negative(self.p, "keep_best", "upload_minutes")


class Summary(Configurable):
    """When training reports are written, and what evaluations show in TensorBoard.

    The first and the last step are always reported.
    """

    every_steps: int = 10  # steps between reports
    histograms: bool = True  # write a histogram of each weight whenever an evaluation is due
    num_examples: int = 16  # examples of each input's first batch that `Task.summaries` shows

    def check(self) -> None:
        ranges.check_positive(self.p, "every_steps", "num_examples")


class Answers(Configurable):
    """How an evaluation decodes answers to sources, and scores them against the target texts.

    Every evaluation uses the same pairs of source and target. They are drawn from the whole
    evaluation input, so the input's `max_batches` has no effect. `lingo.metrics.text_scores`
    computes the scores. The metric "exact_match" of the answers replaces the task's metric of this
    name, for which the task predicts each token from the true tokens before it.
    """

    # How answers are decoded: Sampling, or Beam, whose best text is scored.
    decoding: Decoding = Sampling.params(temperature=0.0)
    max_examples: int | None = 200  # pairs per evaluation input; None: all
    measures: list[Measure] = ["bleu", "chrf", "exact_match"]  # names of scores and their metrics
    num_shown: int = 3  # answers per input that are shown, with their sources and targets

    def check(self) -> None:
        ranges.check_positive(self.p, "max_examples")
        ranges.check_not_negative(self.p, "num_shown")
        if not self.p.measures:
            raise ParamError(f"measures is empty: name some of {', '.join(get_args(Measure))}")

    def setup(self) -> None:
        self.decoding = self.p.decoding.build()


class Evaluation(Configurable):
    """When the model is evaluated, and what follows from the results.

    A run always ends with an evaluation. With a `metric`, a checkpoint is saved at every
    evaluation, so that the best one can be kept and used: `lingo eval --step=best`,
    `lingo.load(run, step="best")`.
    """

    every_steps: int | None = 500  # steps between evaluations; None: every_epochs says it
    every_epochs: float | None = None  # passes over the training data between evaluations
    weights: Literal["trained", "ema"] = "trained"  # ema: the optimizer's moving average of weights
    metric: str | None = None  # "input/metric", such as "heldout/loss", that decides what is best
    goal: Literal["min", "max"] = "min"  # whether a smaller or a larger metric is better
    patience: int | None = None  # number of evaluations without a new best that end the run
    reach: float | None = None  # the run ends when the metric is at least as good as this value
    prompts: list[str] = []  # texts to continue; the continuations are shown with the results
    sampling: Decoding = Sampling.params(max_tokens=100)  # how `prompts` are continued
    answers: Answers | None = None  # how answers are decoded and scored; None: no answers
    averages: dict[str, list[str]] = {}  # name of an average -> inputs whose metrics are averaged

    def check(self) -> None:
        ranges.check_positive(self.p, "every_steps", "every_epochs", "patience")
        ranges.check_finite(self.p)
        for name in ("patience", "reach"):
            if (value := getattr(self.p, name)) is not None and self.p.metric is None:
                raise ParamError(f"{name}={value} needs a metric to compare by")

    def setup(self) -> None:
        self.sampling = self.p.sampling.build()
        self.answers = self.p.answers and self.p.answers.build()


class Guard(Configurable):
    """What happens if a loss or gradient is not finite, or if the loss is far above its mean.

    A training step (`learner/step.py`) skips every update that is not finite. After too many
    skipped updates in a row, "skip" stops the run and "rewind" rewinds it. "stop" stops it at the
    first one. A rewind goes back to the latest checkpoint before the anomaly, and continues with
    the data after the anomaly (Chowdhery et al. 2022, sec. 5.1).
    """

    on_non_finite: Literal["skip", "rewind", "stop"] = "skip"  # action if updates are not finite
    max_skipped_steps: int = 10  # consecutive skipped updates after which the action is taken
    on_spike: Literal["report", "rewind", "stop"] = "report"  # action at spikes of the loss
    max_spiked_steps: int = 1  # consecutive spikes after which the action is taken
    spike_deviations: float = 6.0  # a spike is more standard deviations than this above the mean
    spike_steps: int = 100  # averaging window of mean and deviation; no spikes in the first one
    max_rewinds: int = 10  # number of rewinds in a run; the next one stops it

    def check(self) -> None:
        ranges.check_finite(self.p)
        ranges.check_positive(self.p, "max_skipped_steps", "max_spiked_steps")
        ranges.check_positive(self.p, "spike_deviations", "spike_steps")
        ranges.check_not_negative(self.p, "max_rewinds")


# ---- observers of a run --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """The run that an observer follows: the first argument of every event."""

    experiment: Experiment
    directory: Path
    name: str  # the experiment's name, as given to `--exp`; "" if it was made in Python
    parameters: Mapping[str, bool | int | float | str]  # path -> value, as in config.txt
    stop: Callable[[str], None]  # stop(reason) saves and ends the run before its next step


class StepReport(NamedTuple):
    """The scalars and vectors that are reported for a training step."""

    step: int  # number of steps done
    scalars: Mapping[str, float]  # TensorBoard tag, such as "loss/total" -> value; may be NaN
    vectors: Mapping[str, np.ndarray] = MappingProxyType({})  # tag -> statistics of a layer [E]


class EvaluationReport(NamedTuple):
    """The results of an evaluation on all evaluation inputs."""

    step: int  # number of steps done
    results: Mapping[str, Mapping[str, float]]  # input -> {metric: value}; may be NaN
    is_last: bool  # whether the run ends after this evaluation


class RunEvents:
    """The events of a run, in order. Subclasses override methods, which do nothing by default."""

    def on_begin(self, run: ObservedRun, step: int) -> None:
        """The run begins or resumes after `step` steps. Its training data is not open yet."""

    def on_start(self, run: ObservedRun, step: int) -> None:
        """The data is open and the program is compiled. The run's first step comes next."""

    def on_steps_start(self, run: ObservedRun, step: int) -> None:
        """A loop of `steps_per_loop` steps begins, after `step` steps."""

    def on_report(self, run: ObservedRun, report: StepReport) -> None:
        """A step is reported, as `summary.every_steps` says."""

    def on_steps_end(self, run: ObservedRun, step: int) -> None:
        """A loop of steps has ended."""

    def on_save(self, run: ObservedRun, step: int) -> None:
        """The checkpoint of a step has been written."""

    def on_evaluation_start(self, run: ObservedRun, step: int) -> None:
        """An evaluation on all evaluation inputs begins."""

    def on_evaluation_end(self, run: ObservedRun, report: EvaluationReport) -> None:
        """An evaluation has ended.

        The results are recorded after this call, so a run that is killed here evaluates again.
        """

    def on_rewind(self, run: ObservedRun, step: int) -> None:
        """The run goes back to the checkpoint of `step`, so later steps no longer count."""

    def on_end(self, run: ObservedRun, state: State) -> None:
        """The run ends with the state "done", "done (early)", "stopped" or "failed", as in STATUS.

        If the process is killed, this event does not happen.
        """

    def on_skip(self, run: ObservedRun, step: int, state: State) -> None:
        """The run had nothing left to do. This is then its only event."""


class RunObserver(RunEvents, Configurable, interface=True):
    """Follows a run, as an item of `Experiment.observers`; the methods are called at events.

    Only the process that writes the run's directory calls them, in one thread, and training waits
    for them. A resumed run restarts from its last checkpoint, so events may come twice. If a method
    raises an exception, a warning names the observer, and it is not called again in this run.
    """

    is_required: bool = False  # whether an exception of the observer ends the run

    def check_experiment(self, experiment: Experiment) -> None:
        """Raises ParamError if the observer does not suit the experiment, which is being built."""


class Experiment(Configurable):
    """A task with its data and optimizer, and all settings of a run. `lingo.train` trains it."""

    task: Task  # the model, its loss and its metrics
    train_input: Input  # the training data
    eval_inputs: dict[str, Input] = {}  # name -> evaluation data
    optimizer: Optimizer  # how gradients change the weights
    seed: int = 0  # seed of initial weights, the order of the data and random numbers in the step
    accumulation_steps: int = 1  # parts of a batch, computed one after another to save memory
    weight_noise: WeightNoise | None = None  # noise of the weights in training; None: no noise
    init_from: WarmStart | None = None  # where initial weights are read from; None: they are random
    runtime: Operational[Runtime] = Local  # which devices compute, and how
    max_steps: Operational[int | None] = 1000  # number of training steps; None: max_epochs says it
    max_epochs: Operational[float | None] = None  # number of passes over the training data
    steps_per_loop: Operational[int] = 1  # number of steps per call of the compiled program
    checkpoint: Operational[Checkpointing] = Checkpointing
    summary: Operational[Summary] = Summary
    evaluate: Operational[Evaluation] = Evaluation
    chat: Operational[Responder] = ContinueText  # how the model answers a conversation
    guard: Operational[Guard] = Guard
    observers: Operational[list[RunObserver]] = []  # objects that are called at the run's events

    def check(self) -> None:
        ranges.check_positive(self.p, "max_steps", "max_epochs", "steps_per_loop")
        ranges.check_positive(self.p, "accumulation_steps")
        ranges.check_finite(self.p)
        check_unit(self.p, "max_steps", "max_epochs")
        check_unit(self.p.evaluate, "every_steps", "every_epochs", place="evaluate.")
        ranges.check_at_most(self.p, MAX_STEPS, "max_steps", "steps_per_loop")
        self._check_evaluations()
        self._check_metric()
        optimizer, evaluate = self.p.optimizer, self.p.evaluate
        if optimizer.plateau is not None and evaluate.metric is None:
            raise ParamError("optimizer.plateau needs evaluate.metric, such as 'heldout/loss'")
        if evaluate.weights == "ema" and optimizer.ema_decay is optimizer.average_steps is None:
            raise ParamError("evaluate.weights='ema' needs optimizer.ema_decay or average_steps")

    def setup(self) -> None:
        self.train_input = self.p.train_input.build(seed=self.p.seed)
        self.eval_inputs = {
            name: params.build(repeat=False) for name, params in self.p.eval_inputs.items()
        }
        for input in self._inputs():
            if not input.declares_late:
                input.check_specs()
        self.task = self.p.task.build(**self.train_input.offers())
        self.optimizer = self.p.optimizer.build()
        self.length = RunLength(self.train_input, self.p.max_steps, self.p.max_epochs)
        self.optimizer.end_with(self.length)
        if not self.counts_epochs:
            self.optimizer.check_rates(self.p.max_steps)
        self.runtime = self.p.runtime.build()
        self.checkpoint = self.p.checkpoint.build()
        self.summary = self.p.summary.build()
        self.evaluate = self.p.evaluate.build()
        self.evaluations = Cadence(
            self.train_input, self.p.evaluate.every_steps, self.p.evaluate.every_epochs
        )
        self.chat = self.p.chat.build()
        self.guard = self.p.guard.build()
        self.learner = Learner(
            self.task,
            self.optimizer,
            self.p.seed,
            self.p.accumulation_steps,
            self._train_specs(),
            weight_noise=self.p.weight_noise and self.p.weight_noise.build(),
        )
        self._check_inputs()
        self._check_answers()
        self.observers = [params.build() for params in self.p.observers]
        for observer in self.observers:
            observer.check_experiment(self)
        self.init_from = self.p.init_from.build() if self.p.init_from is not None else None
        if not self.declares_late:
            self.check_weights()

    @property
    def counts_epochs(self) -> bool:
        """Whether the run's length or a learning rate depends on the training data's size."""
        return self.p.max_epochs is not None or self.optimizer.counts_epochs()

    @property
    def evaluation_names(self) -> list[str]:
        """The names in an evaluation's results: `eval_inputs`, then `evaluate.averages`."""
        return [*self.p.eval_inputs, *self.p.evaluate.averages]

    @property
    def prediction_input(self) -> Input:
        """The first evaluation input, or the training input: it decides how files are read."""
        return next(iter(self.eval_inputs.values()), self.train_input)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of classes by label; (): they have none. DataError: the data is not readable."""
        return tuple(getattr(self.task.p, "class_names", ())) or self.train_input.class_names

    @property
    def declares_late(self) -> bool:
        """Whether shapes of weights or batches are known only after a process has its devices."""
        return self.task.declares_late or any(input.declares_late for input in self._inputs())

    def check_weights(self) -> None:
        """Raises ParamError if optimizer, `init_from` or runtime do not suit the weights.

        `setup` calls this method. If the experiment `declares_late`, the run calls it instead.
        """
        self.learner.check()
        if self.init_from is not None:
            self.init_from.check_weights(list(weight_shapes(self.task)))
        self.runtime.check_learner(self.learner)

    def warm_start(self) -> Transfer | None:
        """Returns how `init_from` initializes the weights; None if all initial weights are random.

        Raises the errors of `WarmStart.transfer`, and CheckpointMismatch if the source model has
        other rotary positions.
        """
        if self.init_from is None:
            return None
        transfer = self.init_from.transfer(weight_shapes(self.task), slot_shapes(self.learner))
        check_rotary(self.task, transfer.source, transfer.reads)
        return transfer

    def step_flops(self, specs: Specs | None = None) -> int:
        """Returns the model FLOPs of a training step, `Task.step_flops`; 0: they are not counted.

        Recomputation to save memory does not count, but padding does.

        Args:
            specs: name -> (shape, dtype) of a batch's arrays; None: the largest batch's.
        """
        return self.task.step_flops(specs or self.train_input.specs())

    def _check_evaluations(self) -> None:
        known, averages = self.p.eval_inputs, self.p.evaluate.averages
        fields = {"eval_inputs": known, "evaluate.averages": averages}
        for field, name in ((field, name) for field, names in fields.items() for name in names):
            if not PATH_PART.fullmatch(name):
                raise ParamError(
                    f"{field}[{name!r:.80}]: the name becomes part of a path; use up to 64"
                    " letters, digits, '.', '_', '-', the first of them a letter or a digit"
                )
        for name, members in averages.items():
            field = f"evaluate.averages[{name!r}]"
            if name in known:
                raise ParamError(f"{field}: an evaluation input has this name")
            if not members:
                raise ParamError(f"{field} is empty: name some of eval_inputs")
            for member in members:
                if member not in known:
                    raise ParamError(
                        f"{field} names {member!r}, which is not one of eval_inputs:"
                        f" {', '.join(known) or 'it is empty'}.{suggest(member, known)}"
                    )

    def _check_metric(self) -> None:
        metric, names = self.p.evaluate.metric, self.evaluation_names
        if metric is None:
            if self.p.checkpoint.keep_best:
                raise ParamError(
                    f"checkpoint.keep_best={self.p.checkpoint.keep_best} needs evaluate.metric,"
                    " which is None"
                )
            return
        name, slash, rest = metric.partition("/")
        if not (slash and rest and name in names):
            raise ParamError(
                f"evaluate.metric={metric!r} is not input/metric with one of eval_inputs:"
                f" {', '.join(names) or 'it is empty'}.{suggest(name, names)}"
            )

    def _check_inputs(self) -> None:
        p, size = self.p, self.learner.specs["rows"][0][0]
        if not self.train_input.p.repeat:
            raise ParamError("train_input.repeat=False: training needs data until max_steps")
        if size % p.accumulation_steps:
            raise ParamError(
                f"train_input.batch_size={size} does not split into"
                f" accumulation_steps={p.accumulation_steps} equal parts"
            )
        for name, input in self.eval_inputs.items():
            if input.p.repeat:
                raise ParamError(f"eval_inputs[{name!r}].repeat=True: an evaluation has to end")
        for input in self._inputs():
            self.task.check_input(input.offers())

    def _check_answers(self) -> None:
        inputs = self.eval_inputs
        if self.evaluate.answers and not any(data.has_text_pairs for data in inputs.values()):
            kinds = [f"{name!r} is a {type(data).__name__}" for name, data in inputs.items()]
            raise ParamError(
                "evaluate.answers needs an evaluation input with pairs of texts, such as PairInput:"
                f" {', '.join(kinds) or 'eval_inputs is empty'}"
            )

    def _train_specs(self) -> Specs:
        data = self.train_input
        return LateSpecs(Input.specs(data), data.specs) if data.declares_late else data.specs()

    def _inputs(self) -> list[Input]:
        return [self.train_input, *self.eval_inputs.values()]


def build_experiment(resolved: ResolvedExperiment) -> Experiment:
    """Builds an experiment from its resolved Params, without TensorFlow or memory for weights.

    Raises:
        ParamError: if the experiment cannot be built, or its Params are not an Experiment's.
    """
    if not issubclass(resolved.params.cls, Experiment):
        kind = resolved.params.cls.__name__
        raise ParamError(
            f"{resolved.origin.function} returns the Params of a {kind}, not of an Experiment"
        )
    return resolved.params.build()
