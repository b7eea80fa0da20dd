"""Promise 14: a hostile query costs half a second at most, and a bad tool no conversation."""

import random
import threading
import time
import tracemalloc

import pytest

from tasks.dialog.research import Research
from tasks.dialog.tools.calculator import Calculator
from tasks.dialog.tools.retrieval import Entry, Retrieval
from tasks.dialog.tools.tool import Tool
from tasks.dialog.tools.toolset import Toolset
from tasks.dialog.tools.translator import Translator

MOST_SECONDS = 0.5
MOST_MEGABYTES = 10
KILO = 1024


class Facts(Retrieval):
    """Twenty thousand facts, which have two words in common."""

    def entries(self):
        draw = random.Random(0)
        words = [f"word{draw.randint(0, 5000)}" for _ in range(40_000)]
        for number in range(20_000):
            yield Entry(f"common thing {words[number]}", "same", words[-number - 1])


HOSTILE = {
    "tower": "9**9**9",
    "tall tower": "9**" * 80 + "9",
    "tower of parts": "(0.1**-9)**(9**9)",
    "near 1": "1.0000000001**1e300",
    "root of a root": "sqrt(" * 40 + "2" + ")" * 40,
    "import": "__import__('os').system('touch hacked')",
    "attribute": "(1).__class__.__mro__[1].__init__.__globals__",
    "call": "eval('1+1')",
    "lambda": "(lambda: 1)()",
    "comprehension": "[x for x in range(10**9)]",
    "string": "'a'*10**9",
    "shift": "1<<10**9",
    "brackets": "(" * 100 * KILO,
    "closed brackets": "(" * 50 * KILO + ")" * 50 * KILO,
    "nested brackets": "(" * 120 + "1" + ")" * 120,
    "nested calls": "f(" * 80 + ")" * 80,
    "signs": "-" * 250 + "1",
    "percents": "1%" * 120,
    "of": "1% of " * 40 + "1",
    "digits": "9" * 100 * KILO,
    "digits and a sign": "9" * 254 + "+1",
    "decimals": "1." + "9" * 250 + "+1",
    "huge": "1e308*10",
    "too huge": "1e999999999999*10",
    "tiny": "1e-999999999999*10",
    "division by 0": "1/0",
    "remainder by 0": "1 % 0",
    "not a number": "nan+inf",
    "null bytes": "\0" * 100 + "1+1",
    "half a surrogate pair": "\ud800+1",
    "other digits": "\u0665\u0661+\u0664",
    "mathematical digits": "\U0001d7d8+\U0001d7d9",
    "superscripts": "2\u00b2+1",
    "fractions": "\u00bd+\u2153",
    "ligatures": "\ufdfa" * 200,  # 18 characters each, in compatibility form
    "marks": "a" + "\u0301" * 900,
    "right to left": "\u202e1+1",
    "spaces": " " * 100 * KILO,
    "line breaks": "1\n+\n1" * 1000,
    "words": "common same " * 80,
    "many words": " ".join(f"word{number}" for number in range(120)),
    "in in in": "in " * 40,
    "to a language": "x " * 50 + "in French",
    "another script": "\u6771\u4eac\u306e\u4eba\u53e3\u306f\u4f55\u4eba\u3067\u3059\u304b",
    "Thai": "\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e" * 100,
    "emoji": "\U0001f600" * 1000,
    "nothing": "",
}
RIGHT = {
    "root of a root": ["1.00000000000063"],
    "signs": ["1"],
    "percents": ["0"],
    "of": ["1E-80"],
    "digits and a sign": ["1E+254"],
    "decimals": ["3"],
    "huge": ["1E+309"],
    "other digits": ["55"],
    "mathematical digits": ["1"],
    "words": ["common thing word3155 / same / word3502"],
}
"""What has an answer; the last is the first of the facts, all of which have both words."""


@pytest.fixture(scope="module")
def toolset():
    return Toolset.params(tools=[Calculator, Translator, Facts]).build()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_query_has_a_right_answer_or_none_at_little_cost(name, toolset):
    begin = time.monotonic()
    calls = toolset.run(HOSTILE[name])
    seconds = time.monotonic() - begin
    answers = [snippet for call in calls for snippet in call.snippets]
    print(answers, f"{seconds:.3f} s")
    assert [call.error for call in calls] == ["", "", ""]
    assert answers == RIGHT.get(name, [])
    assert seconds < MOST_SECONDS


def test_hostile_queries_take_little_memory(toolset):
    toolset("hello in French")  # reads the tables
    tracemalloc.start()
    try:
        for query in HOSTILE.values():
            toolset(query)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEGABYTES * KILO**2


RELEASE = threading.Event()


class Hanging(Tool):
    """Waits for the end of the test."""

    def __call__(self, query):
        RELEASE.wait()
        return [query]


class Failing(Tool):
    """Has a bug."""

    def __call__(self, query):
        raise RecursionError(query)


class Leaving(Tool):
    """Wants to end the program."""

    def __call__(self, query):
        raise SystemExit(1)


def test_tools_that_hang_fail_or_leave_do_not_end_a_conversation():
    """Of eight searches two wait for the tool that hangs; from then on it is left out."""
    tools = [Hanging, Failing, Leaving, Calculator]
    params = Toolset.params(tools=tools, timeout_seconds=0.02, max_abandoned=2)
    research = Research.params(toolset=params).build()

    def model(context):
        num_searches = context.count("TOOLS")
        return "User, It is 2." if num_searches == 4 else "TS, 1+1"

    begin = time.monotonic()
    try:
        answers = [research(model, "How much is 1+1?") for _ in range(2)]
        seconds = time.monotonic() - begin
        assert [answer.text for answer in answers] == ["It is 2.", "It is 2."]
        errors = [call.error for answer in answers for call in answer.calls]
        assert (
            errors[::4]
            == ["no answer in 0.02 seconds"] * 2 + ["left out: 2 earlier calls still run"] * 6
        )
        assert set(errors[1::4]) == {"RecursionError: 1+1"}
        assert set(errors[2::4]) == {"SystemExit: 1"}
        assert set(errors[3::4]) == {""}
        assert seconds < MOST_SECONDS
    finally:
        RELEASE.set()
