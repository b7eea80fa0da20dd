"""The Python interface: what `import lingo` gives."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

import lingo
from lingo.config.params import ParamError
from lingo.config.serial import serial

ROOT = pathlib.Path(__file__).parents[2]


def test_an_experiment_is_got_by_name_with_overrides() -> None:
    params = lingo.get("lm.source.tiny", "max_steps=3", "exp.num_layers=1")
    assert params.max_steps == 3
    assert params.task.model.stack.num_layers == 1


def test_a_mistake_is_a_parameter_error() -> None:
    with pytest.raises(ParamError, match="max_steps"):
        lingo.get("lm.source.tiny", "max_stps=3")


def test_a_directory_without_a_run_cannot_be_loaded(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ParamError, match=r"config\.json"):
        lingo.load(tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lingo.get(None), r"lingo\.get takes the name of an experiment.*None \(NoneType\)"),
        (lambda: lingo.get("tiny", {"max_steps": 3}), r"'max_steps=100', got \{.*\(dict\)"),
        (lambda: lingo.load(None), r"lingo\.load takes the directory of a run, got None"),
        (
            lambda: lingo.train("tiny", "x"),
            r"lingo\.get\('tiny'\) returns them, got 'tiny' \(str\)",
        ),
        (
            lambda: lingo.train(lingo.get("tiny").task, "x"),
            r"Experiment.*got the Params of a LanguageModeling",
        ),
        (lambda: lingo.train(lingo.get("tiny"), None), r"takes a directory, got None"),
    ],
)
def test_arguments_of_another_kind_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        call()


def test_a_run_of_no_experiment_cannot_be_loaded(tmp_path: pathlib.Path) -> None:
    params = lingo.get("lm.source.tiny").optimizer
    (tmp_path / "config.json").write_text(serial.dump(params, serial.Origin(), ""))
    with pytest.raises(ParamError, match="holds the Params of a AdamW, no Experiment"):
        lingo.load(tmp_path)


def test_a_configuration_that_never_ends_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ParamError, match="it is a named pipe, no file"):
        lingo.load(tmp_path)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lingo.nothing  # noqa: B018


def test_importing_imports_nothing_else() -> None:
    code = (
        "import sys, lingo\n"
        "assert not {'fiddle', 'numpy', 'tensorflow', 'absl'} & set(sys.modules)\n"
        "assert callable(lingo.train)\n"
        "import lingo.contract\n"
        "assert callable(lingo.train) and 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
