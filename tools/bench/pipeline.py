"""A pipeline against the plain stack: size of its graph, memory, how large a model fits, time.

All on one device, where stages compute side by side and the idle ones in vain; what a mesh would
hold is counted, not run.

Axes: N tokens of a batch, D model width, L layers, K stages, M micro-batches.
"""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from lingo.config.params import Params
from lingo.data.array_spec import Specs
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import FLOAT_BYTES, initial_state
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from params.lm.gpipe import transformer_l
from tools import growth
from tools.bench import lm
from tools.bounds import Bound, Bounds, at_least, at_most
from tools.growth import Graph, Link
from tools.rivals.plain_lm import Size
from tools.turns import Process, Rival, Turns, measure, spread

STAGES = 4
MICRO_BATCHES = 8
ROUNDS = 8
PEAKS = 7
# glibc gives back at once what is freed: a peak is of what is held, not of what has been
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}
WANTED = {
    "graph": Bound(0.99, 1.01),  # of the nodes
    "memory": at_most(0.45),
    "formula": Bound(0.8, 1.2),
    "room": at_least(25.0),
}

SMALL = Size(dim=128, num_heads=4, hidden_dim=256, vocab_size=512, length=16, batch_size=32)
DEEP = Size(
    dim=256,
    num_layers=16,
    num_heads=4,
    hidden_dim=1024,
    vocab_size=512,
    length=128,
    batch_size=32,
)
LINKS = 16
LINK = Link.params(dim=SMALL.dim, hidden_dim=SMALL.hidden_dim)
GIBIBYTES = 16  # of a device of Table 1's second half, TPU v3
DEVICES = 8


class Form(NamedTuple):
    """How the layers of a model are stacked.

    Attributes:
        num: micro-batches; None for the plain stack.
        remat: whether a pipeline keeps only what passes between stages.
    """

    num: int | None = None
    remat: bool = False

    def apply(self, params: Params) -> Params:
        """Returns an experiment whose stack is this."""
        if self.num is not None:
            fields = {"num_micro_batches": self.num, "remat": self.remat}
            params.all(Stack).swap(Pipeline, num_stages=STAGES, **fields)
        return params


FORMS = {
    "Stack": Form(),
    "Pipeline": Form(MICRO_BATCHES),
    "Pipeline, remat": Form(MICRO_BATCHES, remat=True),
}


def experiment(size: Size, form: Form, mesh: Params | None = None) -> Any:
    """Returns the language model of the other benchmarks, built."""
    return form.apply(lm.experiment(size, lm.Variant())).set(mesh=mesh or Local.params()).build()


def specs(size: Size) -> Specs:
    """Returns what a batch is."""
    return {name: (value.shape, value.dtype.name) for name, value in lm.batch(size).items()}


# ---- the graph -----------------------------------------------------------------------------------


def graph(num_layers: int, form: Form) -> Graph:
    """Traces a step of the language model."""
    size = SMALL._replace(num_layers=num_layers)
    return growth.traced(experiment(size, form).learner, specs(size))


def links(stack: Params) -> Graph:
    """Traces a step of feed-forward layers: a chain cannot have those of a Transformer."""
    return growth.links(stack, dim=SMALL.dim, length=SMALL.length, batch_size=SMALL.batch_size)


def in_loop(num: int) -> Graph:
    """Traces links in stages that are a loop, for M micro-batches."""
    fields = {"num_layers": LINKS, "num_stages": STAGES, "num_micro_batches": num}
    return links(Pipeline.params(layer=LINK, **fields))


def unrolled(num: int) -> Graph:
    """Traces links in stages that have a copy for each micro-batch."""
    fields = {"num_stages": STAGES, "num_micro_batches": num}
    return links(PipelinedChain.params(layers=[LINK.copy() for _ in range(LINKS)], **fields))


