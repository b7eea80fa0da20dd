"""Progress lines."""

import io
import re
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

import lingo
from lingo.config.serial import Origin
from lingo.contract import StepReport
from lingo.data.epochs import RunLength
from lingo.trainer import progress as module
from lingo.trainer.directory.environment import count_devices
from lingo.trainer.progress import Progress, header, report_line


def plain(max_steps=10, **options):
    console = Console(file=io.StringIO(), width=40)
    return Progress(RunLength(None, max_steps), console=console, **options), console.file


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_process_that_is_not_the_leader_shows_nothing(is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal)
    with Progress(RunLength(None, 10), enabled=False, console=console) as progress:
        progress.message("a line")
        progress.on_report(None, StepReport(1, {"loss/total": 1.0}))
        progress.show_evaluation("same", {"loss": 1.0}, step=1)
    assert console.file.getvalue() == ""


def test_a_report_shows_all_there_is():
    line = report_line(
        40,
        RunLength(None, 100),
        {
            "loss/total": 2.34567,
            "learner/learning_rate": 3e-4,
            "perf/examples_per_sec": 512.0,
            "perf/tokens_per_sec": 65_536.0,
            "perf/step_time_ms": 12.34,
            "perf/input_wait_fraction": 0.031,
            "perf/peak_memory_bytes": 1.5 * 2**30,
            "perf/steps_per_sec": 0.5,
            "loss/other": 1.0,
        },
    )
    assert line == (
        "step 40/100  loss 2.3457  lr 3.00e-04  512.0 examples/s  65.5k tokens/s  12.3 ms/step"
        "  input 3%  memory 1.5 GiB  ETA 2m 00s"
    )


@pytest.mark.parametrize(
    ("tag", "value", "words"),
    [
        ("perf/step_time_ms", 12_500.0, "12.5 s/step"),
        ("perf/steps_per_sec", 10.0, "ETA 9s"),
        ("perf/steps_per_sec", 0.01, "ETA 2h 30m"),
        ("loss/total", float("nan"), "loss nan"),
        ("loss/total", 1e9, "loss 1.000e+09"),
        ("loss/total", 0.0, "loss 0.0000"),
    ],
)
def test_numbers_are_short(tag, value, words):
    assert report_line(10, RunLength(None, 100), {tag: value}) == f"step 10/100  {words}"


def test_without_a_terminal_every_report_is_a_whole_line():
    progress, out = plain()
    with progress:
        progress.show_directory(Path("/a b"))
        scalars = {"perf/examples_per_sec": 123456.0, "learner/learning_rate": 1.0}
        progress.on_report(None, StepReport(1, {"loss/total": 2.0} | scalars))
        found = {"loss": 1.5, "loss/term": 1.0, "moe/entropy": 0.5}
        progress.show_evaluation("heldout", found, step=1)  # without metrics of layers
        progress.message("[not] markup")
    assert out.getvalue().splitlines() == [
        "tensorboard --logdir='/a b'",
        "step 1/10  loss 2.0000  lr 1.00e+00  123.5k examples/s",
        "step 1  eval heldout  loss 1.5000  loss/term 1.0000",
        "[not] markup",
    ]


def test_long_work_says_something_every_ten_seconds_and_at_its_end(clock):
    progress, out = plain(clock=clock)
    with progress.work("Quick") as advance:
        advance(1, 1)
    with progress.work("Indexing") as advance:
        for done in range(0, 100, 20):
            advance(done, 100)
            clock.now += 6
    assert out.getvalue().splitlines() == [
        "Indexing: 40%",
        "Indexing: 80%",
        "Indexing: done in 30s",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_work_of_unknown_length_shows_its_time_from_another_thread(is_terminal, clock, monkeypatch):
    monkeypatch.setattr(module, "_WORK_SECONDS", 0.01)
    is_shown = threading.Event()
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=40)
    with Progress(RunLength(None, 10), console=console, clock=clock) as progress:
        show = progress._show
        monkeypatch.setattr(progress, "_show", lambda line: (show(line), is_shown.set()))
        with progress.show_time("Compiling"):
            clock.now = 70
            for _ in range(2):  # this thread waits, as for compiled code
                is_shown.clear()
                assert is_shown.wait(60)
        progress.message("after")
    lines = out.getvalue().replace("\r", "\n").splitlines()
    assert sum("Compiling: 1m 10s" in line for line in lines) >= 2
    assert sum("Compiling: done in 1m 10s" in line for line in lines) == 1
    assert not any(t.name == "progress" for t in threading.enumerate())


def test_short_work_of_unknown_length_shows_nothing():
    progress, out = plain()
    with progress.show_time("Compiling"):
        pass
    assert out.getvalue() == ""


def test_work_of_unknown_length_that_fails_shows_no_end(clock):
    progress, out = plain(clock=clock)

    def fail():
        with progress.show_time("Compiling"):
            clock.now = 70
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert out.getvalue() == ""
    assert not any(t.name == "progress" for t in threading.enumerate())


