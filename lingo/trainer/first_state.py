"""The state from which a run starts or rewinds: of a checkpoint, or before the first step."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.sources.transfer import Transfer
from lingo.checkpoints.sources.weight_source import UnusableSource
from lingo.data.array_spec import task_mark
from lingo.learner.fit import fit_layers, layers_to_fit, training_examples
from lingo.learner.state import TrainState, initial_state, restore_state
from lingo.trainer.request import Run


def load_state(
    run: Run, init_from: Mapping[str, Any] | None, found: Checkpoint | None
) -> TrainState:
    """Returns the state of the checkpoint `found`, or the run's first state if it is None.

    Raises UnusableSource if the source of the initial weights has changed since the run began.
    """
    if found is not None:
        return restore_state(run.experiment.learner, found)
    warm = run.experiment.warm_start()
    if warm is not None and init_from and warm.origin()["sha256"] != init_from["sha256"]:
        raise UnusableSource(
            f"{init_from['path']} holds other weights than when the run began, so the run cannot go"
            " back to step 0. Put the old weights back, or train in another directory."
        )
    return first_state(run, warm)


def first_state(run: Run, warm: Transfer | None) -> TrainState:
    """Returns the state before the first step: weights of `warm`, if given, and fitted states.

    A layer with a state of `warm` is not fitted. All processes get the states that the leader
    fitted, bit for bit.
    """
    learner = run.experiment.learner
    slot = warm and warm.slot
    start = initial_state(learner, warm and warm.value, slot)
    known = set(warm.reads) if warm else set[str]()
    if not layers_to_fit(learner.task, known=known):
        return start
    own = _to_text(_fit(run, start, known)) if run.processes.is_leader else None
    fitted = _from_text(run.processes.share("fitted", own))

    def value(name: str) -> np.ndarray | None:
        return fitted[name] if name in fitted else warm and warm.value(name)

    return initial_state(learner, value, slot)


def _fit(run: Run, start: TrainState, known: set[str]) -> dict[str, np.ndarray]:
    """Returns the fitted states of all tasks, {path: float32 array}, but those in `known`."""
    fitted: dict[str, np.ndarray] = {}
    for name, data in run.experiment.train_input.inputs_by_task().items():
        task = run.experiment.task.select([task_mark(name)])
        layers = layers_to_fit(task, known={*known, *fitted})
        if not layers:
            continue
        examples, names = training_examples(data), ", ".join(str(layer) for layer in layers)
        with run.progress.show_time(f"fitting {names} to {len(examples['rows']):,} examples"):
            fitted |= fit_layers(task, layers, start, examples)
    return fitted


def _to_text(arrays: Mapping[str, np.ndarray]) -> str:
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **dict[str, Any](arrays))
    return base64.b64encode(stream.getvalue()).decode()


def _from_text(text: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
