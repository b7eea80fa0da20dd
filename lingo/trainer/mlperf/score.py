"""Computes a benchmark's result from the logs of its runs, by the rules of MLPerf training.

A run's time is from `run_start` to `run_stop`. The fastest and the slowest run are dropped, and the
mean of the remaining times is the result. One run may miss the target; it counts as the slowest. If
more runs miss the target, or if there are fewer runs than the benchmark needs, the result is not
valid.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from lingo.config.params import ParamError
from lingo.trainer.mlperf.mllog import Log
from lingo.trainer.mlperf.rules import RULES, Rules
from lingo.trainer.mlperf.run_log import FORM, RESUME

MAX_FAILED = 1
"""How many runs may miss the target."""

_INIT_SECONDS = 20 * 60
_ACCURACY = "eval_accuracy"
_MAX_CHARACTERS = 80  # shown of a value in a message
_SETTINGS = (
    *("global_batch_size", "model_bn_span", "opt_", "lars_", "sgd_", "adam_", "lamb_", "lr_"),
    *("num_warmup_steps", "start_warmup_step", "max_sequence_length"),
)
"""The beginnings of hyper-parameters' keys."""


class RunResult(NamedTuple):
    """The result of one run, from its log."""

    name: str  # a short name of the run
    path: str  # path of the run's log
    seconds: Decimal | None  # from start to stop; None if the log lacks start or stop
    accuracy: float | None  # the run's best accuracy
    problem: str = ""  # why the run does not count as converged; "" if it has converged
    note: str = ""  # a remark for the reader, which does not make the result invalid

    @property
    def has_converged(self) -> bool:
        """Whether the run reached the target."""
        return not self.problem


class BenchmarkResult(NamedTuple):
    """The result of all runs."""

    rules: Rules
    form: str  # "full" or "small: ..."; "" for logs that lingo did not write
    runs: Sequence[RunResult]
    seconds: Decimal | None  # the `olympic_mean`; None if it is not defined
    invalid: Sequence[str]  # why the result is not valid; () if it is valid

    @property
    def converged_seconds(self) -> list[Decimal]:
        """The times of the runs that reached the target, the fastest first."""
        found = (run.seconds for run in self.runs if run.has_converged)
        return sorted(seconds for seconds in found if seconds is not None)

    def to_json(self, checks: Mapping[str, Sequence[str]] | None) -> dict[str, Any]:
        """Returns the content of benchmark.json.

        `checks` is run's name -> messages of the compliance checker; None if there is no checker.
        """
        times = self.converged_seconds
        messages = {name: list(texts) for name, texts in (checks or {}).items()}
        return {
            "benchmark": self.rules.name,
            "ruleset": self.rules.ruleset,
            "form": self.form,
            "target": self.rules.target,
            "required_runs": self.rules.num_runs,
            "olympic_mean_seconds": None if self.seconds is None else float(self.seconds),
            "spread_seconds": None if not times else float(times[-1] - times[0]),
            "valid": not self.invalid,
            "invalid": list(self.invalid),
            "runs": [
                {
                    "name": run.name,
                    "log": run.path,
                    "seconds": None if run.seconds is None else float(run.seconds),
                    "accuracy": run.accuracy,
                    "reached_target": run.has_converged,
                    "problem": run.problem,
                    "note": run.note,
                    "compliance": messages.get(run.name),
                }
                for run in self.runs
            ],
        }


def olympic_mean(seconds: Sequence[Decimal | None]) -> Decimal | None:
    """Returns the mean of times without the fastest and the slowest.

    None in `seconds` counts as the slowest. The result is None if `seconds` has several None, or
    fewer than three values.

    >>> olympic_mean([Decimal(9), Decimal(4), Decimal(2), Decimal(3)])
    Decimal('3.5')
    """
    times = sorted(time for time in seconds if time is not None)
    num_failed = len(seconds) - len(times)
    if len(seconds) < 3 or num_failed > 1:
        return None
    middle = times[1:] if num_failed else times[1:-1]
    return sum(middle, Decimal(0)) / len(middle)


def score_logs(
    logs: Mapping[str, Log], *, without_log: Sequence[RunResult] = ()
) -> BenchmarkResult:
    """Returns a benchmark's result from the logs of its runs, run's name -> log.

    `without_log` are runs that failed before they had a readable log.

    Raises ParamError if there is no log, if the benchmark is not known, or if logs differ in it.
    """
    if not logs:
        raise ParamError("no log of MLPerf to read")
    rules, *other_rules = [_rules_of(log) for log in logs.values()]
    if others := sorted({str(other) for other in other_rules} - {str(rules)}):
        raise ParamError(f"logs of several benchmarks: {rules} and {', '.join(others)}")
    first = next(iter(logs.values()))
    runs = [*(_read_run(name, log, rules) for name, log in logs.items()), *without_log]
    seconds = olympic_mean([run.seconds if run.has_converged else None for run in runs])
    form = next((str(line.metadata[FORM]) for line in first.lines if FORM in line.metadata), "")
    invalid = [*_failures(runs, rules), *_differences(logs), *_copies(logs)]
    return BenchmarkResult(rules, form, runs, seconds, invalid)


def _rules_of(log: Log) -> Rules:
    text = log.benchmark()
    if text not in RULES:
        raise ParamError(f"{log.path} is a log of {_shorten(text)}. There are {', '.join(RULES)}.")
    return RULES[text]