def report_graph(bounds: Bounds) -> None:
    """Prints how graph and trace time grow: not, where there is a loop."""
    graph(4, Form())  # what the first of a process takes, besides
    print(
        f"\n{'graph of a step, 4 stages':32}{'nodes':>8} {'ratio':>8}   processor seconds to trace,"
        " ratio   wanted of nodes"
    )
    few, many, flat = (8, 16, 32), (4, 8, 16, 32), WANTED["graph"]
    growth.report("Pipeline, 16 layers, M", lambda n: graph(16, Form(n)), many, bounds, flat)
    growth.report("Pipeline, M = 8, layers", lambda n: graph(n, Form(8)), few, bounds, flat)
    growth.report("Stack, layers", lambda n: graph(n, Form()), few, bounds)
    growth.report(f"Pipeline, {LINKS} links, M", in_loop, many, bounds, flat)
    growth.report(f"PipelinedChain, {LINKS} links, M", unrolled, many, bounds)
    plain = functools.partial(Stack.params, layer=LINK)
    growth.report("Stack, links", lambda n: links(plain(num_layers=n)), few, bounds)


# ---- memory --------------------------------------------------------------------------------------


def steps(turns: Turns, *, size: Size, form: Form) -> None:
    """A turn is a step."""
    built = experiment(size, form)
    program = built.mesh.start(built.learner, initial_state(built.learner))
    one = {name: value[None] for name, value in lm.batch(size).items()}
    while True:
        with turns.turn():
            float(program.train(one)["scalars"]["loss/total"][0])


def process_megabytes(size: Size, form: Form) -> float:
    """Returns the most that a process has held in a step on Local, the median of some steps."""
    process, peaks = Process(functools.partial(steps, size=size, form=form), MALLOC), []
    try:
        process.turn()  # it compiles
        for _ in range(PEAKS):
            process.forget_peak()
            process.turn()
            peaks.append(process.peak_megabytes())
    finally:
        process.close()
    return statistics.median(peaks)


def compiler_megabytes(size: Size, form: Form) -> float:
    """Returns what XLA takes for a step on one device, in its own account, state included."""
    built = experiment(size, form, Mesh.params())
    return taken(built.mesh.partitioned(built.learner, specs(size)).memory) / 2**20


def taken(memory: Mapping[str, int]) -> int:
    """Returns the bytes that a program takes, state included."""
    beside = memory["outputs"] - memory["aliased"]
    return memory["arguments"] + beside + memory["temporaries"]


def activation_megabytes(size: Size, form: Form) -> float:
    """Returns how much more a process holds in a step than in one of rows of two tokens."""
    return process_megabytes(size, form) - process_megabytes(size._replace(length=2), form)


def boundary_megabytes(size: Size) -> float:
    """Returns what passes between stages: K vectors of a token of a micro-batch in each tick."""
    tokens = size.batch_size * size.length / MICRO_BATCHES
    ticks = MICRO_BATCHES + STAGES - 1
    return FLOAT_BYTES * size.dim * tokens * STAGES * ticks / 2**20


def report_memory(size: Size, bounds: Bounds) -> None:
    """Prints the memory of a step beside the plain stack's, and what GPipe's formula says."""
    for title, measured in {
        "Local: peak of a process in a step, over that of rows of two": activation_megabytes,
        "one device of XLA: all that a step takes, state included": compiler_megabytes,
    }.items():
        found = {name: measured(size, form) for name, form in FORMS.items()}
        print(f"\n{title}\n{'':32}{'MB':>8} {'ratio':>8}")
        for name, megabytes in found.items():
            ratio, wanted = megabytes / found["Stack"], None
            if FORMS[name].remat:
                wanted = WANTED["memory"]
            print(f"{name:32}{megabytes:8.0f} {ratio:8.3f}   {wanted or ''}")
            bounds.hold(f"{title}: {name} / Stack", ratio, wanted)
        if measured is activation_megabytes:
            report_formula(size, found["Stack"], found["Pipeline, remat"], bounds)


