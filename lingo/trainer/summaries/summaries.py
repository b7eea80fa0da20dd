"""What a run reports: rows of metrics.jsonl and vectors.jsonl, and all that TensorBoard shows.

the run's folder    HParams: the run is a row
train/              scalars of training, configuration, pipeline, graph of the step, histograms,
                    pictures, samples
eval_<name>/        scalars of an evaluation
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.metadata import create_summary_metadata as histogram_metadata

from lingo.config.lazy import tf
from lingo.mesh.pipeline import drawing
from lingo.mesh.pipeline.schedule import Schedule
from lingo.storage.rows import Rows
from lingo.storage.status import State
from lingo.trainer.directory.run_directory import RunDirectory, row_tag
from lingo.trainer.summaries import events, hparams, picture
from lingo.trainer.summaries.history import History, rounded

MAX_GRAPH_NODES = 40_000
"""The largest graph that is written: Chromium draws 34,000 operations in 8 seconds."""

_BUCKETS = 30
_CLOCK = (
    "A row a stage, the first above, time to the right. **Blue**: forward. **Orange**: backward;"
    " later micro-batches are darker. **Grey**: idle."
)
_SEVERAL = "One layer below the other, as their names below are sorted. "

_log = logging.getLogger(__name__)


class Summaries:
    """Writes the reports of a run.

    A report that cannot be written (a full disk) is a warning, once until it works again: training
    does not depend on it.
    """

    def __init__(self, run: RunDirectory, *, step: int) -> None:
        """Continues the reports of a run.

        Args:
            run: the directory, locked by this process if it is enabled.
            step: steps done; what was reported of later ones is removed, they will be done again.

        Raises:
            StorageError: if what is to be removed cannot be.
        """
        self._run, self._events = run, events.Events(run.path, enabled=run.enabled)
        self._began = False
        self.cut(step or -1)

    def cut(self, step: int) -> None:
        """Removes what was reported of steps after `step`.

        What was said before the first step, such as the graph, is of step 0: -1 removes it, too.

        Raises:
            StorageError: if that cannot be done.
        """
        self._run.cut(step)
        self._history = History()
        for row in self._run.vectors.read():
            self._history.add(row)
        for folder in (self._run.train, *self._run.path.glob("eval_*")):
            self._events.cut(folder, step)

    def __enter__(self) -> Summaries:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._began:
            self.ended("stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        for rows in (self._run.metrics, self._run.vectors):
            if lost := rows.num_unwritten:
                _log.warning("%s lacks the last %s reports.", rows.path, lost)

    # ---- hyperparameters

    def began(self, values: Mapping[str, hparams.Value]) -> None:
        """Makes the run a row of the HParams table, in place of the row it was before.

        Args:
            values: what stands in it, by key.
        """
        with self._events.warned(self._run.path):  # TensorBoard keeps the first that it finds
            self._events.cut(self._run.path, -1)
        self._hparams(hparams.began(values))
        self._began = True

    def ended(self, state: State) -> None:
        """Says in the run's row how it ended. Left by an error, it says "failed" by itself."""
        self._hparams(hparams.ended(state))

    def _hparams(self, summary: bytes) -> None:
        self._events.add(self._run.path, 0, Summary.FromString(summary))

    # ---- scalars

    def write(
        self,
        step: int,
        scalars: Mapping[str, float],
        vectors: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Reports a step: one row, and events in `train/`.

        Args:
            step: steps done.
            scalars: TensorBoard tag -> value.
            vectors: name -> float [E]; a row of their own, for `pictures`.
        """
        at: dict[str, Any] = {"step": int(step), "time": time.time()}
        row = at | {tag: float(value) for tag, value in scalars.items()}
        self._append(self._run.metrics, row)
        self._events.scalars(self._run.train, step, scalars)
        if vectors:
            row = at | {name: rounded(vector) for name, vector in vectors.items()}
            self._append(self._run.vectors, row)
            self._history.add(row)

    def evaluated(self, step: int, evaluations: Mapping[str, Mapping[str, float]]) -> None:
        """Reports evaluations: in the row of their step, and events in `eval_<name>/`.

        Args:
            step: steps done.
            evaluations: name -> {tag: value}, in the order of the experiment; see `row_tag`.
        """
        row: dict[str, Any] = {"step": int(step), "time": time.time()}
        for i, (name, results) in enumerate(evaluations.items()):
            for tag, value in results.items():
                row[row_tag(tag, name, first=not i)] = float(value)
            self._events.scalars(self._run.evaluation(name), step, results)
        self._append(self._run.metrics, row)

    def _append(self, rows: Rows, row: Mapping[str, Any]) -> None:
        with self._events.warned(rows.path):
            rows.append(row)

    # ---- texts

    def text(self, tag: str, text: str, *, step: int) -> None:
        """Shows a text as it is, such as the configuration, in fixed width."""
        self._text(tag, _verbatim(text), step)

    def samples(self, step: int, samples: Mapping[str, str]) -> None:
        """Shows what the model writes.

        Args:
            step: steps done.
            samples: prompt -> how the model goes on.
        """
        shown = [
            f"**Prompt**\n\n{_verbatim(prompt)}\n**goes on**\n\n{_verbatim(text)}"
            for prompt, text in samples.items()
        ]
        self._text("samples", "\n---\n\n".join(shown), step)

    def _text(self, tag: str, markdown: str, step: int) -> None:
        self._events.add(self._run.train, step, Summary(value=[events.text(tag, markdown)]))

    # ---- pipelines

    def pipelines(
        self,
        clocks: Mapping[str, Schedule],
        bubble_fractions: Mapping[str, float],
        report: str,
        *,
        step: int,
    ) -> None:
        """Shows how pipelines were split, when which stage works, and how long none does.

        Args:
            clocks: path of each pipeline -> when its stages do what.
            bubble_fractions: likewise -> for which share of their time they are idle.
            report: of all of them, in words.
            step: steps done.
        """
        shown = [events.text("pipeline", _verbatim(report))]
        for where, schedule in clocks.items():
            tag = f"/{where}" if len(clocks) > 1 else ""
            pixels = drawing.pixels(schedule)
            shown.append(events.image(f"pipeline/clock{tag}", pixels, legend=_CLOCK))
            idle = bubble_fractions[where]
            shown.append(events.scalar(f"pipeline/bubble_fraction{tag}", idle))
        self._events.add(self._run.train, step, Summary(value=shown))

    # ---- the model

    def graph(self, graph: tf.Graph) -> None:
        """Shows the graph of the training step, if a browser can."""
        size = len(graph.get_operations())
        if size > MAX_GRAPH_NODES:
            _log.warning(
                "the training step has %s operations, too many for TensorBoard to draw (%s);"
                " its graph is not written. With Stack=Repeat it has one layer for all.",
                *(f"{size:,}", f"{MAX_GRAPH_NODES:,}"),
            )
            return
        definition = graph.as_graph_def(add_shapes=True)
        self._events.graph(self._run.train, definition.SerializeToString())

    def histograms(self, step: int, values: Iterable[tuple[str, np.ndarray]]) -> None:
        """Shows how the elements of tensors are distributed.

        Args:
            step: steps done.
            values: (tag, array of any shape, float), finite.
        """
        metadata = histogram_metadata("", "")
        shown = (events.value(tag, histogram(array), metadata) for tag, array in values)
        self._events.add(self._run.train, step, Summary(value=shown))

    def pictures(self, step: int) -> None:
        """Shows the vectors of all reports over time: each alone, and those of one name together.

        A vector's name is that of its layer and its own: `state/model/layers/3/ffn/router/load` is
        among those of `load`.

        Args:
            step: steps done.
        """
        matrices = sorted(self._history.matrices().items(), key=lambda item: _parts(item[0]))
        together: dict[str, list[np.ndarray]] = {}
        for name, matrix in matrices:
            together.setdefault(name.rsplit("/", 1)[-1], []).append(matrix)
        drawn = {name: (picture.overview(several), _SEVERAL) for name, several in together.items()}
        drawn |= {name: (picture.one(matrix), "") for name, matrix in matrices}
        if drawn:
            shown = (
                events.image(name, pixels, picture.colours(), legend=about + picture.LEGEND)
                for name, (pixels, about) in drawn.items()
            )
            self._events.add(self._run.train, step, Summary(value=shown))


def _parts(name: str) -> list[tuple[int, str]]:
    """Returns what names are sorted by: layer 2 comes before layer 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split("/")]


def histogram(array: np.ndarray) -> np.ndarray:
    """Returns how many elements of an array fall into each of some intervals of equal width.

    (TensorBoard's own function needs 240 bytes of memory an element.)

    Args:
        array: of any shape, float, finite; not empty.

    Returns:
        float64 [30, 3]: left edge, right edge, count.
    """
    ends = (np.float64(array.min()), np.float64(array.max()))  # their difference may not be float32
    counts, edges = np.histogram(array, bins=_BUCKETS, range=ends)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def _verbatim(text: str) -> str:
    """Returns a text as a code block of Markdown; what cannot be printed becomes its escape."""
    lines = (
        "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in line)
        for line in text.removesuffix("\n").split("\n")
    )
    return "".join(f"    {line}\n" for line in lines)
