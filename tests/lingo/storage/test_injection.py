"""Faults on purpose: each does what it says, where it says, and a mistyped one is refused."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.storage import injection
from lingo.storage.injection import InjectedFault


def test_a_fault_happens_at_its_place_and_its_steps_and_nowhere_else(inject):
    inject("  save:raise@4-5\tstep:raise@2 ")
    injection.at("step", 4)
    injection.at("save", 3)
    injection.at("save", 6)
    for step in (4, 5):
        with pytest.raises(InjectedFault, match=f"save at step {step}"):
            injection.at("save", step)
    with pytest.raises(InjectedFault):
        injection.at("step", 2)


def test_batches_are_spoilt_and_the_given_ones_left_alone(inject):
    inject("batch:nan@6 batch:garble@7-9")
    batches = {"weights": np.ones([3, 2], np.float32), "targets": np.ones([3, 2, 4], np.int32)}
    found = injection.poison(range(5, 8), batches)
    assert np.isnan(found["weights"]).all(axis=1).tolist() == [False, True, False]
    assert (found["targets"] == 0).all(axis=(1, 2)).tolist() == [False, False, True]
    assert (batches["weights"] == 1).all()
    assert (batches["targets"] == 1).all()


def test_without_faults_batches_are_the_very_same(inject):
    inject("save:raise@4")
    batches = {"weights": np.ones([3, 2], np.float32)}
    assert injection.poison(range(3), batches) is batches


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("save:kill", "is not place:action@step"),
        ("save:kill@-1", "is not place:action@step"),
        ("safe:kill@1", "there is no place 'safe'"),
        ("save:nan@1", "save takes no 'nan'"),
        ("batch:kill@1", "batch takes no 'kill'"),
        ("save:sleep@1", "write sleep=SECONDS"),
        ("save:kill=3@1", "write kill without a number"),
        ("save:kill@9-7", "there is no step from 9 to 7"),
    ],
)
def test_what_could_not_happen_is_refused(text, said):
    with pytest.raises(ParamError, match=f"LINGO_INJECT: .*{re.escape(said)}"):
        injection._parse(f"step:raise@1 {text}")


def test_a_mistyped_fault_ends_a_training_before_it_begins(tmp_path):
    command = [sys.executable, "-m", "lingo.cli.main", "train", "--exp=lm.source.tiny"]
    done = subprocess.run(
        [*command, f"--logdir={tmp_path / 'run'}"],
        env=os.environ | {injection.VARIABLE: "safe:kill@1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "LINGO_INJECT: 'safe:kill@1': there is no place 'safe'" in done.stderr
    assert not (tmp_path / "run").exists()
