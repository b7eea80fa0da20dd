"""A pipeline against the plain stack: size of its graph, memory, how large a model fits, time.

Everything runs on one device, where stages compute side by side and idle ones in vain; what a mesh
would hold is counted, not run.

Axes: N tokens of a batch, D model width, L layers, K stages, M micro-batches.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lingo.config.params import Params
from lingo.data.array_spec import Specs
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import FLOAT_BYTES, initial_state
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from params.lm.gpipe import transformer_l
from tools.bench import lm
from tools.harness import Bound, Process, Report, Rival, at_least, at_most, choose, measure
from tools.rivals.plain_lm import Size

STAGES = 4
MICRO_BATCHES = 8
ROUNDS = choose(8, small=1)
PEAKS = choose(7, small=1)
# glibc gives back at once what is freed: a peak is of what is held, not of what has been
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}
WANTED = {
    "graph": Bound(0.99, 1.01),  # of the nodes
    "memory": at_most(0.45),
    "formula": Bound(0.8, 1.2),
    "room": at_least(25.0),
}

SMALL = Size(dim=128, num_heads=4, hidden_dim=256, vocab_size=512, length=16, batch_size=32)
LARGE = Size(
    dim=256, num_layers=16, num_heads=4, hidden_dim=1024, vocab_size=512, length=128, batch_size=32
)
DEEP = choose(LARGE, small=LARGE._replace(dim=64, num_layers=4, hidden_dim=256))
TIMED = choose(LARGE._replace(num_layers=8, batch_size=16), small=DEEP)
GIBIBYTES = 16  # of a device of Table 1's second half, TPU v3
DEVICES = choose(8, small=2)


class Form(NamedTuple):
    """How the layers of a model are stacked."""

    num: int | None = None  # micro-batches; None for the plain stack
    remat: bool = False  # whether a pipeline keeps only what passes between stages

    def apply(self, params: Params) -> Params:
        """Returns an experiment whose stack is this."""
        if self.num is not None:
            fields = {"num_micro_batches": self.num, "remat": self.remat}
            params.all(Stack).swap(Pipeline, num_stages=STAGES, **fields)
        return params


FORMS = choose(
    {
        "Stack": Form(),
        "Pipeline": Form(MICRO_BATCHES),
        "Pipeline, remat": Form(MICRO_BATCHES, remat=True),
    },
    small={"Stack": Form(), "Pipeline, remat": Form(MICRO_BATCHES, remat=True)},
)


def experiment(size: Size, form: Form) -> Params:
    """Returns the language model of the other benchmarks."""
    return form.apply(lm.experiment(size, lm.Variant()))


def specs(size: Size) -> Specs:
    """Returns what a batch is."""
    return {name: (value.shape, value.dtype.name) for name, value in lm.batch(size).items()}


# ---- the graph -----------------------------------------------------------------------------------


class Graph(NamedTuple):
    """The graph of a training step."""

    nodes: int  # in all of its functions
    cpu_seconds: float  # to trace it


def trace(num_layers: int, form: Form) -> Graph:
    """Traces a step of the language model on one device."""
    size = SMALL._replace(num_layers=num_layers)
    learner = experiment(size, form).build().learner
    program = Local.params().build().start(learner, initial_state(learner))
    start = time.process_time()
    graph = program.graph(specs(size)).as_graph_def()
    seconds = time.process_time() - start
    return Graph(len(graph.node) + sum(len(f.node_def) for f in graph.library.function), seconds)


def compare_graphs(report: Report) -> None:
    """Compares graphs and trace times as a number grows: where there is a loop, they do not."""
    trace(4, Form())  # the first graph of a process takes longer
    report.table(f"nodes of a step, {STAGES} stages", "nodes, cpu seconds, ratio")

    def grow(
        title: str,
        graph: Callable[[int], Graph],
        numbers: Sequence[int],
        wanted: Bound | None = None,
    ) -> None:
        graphs = {number: graph(number) for number in numbers}
        first = graphs[numbers[0]]
        for number, (nodes, seconds) in graphs.items():
            note = f"{nodes:8} {seconds:7.2f} {seconds / first.cpu_seconds:7.2f}"
            report.line(f"{title} = {number}", nodes / first.nodes, wanted, note=note)

    few, many = choose(((8, 16, 32), (4, 8, 16, 32)), small=((4,), (8,)))
    flat, deep = WANTED["graph"], choose(16, small=4)
    grow(f"Pipeline, {deep} layers, M", lambda n: trace(deep, Form(n)), many, flat)
    grow("Pipeline, M = 8, layers", lambda n: trace(n, Form(8)), few, flat)
    grow("Stack, layers", lambda n: trace(n, Form()), few)


# ---- memory --------------------------------------------------------------------------------------


def train_steps(size: Size, form: Form) -> Rival:
    """Returns the rival that trains a form of the model."""
    make = functools.partial(experiment, size, form)
    return functools.partial(lm.train_steps, make=make, size=size)


def process_megabytes(size: Size, form: Form) -> float:
    """Returns the most that a process holds in a step on Local, the median of some steps."""
    peaks: list[float] = []
    with contextlib.closing(Process(train_steps(size, form), MALLOC)) as process:
        process.turn()  # it compiles
        for _ in range(PEAKS):
            process.reset_peak()
            process.turn()
            peaks.append(process.peak_megabytes())
    return statistics.median(peaks)


def compiler_megabytes(size: Size, form: Form) -> float:
    """Returns what XLA takes for a step on one device, in its own account, state included."""
    built = experiment(size, form).set(runtime=Mesh.params()).build()
    return program_bytes(built, specs(size)) / 2**20


def program_bytes(built: Any, specs: Specs) -> int:
    """Returns the bytes that the program of a built experiment takes, state included."""
    memory: Mapping[str, int] = built.runtime.compile_program(built.learner, specs).memory
    new = memory["outputs"] - memory["aliased"]
    return memory["arguments"] + new + memory["temporaries"]


def activation_megabytes(size: Size, form: Form) -> float:
    """Returns how much more a process holds in a step than in one of rows of two tokens."""
    return process_megabytes(size, form) - process_megabytes(size._replace(length=2), form)


def boundary_megabytes(size: Size) -> float:
    """Returns what passes between stages: K vectors of a token of a micro-batch in each tick."""
    tokens = size.batch_size * size.length / MICRO_BATCHES
    ticks = MICRO_BATCHES + STAGES - 1
    return FLOAT_BYTES * size.dim * tokens * STAGES * ticks / 2**20


def compare_memory(size: Size, report: Report) -> None:
    """Compares the memory of a step with that of the plain stack, and with GPipe's formula."""
    for title, measure_megabytes in {
        "peak of a process": activation_megabytes,  # in a step, over that of rows of two tokens
        "all of XLA": compiler_megabytes,  # for one device, state included
    }.items():
        found = {name: measure_megabytes(size, form) for name, form in FORMS.items()}
        report.table(f"{title} / that of Stack", "MB")
        for name, megabytes in found.items():
            wanted = WANTED["memory"] if FORMS[name].remat else None
            ratio = megabytes / found["Stack"]
            report.line(f"{title}, {name}", ratio, wanted, note=f"{megabytes:8.0f}")
        if measure_megabytes is activation_megabytes:
            compare_formula(size, found["Stack"], found["Pipeline, remat"], report)


