"""MLCommons' compliance checker, `mlperf_logging.compliance_checker`, of the extra `mlperf`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from lingo.config.base import regular_file
from lingo.config.base.errors import check_package
from lingo.trainer.mlperf.mllog import MAX_BYTES, MAX_LINE

PACKAGE = "mlperf_logging"
EXTRA = "mlperf"


def has_checker() -> bool:
    """Returns whether the checker is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def check_log(path: Path, ruleset: str) -> list[str]:
    """Returns the compliance checker's complaints about a log by a ruleset; [] if the log passes.

    Raises MissingPackage if the checker is not installed.
    """
    check_package(PACKAGE, "checking a log of MLPerf", extra=EXTRA)
    content = regular_file.read(path, max_bytes=MAX_BYTES)
    longest = max(map(len, content.split(b"\n")))
    if longest > MAX_LINE:
        return [f"a line has {longest:,} bytes, for which the checker takes too long"]
    from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

    try:
        lines, errors = mlp_parser.parse_file(str(path), ruleset=ruleset)
    except RecursionError:  # deeply nested brackets
        return ["the checker cannot read the log: it ends with RecursionError"]
    checker = mlp_compliance.make_checker("training", ruleset, quiet=True, werror=False)
    mlp_compliance.enqueued_configs.clear()  # an error leaves entries in this global list
    unread = [f"{error}: {line}" for line, error in errors]
    try:
        checker.check_loglines(lines, f"training_{ruleset}/common.yaml")
    except (KeyError, OSError, TypeError, ValueError) as error:  # for values of unexpected types
        unread.append(f"the checker ends with {type(error).__name__}: {error}")
    return [*unread, *checker.overwritable.values(), *checker.not_overwritable]
