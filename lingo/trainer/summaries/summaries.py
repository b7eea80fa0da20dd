"""Reports of a run: rows of metrics.jsonl and vectors.jsonl, and TensorBoard events.

the run's folder    the run's row of the HParams table
train/              scalars of training, configuration, pipeline, graph of the step, histograms,
                    images, samples
eval_<name>/        scalars and answers of an evaluation, and its task's summaries
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary

from lingo.config.lazy import tf
from lingo.contract import EvaluationReport, ObservedRun, RunEvents, StepReport
from lingo.metrics.media import Media
from lingo.storage.rows import Rows, State
from lingo.trainer.directory.run_directory import RunDirectory, evaluation_row, tag_metrics
from lingo.trainer.summaries import events, history, hparams
from lingo.trainer.summaries.about import TAG, layout_summary
from lingo.trainer.summaries.events import histogram_value, media_summary, text_block
from lingo.trainer.summaries.history import History, round_digits
from lingo.trainer.summaries.hparams import ParameterValue

MAX_GRAPH_NODES = 40_000
"""The largest graph that is written: Chromium draws 34,000 operations in 8 seconds."""

_SEVERAL = "One layer below the other, as their names below are sorted. "

_log = logging.getLogger(__name__)


class Summaries(RunEvents):
    """Writes the reports of a run, from one thread, in the order of steps.

    If a report cannot be written (a full disk), a warning is logged. The warning is repeated only
    after a write has succeeded.
    """

    def __init__(self, run: RunDirectory, *, step: int) -> None:
        """Continues the reports of a run after a step; reports of later steps are removed."""
        self._run, self._events = run, events.Events(run.path, enabled=run.enabled)
        self.cut(step or -1)

    def cut(self, step: int) -> None:
        """Removes the reports of steps after `step`; -1 removes all, even from before step 1."""
        self._run.cut(step)
        self._history = History()
        for row in self._run.vectors.read():
            self._history.add(row)
        for folder in (self._run.train, *self._run.path.glob("eval_*")):
            self._events.cut(folder, step)

    def __enter__(self) -> Summaries:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for rows in (self._run.metrics, self._run.vectors):
            if lost := rows.num_unwritten:
                _log.warning("%s lacks the last %s reports.", rows.path, lost)

    # ---- events

    def on_report(self, run: ObservedRun, report: StepReport) -> None:
        """Writes the report of a step."""
        self.write_step(*report)

    def on_evaluation_end(self, run: ObservedRun, report: EvaluationReport) -> None:
        """Writes the results of an evaluation."""
        tagged = {name: tag_metrics(metrics) for name, metrics in report.results.items()}
        self.write_evaluations(report.step, tagged)

    def on_rewind(self, run: ObservedRun, step: int) -> None:
        """Removes the reports of later steps."""
        self.cut(step)

    def on_end(self, run: ObservedRun, state: State) -> None:
        """Writes into the run's row of the HParams table how the run has ended."""
        self._write_hparams(hparams.end_summary(state))

    # ---- hyperparameters

    def start_run(self, values: Mapping[str, ParameterValue]) -> None:
        """Writes the run's row of the HParams table, in place of an earlier one."""
        with self._events.warn_on_failure(self._run.path):
            self._events.cut(self._run.path, -1)  # TensorBoard shows the first row that it finds
        self._write_hparams(hparams.start_summary(values))

    def _write_hparams(self, summary: bytes) -> None:
        if self._run.is_lost:
            return
        self._events.add(self._run.path, 0, Summary.FromString(summary))

    # ---- scalars

    def write_step(
        self,
        step: int,
        scalars: Mapping[str, float],
        vectors: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Writes a step's report, tag -> scalar: a row of metrics.jsonl, and events in `train/`.

        `vectors`, name -> float [E] with any E, become a row of vectors.jsonl, for `write_images`.
        """
        at: dict[str, Any] = {"step": int(step), "time": time.time()}
        row = at | {tag: float(value) for tag, value in scalars.items()}
        self._append(self._run.metrics, row)
        self._events.add_scalars(self._run.train, step, scalars)
        if vectors:
            row = at | {name: round_digits(vector) for name, vector in vectors.items()}
            self._append(self._run.vectors, row)
            self._history.add(row)

    def write_evaluations(self, step: int, evaluations: Mapping[str, Mapping[str, float]]) -> None:
        """Writes evaluations, input -> {tag: value}, in the experiment's order of inputs."""
        for name, results in evaluations.items():
            self._events.add_scalars(self._run.evaluation(name), step, results)
        row = evaluation_row(step, evaluations) | {"time": time.time()}
        self._append(self._run.metrics, row)

    def write_summaries(self, step: int, name: str, summaries: Mapping[str, Media | float]) -> None:
        """Writes an evaluation's summaries, tag -> summary, which only TensorBoard shows."""
        if summaries:
            self._events.add(self._run.evaluation(name), step, media_summary(summaries))

    def _append(self, rows: Rows, row: Mapping[str, Any]) -> None:
        with self._events.warn_on_failure(rows.path):
            rows.append(row)

    # ---- texts

    def write_about(self, markdown: str, *, metric: str, step: int) -> None:
        """Writes a text on what the run trains, and a page of charts: the loss and `metric`."""
        self._write_markdown(TAG, markdown, step)
        self._events.add(self._run.train, step, layout_summary(metric))

    def write_text(self, tag: str, text: str, *, step: int) -> None:
        """Writes a text, such as the configuration, that is shown verbatim in fixed width."""
        self._write_markdown(tag, text_block(text), step)

    def write_samples(self, step: int, samples: Mapping[str, str]) -> None:
        """Writes how the model continues prompts: prompt -> text."""
        blocks = [
            f"**Prompt**\n\n{text_block(prompt)}\n**continued**\n\n{text_block(text)}"
            for prompt, text in samples.items()
        ]
        self._write_markdown("samples", "\n---\n\n".join(blocks), step)

    def write_answers(
        self, step: int, name: str, answers: Sequence[tuple[str, str, str]], *, note: str
    ) -> None:
        """Writes an evaluation's answers, (source, target, answer), with a note below them."""
        titles = ("Source", "target", "answer")
        blocks = [
            "\n".join(
                f"**{title}**\n\n{text_block(text)}"
                for title, text in zip(titles, texts, strict=True)
            )
            for texts in answers
        ]
        markdown = "\n---\n\n".join([*blocks, text_block(note)])
        self._write_markdown("answers", markdown, step, folder=self._run.evaluation(name))

    def _write_markdown(
        self, tag: str, markdown: str, step: int, *, folder: Path | None = None
    ) -> None:
        summary = Summary(value=[events.text_value(tag, markdown)])
        self._events.add(folder or self._run.train, step, summary)

    # ---- pipelines

    def write_pipelines(
        self, bubble_fractions: Mapping[str, float], report: str, *, step: int
    ) -> None:
        """Writes how pipelines are split: a text, and pipeline's path -> bubble fraction."""
        values = [events.text_value("pipeline", text_block(report))]
        for where, fraction in bubble_fractions.items():
            tag = f"/{where}" if len(bubble_fractions) > 1 else ""
            values.append(events.scalar_value(f"pipeline/bubble_fraction{tag}", fraction))
        self._events.add(self._run.train, step, Summary(value=values))

    # ---- the model

    def write_graph(self, graph: tf.Graph) -> None:
        """Writes the graph of the training step, if it is small enough for a browser."""
        size = len(graph.get_operations())
        if size > MAX_GRAPH_NODES:
            _log.warning(
                "the training step has %s operations, too many for TensorBoard to draw (%s);"
                " its graph is not written. With Stack=Repeat it has one layer for all.",
                *(f"{size:,}", f"{MAX_GRAPH_NODES:,}"),
            )
            return
        definition = graph.as_graph_def(add_shapes=True)
        self._events.add_graph(self._run.train, definition.SerializeToString())

    def write_histograms(self, step: int, values: Iterable[tuple[str, np.ndarray]]) -> None:
        """Writes the histogram of each (tag, array); arrays are finite floats of any shape."""
        histograms = (histogram_value(tag, array) for tag, array in values)
        self._events.add(self._run.train, step, Summary(value=histograms))

    def write_images(self, step: int) -> None:
        """Writes images of the vectors over all reports: per vector, and per last part of a name.

        The image `load` shows `state/model/layers/3/ffn/router/load` and all other vectors whose
        names end with `/load`.
        """
        matrices = sorted(self._history.matrices().items(), key=lambda item: _sort_key(item[0]))
        groups: dict[str, list[np.ndarray]] = {}
        for name, matrix in matrices:
            groups.setdefault(name.rsplit("/", 1)[-1], []).append(matrix)
        images = {
            name: events.image_value(
                name, history.overview_image(group), legend=_SEVERAL + history.LEGEND
            )
            for name, group in groups.items()
        }
        for name, matrix in matrices:
            pixels = history.vector_image(matrix)
            images[name] = events.image_value(name, pixels, legend=history.LEGEND)
        if images:
            self._events.add(self._run.train, step, Summary(value=images.values()))


def _sort_key(name: str) -> list[tuple[int, str]]:
    """Returns a key that sorts layer 2 before layer 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split("/")]
