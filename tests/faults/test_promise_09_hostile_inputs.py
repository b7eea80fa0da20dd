"""Promise 9: a hostile file of any kind is told in a line, with its code, and costs little.

Each kind has a sound file and a table of hostile ones. A process of its own reads each file. A
hostile file may cost a gigabyte and ten seconds more than the sound one.
"""

from __future__ import annotations

import collections
import json
import math
import pathlib
import subprocess
from typing import NamedTuple

import pytest

from tests.faults import hostile_inputs
from tests.faults.hostile_inputs import KINDS
from tests.fork_server import Fork

MOST_SECONDS, MOST_MEGABYTES = 10, 1024
BACKSTOP_SECONDS = 60
MEASURED = pathlib.Path(__file__).with_name("measured.py")
FEWEST_INPUTS = 220


class Outcome(NamedTuple):
    """How the command on an input ended; code None if it did not end itself."""

    code: int | None
    seconds: float
    megabytes: float
    out: str
    error: str


class Reader:
    """Reads inputs of a kind in processes of their own."""

    def __init__(self, kind, folder, address):
        self.kind, self.folder, self.address = KINDS[kind], folder, address
        self.outcomes = []
        self.sound = self.read(None)

    def read(self, name):
        """Returns the outcome of a hostile input, or of the sound one."""
        place = self.folder / f"{len(list(self.folder.iterdir()))}"
        hostile_inputs.write(self.kind, name, place)
        taken = place / "taken.json"
        command = (str(MEASURED), str(taken), *self.kind.command)
        environment = {"XDG_CACHE_HOME": f"{place}/cache", "XDG_CONFIG_HOME": f"{place}/config"}
        process = Fork(self.address, command, str(place), environment)
        try:
            out, error = process.communicate(timeout=BACKSTOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
        values = json.loads(taken.read_text()) if taken.exists() else {}
        seconds, megabytes = (values.get(key, math.nan) for key in ("seconds", "megabytes"))
        return Outcome(values.get("code"), seconds, megabytes, out, error)

    def figures(self):
        """Returns the exit codes, and the most that a hostile input took beyond the sound one."""
        codes = collections.Counter(done.code for done in self.outcomes)
        seconds = max(done.seconds for done in self.outcomes) - self.sound.seconds
        megabytes = max(done.megabytes for done in self.outcomes) - self.sound.megabytes
        return f"{len(self.outcomes)} inputs, {dict(codes)}, {seconds:.1f} s, {megabytes:.0f} MB"

    def faults(self, name):
        """Returns what is wrong with how a hostile input is read; "" if nothing is."""
        done = self.read(name)
        self.outcomes.append(done)
        file = pathlib.Path(self.kind.file).stem
        is_result = done.code in (0, 1) and "lingo " not in done.error  # of `lingo benchmark`
        codes = {*self.kind.codes} | ({0} if name in self.kind.harmless else set())
        lines = [line for line in done.error.splitlines() if line.startswith("lingo ")]
        found = {
            f"ended with {done.code}, not {sorted(codes)}": done.code not in codes,
            "a traceback": "Traceback" in done.error,
            "unexpected": "unexpected" in done.error,
            "the file is not named": done.code != 0 and file not in done.error + done.out,
            "no reason": done.code == 1 and "not valid: " not in done.out,
            f"{len(lines)} messages": not is_result and len(lines) != 1,
            f"{done.seconds:.1f} s": not done.seconds - self.sound.seconds < MOST_SECONDS,
            f"{done.megabytes:.0f} MB": not done.megabytes - self.sound.megabytes < MOST_MEGABYTES,
        }
        wrong = ", ".join(text for text, is_wrong in found.items() if is_wrong)
        return f"{name}: {wrong}\n    {done.error[-500:]}" if wrong else ""


def test_there_are_hostile_inputs_of_all_kinds():
    assert sum(len(kind.inputs) for kind in KINDS.values()) >= FEWEST_INPUTS
    assert min(len(kind.inputs) for kind in KINDS.values()) >= 25


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_input_is_refused_by_name_at_little_cost(kind, tmp_path, address):
    reader = Reader(kind, tmp_path, address)
    assert reader.sound.code == 0, reader.sound.error
    faults = list(filter(None, map(reader.faults, reader.kind.inputs)))
    print(reader.figures())
    assert not faults, "\n".join([f"{len(faults)} of {len(reader.kind.inputs)}:", *faults])
