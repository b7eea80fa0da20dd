"""`python -m tools.bench`: names, help and exit codes."""

import os

import pytest

from tools.bench import startup
from tools.bench.__main__ import main
from tools.bench.startup import Cost


def test_help_says_what_the_exit_codes_mean(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "returns 0 if what is wanted of them holds, 1 if it misses any" in out
    assert out.splitlines()[-1].startswith("usage: python -m tools.bench {config,data,")


@pytest.mark.parametrize(
    "arguments",
    [[], ["nothing"], ["startup", "lm"], ["--small"], ["nothing", "--small"], ["lm", "--fast"]],
)
def test_other_arguments_are_refused(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: python -m tools.bench {")


@pytest.mark.parametrize(("seconds", "code"), [(0.3, 0), (0.5, 1)])
def test_a_benchmark_that_misses_a_ratio_returns_1_and_says_which(
    seconds, code, monkeypatch, capsys
):
    def cost(*command: str) -> Cost:
        slow = "list" in command or command[0] == "-c"
        return Cost((1.0 if command[0] == "-c" else seconds) if slow else 0.1, 1.0)

    monkeypatch.setattr(startup, "cost", cost)
    assert main(["startup"]) == code
    missed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("missed")]
    assert missed == ["missed: list / import is 0.5, wanted <= 0.333"] * code


def test_a_small_form_returns_0_whatever_its_ratios_are(monkeypatch, capsys):
    forms: list[str | None] = []

    def cost(*command: str) -> Cost:
        forms.append(os.environ.get("LINGO_BENCH"))
        return Cost(1.0, 1.0)

    monkeypatch.setattr(startup, "cost", cost)
    assert main(["startup", "--small"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "no bound was compared" in lines[-1]
    assert not any(line.startswith("missed") for line in lines)
    assert {*forms} == {"small"}
    assert os.environ.get("LINGO_BENCH") is None
