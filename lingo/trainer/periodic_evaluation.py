"""Evaluations between the steps of a run, and what they leave: results, answers, pictures."""

from __future__ import annotations

from collections.abc import Callable

from lingo.contract import EvaluationReport, RunEvents
from lingo.learner.state import TrainState, named_tensors
from lingo.storage import injection
from lingo.storage.shards import Shards
from lingo.trainer.directory.run_directory import evaluation_row, tag_metrics
from lingo.trainer.evaluation import best
from lingo.trainer.evaluation.answers import answer_line, describe_measures
from lingo.trainer.evaluation.evaluate import EvaluationResult, evaluate_all, loss_tags
from lingo.trainer.evaluation.generate import samples
from lingo.trainer.live_run import LiveRun


class PeriodicEvaluation:
    """Evaluates a program between its steps, as `evaluate` says when, and after the last.

    for each step:
        evaluation.draw(step)         # writes images, and histograms of the weights
        evaluation.evaluate(step)     # evaluates every evaluation input
        evaluation.sample(step)       # shows how the model continues some texts
        stop, if evaluation.ends_run

    Each call does nothing if no evaluation is due.

    Attributes:
        results: evaluation input -> last results, {tag: value}.
        ends_run: whether `evaluate.reach` is reached, or `evaluate.patience` is used up.
    """

    def __init__(self, run: LiveRun, state: Callable[[], TrainState]) -> None:
        """Evaluates nothing yet; `state` is a function that returns the program's state."""
        self._run, self._state = run, state
        self.results: dict[str, dict[str, float]] = {}
        self.ends_run = False

    def is_due(self, step: int) -> bool:
        """Returns whether an evaluation is due after a step."""
        experiment = self._run.experiment
        return step >= experiment.length.steps or experiment.evaluations.is_due(step)

    def is_last(self, step: int) -> bool:
        """Returns whether the run ends after a step's evaluation."""
        return self.ends_run or step >= self._run.experiment.length.steps

    def is_done(self, step: int) -> bool:
        """Returns whether a step was already evaluated; all processes must call this together."""
        return self._agree(self._run.directory.is_evaluated(step))

    def evaluate(self, step: int) -> None:
        """Evaluates every input, if due; after a signal, the run's next start evaluates instead."""
        run, experiment = self._run, self._run.experiment
        results: dict[str, dict[str, float]] = {}
        if not (self.is_due(step) and experiment.eval_inputs):
            return
        with run.throughput.pause():
            injection.at("evaluate", step)
            run.observers.tell(RunEvents.on_evaluation_start, step)
            rows = run.directory.metrics.read()
            for one in evaluate_all(
                experiment,
                run.program,
                between=run.signals.iterate,
                show_progress=run.progress.work,
            ):
                results[one.input] = one.metrics
                run.progress.show_evaluation(one.input, one.metrics, step=step)
                shown = tag_metrics(one.summaries) | loss_tags(experiment, one, rows)
                run.summaries.write_summaries(step, one.input, shown)
                self._show_answers(one, step)
            tagged = {name: tag_metrics(metrics) for name, metrics in results.items()}
            best.check_metric(experiment, results)
            ranking = best.ranking(experiment, [*rows, evaluation_row(step, tagged)])
            self.ends_run = self._agree(run.processes.is_leader and ranking.ends_run)
            report = EvaluationReport(step, results, self.is_last(step))
            run.observers.tell(RunEvents.on_evaluation_end, report)
        self.results |= tagged

    def sample(self, step: int) -> None:
        """Shows how the model continues `evaluate.prompts`, if an evaluation is due."""
        run = self._run
        if not (run.experiment.p.evaluate.prompts and self.is_due(step)):
            return
        run.signals.check()
        with run.throughput.pause():
            texts = samples(run.experiment, run.program)
            run.summaries.write_samples(step, texts)
            for prompt, text in texts.items():
                run.progress.message(f"step {step}  sample {prompt!r:.40} -> {text!r:.60}")

    def draw(self, step: int) -> None:
        """Writes images of statistics and histograms of weights, if an evaluation is due.

        Only the leader writes them, and histograms only of weights that are not sharded.
        """
        run = self._run
        if not self.is_due(step):
            return
        with run.throughput.pause(), run.watchdog.extend():
            if run.processes.is_leader:
                run.summaries.write_images(step)
            if not run.experiment.p.summary.histograms:
                return
            tensors = named_tensors(run.experiment.learner, self._state())
            weights = (
                (name, value)
                for name, value in (tensors if run.processes.is_leader else ())
                if name.startswith("weights/") and not isinstance(value, Shards)
            )
            run.summaries.write_histograms(step, run.signals.iterate(weights, joint=False))

    def _show_answers(self, result: EvaluationResult, step: int) -> None:
        if not result.answers:
            return
        run, name = self._run, result.input
        scored = run.experiment.eval_inputs[name].measures  # by the input itself
        note = ", ".join(scored) if scored else describe_measures(run.experiment)
        run.summaries.write_answers(step, name, result.answers, note=note)
        for answer in result.answers:
            run.progress.message(f"step {step}  answer {name}: {answer_line(answer)}")

    def _agree(self, flag: bool) -> bool:
        """Returns whether `flag` is true in any process: the leader alone reads the reports."""
        with self._run.watchdog.pause():
            return self._run.processes.any(flag)
