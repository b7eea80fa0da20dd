"""What reliability costs: guard, audit log, saving, verifying, as parts of a step of `small`.

Without means: the update is applied as it comes, without looking at a number and without a branch,
and nothing is noted of the step. Steps with and without take turns (`tools/turns.py`); of saving
and verifying each time is divided by that of a step done right before it, in the same process.
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
from lingo.checkpoints.manifest import MANIFEST, sealed, write_manifest
from lingo.checkpoints.position import Position
from lingo.checkpoints.writer import Policy, Writer
from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.learner import finite, step
from lingo.learner.placement import Placement
from lingo.learner.state import Learner, TrainState, initial_state, named
from lingo.optim.optimizer import global_norm
from lingo.runtimes.runtime import Program
from lingo.trainer.directory.audit import AUDIT, Audit
from lingo.trainer.guard.incidents import Incidents
from lingo.trainer.journal import Journal
from tools.bench.lm import ratios, report_ratio
from tools.bounds import Bounds, at_most
from tools.turns import Turns, measure, spread

EXPERIMENT = "lm.source.small"
ROUNDS = 12
SAVES = 5


def plain_update(
    learner: Learner, state: TrainState, sums: Mapping[str, Any], place: Placement
) -> tuple[TrainState, dict[str, Any]]:
    """Does what `step.update` does to numbers that are finite; others it lets pass."""
    gradients = step._trained(learner, sums["gradients"], place)
    grad_norm = global_norm(gradients)
    clipped = learner.optimizer.clipped(learner.weights(), gradients, grad_norm)
    rates = learner.optimizer.rates(state.step)
    new = step._applied(learner, state, clipped, sums["moments"], rates, place)
    after = TrainState(state.step + 1, *new)
    scalars = {f"loss/{term}": value for term, value in sums["losses"].items()}
    scalars[finite.GRAD_NORM] = grad_norm
    scalars |= {f"learner/{tag}": rate for tag, rate in rates.items()}
    return after, {"scalars": scalars, "states": sums["metrics"]}


class Work(NamedTuple):
    """An experiment with its data open, and its learner at work."""

    experiment: Experiment
    program: Program

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Returns a batch, [B, ...] arrays."""
        return dict(self.experiment.train_input.batch(number))

    def train(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Does a step, and returns its report."""
        report = self.program.train({name: array[None] for name, array in batch.items()})
        return tf.nest.map_structure(lambda values: values[0], report)


def at_work(name: str, *overrides: str) -> Work:
    """Returns an experiment ready for its first step."""
    experiment: Experiment = lingo.get(name, *overrides).build()
    experiment.train_input.prepare()
    return Work(
        experiment, experiment.mesh.start(experiment.learner, initial_state(experiment.learner))
    )


# ---- guard and audit log -------------------------------------------------------------------------


def guarded_steps(turns: Turns, *, name: str, overrides: tuple[str, ...], audited: bool) -> None:
    """A turn is a step as a run does it: its numbers looked at, counted, and its row written."""
    work = at_work(name, *overrides)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(
            work.experiment,
            Position(),
            incidents=Incidents(Path(folder, "dump"), say=print),
            audit=Audit(Path(folder, AUDIT)) if audited else None,
        )
        while True:
            batch = work.batch(journal.at.step)
            with turns.turn():
                journal.add(batch, work.train(batch))
                journal.write()
                journal.trouble()


def plain_steps(turns: Turns, *, name: str, overrides: tuple[str, ...]) -> None:
    """A turn is a step that trusts every number."""
    step.update = plain_update
    work, number = at_work(name, *overrides), 0
    while True:
        batch, number = work.batch(number), number + 1
        with turns.turn():
            float(work.train(batch)["scalars"]["loss/total"])


def report_guard(name: str, overrides: tuple[str, ...], bounds: Bounds, *, rounds: int) -> float:
    """Prints what guard and audit log add to a step; returns the median ratio with both."""
    some = {"name": name, "overrides": overrides}
    rivals = {
        "guard and audit log": functools.partial(guarded_steps, **some, audited=True),
        "guard": functools.partial(guarded_steps, **some, audited=False),
        "neither": functools.partial(plain_steps, **some),
    }
    costs = measure(rivals, num=rounds).rounds
    for ours in ("guard and audit log", "guard"):
        report_ratio(f"{ours} / neither", costs[ours], costs["neither"], bounds, at_most(1.02))
    return ratios(costs["guard and audit log"], costs["neither"]).median


# ---- saving and verifying ------------------------------------------------------------------------


def seconds(work: Callable[[], Any]) -> float:
    """Returns how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Saves(NamedTuple):
    """Of one save, in seconds.

    Attributes:
        step: a step right before it.
        copy: of the state to the host.
        stall: how much longer the training thread is held up, asynchronously.
        beside: a step while the checkpoint is written.
        whole: a save that is not asynchronous, copy included.
        manifest: digests of all files, their way to the disk, and the manifest.
        verify: reading and comparing all of it.
    """

    step: float
    copy: float
    stall: float
    beside: float
    whole: float
    manifest: float
    verify: float


def saves(work: Work, folder: Path, *, num: int) -> Iterator[Saves]:
    """Yields the times of some saves; those of the first, which compiles, are left out."""
    learner, batch = work.experiment.learner, work.batch(0)
    policies = (Policy(True, 2, None), Policy(False, 2, None))
    with contextlib.ExitStack() as stack:
        later, at_once = (
            stack.enter_context(Writer(folder, policy, committed=lambda step: None))
            for policy in policies
        )

        def save(writer: Writer, number: int) -> float:
            return seconds(
                lambda: writer.save(number, named(learner, work.program.state()), metadata={})
            )

        def train() -> float:
            return seconds(lambda: float(work.train(batch)["scalars"]["loss/total"]))

        for number in range(1, 2 * num + 3, 2):
            alone, copy = train(), seconds(work.program.state)
            held, beside = save(later, number), train()
            later.wait()
            whole = save(at_once, number + 1)
            path = store.step_path(folder, number + 1)
            manifest = seconds(functools.partial(rewrite_manifest, path, folder / "again"))
            verify = seconds(open_checkpoint(path).verify)
            if number > 1:
                yield Saves(alone, copy, held - copy, beside, whole, manifest, verify)


def rewrite_manifest(path: Path, place: Path) -> None:
    """Makes the manifest of a checkpoint once more, for a copy of it."""
    found = open_checkpoint(path)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(place)
    place.mkdir()
    for file in path.iterdir():
        if file.name != MANIFEST:
            os.link(file, place / file.name)
    tensors, files = (
        found.manifest["tensors"],
        {file.name: sealed(file) for file in place.iterdir()},
    )
    write_manifest(place, step=found.step, metadata={}, tensors=tensors, files=files)


def report_saving(name: str, overrides: tuple[str, ...], bounds: Bounds, *, num: int) -> float:
    """Prints what saving and verifying cost, as parts of a step.

    Returns:
        The manifest's median part, one for all steps from a save to the next.
    """
    work = at_work(name, *overrides)
    every = work.experiment.p.checkpoint.every_steps
    with tempfile.TemporaryDirectory() as folder:
        found = list(saves(work, Path(folder), num=num))
        size = sum(file.stat().st_size for file in next(Path(folder).glob("step_*")).iterdir())
    for title, part, wanted in (
        ("copy to the host / step", lambda s: s.copy / s.step, None),
        ("asynchronous save, rest / step", lambda s: s.stall / s.step, at_most(0.05)),
        ("step beside a save / step", lambda s: s.beside / s.step, None),
        ("save at once / step", lambda s: s.whole / s.step, None),
        (f"manifest / {every} steps", lambda s: s.manifest / s.step / every, None),
        ("verify, seconds a GB", lambda s: s.verify / size * 1e9, None),
    ):
        times = spread(list(map(part, found)))
        print(f"{title:32}{times}   {'':20}   {wanted or ''}", flush=True)
        bounds.hold(title, times.median, wanted)
    return spread([s.manifest / s.step / every for s in found]).median


def report_together(guarded: float, manifest: float, bounds: Bounds) -> None:
    """Prints what a step costs with all that is there for reliability's sake.

    They are measured one after the other, so this is the sum of two medians.

    Args:
        guarded: a step with guard and audit log, by one with neither.
        manifest: its part of writing a manifest, by a step.
        bounds: what is wanted.
    """
    said, found, wanted = "guard, manifest and audit log / step", guarded + manifest, at_most(1.02)
    print(f"{said}, the sum of their medians: {found:.3f}, wanted {wanted}", flush=True)
    bounds.hold(said, found, wanted)


# ---- the index -----------------------------------------------------------------------------------


def report_index(name: str) -> None:
    """Prints how long it takes to open the data once its index is there."""
    at_work(name)
    times = [seconds(lingo.get(name).build().train_input.prepare) for _ in range(SAVES)]
    print(f"{'opening the data, seconds':32}{spread(times)}")


def main(name: str = EXPERIMENT, *overrides: str, rounds: int = ROUNDS, num: int = SAVES) -> int:
    """Prints everything; returns the exit code."""
    bounds = Bounds()
    print(f"{name}: load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the beginning")
    print(f"{'ratio':32}{'least':>8} {'median':>8} {'most':>8}   of processor seconds   wanted")
    guarded = report_guard(name, overrides, bounds, rounds=rounds)
    manifest = report_saving(name, overrides, bounds, num=num)
    report_together(guarded, manifest, bounds)
    report_index(name)
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    return bounds.exit_code()
