"""Lines of logs: both forms are what the rules say, and reading gives back what was written."""

import json
from decimal import Decimal

import pytest

from lingo.config.params import ParamError
from lingo.trainer.mlperf import mllog
from lingo.trainer.mlperf.mllog import LogLine, read_log

LINE = LogLine(Decimal("1593642000.123"), "run_start", None, {"file": "a.py", "lineno": 9})


def test_a_line_of_0_7_has_the_keys_in_the_order_of_the_reference():
    text = LINE.render("0.7.0")
    assert text == (
        ':::MLLOG {"namespace": "", "time_ms": 1593642000123, "event_type": "INTERVAL_START",'
        ' "key": "run_start", "value": null, "metadata": {"file": "a.py", "lineno": 9}}'
    )


def test_a_line_of_0_6_has_seconds_and_the_key_before_the_value():
    content = '{"value": null, "metadata": {"file": "a.py", "lineno": 9}}'
    assert LINE.render("0.6.0") == f":::MLL 1593642000.123 run_start: {content}"


@pytest.mark.parametrize(
    ("key", "event"),
    [("init_stop", "INTERVAL_END"), ("epoch_start", "INTERVAL_START"), ("seed", "POINT_IN_TIME")],
)
def test_the_event_follows_from_the_key(key, event):
    line = LINE._replace(key=key).render("0.7.0").removeprefix(":::MLLOG ")
    assert json.loads(line)["event_type"] == event


@pytest.mark.parametrize("ruleset", ["0.6.0", "0.7.0"])
def test_what_is_read_is_what_was_written_whatever_stands_around_it(ruleset, tmp_path):
    lines = [LINE, LogLine(Decimal("1593642001.5"), "eval_accuracy", 0.75, {"epoch_num": 4})]
    texts = [f"0: {line.render(ruleset)}" for line in lines]
    (tmp_path / "log").write_text("\n".join(["step 1", *texts, "done"]))
    log = read_log(tmp_path / "log")
    assert (list(log.lines), log.ruleset, log.problems) == (lines, ruleset, [])


def test_times_of_0_6_keep_all_their_digits(tmp_path):
    text = ':::MLL 1556733699.712345678 run_stop: {"value": null, "metadata": {}}'
    (tmp_path / "log").write_text(text)
    assert read_log(tmp_path / "log").lines[0].seconds == Decimal("1556733699.712345678")


@pytest.mark.parametrize(
    "spoiled",
    [
        LINE.render("0.7.0")[:-9],
        ":::MLL x run_stop: {}",
        ":::MLL",
        ":::MLLOG " + "[" * 100_000,
        *(
            LINE.render("0.7.0").replace("1593642000123", text)
            for text in ("NaN", "Infinity", "1e999", '"9e999999"', '"sNaN"', "1" + "0" * 400)
        ),
    ],
)
def test_a_line_of_neither_form_is_named(spoiled, tmp_path):
    (tmp_path / "log").write_text(f"{LINE.render('0.7.0')}\n{spoiled}\n")
    log = read_log(tmp_path / "log")
    assert (len(log.lines), len(log.problems)) == (1, 1)
    assert log.problems[0].startswith("line 2 is not a line of a log")


def test_a_file_without_lines_is_refused(tmp_path):
    (tmp_path / "log").write_text("step 1  loss 2.5\n")
    with pytest.raises(ParamError, match="holds no line of MLPerf"):
        read_log(tmp_path / "log")
    with pytest.raises(ParamError, match="cannot be read"):
        read_log(tmp_path / "none")


def test_a_log_of_too_many_lines_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(mllog, "_MAX_LINES", 10)
    file = tmp_path / "mllog.txt"
    line = LogLine(Decimal(1), "epoch_start", 1).render("0.6.0")
    file.write_text(f"{line}\n" * 10)
    assert len(read_log(file).lines) == 10
    file.write_text(f"{line}\n" * 11)
    with pytest.raises(ParamError, match=r"mllog\.txt has more than 10 lines of MLPerf"):
        read_log(file)
