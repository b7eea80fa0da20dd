"""What a run reports: rows of metrics.jsonl, and all that TensorBoard shows of it.

the run's folder    HParams: the run is a row
train/              scalars of training, configuration, graph of the step, histograms, samples
eval_<name>/        scalars of an evaluation
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from tensorboard.plugins.histogram import metadata as histogram_metadata

from lingo.lazy import tf
from lingo.train.record import events, hparams
from lingo.train.record.run_directory import RunDirectory, State, row_tag

MAX_GRAPH_NODES = 40_000
"""The largest graph that is written: Chromium draws 34,000 operations in 8 seconds."""

_BUCKETS = 30

_log = logging.getLogger(__name__)


class Summaries:
    """Writes the reports of a run.

    A report that cannot be written (a full disk) is a warning, once until it works again: training
    does not depend on it.
    """

    def __init__(self, run: RunDirectory, *, step: int) -> None:
        """Continues the reports of a run.

        Args:
            run: the directory, locked by this process.
            step: steps done; what was reported of later ones is removed, they will be done again.

        Raises:
            StorageError: if what is to be removed cannot be.
        """
        self._run, self._events = run, events.Events()
        self._began = False
        run.cut_metrics(step)
        for folder in (run.train, *run.path.glob("eval_*")):
            events.cut(folder, step)

    def __enter__(self) -> Summaries:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._began:
            self.ended("failed")
        self._events.close()

    # ---- hyperparameters

    def began(self, values: Mapping[str, hparams.Value]) -> None:
        """Makes the run a row of the HParams table, in place of the row it was before.

        Args:
            values: what stands in it, by key.
        """
        with self._events.warned(self._run.path):
            events.cut(self._run.path, 0)  # TensorBoard keeps the first start and end that it finds
        self._raw(hparams.began(values))
        self._began = True

    def ended(self, state: State) -> None:
        """Says in the run's row how it ended. Left by an error, it says "failed" by itself."""
        self._raw(hparams.ended(state))

    def _raw(self, summary: bytes) -> None:
        with self._events.warned(self._run.path), self._events.to(self._run.path):
            tf.summary.experimental.write_raw_pb(summary, step=0)

    # ---- scalars

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Reports a step: one row, and events in `train/`.

        Args:
            step: steps done.
            scalars: TensorBoard tag -> value.
        """
        row = {"step": int(step), "time": time.time()}
        row |= {tag: float(value) for tag, value in scalars.items()}
        with self._events.warned(self._run.metrics):
            self._run.append_metrics(row)
        self._events.scalars(self._run.train, step, scalars)

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
        with self._events.warned(self._run.metrics):
            self._run.amend_metrics(row)

    # ---- texts

    def text(self, tag: str, text: str, *, step: int) -> None:
        """Shows a text as it is, such as the configuration, in fixed width."""
        with self._events.warned(self._run.train), self._events.to(self._run.train):
            tf.summary.text(tag, _verbatim(text), step=step)

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
        with self._events.warned(self._run.train), self._events.to(self._run.train):
            tf.summary.text("samples", "\n---\n\n".join(shown), step=step)

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
        with self._events.warned(self._run.train), self._events.to(self._run.train):
            tf.summary.graph(graph.as_graph_def(add_shapes=True))

    def histograms(self, step: int, values: Iterable[tuple[str, np.ndarray]]) -> None:
        """Shows how the elements of tensors are distributed.

        Args:
            step: steps done.
            values: (tag, array of any shape, float), finite.
        """
        with self._events.warned(self._run.train), self._events.to(self._run.train):
            metadata = histogram_metadata.create_summary_metadata(None, None)
            for tag, array in values:
                tf.summary.write(tag, histogram(array), step=step, metadata=metadata)


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
