"""The study of docs/time_to_quality.md: throughput, examples and time to a target by batch size.

Small forms of MLPerf's benchmarks train until they reach their target. All numbers are from a run's
own log, by the rules of MLPerf: its time goes from `run_start` to `run_stop`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from matplotlib import pyplot

from lingo.trainer.mlperf.mllog import Log, read_log
from lingo.trainer.mlperf.run_log import MLLOG, RESUME, STEP
from lingo.trainer.mlperf.score import olympic_mean, score_logs
from tools.studies.batches import Point, draw_curves, mean_point
from tools.studies.page import NONE, spread, table
from tools.studies.run import FailedTrial
from tools.studies.trial import Results, Trial

PAGE = Path(__file__).parent.parent.parent / "docs" / "time_to_quality.md"

NUM_RUNS = 5
NUM_WORKERS = 1  # runs at the same time would slow each other down


class Form(NamedTuple):
    """A small form of a benchmark."""

    experiment: str
    batches: Sequence[int]


FORMS = {
    "resnet": Form("mlperf.resnet.digits", (16, 32, 128, 240)),
    "ssd": Form("mlperf.ssd.digit_scenes", (16, 32, 80, 160)),
    "dlrm": Form("mlperf.dlrm.planted", (512, 2048, 7680, 30_720)),
    "bert": Form("mlperf.bert.numbers", (16, 64, 240, 900)),
    "transformer": Form("mlperf.transformer.numbers", (16, 64, 240, 900)),
}
"""Benchmark -> its form; with these sizes, all batches see about as much between evaluations."""

REACHED, SECONDS, RATE = "reached", "seconds", "examples_per_second"
COUNTS = ("examples", "epochs", "steps")


def runs(benchmark: str, batch: int) -> list[Trial]:
    """Returns the runs of a benchmark with one batch size."""
    experiment = f"{FORMS[benchmark].experiment}(batch_size={batch})"
    return [Trial(experiment, seed) for seed in range(NUM_RUNS)]


def trials(results: Results) -> Iterator[Trial]:
    """Yields the runs, one benchmark after the other, each seed with all batch sizes."""
    del results  # none depends on another
    for benchmark, form in FORMS.items():
        for of_one_seed in zip(*(runs(benchmark, batch) for batch in form.batches), strict=True):
            yield from of_one_seed


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns whether a run reached its target, and after how long; else how long it tried.

    `seconds` go from `run_start` to `run_stop`; `examples_per_second` are of the blocks between
    evaluations, without the first, which compiles. Raises FailedTrial if the run was resumed, as
    its time has a pause.
    """
    del trial
    log = read_log(run / MLLOG)
    if log.values(RESUME):
        raise FailedTrial(f"{run} was resumed, and its time has a pause: delete it, and try again")
    (result,) = score_logs({run.name: log}).runs
    if result.seconds is None:
        raise FailedTrial(f"{run / MLLOG}: {result.problem}")
    (stop,) = (line for line in log.lines if line.key == "run_stop")
    steps, batch = stop.metadata[STEP], log.values("global_batch_size")[0]
    return {
        REACHED: float(result.has_converged),
        SECONDS: float(result.seconds),
        "steps": steps,
        "examples": steps * batch,
        "epochs": steps * batch / log.values("train_samples")[0],
        RATE: _examples_per_second(log, batch),
    }


def _examples_per_second(log: Log, batch: int) -> float:
    """Returns the examples of training blocks over their seconds, from steps to evaluation."""
    starts = [line for line in log.lines if line.key == "block_start"]
    ends = [line for line in log.lines if line.key == "eval_start"]
    blocks = [*zip(starts, ends, strict=True)]
    later = blocks[1:] or blocks
    steps = sum(end.metadata[STEP] - start.metadata[STEP] for start, end in later)
    return steps * batch / float(sum(end.seconds - start.seconds for start, end in later))


