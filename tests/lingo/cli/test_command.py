"""Reading a verb's command line, with a toy verb."""

from __future__ import annotations

import os
import pathlib
import types
from typing import Any

import pytest

from lingo.cli import command
from lingo.cli.command import MAX_FLAG_FILE_BYTES, UsageError


def toy(word: str = "") -> Any:
    def define(values: Any) -> None:
        command.string("exp", "The experiment.", values)
        command.strings("set", "An override.", values)
        command.integer("step", "Which step.", values, lower_bound=0)
        command.choice("format", ("text", "json"), "How to print.", values)
        command.boolean("weights", "Print weights.", values)
        command.boolean("dry_run", "Do nothing.", values)
        command.string("params_dir", "A directory.", values)

    return types.SimpleNamespace(__doc__="Does nothing.", WORD=word, define=define, run=None)


def refused(*arguments: str, word: str = "") -> str:
    with pytest.raises(UsageError) as caught:
        command.read("toy", toy(word), arguments)
    return str(caught.value)


def test_a_value_follows_an_equals_sign_or_a_space() -> None:
    for arguments in (["--exp=a=b"], ["--exp", "a=b"]):
        values, word = command.read("toy", toy(), arguments)
        assert (values.exp, word) == ("a=b", "")


def test_repeatable_flags_keep_their_order() -> None:
    values, _ = command.read("toy", toy(), ["--set=b=1", "--exp=x", "--set", "a=2", "--set=b=3"])
    assert values.set == ["b=1", "a=2", "b=3"]


def test_dashes_in_the_name_of_a_flag_are_underscores_and_those_of_values_stay() -> None:
    for arguments in (
        ["--dry-run", "--params-dir=a-b/--c-d", "--set=e-f=--g-h"],
        ["--params-dir", "a-b/--c-d", "--set", "e-f=--g-h", "-dry-run"],
        ["--params_dir=a-b/--c-d", "--set=e-f=--g-h", "--dry-run=true"],
    ):
        values, _ = command.read("toy", toy(), arguments)
        assert (values.dry_run, values.params_dir) == (True, "a-b/--c-d")
        assert values.set == ["e-f=--g-h"]
    values, word = command.read("toy", toy("WORD"), ["--exp", "--dry-run", "a-b"])
    assert (values.exp, values.dry_run, word) == ("--dry-run", False, "a-b")
    assert "'--dry-run' is one word too many" in refused("--", "--dry-run")


def test_two_readings_share_nothing() -> None:
    verb = toy()
    command.read("toy", verb, ["--set=a=1"])
    assert command.read("toy", verb, [])[0].set == []


def test_a_flag_file_stands_for_its_lines(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "flags.txt"
    file.write_bytes(b"\xef\xbb\xbf# again\r\n--exp=a\n\n  --set=b=1 and more \n--dry-run\n")
    values, _ = command.read("toy", toy(), [f"--flagfile={file}", "--set=c=2"])
    assert (values.exp, values.set, values.dry_run) == ("a", ["b=1 and more", "c=2"], True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ste=1"], "Did you mean --step or --set?"),
        (["--dry-rum"], "Did you mean --dry_run?"),
        (["--dry-run", "--dry_run"], "already defined"),
        (["--zzz"], "there is no flag --zzz.\nFlags: --dry_run, --exp,"),
        (["--exp=a", "--exp=b"], "--exp=b: already defined as a"),
        (["--weights", "--noweights"], "already defined"),
        (["--exp"], "Missing value for flag --exp"),
        (["--step=many"], "--step=many"),
        (["--step=-1"], "non-negative"),
        (["--format=xml"], "<text|json>"),
        (["--weights=perhaps"], "--weights=perhaps: write true or false"),
        (["--noweights=1"], "--noweights=1 does not take an argument"),
        (["--EXP=a"], "Did you mean --exp"),
        (["\N{EM DASH}exp=a"], "Did you mean --exp=a?"),
        (["\N{EN DASH}max_steps=3"], "Did you mean --set=max_steps=3?"),
        ([f"--{'x' * 100_000}=1"], "there is no flag"),
        (["--undefok=zzz", "--zzz=1"], "--undefok=zzz would hide"),
        (["max_steps=3"], "Did you mean --set=max_steps=3?"),
        (["--", "--exp=a"], "'--exp=a' is one word too many"),
        (["--flagfile=/nowhere/flags.txt"], "/nowhere/flags.txt"),
        (["--exp="], "--exp has no value"),
        (["--set=a=1", "--set="], "--set has no value"),
    ],
)
def test_what_a_verb_does_not_take_is_refused(arguments: list[str], said: str) -> None:
    message = refused(*arguments)
    assert said in message
    assert len(message.splitlines()) <= 3


