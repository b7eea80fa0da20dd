"""The lines of MLPerf's logs, in the forms of rounds 0.6 and 0.7.

    :::MLL 1556733699.712 run_start: {"value": null, "metadata": {"lineno": 9, "file": "a.py"}}
    :::MLLOG {"namespace": "", "time_ms": 1593642000123, "event_type": "INTERVAL_START",
              "key": "run_start", "value": null, "metadata": {"file": "a.py", "lineno": 9}}

The second form is in fact one line. Text before the colons is ignored: logs of several processes
have the process's number there.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from lingo.config.base import regular_file
from lingo.config.base.errors import check_package
from lingo.config.params import ParamError

MAX_BYTES = 2**28
"""Size of the largest log that is read."""

MAX_LINE = 2**16
"""Characters of the longest line that counts as a line of a log."""

RULESET = "ruleset"
"""Version of the rules, in the metadata of the line `submission_benchmark`, if lingo wrote it."""

_MAX_LINES = 2**17  # in a log to read
_MAX_SECONDS = 10**11  # largest time in a line, since 1970

_PLAIN = re.compile(r":::MLL (\d+(?:\.\d+)?) +(\w+) ?:\s+(.+)", re.ASCII)
_JSON = re.compile(r":::MLLOG (.+)")
_EVENTS = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}


class LogLine(NamedTuple):
    """A line of a log."""

    seconds: Decimal  # time since 1970, with all digits of the line
    key: str
    value: Any = None  # any JSON value
    metadata: Mapping[str, Any] = MappingProxyType({})

    def render(self, ruleset: str) -> str:
        """Returns the text of the line, without an end of line."""
        if ruleset == "0.6.0":
            content = {"value": self.value, "metadata": dict(self.metadata)}
            return f":::MLL {self.seconds:.3f} {self.key}: {json.dumps(content)}"
        content = {
            "namespace": "",
            "time_ms": int(self.seconds * 1000),
            "event_type": _EVENTS.get(self.key.rpartition("_")[2], "POINT_IN_TIME"),
            "key": self.key,
            "value": self.value,
            "metadata": dict(self.metadata),
        }
        return f":::MLLOG {json.dumps(content)}"


class Log(NamedTuple):
    """The content of a log file."""

    path: Path
    ruleset: str  # the round's rules, inferred from the form of the lines
    lines: Sequence[LogLine]
    problems: Sequence[str]  # messages on lines that have neither form

    def values(self, key: str) -> list[Any]:
        """Returns the values of a key, in order."""
        return [line.value for line in self.lines if line.key == key]

    def benchmark(self) -> str:
        """Returns benchmark and ruleset, "resnet@0.7.0"; raises ParamError if no line names it."""
        for line in self.lines:
            if line.key == "submission_benchmark":
                return f"{line.value}@{line.metadata.get(RULESET, self.ruleset)}"
        raise ParamError(f"{self.path} lacks the line submission_benchmark")


def read_log(path: Path) -> Log:
    """Returns a file's MLPerf lines; raises ParamError if it is unreadable or has no such line."""
    try:
        content = regular_file.read(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise ParamError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ParamError(
            f"{path} is larger than {MAX_BYTES >> 20} MiB: no log of MLPerf is that large"
        )
    lines: list[LogLine] = []
    problems: list[str] = []
    is_json = False
    for number, text in enumerate(content.decode("latin-1").splitlines(), start=1):
        if ":::MLL" not in text:
            continue
        line = _parse(text) if len(text) <= MAX_LINE else None
        is_json = is_json or ":::MLLOG" in text
        if line is None:
            problems.append(f"line {number} is not a line of a log: {text.strip():.60}")
        else:
            lines.append(line)
        if len(lines) + len(problems) > _MAX_LINES:
            raise ParamError(
                f"{path} has more than {_MAX_LINES:,} lines of MLPerf, too many for a run"
            )
    if not lines:
        raise ParamError(f"{path} holds no line of MLPerf, :::MLLOG or :::MLL")
    return Log(path, "0.7.0" if is_json else "0.6.0", lines, problems)


def find_logs(path: Path) -> list[Path]:
    """Returns [path] for a file; for a folder, its logs: runs' mllog.txt, else result_*.txt.

    Raises ParamError if a folder holds no logs.
    """
    if path.is_dir():
        for pattern in ("mllog.txt", "result_*.txt"):
            if found := sorted(path.rglob(pattern)):
                return found
        raise ParamError(f"{path} holds no mllog.txt and no result_*.txt")
    return [path]


def _parse(text: str) -> LogLine | None:
    try:
        if match := _JSON.search(text):
            content = json.loads(match[1])
            seconds, key = Decimal(content["time_ms"]) / 1000, content["key"]
        elif match := _PLAIN.search(text):
            content, seconds, key = json.loads(match[3]), Decimal(match[1]), match[2]
        else:
            return None
        if not seconds.is_finite() or abs(seconds) > _MAX_SECONDS:
            return None
        return LogLine(seconds, str(key), content["value"], dict(content["metadata"]))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return None


CHECKER_EXTRA = "mlperf"
_CHECKER = "mlperf_logging"


def has_checker() -> bool:
    """Returns whether the checker is installed."""
    return importlib.util.find_spec(_CHECKER) is not None


def check_log(path: Path, ruleset: str) -> list[str]:
    """Returns the compliance checker's complaints about a log by a ruleset; [] if the log passes.

    Raises MissingPackage if the checker is not installed.
    """
    check_package(_CHECKER, "checking a log of MLPerf", extra=CHECKER_EXTRA)
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
