"""Promise 2: a resume is exact at any step: losses, weights, examples and their order."""

import signal

import pytest


def audited(runs, name):
    return (runs.folder / name / "audit.jsonl").read_text()


def test_a_run_stopped_between_saves_goes_on_to_the_last_bit(runs, reference):
    stopped = runs.train("run", "--audit", inject="report:term@4")
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    assert runs.checkpoints("run")[-1] == 4
    resumed = runs.assert_resumes(reference, "--audit")
    assert "last bits" not in resumed.stdout
    assert audited(runs, "run") == audited(reference, "whole")
    assert "--audit" in (runs.folder / "run/flags.txt").read_text().splitlines()


def test_another_number_of_threads_is_a_warning(runs):
    few = ("--set=max_steps=2", "--set=eval_inputs={}")
    assert runs.train("run", *few, TF_ENABLE_ONEDNN_OPTS="1").returncode == 0
    more = ("--set=max_steps=3", "--set=eval_inputs={}")
    resumed = runs.train("run", *more, TF_ENABLE_ONEDNN_OPTS="0")
    assert resumed.returncode == 0, resumed.stderr
    assert "last bits of results may change: numerics.onednn: 1 -> 0" in resumed.stdout


@pytest.mark.parametrize(
    "flags",
    [
        ("steps_per_loop=4",),
        ("accumulation_steps=2", "Stack=Repeat(num_layers=2)", "runtime=Local(xla=True)"),
    ],
    ids=" ".join,
)
def test_so_it_does_however_steps_are_computed(runs, flags):
    known = ("--audit", "--set=checkpoint.every_steps=7", *(f"--set={flag}" for flag in flags))
    assert runs.train("whole", *known).returncode == 0
    assert runs.train("run", *known, inject="report:term@2").returncode == 128 + signal.SIGTERM
    assert runs.checkpoints("run")[-1] in (2, 4)
    assert runs.train("run", *known, inject="report:kill@9").returncode == -signal.SIGKILL
    resumed = runs.train("run", *known)
    assert resumed.returncode == 0, resumed.stderr
    assert audited(runs, "run") == audited(runs, "whole")
    assert runs.digests("run") == runs.digests("whole")
