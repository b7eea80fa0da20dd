"""Completion on a command line, as bash asks for it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from lingo.cli.main import VERBS
from lingo.cli.verbs.completion import script

ASK = """
COMP_LINE="$1" COMP_POINT=${#1} COMP_WORDS=($1)
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_lingo
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(typed: str, folder: pathlib.Path) -> list[str]:
    """Returns what bash offers for the end of a command line; experiments are those of a stub."""
    stub = folder / "lingo"
    stub.write_text("#!/bin/sh\necho image.lenet.digits\necho lm.source.tiny\n")
    stub.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script() + ASK, "bash", typed],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("lingo ", [*VERBS]),
        ("lingo desc", ["describe"]),
        ("lingo train --ex", ["--exp="]),
        ("lingo train --exp=lm", ["lm.source.tiny"]),
        ("lingo train --exp=none", []),
        ("lingo show --sor", ["--sort=path", "--sort=size"]),
        ("lingo show --sort=s", ["size"]),
        ("lingo show --weig", ["--weights"]),
        ("lingo show --pipeline", ["--pipeline", "--pipeline=schedule", "--pipeline=simulation"]),
        ("lingo describe image.", ["image.lenet.digits"]),
        ("lingo nothing --", []),
    ],
)
def test_verbs_flags_choices_and_experiments_are_offered(
    typed: str, expected: list[str], tmp_path: pathlib.Path
) -> None:
    assert complete(typed, tmp_path) == expected


def test_nothing_slow_is_imported_for_it() -> None:
    code = (
        "import sys; from lingo.cli.main import main; main(['completion']);"
        " sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
