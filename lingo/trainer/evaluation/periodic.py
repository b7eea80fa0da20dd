"""Evaluation while training goes on: every `evaluate.every_steps` steps, and after the last.

    for each step:
        periodic.draw(step, summaries, signals)         # how weights are distributed
        periodic.evaluate(step, summaries, signals)     # every evaluation input
        periodic.sample(step, summaries, signals)       # how the model goes on with some texts
        stop, if periodic.is_enough

Where nothing is due, each of them does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from lingo.contract import Experiment
from lingo.learner.state import TrainState, named
from lingo.processes.processes import ALONE, Processes
from lingo.processes.signals import Signals
from lingo.runtimes.runtime import Program
from lingo.storage import injection
from lingo.storage.shards import Parts
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
        found: the last results by evaluation input, tag -> value.
        is_enough: whether evaluations have stopped getting better.
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
        """Evaluates nothing yet.

        Args:
            experiment: what is trained.
            program: its learner at work.
            run: whose reports say which evaluation was best.
            state: reads that of the program.
            progress: where a person looks.
            pace: of training; all this is none.
            watchdog: expects less where the program does nothing.
            processes: each of which does the same; what only the leader can know, it shares.
        """
        self._experiment, self._program, self._run = experiment, program, run
        self._state, self._progress, self._pace = state, progress, pace
        self._watchdog, self._processes = watchdog, processes
        self.found: dict[str, dict[str, float]] = {}
        self.is_enough = False

    def is_due(self, step: int) -> bool:
        """Returns whether the evaluation inputs are run after a step."""
        p = self._experiment.p
        return step >= p.max_steps or (step > 0 and step % p.evaluate.every_steps == 0)

    def is_done(self, step: int) -> bool:
        """Returns whether the evaluation inputs were run after a step; all processes ask."""
        return self._agreed(self._run.is_evaluated(step))

    def evaluate(self, step: int, summaries: Summaries, signals: Signals) -> None:
        """Runs every evaluation input, if they are due; a signal leaves it for the next start.

        Raises:
            ParamError: if an evaluation does not give the metric it is compared by.
            DataError, ProgramError: if the input fails, or the devices do.
        """
        experiment, found = self._experiment, {}
        if not (self.is_due(step) and experiment.eval_inputs):
            return
        with self._pace.paused():
            injection.at("evaluate", step)
            for name, metrics in evaluations(experiment, self._program, between=signals.between):
                found[name] = tagged(metrics)
                self._progress.evaluated(name, found[name], step=step)
            best.check_metric(experiment, found)
            summaries.write_evaluations(step, found)
            ranking = best.ranking(experiment, self._run.metrics.read())
            self.is_enough = self._agreed(ranking.is_enough)
        self.found |= found

    def sample(self, step: int, summaries: Summaries, signals: Signals) -> None:
        """Shows how the model goes on with some texts, where an evaluation is due."""
        if not (self._experiment.p.evaluate.prompts and self.is_due(step)):
            return
        signals.check()
        with self._pace.paused():
            texts = samples(self._experiment, self._program)
            summaries.write_samples(step, texts)
            for prompt, text in texts.items():
                self._progress.message(f"step {step}  sample {prompt!r:.40} -> {text!r:.60}")

    def draw(self, step: int, summaries: Summaries, signals: Signals) -> None:
        """Shows how statistics went and how weights are distributed, where an evaluation is due.

        Of several processes the leader does, of weights that it has whole.
        """
        if not self.is_due(step):
            return
        with self._pace.paused(), self._watchdog.slow():
            if self._processes.is_leader:
                summaries.write_images(step)
            if not self._experiment.p.summary.histograms:
                return
            tensors = named(self._experiment.learner, self._state())
            weights = (
                (name, value)
                for name, value in (tensors if self._processes.is_leader else ())
                if name.startswith("weights/") and not isinstance(value, Parts)
            )
            summaries.write_histograms(step, signals.between(weights, together=False))

    def _agreed(self, is_so: bool) -> bool:
        """Returns whether something is so that the leader knows: only it reads the reports."""
        with self._watchdog.paused():
            return self._processes.any(is_so)
