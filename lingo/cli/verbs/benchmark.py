"""Runs a benchmark of MLPerf several times, or reads logs, and computes its result.

    lingo benchmark --exp=mlperf.resnet.digits --logdir=runs/benchmark --runs=5
    lingo benchmark --exp=mlperf.resnet.digits --logdir=runs/benchmark --runs=5 --parallel=2
    lingo benchmark --exp=mlperf.resnet.digits --set=MlperfLog.benchmark=resnet@0.6.0 \
        --logdir=runs/mine
    lingo benchmark --from-logs=runs/benchmark                 reads the logs of finished runs
    lingo benchmark --from-logs=a.txt --from-logs=b.txt        reads logs from elsewhere

Each run has its own seed, 0, 1, ..., and its own directory. `lingo sweep` makes the runs, and the
same command resumes them. For another number of --runs, name another --logdir. A run's time is the
time from run_start to run_stop in its mllog.txt. The fastest and the slowest run are dropped. The
result is the other runs' mean time, which is also written into benchmark.json. Parallel runs slow
each other down.
MLCommons' compliance checker reads every log if it is installed: pip install 'lingo-tf[mlperf]'.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lingo.cli.command import FormatOptions, UsageError
from lingo.cli.experiment_options import ExperimentOptions
from lingo.cli.verbs import sweep
from lingo.config.options import option, option_class
from lingo.config.params import ParamError
from lingo.contract import build_experiment
from lingo.storage.files import write_text
from lingo.trainer.mlperf.mllog import (
    CHECKER_EXTRA,
    Log,
    check_log,
    find_logs,
    has_checker,
    read_log,
)
from lingo.trainer.mlperf.rules import Rules
from lingo.trainer.mlperf.run_log import MLLOG, find_log
from lingo.trainer.mlperf.score import BenchmarkResult, RunResult, result_table, score_logs

RESULT = "benchmark.json"
FAILED = 1

_MESSAGE_CHARACTERS = 200


@option_class
class Options(ExperimentOptions, FormatOptions):
    """The options of `lingo benchmark`."""

    logdir: str | None = option("Directory of the runs, one for each seed.")
    runs: int | None = option("How many runs; else as the rules say.", minimum=1)
    parallel: int = option("How many runs at a time.", default=1, minimum=1)
    from_logs: Sequence[str] = option("A log, or a folder of logs, instead of runs.", default=())


def run(options: Options) -> int:
    """Prints the result; returns 0, 1 if it is invalid, or 128 + the signal that ended the runs."""
    if options.from_logs:
        why = "--from-logs reads logs and runs nothing"
        options.refuse_others(("from_logs", "format"), why)
        return _show(_read(options.from_logs), as_json=options.as_json)
    if not options.logdir:
        raise UsageError("no directory given: --logdir=DIR, or --from-logs for existing logs")
    resolved = options.resolve()
    rules = find_log(build_experiment(resolved)).rules
    progress = sys.stderr if options.as_json else sys.stdout
    with contextlib.redirect_stdout(progress):
        outcome = sweep.sweep(_seeds(options, rules))
    if outcome.signal is not None:
        return 128 + outcome.signal
    trials = sorted((result.trial for result in outcome.results), key=lambda trial: trial.number)
    paths = {f"seed {trial.number}": trial.path / MLLOG for trial in trials}
    print(file=progress)
    logs, without_log = _read_runs(paths)
    folder = Path(options.logdir)
    code = _show(logs, without_log=without_log, as_json=options.as_json, folder=folder)
    num_failed = sum(result.state == "failed" for result in outcome.results)
    if num_failed:
        message = f"{num_failed} of {len(trials)} runs failed; the same command tries them again"
        print(message, file=progress)
    return FAILED if num_failed else code


def _seeds(options: Options, rules: Rules) -> sweep.Options:
    """Returns the options of a sweep over seeds, whose trials are the benchmark's runs."""
    seeds = ",".join(map(str, range(options.runs or rules.num_runs)))
    return sweep.Options(
        exp=options.exp,
        run=options.run,
        set=options.set,
        trust=options.trust,
        params_dir=options.params_dir,
        logdir=options.logdir,
        sweep=(f"seed={seeds}",),
        workers=options.parallel,
    )


def _read(paths: Sequence[str]) -> dict[str, Log]:
    """Returns name -> log for logs and folders of logs.

    The name is the name of the run's directory or of the file, or the path if names are equal.
    """
    found = [file for path in paths for file in find_logs(Path(path))]
    files = list({os.path.realpath(file): file for file in found}.values())  # each once
    names = [file.parent.name if file.name == MLLOG else file.stem for file in files]
    is_clear = len(set(names)) == len(names) and all(names)
    keys = names if is_clear else list(map(str, files))
    return {key: read_log(file) for key, file in zip(keys, files, strict=True)}


def _read_runs(paths: Mapping[str, Path]) -> tuple[dict[str, Log], list[RunResult]]:
    """Reads the logs of runs; returns name -> log, and results for runs without a readable log.

    Raises ParamError if no run has a readable log.
    """
    logs: dict[str, Log] = {}
    without_log: list[RunResult] = []
    for name, path in paths.items():
        try:
            logs[name] = read_log(path)
        except ParamError as error:
            without_log.append(RunResult(name, str(path), None, None, problem=str(error)))
    if not logs:
        raise ParamError(without_log[0].problem)
    return logs, without_log


def _show(
    logs: Mapping[str, Log],
    *,
    as_json: bool,
    without_log: Sequence[RunResult] = (),
    folder: Path | None = None,
) -> int:
    result = score_logs(logs, without_log=without_log)
    checks = None
    if has_checker():
        ruleset = result.rules.ruleset
        checks = {name: check_log(log.path, ruleset) for name, log in logs.items()}
        if num_refused := sum(map(bool, checks.values())):
            reason = f"the compliance checker refuses {num_refused} of {len(checks)} logs"
            result = result._replace(invalid=[*result.invalid, reason])
    content = json.dumps(result.to_json(checks), indent=1)
    if folder is not None:
        write_text(folder / RESULT, content + "\n")
    print(content if as_json else "\n".join([*result_table(result), *_compliance(result, checks)]))
    return FAILED if result.invalid else 0


def _compliance(result: BenchmarkResult, checks: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Returns lines that say which logs the compliance checker accepts.

    `checks` is log -> the checker's messages; None: the checker is not installed.
    """
    if checks is None:
        return [
            f"not checked by MLCommons' compliance checker: pip install 'lingo-tf[{CHECKER_EXTRA}]'"
        ]
    refused = {name: messages for name, messages in checks.items() if messages}
    lines = [
        f"compliance checker, {result.rules.ruleset}:"
        f" {len(checks) - len(refused)} of {len(checks)} logs pass"
    ]
    for name, messages in refused.items():
        first = " ".join(messages[0].split())
        lines.append(f"  {name}: {first:.{_MESSAGE_CHARACTERS}} ({len(messages)} in all)")
    return lines
