"""flags.txt: what a flag file can hold, and what config.json has to."""

from __future__ import annotations

import json
import pathlib

import pytest

from lingo.trainer.directory.flags_file import flags

RUN = pathlib.Path("/runs/one")
CONFIG = json.dumps({"files": {"mine.py": {"path": "/a/mine.py", "sha256": ""}}})


def test_what_was_asked_for_comes_first() -> None:
    found = flags(RUN, CONFIG, exp="a(b=1)", overrides=["b='c d'"], carried_out=["--devices=2"])
    assert found == "--exp=a(b=1)\n--logdir=/runs/one\n--set=b='c d'\n--devices=2\n"


def test_without_that_the_run_goes_on_from_its_own_configuration() -> None:
    found = flags(RUN, CONFIG, carried_out=["--devices=2"])
    assert found == "--run=/runs/one\n--trust=/a/mine.py\n--devices=2\n"


@pytest.mark.parametrize("odd", ["a\nb", "a\rb", "a\u2028b", " a", "a ", "\udcff", "a\x0cb"])
def test_so_it_does_where_a_flag_file_would_change_what_was_asked(odd: str) -> None:
    found = flags(RUN, CONFIG, exp="a", overrides=[f"name={odd}"])
    kept = odd == " a"  # behind an equals sign
    assert found.startswith("--exp=a\n" if kept else "--run=/runs/one\n--trust=/a/mine.py\n")
    assert found.encode()
