"""Talking with a run: on a pseudo-terminal, and by lines of the standard input."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator

import pytest

import lingo
from lingo.cli.main import main
from lingo.cli.verbs import chat as verb
from lingo.decode.chat import Reply

pytestmark = [
    pytest.mark.xdist_group("chat"),  # the run of the fixture is done once
    pytest.mark.usefixtures("once_compiled"),
]
SMALL = """
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from lingo.decode.chat import ContinueText, Reply
from params.lm.source import tiny


class Patient(ContinueText):
    def respond(self, model, turns, options):
        while turns[-1].text == "wait":
            yield "tick "
        if turns[-1].text == "tools":
            rows = [{"tool": "T", "query": "a", "seconds": 0.12345}, {"tool": "Longer"}]
            return Reply("", {"tools": options.tools, "calls": rows, "none": []})
        return (yield from super().respond(model, turns, options))


@experiment
def small():
    cfg = tiny(model_dim=8, num_layers=1).set(eval_inputs={}, max_steps=2, chat=Patient)
    cfg.train_input.set(batch_size=2, length=64, source=TextFiles.params(pattern="FOLDER/*.txt"))
    cfg.task.model.stack.layer.attention.num_heads = 1
    return cfg
"""
TIMEOUT = 120.0
FLAGS = ["--max_tokens=20", "--temperature=1", "--seed=3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("chat")
    (folder / "text.txt").write_text("def f(x):\n    return x\n" * 9)
    (folder / "small.py").write_text(SMALL.replace("FOLDER", str(folder)))
    assert main(["train", f"--exp={folder}/small.py:small", f"--logdir={folder}/run"]) == 0
    return folder / "run"


@pytest.fixture
def command(run: pathlib.Path) -> list[str]:
    return ["chat", f"--run={run}", f"--trust={run.parent / 'small.py'}", *FLAGS]


@pytest.fixture
def chat(command, monkeypatch, capsys):
    """Gives the verb lines of bytes; returns the exit code, the output and the errors."""

    def chat(lines: bytes) -> tuple[int, str, str]:
        stdin = types.SimpleNamespace(buffer=io.BytesIO(lines), isatty=lambda: False)
        monkeypatch.setattr("sys.stdin", stdin)
        capsys.readouterr()
        code = main(command)
        return (code, *capsys.readouterr())

    return chat


class Terminal:
    """A process with a pseudo-terminal, read as a person reads it."""

    def __init__(self, arguments: list[str], folder: pathlib.Path) -> None:
        self.own, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lingo.cli.main", *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # it controls: Ctrl-C
        )
        os.close(other)
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self.own, text.encode())

    def read_to(self, end: str) -> str:
        """Returns what is printed up to `end`."""
        until = time.monotonic() + TIMEOUT
        while end not in self._unread:
            ready, _, _ = select.select([self.own], [], [], max(0, until - time.monotonic()))
            assert ready, f"{end!r} is not in {self._unread!r}"
            self._unread += os.read(self.own, 4096).decode(errors="replace")
        before, _, self._unread = self._unread.partition(end)
        codes = re.compile(r"\x1b\[\?2004[hl]\r?")  # of readline, which marks what is pasted
        return codes.sub("", before).replace("\r\n", "\n")

    def ask(self, line: str) -> str:
        """Types a line at the prompt; returns what is printed until the next prompt."""
        self.type(f"{line}\n")
        self.read_to(f"{line}\r\n")  # the echo
        return self.read_to("> ")


@contextlib.contextmanager
def terminal(arguments: list[str], folder: pathlib.Path) -> Iterator[Terminal]:
    one = Terminal(arguments, folder)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        os.close(one.own)


def test_a_conversation_on_a_terminal(run, command, tmp_path) -> None:
    model = lingo.load(run, trust=[str(run.parent / "small.py")])
    alone = model.chat(max_tokens=20, temperature=1.0, seed=3)
    with terminal(command, tmp_path) as screen:
        assert "step 2. /help shows commands, Ctrl-D ends.\n" in screen.read_to("> ")
        for text in ("def f", "x = "):
            assert screen.ask(text) == verb.escape_text(alone.say(text)) + "\n"
        assert "turns in the context: " in screen.ask("/why")
        screen.type("wait\n")
        screen.read_to("tick tick tick ")
        screen.type("\x03")  # Ctrl-C
        assert screen.read_to("> ").strip("tick \n") in ("", "^C")
        assert screen.ask("/why") == "stopped: True\n"
        assert screen.ask("/save turns.jsonl") == ""
        turns = json.loads((tmp_path / "turns.jsonl").read_text())["turns"]
        assert [turn["text"] for turn in turns[:4]] == [turn.text for turn in alone.turns]
        assert (turns[4]["text"], turns[5]["text"][:10]) == ("wait", "tick tick ")
        assert screen.ask("/save turns.jsonl").startswith("turns.jsonl exists: name another file")
        assert screen.ask("/nope") == "there is no command '/nope': /help shows all\n"
        screen.type(
            "half a line\x03\n"
        )  # a signal just before readline waits is seen at its next key
        screen.read_to("> ")
        assert screen.ask("/reset") == ""
        alone.reset()
        assert screen.ask("def f") == verb.escape_text(alone.say("def f")) + "\n"
        screen.type("\x04")  # Ctrl-D
        assert screen.process.wait(TIMEOUT) == 0


def test_sigterm_ends_a_conversation_also_after_an_interrupt(command, tmp_path) -> None:
    with terminal(command, tmp_path) as screen:
        screen.read_to("> ")
        screen.type("wait\n")
        screen.read_to("tick ")
        screen.type("\x03")
        screen.read_to("> ")
        screen.type("wait\n")
        screen.read_to("tick ")
        screen.process.send_signal(signal.SIGTERM)
        assert "stopped by SIGTERM" in screen.read_to("nothing had to be saved")
        assert screen.process.wait(TIMEOUT) == 128 + signal.SIGTERM


def test_an_answer_is_the_text_of_decode(chat, command, capsys) -> None:
    code, out, err = chat(b"def f\n")
    assert (code, err) == (0, "")
    assert main(["decode", *command[1:], "--prompt=def f", "--continuation_only"]) == 0
    assert capsys.readouterr().out == out


def test_commands_work_without_a_terminal(chat) -> None:
    lines = b"/why\n\n/tools off\ntools\n/why\n/tools on\ntools\n/why\n/reset\n/why\n/quit\nnever"
    code, out, err = chat(lines)
    why = (
        "tools: {}\ncalls:\n  tool    query  seconds\n  T       a      0.123\n  Longer\n"
        "none:\n  none\n"
    )
    nothing = "there is no answer yet\n"
    expected = "".join([nothing, "\n", why.format("off"), "\n", why.format("on"), nothing])
    assert (code, out, err) == (0, expected, "")
    assert chat(b"/help")[1].splitlines()[0].startswith("/why ")


def test_bytes_that_are_no_text_and_a_last_line_without_an_end_are_answered(chat) -> None:
    code, out, err = chat(b"\xff\xfe\r\nx")
    assert (code, err) == (0, "")
    assert out.count("\n") >= 2
    assert chat(b"") == (0, "", "")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"/nope\n", "there is no command '/nope': /help shows all"),
        (b"/tools maybe\n", "there is no command '/tools maybe'"),
        (b"/save\n", "there is no command '/save'"),
        (b"/save s3://bucket/file\n", "is an address"),
        (b"/save small\n", "small exists: name another file"),
        (
            verb.MAX_LINE_BYTES * b"x" + b"x",
            "a line of the standard input has more than 1,000,000 bytes",
        ),
    ],
    ids=["unknown", "tools", "save", "address", "exists", "long"],
)
def test_a_mistake_in_a_line_is_an_error(chat, tmp_path, monkeypatch, lines, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").write_text("")
    code, out, err = chat(lines)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        ("< /proc/self/mem", "the standard input cannot be read: Input/output error"),
        ("<&-", "the standard input is closed: lingo chat reads turns from it"),
    ],
    ids=["unreadable", "closed"],
)
def test_a_standard_input_that_cannot_be_read_is_an_error(command, stdin, message) -> None:
    words = shlex.join([sys.executable, "-m", "lingo.cli.main", *command])
    done = subprocess.run(f"{words} {stdin}", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--top_p=0"], "top_p=0.0 is not in (0, 1]"),
        (["--tools=maybe"], "--tools=maybe"),
        (["--num_beams=2"], "num_beams"),
    ],
)
def test_a_mistake_is_a_usage_error_before_anything_is_loaded(flags, message, capsys) -> None:
    assert main(["chat", "--run=nowhere", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_text_that_begins_with_a_slash_may_be_said() -> None:
    for line in ("// a comment", "/usr/bin", "/2", "a /why"):
        assert verb._COMMAND.fullmatch(line) is None
    assert verb._explain(Reply("x", {"pairs": [["a", 1], ["b", 2]]}).details) == (
        "pairs:\n  a 1, b 2"
    )