# ---- page ----------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What the runs with one batch size came to, as far as there are results."""

    rates: list[float]  # examples a second, of all runs that did not diverge
    times: list[Decimal | None]  # seconds to the target; None for a run that missed it
    counts: Mapping[str, list[float]]  # of `COUNTS`, to the target

    @property
    def reached(self) -> list[Decimal]:
        """The times of the runs that reached the target, the fastest first."""
        return sorted(seconds for seconds in self.times if seconds is not None)

    @property
    def olympic_mean(self) -> Decimal | None:
        """The mean without the fastest and the slowest; None before all runs have a result."""
        return olympic_mean(self.times) if len(self.times) == NUM_RUNS else None


def outcome(results: Results, benchmark: str, batch: int) -> Outcome:
    """Returns the outcome of a benchmark's runs with one batch size."""
    done = [result for trial in runs(benchmark, batch) if (result := results.get(trial))]
    ended = [result.metrics for result in done if result.state == "done"]
    good = [metrics for metrics in ended if metrics[REACHED]]
    missed = [None] * (len(done) - len(good))
    return Outcome(
        [metrics[RATE] for metrics in ended],
        [*(Decimal(str(metrics[SECONDS])) for metrics in good), *missed],
        {name: [metrics[name] for metrics in good] for name in COUNTS},
    )


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page by benchmark, each with its picture as soon as it has one."""
    head = ["batch", "target reached", "seconds, olympic mean", "fastest", "slowest", "spread"]
    found = {}
    for name, form in FORMS.items():
        outcomes = {batch: outcome(results, name, batch) for batch in form.batches}
        rows = [[f"{batch:,}", *_cells(one)] for batch, one in outcomes.items()]
        picture = ["", f"![throughput, examples and seconds](images/{_picture(name)})"]
        is_drawn = any(one.times for one in outcomes.values())
        found[name] = table([*head, *COUNTS, "examples a second"], rows)
        found[name] += picture if is_drawn else []
    return found


def _cells(one: Outcome) -> list[str]:
    times, mean = one.reached, one.olympic_mean
    has_missed = len(times) < len(one.times)
    return [
        f"{len(times)} of {len(one.times)}" if one.times else NONE,
        f"{mean:,.1f}" if mean is not None else NONE,
        f"{times[0]:,.1f}" if times else NONE,
        "missed" if has_missed else f"{times[-1]:,.1f}" if times else NONE,
        f"{times[-1] - times[0]:,.1f}" if times else NONE,
        *(spread(v, len(v), digits=int(name == "epochs")) for name, v in one.counts.items()),
        spread(one.rates, len(one.rates), digits=0),
    ]


def curves(results: Results, benchmark: str) -> dict[str, dict[int, Point]]:
    """Returns throughput, examples and seconds to the target, by the batch sizes that have them.

    Bars reach from the fastest run that reached the target to the slowest.
    """
    rates: dict[int, Point] = {}
    examples: dict[int, Point] = {}
    seconds: dict[int, Point] = {}
    for batch in FORMS[benchmark].batches:
        one = outcome(results, benchmark, batch)
        if one.rates:
            rates[batch] = mean_point(one.rates)
        if one.reached:
            examples[batch] = mean_point(one.counts["examples"])
        if one.olympic_mean is not None:
            seconds[batch] = Point(*map(float, (one.olympic_mean, one.reached[0], one.reached[-1])))
    return {
        "examples a second": rates,
        "examples to the target": examples,
        "seconds to the target": seconds,
    }


def draw(results: Results, folder: Path) -> None:
    """Draws, for each benchmark with a result, what it has over batch size."""
    for name, form in FORMS.items():
        found = curves(results, name)
        if not any(found.values()):
            continue
        figure, panels = pyplot.subplots(ncols=3, figsize=(9, 2.8), layout="constrained")
        for axes, (title, points) in zip(panels, found.items(), strict=True):
            draw_curves(axes, {title: points}, batches=form.batches)
            axes.set(title=title, ylim=(0, None))
        figure.savefig(folder / _picture(name), dpi=120)
        pyplot.close(figure)


def _picture(benchmark: str) -> str:
    return f"time_to_quality_{benchmark}.png"
