"""Reading a verb's command line, with a toy verb."""

from __future__ import annotations

import os
import pathlib
import types
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from lingo.cli import command
from lingo.cli.command import MAX_FLAG_FILE_BYTES, UsageError
from lingo.config.options import option, option_class, word


@option_class
class ToyOptions(command.VerbOptions):
    exp: str | None = option("The experiment.", default=None)
    set: Sequence[str] = option("An override.", default=())
    step: int | None = option("Which step.", default=None, minimum=0)
    format: Literal["text", "json"] = option("How to print.", default="text")
    weights: bool = option("Print weights.", default=False)
    dry_run: bool = option("Do nothing.", default=False)
    params_dir: str | None = option("A directory.", default=None)


@option_class
class NameOptions(ToyOptions):
    name: str = word("NAME")


@option_class
class OptionalNameOptions(ToyOptions):
    name: str = word("[NAME]")


def toy(cls: type[ToyOptions] = ToyOptions) -> Any:
    return types.SimpleNamespace(__doc__="Does nothing.", Options=cls, run=None)


def refused(*arguments: str, cls: type[ToyOptions] = ToyOptions) -> str:
    with pytest.raises(UsageError) as caught:
        command.read("toy", toy(cls), arguments)
    return str(caught.value)


def test_a_value_follows_an_equals_sign_or_a_space() -> None:
    for arguments in (["--exp=a=b"], ["--exp", "a=b"]):
        assert command.read("toy", toy(), arguments).exp == "a=b"


def test_repeatable_flags_keep_their_order() -> None:
    read = command.read("toy", toy(), ["--set=b=1", "--exp=x", "--set", "a=2", "--set=b=3"])
    assert read.set == ("b=1", "a=2", "b=3")


def test_dashes_in_the_name_of_a_flag_are_underscores_and_those_of_values_stay() -> None:
    for arguments in (
        ["--dry-run", "--params-dir=a-b/--c-d", "--set=e-f=--g-h"],
        ["--params-dir", "a-b/--c-d", "--set", "e-f=--g-h", "-dry-run"],
        ["--params_dir=a-b/--c-d", "--set=e-f=--g-h", "--dry-run=true"],
    ):
        read = command.read("toy", toy(), arguments)
        assert (read.dry_run, read.params_dir) == (True, "a-b/--c-d")
        assert read.set == ("e-f=--g-h",)
    read = command.read("toy", toy(NameOptions), ["--exp", "--dry-run", "a-b"])
    assert (read.exp, read.dry_run, read.name) == ("--dry-run", False, "a-b")
    assert "'--dry-run' is one word too many" in refused("--", "--dry-run")


def test_two_readings_share_nothing() -> None:
    verb = toy()
    command.read("toy", verb, ["--set=a=1"])
    assert command.read("toy", verb, []).set == ()


def test_a_flag_file_stands_for_its_lines(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "flags.txt"
    file.write_bytes(b"\xef\xbb\xbf# again\r\n--exp=a\n\n  --set=b=1 and more \n--dry-run\n")
    read = command.read("toy", toy(), [f"--flagfile={file}", "--set=c=2"])
    assert (read.exp, read.set, read.dry_run) == ("a", ("b=1 and more", "c=2"), True)


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
    assert "lingo toy NAME [--flags]" in refused(cls=NameOptions)
    assert "'b' is one word too many" in refused("a", "b", cls=NameOptions)
    for arguments in (["a", "--exp=b"], ["--exp=b", "a"]):
        read = command.read("toy", toy(NameOptions), arguments)
        assert (read.name, read.exp) == ("a", "b")
    assert command.read("toy", toy(OptionalNameOptions), []).name == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"--zzz=1\n", "--zzz"),
        (b"--undefok=zzz\n", "--undefok"),
        (b"word\n", "1: 'word' is not a flag: write --name=value"),
        (b"\xff\xfe", "not text: byte 0"),
        (b"#" * (MAX_FLAG_FILE_BYTES + 1), "larger than 1 MiB together"),
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
    read = command.read("toy", toy(), [f"--flagfile={tmp_path / '0'}", "--set=last"])
    assert read.set[:2] == ("end", "1199")
    assert read.set[-2:] == ("0", "last")


def test_a_verb_knows_which_flag_files_there_were(tmp_path: pathlib.Path) -> None:
    inner, outer = tmp_path / "inner.txt", tmp_path / "outer.txt"
    inner.write_text("--exp=a\n")
    outer.write_text(f"--flagfile={inner}\n")
    read = command.read("toy", toy(), ["--flagfile", str(outer), "--set=b=1"])
    assert (read.flagfile, read.exp, read.set) == ((str(outer),), "a", ("b=1",))
    assert command.read("toy", toy(), ["--set=b=1"]).flagfile == ()


def test_a_pipe_is_no_flag_file(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is a named pipe, not a file" in refused(f"--flagfile={tmp_path / 'pipe'}")


def test_help_shows_every_flag_with_its_default() -> None:
    text = command.help_text("toy", toy(OptionalNameOptions))
    assert text.startswith("usage: lingo toy [NAME] [--flags]\n\nDoes nothing.\n")
    parts = ("--format=text|json", "(default: text)", "--set=SET", "(repeatable)", "--weights ")
    assert [part for part in parts if part not in text] == []


def test_options_are_written_as_flags_that_give_them_again() -> None:
    given = ["--set=a=1", "--set=b=--c", "--weights", "--step=0"]
    read = command.read("toy", toy(), [*given, "--format=text"])
    assert command.arguments(read, ["set", "weights", "step", "format", "exp"]) == given
    assert read.flag_names == {"set", "weights", "step", "format"}
