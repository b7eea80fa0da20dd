"""A toolset: every tool gets the query, and their answers are concatenated.

A tool runs in a thread. A call that takes too long is abandoned: its thread goes on, since threads
cannot be stopped, but its answer is ignored. The number of a tool's abandoned calls is bounded; at
the bound the tool is left out until one of them returns.

A child process could be killed. But it would have to be started for each call, without the tool's
data in memory; and a fork of a process in which TensorFlow has started threads may hang. So a tool
that computes without end occupies a core, and if it does so in C code without releasing Python's
lock, it stops the program: a tool whose work is not bounded should start its own process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, NamedTuple

from lingo.config import ranges
from lingo.config.params import Configurable
from tasks.dialog.tools.calculator import Calculator
from tasks.dialog.tools.retrieval import Retrieval
from tasks.dialog.tools.tool import Tool
from tasks.dialog.tools.translator import Translator

_log = logging.getLogger(__name__)


class ToolCall(NamedTuple):
    """One tool's call for a query."""

    tool: str  # name of its class
    query: str
    snippets: tuple[str, ...]  # its answers
    error: str  # the reason for no answers, an exception or a timeout; else ""
    seconds: float


class Toolset(Configurable):
    """Tools that all get each query; by default the calculator, the translator and retrieval.

    A tool that raises an exception or takes longer than `timeout_seconds` costs only its own
    answers.
    """

    tools: list[Tool] = [Calculator, Translator, Retrieval]
    timeout_seconds: float = 2.0  # of each tool
    max_abandoned: int = 4  # calls of a tool that may still run after their timeout

    def check(self) -> None:
        ranges.check_positive(self.p, "timeout_seconds", "max_abandoned")

    def setup(self) -> None:
        self._runners = [
            _Runner(params.build(), self.p.timeout_seconds, self.p.max_abandoned)
            for params in self.p.tools
        ]

    def __call__(self, query: str) -> list[str]:
        """Returns the answers of all tools to a query, in the order of the tools.

        Several threads may call it at a time.
        """
        return [snippet for call in self.run(query) for snippet in call.snippets]

    def run(self, query: str) -> list[ToolCall]:
        """Returns each tool's call for a query, in the order of the tools."""
        return [runner.run(query) for runner in self._runners]


class _Runner:
    """Calls one tool in threads, for a bounded time each."""

    def __init__(self, tool: Tool, timeout_seconds: float, max_abandoned: int) -> None:
        self._tool, self._name = tool, type(tool).__name__
        self._timeout_seconds, self._max_abandoned = timeout_seconds, max_abandoned
        self._abandoned: list[threading.Thread] = []
        self._is_prepared = False
        self._lock = threading.Lock()

    def run(self, query: str) -> ToolCall:
        with self._lock:
            if not self._is_prepared:
                self._is_prepared = True  # a tool that cannot prepare fails at each call
                with contextlib.suppress(Exception):
                    self._tool.prepare()
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
            if len(self._abandoned) >= self._max_abandoned:
                error = f"left out: {len(self._abandoned)} earlier calls still run"
                return ToolCall(self._name, query, (), error, 0.0)
        begin, call = time.monotonic(), _Call(self._tool, query)
        call.start()
        call.join(self._timeout_seconds)
        seconds = time.monotonic() - begin
        if call.is_alive():
            with self._lock:
                self._abandoned.append(call)
            error = f"no answer in {self._timeout_seconds:g} seconds"
            return ToolCall(self._name, query, (), error, seconds)
        return ToolCall(self._name, query, call.snippets, call.error, seconds)


class _Call(threading.Thread):
    """One call of a tool; it does not keep the program alive."""

    def __init__(self, tool: Tool, query: str) -> None:
        super().__init__(name=type(tool).__name__, daemon=True)
        self.snippets: tuple[str, ...] = ()
        self.error = ""
        self._tool, self._query = tool, query

    def run(self) -> None:
        try:
            self.snippets = _checked(self._tool(self._query))
        except BaseException as error:  # noqa: BLE001  # a user's tool may raise anything
            _log.debug("%s failed for %r", self.name, self._query, exc_info=True)
            self.error = f"{type(error).__name__}: {error}"


def _checked(answers: Any) -> tuple[str, ...]:
    """Returns the answers of a tool; raises TypeError unless they are a list of strings."""
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise TypeError(f"it returned {answers!r:.60}, not a list of strings")
    return tuple(answers)