def test_on_a_terminal_the_report_stays_in_place():
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    with Progress(RunLength(None, 10), console=console) as progress:
        progress.on_report(None, StepReport(1, {"loss/total": 2.0}))
        progress.message("saved")
        progress.on_report(None, StepReport(2, {"loss/total": 1.0}))
    out = console.file.getvalue()
    assert "\x1b[2K" in out, "the line is erased and written again"
    assert out.index("saved") < out.index("step 2/10")


def test_a_report_longer_than_the_terminal_is_not_cut():
    console = Console(file=io.StringIO(), force_terminal=True, width=30)
    with Progress(RunLength(None, 10), console=console) as progress:
        progress.on_report(
            None,
            StepReport(1, {"loss/total": 2.0, "perf/steps_per_sec": 0.5, "perf/step_time_ms": 9.0}),
        )
    out = console.file.getvalue()
    assert "ETA 18s" in out
    assert "\N{HORIZONTAL ELLIPSIS}" not in out


def test_messages_cannot_steer_the_terminal():
    progress, out = plain()
    progress.message("changed: a: \x1b[2J\ud800 -> b")
    assert out.getvalue() == "changed: a: \\x1b[2J\\ud800 -> b\n"


def test_what_a_full_disk_cannot_take_is_left_out_and_what_follows_is_shown(capfd, monkeypatch):
    with open("/dev/full", "w") as full, Progress(RunLength(None, 5)) as progress:
        monkeypatch.setattr(sys, "stdout", full)
        progress.message("lost")
        monkeypatch.undo()
        progress.message("shown")
    assert capfd.readouterr().out == "shown\n"


def test_on_a_terminal_reports_stay_more_and_more_seldom_and_done_is_last(clock, monkeypatch):
    console, kept = Console(file=io.StringIO(), force_terminal=True, width=60), []
    with Progress(RunLength(None, 1000), console=console, clock=clock) as progress:
        monkeypatch.setattr(progress, "message", kept.append)
        for step in range(1, 101):
            progress.on_report(None, StepReport(step, {"loss/total": 2.0}))
            clock.now += 1
        monkeypatch.undo()
        progress.end("done at step 100")
    assert [line.split()[1] for line in kept] == ["11/1000", "31/1000", "71/1000"]  # 10, 20, 40 s
    lines = [line for line in console.file.getvalue().splitlines() if line.strip()]
    assert lines[-1].endswith("done at step 100")
    assert "step 100/1000  loss 2.0000" in lines[-2]


def test_on_a_terminal_work_is_shown_at_once(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    with (
        Progress(RunLength(None, 1), console=console) as progress,
        progress.show_time("compiling a step"),
    ):
        assert "compiling a step" in console.file.getvalue()


# ---- the header ----------------------------------------------------------------------------------


def build(*overrides, name="lm.source.tiny"):
    return lingo.get(name, "exp.model_dim=16", "exp.num_layers=1", *overrides).build()


def test_the_header_says_what_is_trained_on_what():
    origin = Origin("lm.source.tiny", arguments={"model_dim": 16, "num_layers": 1})
    experiment = build("eval_inputs={}")
    lines = header(experiment, experiment.train_input.fingerprint(), origin)
    weights = sum(spec.size for spec in experiment.task.weights().values())
    assert lines[0] == f"lm.source.tiny(model_dim=16, num_layers=1): {weights:,} weights"
    size = experiment.train_input.num_examples()
    assert lines[1].startswith("data: TextInput of InstalledSource")
    assert lines[1].endswith(f": {size:,} examples an epoch, 4 x 256 tokens a step")
    assert re.fullmatch(r"devices: \d+ CPU, Local; float32", lines[2])


def test_the_header_tells_frozen_weights_and_precision():
    groups = "{.*embedding.*: Frozen, (?!.*embedding).*: AdamW}"
    frozen = f"optimizer=ByPath(learning_rate=1, groups={groups})"
    experiment = build(frozen, "task.dtype=bfloat16", "runtime.xla=True")
    lines = header(experiment, {}, Origin(file="/a/mine.py", function="mine"))
    size = experiment.task.weights()["model/embedding/table"].size
    assert lines[0].startswith("mine.py:mine: ")
    assert lines[0].endswith(f"weights, {size:,} of them frozen")
    assert lines[2].endswith("bfloat16, weights float32, XLA")
    assert header(experiment, {}, Origin())[0].startswith("experiment: ")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["/device:CPU:0", "/device:GPU:0", "/device:GPU:1"], "1 CPU, 2 GPU"),
        (["TFRT_CPU_0", "TFRT_CPU_1"], "2 CPU"),
        (["cuda:0"], "1 GPU"),
        (["/job:w/task:0/device:TPU:3", "other"], "1 TPU, 1 other"),
    ],
)
def test_devices_are_counted_by_kind(names, text):
    assert count_devices(names) == text
