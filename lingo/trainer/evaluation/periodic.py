"""Evaluation during training: every `evaluate.every_steps` steps, and after the last.

    for each step:
        periodic.draw(step, summaries, signals)         # images, histograms of the weights
        periodic.evaluate(step, summaries, signals)     # every evaluation input
        periodic.sample(step, summaries, signals)       # how the model continues some texts
        stop, if periodic.is_enough

Each of them does nothing if no evaluation is due.
"""

from __future__ import annotations

from collections.abc import Callable

from lingo.contract import Experiment
from lingo.learner.state import TrainState, named_tensors
from lingo.processes.processes import ALONE, Processes
from lingo.processes.signals import Signals
from lingo.runtimes.runtime import Program
from lingo.storage import injection
from lingo.storage.shards import Shards
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.evaluation.evaluate import evaluations, tagged
from lingo.trainer.evaluation.generate import samples
from lingo.trainer.guard.hang import Watchdog
from lingo.trainer.progress import Pace, Progress
from lingo.trainer.summaries.summaries import Summaries


class PeriodicEvaluation:
    """Evaluates a program between its steps.

    Attributes:
        found: the last results of each evaluation input, tag -> value.
        is_enough: whether evaluations have stopped improving.
    """

    def __init__(
        self,
        experiment: Experiment,
        program: Program,
        run: RunDirectory,
        *,
        state: Callable[[], TrainState],
        progress: Progress,
        pace: Pace,
        watchdog: Watchdog,
        processes: Processes = ALONE,
    ) -> None:
        """Stores the collaborators; evaluates nothing yet.

        Args:
            experiment: what is trained.
            program: the learner's program.
            run: the run directory, whose reports tell which evaluation was best.
            state: returns the state of the program.
            progress: shows results.
            pace: measures training, and is paused here.
            watchdog: allows more time where the program does nothing.
            processes: all do the same; the leader shares what only it can know.
        """
        self._experiment, self._program, self._run = experiment, program, run
        self._state, self._progress, self._pace = state, progress, pace
        self._watchdog, self._processes = watchdog, processes
        self.found: dict[str, dict[str, float]] = {}
        self.is_enough = False

    def is_due(self, step: int) -> bool:
        """Returns whether an evaluation is due after a step."""
        p = self._experiment.p
        return step >= p.max_steps or (step > 0 and step % p.evaluate.every_steps == 0)

    def is_done(self, step: int) -> bool:
        """Returns whether a step was already evaluated; all processes must call this together."""
        return self._agreed(self._run.is_evaluated(step))

    def evaluate(self, step: int, summaries: Summaries, signals: Signals) -> None:
        """Evaluates every input if due; after a signal, the next start of the run does it.

        Raises:
            ParamError: if an evaluation lacks the metric that `evaluate.metric` names.
            DataError, ProgramError: if the input or the devices fail.
        """
        experiment, found = self._experiment, {}
        if not (self.is_due(step) and experiment.eval_inputs):
            return
        with self._pace.paused():
            injection.at("evaluate", step)
            for name, metrics in evaluations(experiment, self._program, between=signals.iterate):
                found[name] = tagged(metrics)
                self._progress.evaluated(name, found[name], step=step)
            best.check_metric(experiment, found)
            summaries.write_evaluations(step, found)
            ranking = best.ranking(experiment, self._run.metrics.read())
            self.is_enough = self._agreed(ranking.is_enough)
        self.found |= found

    def sample(self, step: int, summaries: Summaries, signals: Signals) -> None:
        """Shows how the model continues `evaluate.prompts`, if an evaluation is due."""
        if not (self._experiment.p.evaluate.prompts and self.is_due(step)):
            return
        signals.check()
        with self._pace.paused():
            texts = samples(self._experiment, self._program)
            summaries.write_samples(step, texts)
            for prompt, text in texts.items():
                self._progress.message(f"step {step}  sample {prompt!r:.40} -> {text!r:.60}")

    def draw(self, step: int, summaries: Summaries, signals: Signals) -> None:
        """Writes images of statistics and histograms of weights, if an evaluation is due.

        Only the leader writes them, and histograms only of weights that are not sharded.
        """
        if not self.is_due(step):
            return
        with self._pace.paused(), self._watchdog.extend():
            if self._processes.is_leader:
                summaries.write_images(step)
            if not self._experiment.p.summary.histograms:
                return
            tensors = named_tensors(self._experiment.learner, self._state())
            weights = (
                (name, value)
                for name, value in (tensors if self._processes.is_leader else ())
                if name.startswith("weights/") and not isinstance(value, Shards)
            )
            summaries.write_histograms(step, signals.iterate(weights, joint=False))

    def _agreed(self, is_so: bool) -> bool:
        """Returns to all processes the leader's `is_so`: only the leader reads the reports."""
        with self._watchdog.pause():
            return self._processes.any(is_so)