def report_formula(size: Size, stack: float, pipeline: float, bounds: Bounds) -> None:
    """Prints what should be kept, from what layers of the plain stack take (GPipe, sec. 2.3).

    Not for XLA, under which gradients keep less: one layer of a stage, not all of them.
    """
    few = size._replace(num_layers=size.num_layers // 4)
    part = activation_megabytes(few, Form())
    layer = (stack - part) / (size.num_layers - few.num_layers)
    rest = stack - size.num_layers * layer
    boundaries, turns = boundary_megabytes(size), size.num_layers * layer / MICRO_BATCHES
    expected = rest + boundaries + turns
    print(
        f"kept: {boundaries:.0f} boundaries, K (N/M) (M + K - 1) D; {turns:.0f} layers of one tick,"
        f" L/K of K stages on N/M;\n{rest:.0f} the rest, as in the stack: {expected:.0f} in all"
    )
    print(
        f"{'measured / formula':32}{'':8} {pipeline / expected:8.3f}   wanted {WANTED['formula']}",
        flush=True,
    )
    bounds.hold("measured / formula", pipeline / expected, WANTED["formula"])


# ---- how large a model can be --------------------------------------------------------------------


def program_gibibytes(num_layers: int, num_stages: int) -> float:
    """Returns what XLA takes on each device for a step of GPipe's Transformer-L; 1: a plain stack.

    The logits, which are not in the pipeline, are made a few tokens at a time.
    """
    cfg = transformer_l(num_layers=num_layers, num_stages=num_stages)
    cfg.task.chunk_size = 64
    if num_stages == 1:
        stack = cfg.task.model.stack
        cfg.task.model.stack = Stack.params(layer=stack.layer, num_layers=num_layers)
    built = cfg.build()
    return taken(built.mesh.partitioned(built.learner, built.train_input.specs()).memory) / 2**30


def report_room(bounds: Bounds) -> None:
    """Prints how large a model fits, from programs of few layers: all grows by their number."""
    print(
        f"\nTransformer-L on devices of {GIBIBYTES} GiB, by XLA's account: weights, gradients, two"
        f" slots,\nactivations of 32 rows of 1,024 tokens, float32\n"
        f"{'devices, stage=':32}{'layers':>8} {'weights':>8}   GiB a layer, ratio"
    )
    first = weights = 0.0
    for num_devices in (1, DEVICES):
        one, two = (program_gibibytes(n * num_devices, num_devices) for n in (1, 2))
        layers = num_devices * (1 + int((GIBIBYTES - one) / (two - one)))
        specs = transformer_l(num_layers=layers).build().task.weights().values()
        weights = sum(spec.size for spec in specs) / 1e9
        first = first or weights
        print(
            f"{num_devices:<32}{layers:8} {weights:6.2f} B   {(two - one) / num_devices:11.2f}"
            f" {weights / first:6.2f}",
            flush=True,
        )
    print(f"{'':65}wanted {WANTED['room']}")
    bounds.hold(f"weights on {DEVICES} devices / on one", weights / first, WANTED["room"])


# ---- time ----------------------------------------------------------------------------------------


def report_time(size: Size, bounds: Bounds) -> None:
    """Prints what a step takes beside the plain stack's."""
    rivals: dict[str, Rival] = {
        name: functools.partial(steps, size=size, form=form) for name, form in FORMS.items()
    }
    first, costs = measure(rivals, num=ROUNDS)
    print(f"\n{size}\n{'seconds a step':32}{'least':>8} {'median':>8} {'most':>8}   first step")
    for name, turns in costs.items():
        wall = spread([cost.seconds for cost in turns])
        print(f"{name:32}{wall}   {first[name].seconds:10.1f}")
    ticks = MICRO_BATCHES + STAGES - 1
    print(
        f"{'what the simulated bubble costs here':57}   of processor seconds; of ticks in vain"
        f" {ticks / MICRO_BATCHES:.3f}"
    )
    for name in list(FORMS)[1:]:
        lm.report_ratio(f"{name} / Stack", costs[name], costs["Stack"], bounds)


def main() -> int:
    """Prints everything; returns the exit code."""
    bounds = Bounds()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the beginning")
    Mesh.params().build().make_devices(DEVICES)  # before JAX counts those that there are
    report_graph(bounds)
    report_memory(DEEP, bounds)
    report_room(bounds)
    report_time(DEEP._replace(num_layers=8, batch_size=16), bounds)
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    return bounds.exit_code()
