"""A small experiment, its runs, and what is read from their directories."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.config.params import Params
from lingo.config.text import flatten, render
from lingo.contract import Checkpointing, Evaluation, Experiment, Summary
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import Learner, TrainState
from lingo.optim.adam import AdamW
from lingo.optim.compound_schedule import Warmup
from lingo.optim.schedule import Cosine
from lingo.runtimes.local import Local, LocalProgram
from lingo.storage import injection
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.loop import Outcome
from lingo.trainer.request import Request
from lingo.trainer.run import train
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

Make = Callable[..., Params]
Train = Callable[..., Outcome]
Rows = Callable[[pathlib.Path], list[dict[str, float]]]
Losses = Callable[[pathlib.Path], dict[float, float]]
Weights = Callable[[pathlib.Path], dict[str, np.ndarray]]


@pytest.fixture
def text(tmp_path: pathlib.Path) -> str:
    folder = tmp_path / "text"
    folder.mkdir()
    draw = np.random.RandomState(0)
    for i in range(5):
        (folder / f"{i}.txt").write_bytes(bytes(draw.randint(97, 100, 40 + 7 * i).tolist()))
    return f"{folder}/*.txt"


def experiment(text: str, max_steps: int = 6) -> Params:
    layer = TransformerLayer.params(dropout_rate=0.2, attention=Attention.params(num_heads=2))
    model = LanguageModel.params(dim=8, stack=Stack.params(layer=layer, num_layers=2))
    data = TextInput.params(batch_size=4, length=8, source=TextFiles.params(pattern=text))
    return Experiment.params(
        task=LanguageModeling.params(model=model),
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False)},
        optimizer=AdamW.params(
            learning_rate=0.01,
            schedule=Warmup.params(num_steps=2, then=Cosine.params(num_steps=20)),
            ema_decay=0.5,
        ),
        max_steps=max_steps,
        checkpoint=Checkpointing.params(every_steps=2),
        summary=Summary.params(every_steps=1),
        evaluate=Evaluation.params(every_steps=4),
    )


def run(params: Params, directory: pathlib.Path, **options: Any) -> Outcome:
    return train(Request(params, "{}", "", **options), RunDirectory(directory))


def rows(directory: pathlib.Path) -> list[dict[str, float]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def losses(directory: pathlib.Path) -> dict[float, float]:
    return {row["step"]: row["loss/total"] for row in rows(directory) if "loss/total" in row}


def weights(directory: pathlib.Path) -> dict[str, np.ndarray]:
    found = store.latest(directory / "checkpoints")
    assert found is not None
    return found.read(found.tensors)


@pytest.fixture(name="experiment")
def _experiment() -> Make:
    return experiment


@pytest.fixture(name="run")
def _run() -> Train:
    return run


@pytest.fixture(name="rows")
def _rows() -> Rows:
    return rows


@pytest.fixture(name="losses")
def _losses() -> Losses:
    return losses


@pytest.fixture(name="weights")
def _weights() -> Weights:
    return weights


_PROGRAMS: dict[str, LocalProgram] = {}


@pytest.fixture
def once_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets runs of equal learners share one program, those of earlier tests too."""
    start: Callable[..., LocalProgram] = Local.start

    def shared(self: Local, learner: Learner, state: TrainState) -> LocalProgram:
        parts = (self.p, learner.task.p, learner.optimizer.p)
        texts = [render(flatten(part)) for part in parts]
        key = "\n".join([*texts, f"{learner.seed} {learner.accumulation_steps}"])
        if key in _PROGRAMS:
            _PROGRAMS[key].load(state)
        else:
            _PROGRAMS[key] = start(self, learner, state)
        return _PROGRAMS[key]

    monkeypatch.setattr(Local, "start", shared)


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Asks for faults, as LINGO_INJECT does."""
    return lambda text: monkeypatch.setattr(injection, "_FAULTS", injection._parse(text))
