"""MLCommons' compliance checker passes the logs of lingo, and refuses spoiled ones.

`logs` has a log for each benchmark and round. They were written by lingo, for runs in which nothing
was trained: their accuracies are the targets of the rules.
"""

import pathlib
import sys

import pytest

from lingo.config.base.errors import MissingPackage
from lingo.trainer.mlperf.mllog import check_log, read_log
from lingo.trainer.mlperf.rules import RULES

LOGS = pathlib.Path(__file__).parent / "logs"
OPEN, CLOSED = '"key": "submission_division", "value": "open"', '"value": "closed"'


def spoil(path, text, *, old, new):
    assert old in text
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize("name", RULES)
def test_kept_logs_pass_by_the_rules_of_either_division(name, tmp_path):
    path, ruleset = LOGS / f"{name}.txt", name.partition("@")[2]
    assert check_log(path, ruleset) == []
    if ruleset == "0.7.0":
        closed = OPEN.replace('"value": "open"', CLOSED)
        path = spoil(tmp_path / "log", path.read_text(), old=OPEN, new=closed)
        assert check_log(path, ruleset) == []


@pytest.mark.parametrize("name", RULES)
def test_kept_logs_are_what_is_written_today(name, write, settings):
    params, target = settings(name.partition("@")[0]), RULES[name].target
    path = write(params, name, accuracies=[0.1, target])
    lines, kept = read_log(path).lines, read_log(LOGS / f"{name}.txt").lines
    assert [line.key for line in lines] == [line.key for line in kept]
    for now, then in zip(lines, kept, strict=True):
        assert now.value == then.value
        assert now.metadata.get("epoch_num") == then.metadata.get("epoch_num")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"key": "run_stop"', '"key": "run_end"', "EXACTLY_ONE occurrence of 'run_stop'"),
        ('"value": 0.759,', '"value": 0.75,', "Failed checks for eval_accuracy"),
        ('"key": "init_start"', '"key": "init_begin"', "CHECK for 'init_stop' failed"),
        ('"key": "train_samples"', '"key": "samples"', "occurrence of 'train_samples'"),
        ('"status": "success"', '"state": "success"', "CHECK for 'run_stop' failed"),
        ('"value": "resnet"', '"value": "lenet"', "the checker ends with FileNotFoundError"),
        ('"epoch_num": 1,', '"epoch": 1,', "CHECK for 'epoch_start' failed"),
        ('"value": 0.759,', '"value": null,', "the checker ends with TypeError"),
        ('"key": "cache_clear", ', '"key": ', "Expecting"),
    ],
)
def test_a_spoiled_log_is_refused(old, new, message, tmp_path):
    text = (LOGS / "resnet@0.7.0.txt").read_text()
    messages = check_log(spoil(tmp_path / "log", text, old=old, new=new), "0.7.0")
    assert any(message in one for one in messages), messages


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("lars_opt_end_learning_rate", '"value": 0.0001', '"value": 0.0002'),
        ("lars_opt_learning_rate_decay_poly_power", '"value": 2.0', '"value": 1.0'),
        ("lars_epsilon", '"value": 0.0', '"value": 1e-05'),
    ],
)
def test_the_closed_division_is_refused_what_its_rules_fix(key, old, new, tmp_path):
    text = (LOGS / "resnet@0.7.0.txt").read_text()
    (line,) = [line for line in text.splitlines() if f'"{key}"' in line]
    spoiled = text.replace(line, line.replace(old, new))
    assert check_log(spoil(tmp_path / "open", spoiled, old=new, new=new), "0.7.0") == []
    closed = OPEN.replace('"value": "open"', CLOSED)
    (message,) = check_log(spoil(tmp_path / "closed", spoiled, old=OPEN, new=closed), "0.7.0")
    assert f"CHECK for '{key}' failed" in message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"status": "success"', '"status": "aborted"', "CHECK for 'run_stop' failed"),
        (" block_stop: ", " block_end: ", "AT_LEAST_ONE occurrence of 'block_stop'"),
        ('"epoch_num": 2,', '"epoch_num": 3,', "CHECK for 'epoch_start' failed"),
        (" lars_epsilon: ", " epsilon: ", "failed test:"),
    ],
)
def test_a_spoiled_log_of_0_6_is_refused(old, new, message, tmp_path):
    text = (LOGS / "resnet@0.6.0.txt").read_text()
    messages = check_log(spoil(tmp_path / "log", text, old=old, new=new), "0.6.0")
    assert any(message in one for one in messages), messages


def test_a_log_of_one_round_is_refused_by_the_rules_of_the_other():
    assert "does not match regex" in check_log(LOGS / "resnet@0.7.0.txt", "0.6.0")[0]
    assert check_log(LOGS / "resnet@0.6.0.txt", "0.7.0")


def test_a_log_that_the_checker_cannot_read_is_refused(tmp_path):
    text = (LOGS / "resnet@0.7.0.txt").read_text()
    (tmp_path / "log").write_text(f"{text}:::MLLOG {'[' * 60_000}\n")
    assert "RecursionError" in check_log(tmp_path / "log", "0.7.0")[0]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlperf_logging", None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[mlperf\]'"):
        check_log(LOGS / "resnet@0.6.0.txt", "0.6.0")
