"""Promise 8: one process writes into a directory; others are told who, and readers need no lock."""

import socket


def test_a_second_writer_is_told_who_the_first_is_and_takes_over_when_it_is_killed(runs, reference):
    first = runs.start(*runs.training("run"), inject="step:sleep=600@5")
    runs.reach_sleep(first)
    second = runs.train("run")
    assert second.returncode == 6
    holder = f"run is in use: process {first.pid} on {socket.gethostname()}, since 20"
    assert holder in second.stderr
    assert len(second.stderr.splitlines()) == 1
    first.kill()
    runs.finish(first)
    runs.assert_resumes(reference)


def test_readers_need_no_lock(runs):
    first = runs.start(*runs.training("run"), inject="step:sleep=600@5")
    runs.reach_sleep(first)
    trust = f"--trust={runs.folder / 'small.py'}"
    before = sorted(p.name for p in (runs.folder / "run").iterdir())
    for verb, *flags in (["show"], ["decode", "--prompt=a", "--max_tokens=2"], ["eval"]):
        done = runs.lingo(verb, f"--run={runs.folder / 'run'}", trust, *flags)
        assert done.returncode == 0, done.stderr
    assert set(before) | {"eval_same"} == {p.name for p in (runs.folder / "run").iterdir()}
    first.kill()
    runs.finish(first)