def test_a_verb_takes_its_word_before_or_after_flags_and_no_second_one() -> None:
    assert "lingo toy NAME [--flags]" in refused(word="NAME")
    assert "'b' is one word too many" in refused("a", "b", word="NAME")
    for arguments in (["a", "--exp=b"], ["--exp=b", "a"]):
        values, word = command.read("toy", toy("NAME"), arguments)
        assert (word, values.exp) == ("a", "b")
    assert command.read("toy", toy("[NAME]"), [])[1] == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"--zzz=1\n", "--zzz"),
        (b"--undefok=zzz\n", "--undefok"),
        (b"word\n", "1: 'word' is not a flag: write --name=value"),
        (b"\xff\xfe", "not text: byte 0"),
        (b"#" * (MAX_FLAG_FILE_BYTES + 1), "larger than 1 MiB in all"),
        (b"--flagfile={file}\n", "itself"),
        (b"--exp\na\n", ":2: 'a' is not a flag"),
        (b"--flagfile=/nowhere\n", "/nowhere cannot be read: No such file"),
        (b"--flagfile=/tmp\n", "Is a directory"),
        (b"--set", "Missing value"),
    ],
)
def test_a_flag_file_is_read_as_strictly(tmp_path: pathlib.Path, content: bytes, said: str) -> None:
    file = tmp_path / "flags.txt"
    file.write_bytes(content.replace(b"{file}", str(file).encode()))
    assert said in refused(f"--flagfile={file}")


def test_a_long_chain_of_flag_files_is_read(tmp_path: pathlib.Path) -> None:
    for i in range(1200):
        (tmp_path / f"{i}").write_text(f"--flagfile={tmp_path / str(i + 1)}\n--set={i}\n")
    (tmp_path / "1200").write_text("--set=end\n")
    values, _ = command.read("toy", toy(), [f"--flagfile={tmp_path / '0'}", "--set=last"])
    assert values.set[:2] == ["end", "1199"]
    assert values.set[-2:] == ["0", "last"]


def test_a_verb_knows_which_flag_files_there_were(tmp_path: pathlib.Path) -> None:
    inner, outer = tmp_path / "inner.txt", tmp_path / "outer.txt"
    inner.write_text("--exp=a\n")
    outer.write_text(f"--flagfile={inner}\n")
    values, _ = command.read("toy", toy(), ["--flagfile", str(outer), "--set=b=1"])
    assert (values.flagfile, values.exp, values.set) == ([str(outer)], "a", ["b=1"])
    assert command.read("toy", toy(), ["--set=b=1"])[0].flagfile == []


def test_a_pipe_is_no_flag_file(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is a named pipe, not a file" in refused(f"--flagfile={tmp_path / 'pipe'}")


def test_help_shows_every_flag_with_its_default() -> None:
    text = command.help_text("toy", toy("[NAME]"))
    assert text.startswith("usage: lingo toy [NAME] [--flags]\n\nDoes nothing.\n")
    parts = ("--format=text|json", "(default: text)", "--set=SET", "(repeatable)", "--weights ")
    assert [part for part in parts if part not in text] == []