def compare_formula(size: Size, stack: float, pipeline: float, report: Report) -> None:
    """Compares what is kept with what should be, by layers of the plain stack (GPipe, sec. 2.3).

    Not for XLA, under which gradients keep less: one layer of a stage, not all of them.
    """
    few = size._replace(num_layers=size.num_layers // 4)
    part = activation_megabytes(few, Form())
    layer = (stack - part) / (size.num_layers - few.num_layers)
    rest = stack - size.num_layers * layer
    boundaries, inner = boundary_megabytes(size), size.num_layers * layer / MICRO_BATCHES
    expected = rest + boundaries + inner
    print(
        f"kept: {boundaries:.0f} boundaries, K (N/M) (M + K - 1) D; {inner:.0f} layers of one tick,"
        f" L/K of K stages on N/M;\n{rest:.0f} the rest, as in the stack: {expected:.0f} in all"
    )
    report.line("measured / formula", pipeline / expected, WANTED["formula"])


# ---- how large a model can be --------------------------------------------------------------------


def program_gibibytes(num_layers: int, num_stages: int) -> float:
    """Returns what XLA takes on each device for a step of GPipe's Transformer-L; 1: a plain stack.

    The logits, which are not in the pipeline, exist a few tokens at a time.
    """
    cfg = transformer_l(num_layers=num_layers, num_stages=num_stages)
    cfg.task.chunk_size = 64
    if num_stages == 1:
        stack = cfg.task.model.stack
        cfg.task.model.stack = Stack.params(layer=stack.layer, num_layers=num_layers)
    built = cfg.build()
    return program_bytes(built, built.train_input.specs()) / 2**30


def compare_room(report: Report) -> None:
    """Compares how large a model fits, from programs of few layers: all grows by their number."""
    print(
        f"\nTransformer-L on devices of {GIBIBYTES} GiB, by XLA's account: weights, gradients, two"
        " slots,\nactivations of 32 rows of 1,024 tokens, float32"
    )
    report.table("weights / those on one device", "layers, 1e9, GiB a layer")
    billions: dict[int, float] = {}
    for num_devices in (1, DEVICES):
        one, two = (program_gibibytes(n * num_devices, num_devices) for n in (1, 2))
        layers = num_devices * (1 + int((GIBIBYTES - one) / (two - one)))
        weights = transformer_l(num_layers=layers).build().task.weights().values()
        billions[num_devices] = sum(spec.size for spec in weights) / 1e9
        note = f"{layers:6} {billions[num_devices]:8.2f} {(two - one) / num_devices:8.2f}"
        wanted = WANTED["room"] if num_devices > 1 else None
        name = f"weights on {num_devices} devices / on one"
        report.line(name, billions[num_devices] / billions[1], wanted, note=note)


# ---- time ----------------------------------------------------------------------------------------


def compare_time(size: Size, report: Report) -> None:
    """Compares a step with that of the plain stack."""
    measured = measure({name: train_steps(size, form) for name, form in FORMS.items()}, num=ROUNDS)
    print(f"\n{size}")
    report.times("a step", measured)
    ticks = MICRO_BATCHES + STAGES - 1
    print(f"ticks, idle ones included, are {ticks / MICRO_BATCHES:.3f} times those that count")
    for name in list(FORMS)[1:]:
        report.ratio(f"{name} / Stack", measured.rounds[name], measured.rounds["Stack"])


def run(report: Report) -> None:
    """Compares everything."""
    Mesh.params().build().make_devices(DEVICES)  # before JAX counts those that there are
    compare_graphs(report)
    compare_memory(DEEP, report)
    compare_room(report)
    compare_time(TIMED, report)
