"""The study of docs/time_to_quality.md: throughput, examples and time to a target by batch size.

Small forms of MLPerf's benchmarks train until they reach their target. All numbers are from a run's
own log. By MLPerf's rules, the time of a run goes from `run_start` to `run_stop`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from matplotlib import pyplot

from lingo.trainer.mlperf.mllog import Log, LogLine, read_log
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
"""Benchmark -> its form. With these batch sizes, all runs of a benchmark see about the same number
of examples between two evaluations."""

REACHED, SECONDS, RATE = "reached", "seconds", "examples_per_second"
COUNTS = ("examples", "epochs", "steps")


def runs(benchmark: str, batch: int) -> list[Trial]:
    """Returns the runs of a benchmark with one batch size."""
    experiment = f"{FORMS[benchmark].experiment}(batch_size={batch})"
    return [Trial(experiment, seed) for seed in range(NUM_RUNS)]


def trials(results: Results) -> Iterator[Trial]:
    """Yields the runs by benchmark, then by seed, then by batch size."""
    del results  # no run depends on another
    for benchmark, form in FORMS.items():
        for of_one_seed in zip(*(runs(benchmark, batch) for batch in form.batches), strict=True):
            yield from of_one_seed


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns whether a run reached its target, and the time and examples of the whole run.

    `seconds` go from `run_start` to `run_stop`. `examples_per_second` is the rate of the blocks
    between evaluations without the first one, which compiles; a run of one block has no such rate.
    A run misses its target if its log ends with the status "aborted". Raises FailedTrial for any
    other problem of the log, and if the run was resumed, as its time includes a pause.
    """
    del trial
    log = read_log(run / MLLOG)
    if log.values(RESUME):
        raise FailedTrial(
            f"{run} was resumed, so its time includes a pause: delete it, and try again"
        )
    (result,) = score_logs({run.name: log}).runs
    starts, stops = _lines(log, "run_start"), _lines(log, "run_stop")
    is_whole = len(starts) == len(stops) == 1 and not log.problems
    has_missed = is_whole and stops[0].metadata.get("status") == "aborted"
    if result.seconds is None or (result.problem and not has_missed):
        raise FailedTrial(f"{run / MLLOG}: {result.problem}")
    steps, batch = stops[0].metadata[STEP], log.values("global_batch_size")[0]
    rate = _examples_per_second(log, batch)
    return {
        REACHED: float(result.has_converged),
        SECONDS: float(result.seconds),
        "steps": steps,
        "examples": steps * batch,
        "epochs": steps * batch / log.values("train_samples")[0],
        **({} if rate is None else {RATE: rate}),
    }


def _examples_per_second(log: Log, batch: int) -> float | None:
    """Returns the rate of training blocks after the first, without evaluations; None for none."""
    starts, ends = _lines(log, "block_start"), _lines(log, "eval_start")
    blocks = [*zip(starts, ends, strict=True)][1:]
    if not blocks:
        return None
    steps = sum(end.metadata[STEP] - start.metadata[STEP] for start, end in blocks)
    return steps * batch / float(sum(end.seconds - start.seconds for start, end in blocks))


def _lines(log: Log, key: str) -> list[LogLine]:
    return [line for line in log.lines if line.key == key]


# ---- page ----------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The results of the finished runs with one batch size."""

    rates: list[float]  # examples per second, also of runs that missed the target
    times: list[Decimal | None]  # seconds to the target; None for a run that missed it or diverged
    counts: Mapping[str, list[float]]  # name in `COUNTS` -> numbers of runs that reached the target

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
        [metrics[RATE] for metrics in ended if RATE in metrics],
        [*(Decimal(str(metrics[SECONDS])) for metrics in good), *missed],
        {name: [metrics[name] for metrics in good] for name in COUNTS},
    )


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the page's tables by benchmark; a table with results also has a picture."""
    head = ["batch", "target reached", "seconds, olympic mean", "fastest", "slowest", "spread"]
    pages = {}
    for name, form in FORMS.items():
        outcomes = {batch: outcome(results, name, batch) for batch in form.batches}
        rows = [[f"{batch:,}", *_cells(one)] for batch, one in outcomes.items()]
        picture = ["", f"![throughput, examples and seconds](images/{_picture(name)})"]
        is_drawn = any(one.times for one in outcomes.values())
        pages[name] = table([*head, *COUNTS, "examples a second"], rows)
        pages[name] += picture if is_drawn else []
    return pages


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
    """Returns the points of throughput, examples and seconds to the target, by batch size.

    Bars of examples and seconds cover the runs that reached the target, bars of throughput all
    runs. A batch size without results has no point.
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
    """Draws the curves of each benchmark with a result over batch size."""
    for name, form in FORMS.items():
        points_of = curves(results, name)
        if not any(points_of.values()):
            continue
        figure, panels = pyplot.subplots(ncols=3, figsize=(9, 2.8), layout="constrained")
        for axes, (title, points) in zip(panels, points_of.items(), strict=True):
            draw_curves(axes, {title: points}, batches=form.batches)
            axes.set(title=title, ylim=(0, None))
        figure.savefig(folder / _picture(name), dpi=120)
        pyplot.close(figure)


def _picture(benchmark: str) -> str:
    return f"time_to_quality_{benchmark}.png"
