"""Inputs that follow each other in one run, such as short rows first and long rows later.

    StagedInput.params(stages=((short, 9000), (long, 1000)), batch_size=256)

BERT's training has rows of 128 tokens, then of 512 (Devlin et al. 2019, app. A.2). LAMB's mixed
recipe also changes the batch size between these stages (You et al. 2020, sec. 4.1).

Axes: B examples per batch.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError, Params
from lingo.data.array_spec import ArraySpec
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.data.mixture import check_tokenizers
from lingo.data.prompt import Prompt
from lingo.ops import random


class StageStep(NamedTuple):
    """The stage that a run's step belongs to, and the step's number in this stage."""

    stage: int  # number of the stage, from 0
    step: int  # number of the step in this stage, from 0


class StagedInput(Input):
    """Batches of one input for a number of steps, then of the next; the last input never ends.

    Each stage starts at the beginning of its own data. A stage without `batch_size` takes the
    StagedInput's batch size. Without `seed`, the first stage takes the StagedInput's seed, and each
    later stage derives a seed from that seed, so that stages with the same data have different
    orders. Every batch counts as a step, even a batch that a run skips after an anomaly.

    The stages' batches have different shapes, so the program is traced for each stage, and no loop
    (`steps_per_loop`) has steps of two stages. All stages need arrays of the same names and types.
    `specs` describe the longest rows. Every batch size is a multiple of the longest rows' batch
    size, so that all batches split over the same devices.
    """

    stages: tuple[tuple[Input, int], ...]  # (input, number of steps); the last number is ignored
    batch_size: int | None = None  # the batch size of stages that set none

    thread_safe = True

    def check(self) -> None:
        p = self.p
        ranges.check_positive(p, "batch_size")
        if not p.stages:
            raise ParamError("stages is empty: give a pair (input, steps) for each stage")
        if not p.repeat or p.max_batches is not None:
            raise ParamError(
                "a StagedInput never ends: it is for training; an evaluation takes one of its"
                " stages, with repeat=False"
            )
        for i, (_, steps) in enumerate(p.stages):
            if steps < 1:
                raise ParamError(f"stages[{i}] has {steps} steps: a stage needs at least one")

    def setup(self) -> None:
        size = {} if self.p.batch_size is None else {"batch_size": self.p.batch_size}
        self.inputs = [
            params.build(seed=self._seed(i), repeat=True, **size)
            for i, (params, _) in enumerate(self.p.stages)
        ]
        for i, part in enumerate(self.inputs):
            if not part.p.repeat:
                raise ParamError(f"stages[{i}] has repeat=False, but a stage ends after its steps")
        steps = [steps for _, steps in self.p.stages[:-1]]
        self._starts = [0, *itertools.accumulate(steps)]  # the first step of each stage
        if not self.declares_late:
            self._check_stages()
        if tokenizer := getattr(self.inputs[0], "tokenizer", None):
            self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size

    @property
    def declares_late(self) -> bool:
        return any(part.declares_late for part in self.inputs)

    def offers(self) -> dict[str, Any]:
        return self.inputs[0].offers()

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.inputs[0].class_names

    def unlabeled_params(self, path: str) -> Params:
        return self.inputs[0].unlabeled_params(path)

    def prompt(self, text: str) -> Prompt:
        return self.inputs[0].prompt(text)

    def allows_threads(self) -> bool:
        return super().allows_threads() and all(part.allows_threads() for part in self.inputs)

    def prepare(self, *, progress: Progress | None = None) -> None:
        for part in self.inputs:
            part.prepare(progress=progress)
        self._check_stages()
        check_tokenizers({f"stages[{i}]": part for i, part in enumerate(self.inputs)})

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        self.check_step(step)
        stage, own_step = self.locate_step(step)
        batch = self.inputs[stage].batch(own_step, rows=rows)
        return batch | {"example_id": batch["example_id"] + self._examples_before_stage(stage)}

    def locate_step(self, step: int) -> StageStep:
        """Returns the stage of a step of the run, and the step's number in this stage."""
        stage = int(np.searchsorted(self._starts, step, side="right")) - 1
        return StageStep(stage, step - self._starts[stage])

    def shape_id(self, step: int) -> int:
        stage, own_step = self.locate_step(step)
        return self.inputs[stage].shape_id(own_step) * len(self.inputs) + stage

    def specs(self) -> dict[str, ArraySpec]:
        longest = self._longest().specs()
        rows = longest["rows"][0]
        shapes = {name: [p.specs()[name][0][1:] for p in self.inputs] for name in longest}
        return {
            name: ((*rows, *(max(sizes) for sizes in zip(*shapes[name], strict=True))), dtype)
            for name, (_, dtype) in longest.items()
        }

    def num_examples(self) -> int:
        """Returns the number of examples in an epoch of the first stage."""
        return self.inputs[0].num_examples()

    def pass_batches(self) -> int:
        return self.inputs[0].pass_batches()

    def examples_before(self, step: int) -> int:
        stage, own_step = self.locate_step(step)
        return self._examples_before_stage(stage) + self.inputs[stage].examples_before(own_step)

    def example_ids(self, step: int) -> np.ndarray:
        stage, own_step = self.locate_step(step)
        return self.inputs[stage].example_ids(own_step) + self._examples_before_stage(stage)

    def epochs(self, step: int) -> float:
        """Returns the number of passes over data, summed over stages."""
        stage, own_step = self.locate_step(step)
        whole = zip(self.inputs[:stage], self.p.stages, strict=False)
        before = sum(part.epochs(steps) for part, (_, steps) in whole)
        return before + self.inputs[stage].epochs(own_step)

    def origins(self, numbers: np.ndarray) -> list[str]:
        """Returns the origins of examples, [B]: "1/2:17" is "2:17" of the second stage."""
        starts = np.array([self._examples_before_stage(i) for i in range(len(self.inputs))])
        stages = np.searchsorted(starts, numbers, side="right") - 1
        return [
            f"{i}/{self.inputs[i].origins(np.array([number - starts[i]]))[0]}"
            for i, number in zip(stages.tolist(), numbers.tolist(), strict=True)
        ]

    def fingerprint(self) -> dict[str, Any]:
        return {str(i): part.fingerprint() for i, part in enumerate(self.inputs)}

    def remarks(self) -> list[str]:
        parts = enumerate(self.inputs)
        return [f"stages[{i}]: {remark}" for i, part in parts for remark in part.remarks()]

    def check_size(self) -> None:
        for part in self.inputs:
            part.check_size()

    def check_repeatable(self) -> None:
        """Raises ParamError if a stage makes two different first batches."""
        for part in self.inputs:
            part.check_repeatable()

    def _seed(self, stage: int) -> int:
        if not stage:
            return self.p.seed
        key = random.fold(random.root_key(self.p.seed), random.text_hash("stage"))
        return int(random.fold(key, stage).low)

    def _examples_before_stage(self, stage: int) -> int:
        """Returns the number of examples in all earlier stages."""
        whole = zip(self.inputs[:stage], self.p.stages, strict=False)
        return sum(part.examples_before(steps) for part, (_, steps) in whole)

    def _longest(self) -> Input:
        """Returns the input with the longest rows; of several, the one with smallest batches."""

        def size(part: Input) -> tuple[int, int]:
            shapes = [shape for shape, _ in part.specs().values()]
            return sum(math.prod(shape[1:]) for shape in shapes), -shapes[0][0]

        return max(self.inputs, key=size)

    def _check_stages(self) -> None:
        first = self.inputs[0]
        forms = {name: (dtype, len(shape)) for name, (shape, dtype) in first.specs().items()}
        rows = self._longest().specs()["rows"][0][0]
        for i, part in enumerate(self.inputs):
            specs = part.specs()
            if differ := sorted(specs.keys() ^ forms.keys()):
                has, lacks = (i, 0) if differ[0] in specs else (0, i)
                raise ParamError(
                    f"stages[{has}] has the array {differ[0]!r}, which stages[{lacks}] lacks: all"
                    " stages need arrays of the same names"
                )
            for name, (shape, dtype) in specs.items():
                if (dtype, len(shape)) != forms[name]:
                    raise ParamError(
                        f"stages[{i}] and stages[0] differ: {name} is {dtype} {list(shape)} and"
                        f" {forms[name][0]} {list(first.specs()[name][0])}: all stages need the"
                        " same types and numbers of axes"
                    )
            if part.offers() != first.offers():
                raise ParamError(
                    f"stages[{i}] and stages[0] differ: they offer {part.offers()} and"
                    f" {first.offers()} to the model"
                )
            if (size := specs["rows"][0][0]) % rows:
                raise ParamError(
                    f"stages[{i}] has batch_size={size}, which is no multiple of {rows}, the batch"
                    " size of the longest rows: they could not split over the same devices"
                )