def _read_run(name: str, log: Log, rules: Rules) -> RunResult:
    """Returns the result of a run from its log."""
    starts = [line for line in log.lines if line.key == "run_start"]
    stops = [line for line in log.lines if line.key == "run_stop"]
    accuracy = _best_accuracy(log, rules)
    seconds = stops[-1].seconds - starts[0].seconds if starts and stops else None
    note = "resumed: the time between counts" if log.values(RESUME) else ""
    if log.problems:
        problem = log.problems[0]
    elif seconds is None or len(starts) > 1 or len(stops) > 1:
        problem = f"{len(starts)} run_start and {len(stops)} run_stop, not one of each"
    elif seconds <= 0:
        problem = "run_stop is not after run_start"
    elif (status := stops[0].metadata.get("status")) != "success":
        problem = f"run_stop says {_shorten(repr(status))}, not 'success'"
    elif accuracy is None:
        problem = "no eval_accuracy is a finite number"
    elif accuracy > 1:
        problem = f"the best eval_accuracy is {accuracy:g}, and a fraction is at most 1"
    elif any(line.seconds > stops[0].seconds for line in log.lines if line.key == _ACCURACY):
        problem = "an eval_accuracy is after run_stop"
    elif accuracy < rules.target:
        problem = f"the best eval_accuracy is {accuracy}, below {rules.target}"
    elif (init := _init_seconds(log)) > _INIT_SECONDS:
        problem = f"the initialization took {_number(init)} seconds, more than {_INIT_SECONDS}"
    else:
        problem = ""
    return RunResult(name, str(log.path), seconds, accuracy, problem, note)


def _best_accuracy(log: Log, rules: Rules) -> float | None:
    """Returns the best finite accuracy in a log, a fraction, or None if there is none."""
    numbers = (_finite_number(rules.accuracy(value)) for value in log.values(_ACCURACY))
    best = max((number for number in numbers if number is not None), default=None)
    is_percent = rules.ruleset == "0.6.0" and rules.metric == "bleu_uncased"
    return best / 100 if best is not None and best > 1 and is_percent else best


def _finite_number(value: Any) -> float | None:
    """Returns a value as a finite number, also if a log wrote it as text; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _init_seconds(log: Log) -> Decimal:
    starts = [line.seconds for line in log.lines if line.key == "init_start"]
    stops = [line.seconds for line in log.lines if line.key == "init_stop"]
    return stops[-1] - starts[0] if starts and stops else Decimal(0)


def _failures(runs: Sequence[RunResult], rules: Rules) -> list[str]:
    found = []
    if len(runs) < rules.num_runs:
        found.append(f"{len(runs)} of the {rules.num_runs} runs that {rules} needs")
    failed = sum(not run.has_converged for run in runs)
    if failed > MAX_FAILED:
        found.append(f"{failed} runs did not reach the target, more than the {MAX_FAILED} allowed")
    return found


def _copies(logs: Mapping[str, Log]) -> list[str]:
    """Returns a message per log that is a copy of another log: every run must have its own log."""
    first: dict[str, str] = {}
    found = []
    for name, log in logs.items():
        other = first.setdefault(repr(log.lines), name)
        if other != name:
            found.append(f"{_shorten(name)} has the same log as {_shorten(other)}")
    return found


def _differences(logs: Mapping[str, Log]) -> list[str]:
    """Returns a message per hyper-parameter in which runs differ: all must have the same value."""
    settings: dict[str, set[str]] = {}
    for log in logs.values():
        for key in {line.key: None for line in log.lines if line.key.startswith(_SETTINGS)}:
            values = dict.fromkeys(map(repr, log.values(key)))  # some are logged several times
            settings.setdefault(key, set()).add(" and ".join(values))
    return [
        f"runs differ in {_shorten(key)}: {', '.join(map(_shorten, sorted(values)))}"
        for key, values in settings.items()
        if len(values) > 1
    ]


def _shorten(text: str) -> str:
    return f"{text:.{_MAX_CHARACTERS}}"


def result_table(result: BenchmarkResult) -> list[str]:
    """Returns the lines that show a result: a row for each run, the mean, whether it is valid."""
    rows = [["run", "seconds", "accuracy", "target reached"]]
    for run in result.runs:
        state = "; ".join(filter(None, [run.problem or "yes", run.note]))
        accuracy = "-" if run.accuracy is None else f"{run.accuracy:.5g}"
        rows.append([run.name, _number(run.seconds), accuracy, state])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    times = result.converged_seconds
    deviation = statistics.stdev(times) if len(times) > 1 else None
    lines += [
        "",
        f"{result.rules}, target {result.rules.target:g}",
        f"olympic mean {_number(result.seconds)} s: without the fastest and the slowest",
    ]
    if times:
        lines.append(
            f"fastest {_number(times[0])} s, slowest {_number(times[-1])} s,"
            f" standard deviation {_number(deviation)} s"
        )
    if result.form and result.form != "full":
        lines.append(f"form: {result.form}")
    return lines + ([f"not valid: {reason}" for reason in result.invalid] or [_verdict(result)])


def _verdict(result: BenchmarkResult) -> str:
    """Returns the verdict on a result that breaks no rule checked here."""
    if result.form in ("full", ""):
        return "valid: runs, target and settings are as the rules want them"
    return "valid as a small form, which says nothing of the benchmark itself"


def _number(seconds: Decimal | None) -> str:
    """Returns seconds with up to five decimals, without zeros at the end."""
    if seconds is None:
        return "-"
    text = f"{seconds:.5f}".rstrip("0")
    return text.removesuffix(".")
