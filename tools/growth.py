"""How large the graph of a training step is, and how long it takes to trace, as something grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.data.array_spec import Specs
from lingo.layers.feed_forward import FeedForward
from lingo.layers.layer import Layer
from lingo.learner.state import Learner, initial_state
from lingo.learner.task import Batch, Task
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from tools.bounds import Bound, Bounds


class Graph(NamedTuple):
    """Of a training step.

    Attributes:
        nodes: in all of its functions.
        cpu_seconds: to trace it.
    """

    nodes: int
    cpu_seconds: float


def traced(learner: Learner, specs: Specs) -> Graph:
    """Traces a step on one device."""
    program = Local.params().build().start(learner, initial_state(learner))
    began = time.process_time()
    found = program.graph(specs).as_graph_def()
    seconds = time.process_time() - began
    return Graph(len(found.node) + sum(len(f.node_def) for f in found.library.function), seconds)


def report(
    title: str,
    graph: Callable[[int], Graph],
    numbers: Sequence[int],
    bounds: Bounds,
    wanted: Bound | None = None,
) -> None:
    """Prints graphs for rising numbers, and ratios to the first.

    Args:
        title: what is counted, and by which numbers.
        graph: of a number.
        numbers: to try.
        bounds: what the ratios of nodes are held against.
        wanted: of these.
    """
    print(title)
    first: Graph | None = None
    for number in numbers:
        found = graph(number)
        first = first or found
        nodes, seconds = found.nodes / first.nodes, found.cpu_seconds / first.cpu_seconds
        print(
            f"  {number:<30}{found.nodes:8} {nodes:8.3f}   {found.cpu_seconds:8.2f} {seconds:8.2f}"
            f"   {wanted or ''}",
            flush=True,
        )
        bounds.hold(f"nodes, {title} = {number}", nodes, wanted)


# ---- layers that any stack can have ------------------------------------------------------------


class Link(FeedForward):
    """A feed-forward layer that may stand in a chain, too."""

    def output_shape(self, shape: Any) -> Any:
        return shape


class Links(Task):
    """Adds up squares of what links return."""

    stack: Layer  # of links

    def setup(self) -> None:
        self.stack = self.p.stack.build()

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        return {"squares": tf.reduce_sum(self.stack(batch["x"]) ** 2)}


def links(stack: Params, *, dim: int, length: int, batch_size: int) -> Graph:
    """Traces a step of links.

    Args:
        stack: of them.
        dim: width of a vector.
        length: vectors of a row.
        batch_size: rows.
    """
    learner = Learner(Links.params(stack=stack).build(), Sgd.params(learning_rate=0.1).build())
    specs: Specs = {
        "x": ((batch_size, length, dim), "float32"),
        "weights": ((batch_size,), "float32"),
        "rows": ((batch_size,), "int32"),
    }
    return traced(learner, specs)
