"""A toolset: answers in order, and a tool that fails costs only its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lingo.config.overrides import apply
from lingo.config.params import ParamError
from tasks.dialog.tools.calculator import Calculator
from tasks.dialog.tools.retrieval import Entry, Retrieval
from tasks.dialog.tools.tool import Tool
from tasks.dialog.tools.toolset import ToolCall, Toolset
from tasks.dialog.tools.translator import Translator


class Nadal(Retrieval):
    """One fact."""

    def entries(self) -> list[Entry]:
        return [Entry("Rafael Nadal", "Age", "35")]


class Echo(Tool):
    """Answers with the query, as often as its parameter says."""

    times: int = 1

    def __call__(self, query: str) -> list[str]:
        return [query] * self.p.times


class Failing(Tool):
    """Raises an exception."""

    def __call__(self, query: str) -> list[str]:
        raise ZeroDivisionError(f"no answer to {query}")


class Leaving(Tool):
    """Ends the program, were it to call this itself."""

    def __call__(self, query: str) -> list[str]:
        sys.exit("bye")


class Mute(Tool):
    """Forgets to return a list."""

    def __call__(self, query: str) -> Any:
        return query


RELEASE = threading.Event()


class Hanging(Tool):
    """Waits for the end of the test."""

    def __call__(self, query: str) -> list[str]:
        RELEASE.wait()
        return [query]


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends the calls of `Hanging` when it is set, at the latest at the end of the test."""
    RELEASE.clear()
    yield RELEASE
    RELEASE.set()
    for thread in threading.enumerate():
        if thread.name == "Hanging":
            thread.join()


@pytest.mark.parametrize(
    ("query", "answers"),
    [
        ("135+7721", ["7856"]),
        ("hello in French", ["Bonjour"]),
        ("How old is Rafael Nadal?", ["Rafael Nadal / Age / 35"]),
        ("Tell me a story", []),
    ],
)
def test_the_answers_of_the_paper(query: str, answers: list[str]) -> None:
    toolset = Toolset.params(tools=[Calculator, Translator, Nadal]).build()
    assert toolset(query) == answers


def test_the_order_is_calculator_translator_retrieval() -> None:
    assert [params.cls for params in Toolset.params().tools] == [Calculator, Translator, Retrieval]


def test_answers_are_concatenated_in_the_order_of_the_tools() -> None:
    toolset = Toolset.params(tools=[Echo.params(times=2), Calculator, Echo]).build()
    assert toolset("1+1") == ["1+1", "1+1", "2", "1+1"]


def test_a_toolset_without_tools_has_no_answer() -> None:
    assert Toolset.params(tools=[]).build()("1+1") == []


def test_an_override_reaches_a_tool() -> None:
    params = Toolset.params(tools=[Calculator, Echo])
    apply(params, ["tools[1].times=3", "timeout_seconds=5"])
    assert params.build()("1") == ["1", "1", "1"]


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        (Failing, "ZeroDivisionError: no answer to 1+1"),
        (Leaving, "SystemExit: bye"),
        (Mute, "TypeError: it returned '1+1', not a list of strings"),
    ],
)
def test_a_tool_that_fails_costs_its_own_answers(tool: type[Tool], error: str) -> None:
    toolset = Toolset.params(tools=[Echo, tool, Calculator]).build()
    assert toolset("1+1") == ["1+1", "2"]
    _, failed, _ = toolset.run("1+1")
    assert failed[:4] == (tool.__name__, "1+1", (), error)


def test_a_call_is_recorded() -> None:
    (call,) = Toolset.params(tools=[Calculator]).build().run("1+1")
    assert isinstance(call, ToolCall)
    assert call[:4] == ("Calculator", "1+1", ("2",), "")
    assert 0 < call.seconds < 2


def test_a_tool_that_hangs_is_given_up(release: threading.Event) -> None:
    toolset = Toolset.params(tools=[Hanging, Calculator], timeout_seconds=0.01).build()
    hanging, sound = toolset.run("1+1")
    assert hanging[:4] == ("Hanging", "1+1", (), "no answer in 0.01 seconds")
    assert sound.snippets == ("2",)


def test_a_tool_that_hangs_leaves_a_bounded_number_of_threads(release: threading.Event) -> None:
    params = Toolset.params(tools=[Hanging], timeout_seconds=0.01, max_abandoned=2)
    toolset = params.build()
    errors = [toolset.run("1+1")[0].error for _ in range(4)]
    assert errors == ["no answer in 0.01 seconds"] * 2 + ["left out: 2 earlier calls still run"] * 2
    assert sum(thread.name == "Hanging" for thread in threading.enumerate()) == 2


def test_a_tool_that_returns_at_last_is_called_again(release: threading.Event) -> None:
    params = Toolset.params(tools=[Hanging], max_abandoned=1)
    toolset = params.set(timeout_seconds=0.01).build()
    toolset("1+1")
    assert toolset.run("1+1")[0].error.startswith("left out")
    release.set()
    for thread in threading.enumerate():
        if thread.name == "Hanging":
            thread.join()
    (call,) = toolset.run("1+1")
    assert not call.error.startswith("left out")


def test_calls_of_several_threads_do_not_mix() -> None:
    toolset = Toolset.params(tools=[Echo, Calculator]).build()
    answers: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        answers[number] = toolset(f"{number}+1")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: [f"{number}+1", str(number + 1)] for number in range(20)}


@pytest.mark.parametrize(("name", "value"), [("timeout_seconds", 0.0), ("max_abandoned", 0)])
def test_a_bound_of_nothing_is_refused(name: str, value: float) -> None:
    with pytest.raises(ParamError, match=name):
        Toolset.params(**{name: value}).build()


def test_a_tool_that_answers_nothing_says_what_it_lacks() -> None:
    class Silent(Tool):
        """Has no `__call__`."""

    (call,) = Toolset.params(tools=[Silent]).build().run("1+1")
    assert "Silent has no `__call__`: it returns a list of strings" in call.error


class Prepared(Tool):
    """Answers with the threads in which it was prepared."""

    def setup(self) -> None:
        self.threads: list[str] = []

    def prepare(self) -> None:
        self.threads.append(threading.current_thread().name)

    def __call__(self, query: str) -> list[str]:
        return self.threads


def test_a_tool_is_prepared_once_by_the_caller_who_has_no_time_limit() -> None:
    toolset = Toolset.params(tools=[Prepared]).build()
    caller = threading.current_thread().name
    assert [toolset("?"), toolset("?")] == [[caller], [caller]]
