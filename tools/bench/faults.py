"""The cost of reliability: guard, audit log, saving, verifying, uploading, relative to a step.

A step without them applies its update unconditionally, looks at no number, and records nothing.
Steps with and without take turns. The time to save or to verify is divided by the time of a step
right before it, in the same process; the time of an upload by the mean of the steps around it.

Runs in directories do nothing for uploads. To compare them with an earlier version's runs, start
the benchmark in a checkout of each version, on a machine that does nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lingo
from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import open_checkpoint
from lingo.checkpoints.manifest import MANIFEST, is_whole, seal_file, write_manifest
from lingo.checkpoints.run_counters import RunCounters
from lingo.checkpoints.store import Retention
from lingo.checkpoints.writer import Writer
from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.learner import finite, step
from lingo.learner import update as parts
from lingo.learner.placement import Placement
from lingo.learner.state import Learner, TrainState, initial_state, named_tensors
from lingo.optim.optimizer import global_norm
from lingo.runtimes.program import Program
from lingo.storage.bucket.mirror import Kept, Mirror
from lingo.trainer.directory.audit import AUDIT, Audit
from lingo.trainer.guard.guard import Incidents
from lingo.trainer.step_recorder import StepRecorder
from tools.harness import Report, Turns, at_most, choose, measure, spread

EXPERIMENT = choose("lm.source.small", small="lm.source.tiny(model_dim=16, num_layers=1)")
ROUNDS = choose(12, small=1)
SAVES = choose(5, small=1)


def plain_update(
    learner: Learner, state: TrainState, sums: Mapping[str, Any], place: Placement
) -> tuple[TrainState, dict[str, Any]]:
    """Does what `step.update` does to finite numbers; others pass, too."""
    weights = learner.weights()
    gradients = parts._zero_frozen(learner, sums["gradients"], place)
    grad_norm = global_norm(weights, gradients)
    clipped = learner.optimizer.clip(weights, gradients, grad_norm)
    rates = learner.optimizer.rates(state.step)
    moved = parts._apply_gradients(
        learner, weights, state.weights, state, clipped, rates, place, tables={}
    )
    new = parts._average_statistics(learner, state, moved, sums["batch_statistics"], place)
    after = TrainState(state.step + 1, *new)
    scalars = {f"loss/{term}": value for term, value in sums["losses"].items()}
    scalars[finite.GRAD_NORM] = grad_norm
    scalars |= {f"learner/{tag}": rate for tag, rate in rates.items()}
    return after, {
        "scalars": scalars,
        "metric_states": sums["metrics"],
        "statistics": {},
        "first_non_finite": tf.constant(-1),
        "num_quantities": tf.constant(0),
    }


class Work(NamedTuple):
    """An experiment with its data open and its program started."""

    experiment: Experiment
    program: Program

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Returns a batch, [B, ...] arrays."""
        return dict(self.experiment.train_input.batch(number))

    def train(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Does a step, and returns its report."""
        report = self.program.train({name: array[None] for name, array in batch.items()})
        return tf.nest.map_structure(lambda values: values[0], report)


def start_work(name: str, *overrides: str) -> Work:
    """Returns an experiment ready for its first step."""
    experiment: Experiment = lingo.get(name, *overrides).build()
    experiment.train_input.prepare()
    return Work(
        experiment, experiment.runtime.start(experiment.learner, initial_state(experiment.learner))
    )


# ---- guard and audit log -------------------------------------------------------------------------


def guarded_steps(turns: Turns, *, name: str, overrides: tuple[str, ...], audited: bool) -> None:
    """A turn is a step as a run does it: it checks and counts numbers, and writes its row."""
    work = start_work(name, *overrides)
    with tempfile.TemporaryDirectory() as folder:
        recorder = StepRecorder(
            work.experiment,
            RunCounters(),
            incidents=Incidents(Path(folder, "dump"), report=print),
            audit=Audit(Path(folder, AUDIT)) if audited else None,
        )
        while True:
            batch = work.batch(recorder.counters.step)
            with turns.turn():
                recorder.add(batch, work.train(batch))
                recorder.write()
                recorder.anomaly()


def plain_steps(turns: Turns, *, name: str, overrides: tuple[str, ...]) -> None:
    """A turn is a step that trusts every number."""
    step.update = plain_update
    work, number = start_work(name, *overrides), 0
    while True:
        batch, number = work.batch(number), number + 1
        with turns.turn():
            float(work.train(batch)["scalars"]["loss/total"])


def compare_guard(name: str, report: Report) -> float:
    """Compares steps with guard and audit log; returns the median ratio with both."""
    some = {"name": name, "overrides": ()}
    rivals = {
        "neither": functools.partial(plain_steps, **some),
        "guard": functools.partial(guarded_steps, **some, audited=False),
        "guard and audit log": functools.partial(guarded_steps, **some, audited=True),
    }
    costs = measure(rivals, num=ROUNDS).rounds
    report.table("ratio", "of processor seconds")
    report.ratio("guard / neither", costs["guard"], costs["neither"], at_most(1.02))
    name, both = "guard and audit log / neither", costs["guard and audit log"]
    return report.ratio(name, both, costs["neither"], at_most(1.02)).median


# ---- saving and verifying ------------------------------------------------------------------------


def seconds(work: Callable[[], Any]) -> float:
    """Returns how long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Saves(NamedTuple):
    """The times of one save, in seconds."""

    step: float  # a step right before it
    copy: float  # of the state to the host
    stall: float  # how much longer the training thread waits, in an asynchronous save
    step_during_save: float  # a step while the checkpoint is written
    whole: float  # a synchronous save, copy included
    manifest: float  # digests of all files, their way to the disk, and the manifest
    verify: float  # to read and compare all of it


def measure_saves(work: Work, folder: Path, *, num: int) -> Iterator[Saves]:
    """Yields the times of some saves; those of the first, which compiles, are left out."""
    learner, batch = work.experiment.learner, work.batch(0)
    with contextlib.ExitStack() as stack:
        later, at_once = (
            stack.enter_context(Writer(folder, asynchronous=is_later, on_commit=lambda step: None))
            for is_later in (True, False)
        )

        def save(writer: Writer, number: int) -> float:
            return seconds(
                lambda: writer.save(
                    number,
                    named_tensors(learner, work.program.state()),
                    metadata={},
                    retention=Retention(2),
                )
            )

        def train() -> float:
            return seconds(lambda: float(work.train(batch)["scalars"]["loss/total"]))

        for number in range(1, 2 * num + 3, 2):
            alone, copy = train(), seconds(work.program.state)
            stall, during = save(later, number), train()
            later.wait()
            whole = save(at_once, number + 1)
            path = store.step_path(folder, number + 1)
            manifest = seconds(functools.partial(rewrite_manifest, path, folder / "again"))
            verify = seconds(open_checkpoint(path).verify)
            if number > 1:
                yield Saves(alone, copy, stall - copy, during, whole, manifest, verify)


def rewrite_manifest(path: Path, place: Path) -> None:
    """Makes the manifest of a checkpoint once more, for a copy of it."""
    checkpoint = open_checkpoint(path)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for file in path.iterdir():
        if file.name != MANIFEST:
            os.link(file, place / file.name)
    tensors = checkpoint.manifest["tensors"]
    files = {file.name: seal_file(file) for file in place.iterdir()}
    write_manifest(place, step=checkpoint.step, metadata={}, tensors=tensors, files=files)


def compare_saving(name: str, report: Report) -> float:
    """Compares saving and verifying with a step; returns the manifest's median part of a step."""
    work = start_work(name)
    every = work.experiment.p.checkpoint.every_steps
    with tempfile.TemporaryDirectory() as folder:
        times = list(measure_saves(work, Path(folder), num=SAVES))
        size = sum(file.stat().st_size for file in next(Path(folder).glob("step_*")).iterdir())
    manifest = spread([s.manifest / s.step / every for s in times])
    for title, part, wanted in (
        ("copy to the host / step", lambda s: s.copy / s.step, None),
        ("asynchronous save, rest / step", lambda s: s.stall / s.step, at_most(0.05)),
        ("step during a save / step", lambda s: s.step_during_save / s.step, None),
        ("synchronous save / step", lambda s: s.whole / s.step, None),
        ("verify, seconds per GB", lambda s: s.verify / size * 1e9, None),
    ):
        report.line(title, spread(list(map(part, times))), wanted)
    report.line(f"manifest / {every} steps", manifest)
    return manifest.median


def add_up(guard: float, manifest: float, report: Report) -> None:
    """Reports what a step costs with all of reliability: the sum of two medians."""
    name = "guard, manifest and audit log / step"
    report.line(name, guard + manifest, at_most(1.02), note="sum of their medians")


# ---- uploads -------------------------------------------------------------------------------------


class Uploads(NamedTuple):
    """The times around one upload of a checkpoint, in seconds."""

    step: float  # the mean of a step right before it and one right after it
    begin: float  # how long the training thread waits until the upload's thread has begun
    step_during_upload: float  # a step while that thread reads, hashes and sends
    alone: float  # an upload while the training thread waits


def measure_uploads(work: Work, mirror: Mirror, *, num: int) -> Iterator[Uploads]:
    """Yields the times around some uploads, without the first, which imports modules.

    A bucket in memory takes bytes at once, so an upload is shorter than one over a network. It does
    the same work on this machine otherwise: to read, hash and copy all bytes of a checkpoint.
    """
    batch, learner = work.batch(0), work.experiment.learner

    def train() -> float:
        return seconds(lambda: float(work.train(batch)["scalars"]["loss/total"]))

    def save(number: int) -> None:
        tensors = named_tensors(learner, work.program.state())
        store.save(mirror.folder / "checkpoints", step=number, tensors=tensors, metadata={})

    def upload() -> None:
        mirror.upload()
        mirror.wait()

    for number in range(0, 2 * num + 2, 2):
        save(number)
        before, begin, during = train(), seconds(mirror.upload), train()
        mirror.wait()
        step = (before + train()) / 2
        save(number + 1)
        alone = seconds(upload)
        if number:
            yield Uploads(step, begin, during, alone)


def compare_uploads(name: str, report: Report) -> None:
    """Compares steps of a run with those while it is uploaded, to a bucket in memory."""
    work = start_work(name)
    with tempfile.TemporaryDirectory() as folder:
        mirror = Mirror(Path(folder), "memory://bench/run", check=is_whole)
        mirror.open()
        mirror.kept = Kept(2)
        times = list(measure_uploads(work, mirror, num=SAVES))
        mirror.close(is_sound=True)
    begin = spread([u.begin / u.step for u in times])
    report.line("begin of an upload / step", begin, at_most(0.05))
    report.line("upload by itself / step", spread([u.alone / u.step for u in times]))
    during = spread([u.step_during_upload / u.step for u in times])
    report.line("step during an upload / step", during)


# ---- the index -----------------------------------------------------------------------------------


def time_index(name: str, report: Report) -> None:
    """Reports how long it takes to open the data once its index exists."""
    start_work(name)
    times = [seconds(lingo.get(name).build().train_input.prepare) for _ in range(SAVES)]
    report.line("opening the data, seconds", spread(times))


def run(report: Report) -> None:
    """Compares everything."""
    guard = compare_guard(EXPERIMENT, report)
    add_up(guard, compare_saving(EXPERIMENT, report), report)
    compare_uploads(EXPERIMENT, report)
    time_index(EXPERIMENT, report)
