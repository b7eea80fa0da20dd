"""Inputs of several tasks: `MultiTaskInput` for training, `TaskInput` for evaluations.

    MultiTaskInput.params(inputs={"translation": pairs, "lm": texts}, schedule=RoundRobinTasks)
    TaskInput.params(task="translation", input=heldout_pairs)

A batch belongs to one task, and has the arrays of this task's own input alone. An array without
content, `task__<name>`, names the task (`task_mark`), so a program is compiled for each task.

Axes: B examples per batch, N cycles, K tasks.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError, Params, suggest
from lingo.data.array_spec import ArraySpec, task_mark
from lingo.data.derived_input import DerivedInput
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.data.prompt import Answer, Prompt, TextPair
from lingo.data.task_schedule import ConstantTasks, Evaluated, TaskSchedule, Timeline
from lingo.ops import random

TASK_OFFERS = "task_offers"
"""The key of `Input.offers` under which an input has what it offers to each task, by name."""

_BLOCK = 1 << 14  # cycles that are drawn together


def _mark(batch: Mapping[str, np.ndarray], task: str) -> dict[str, np.ndarray]:
    return {**batch, task_mark(task): np.zeros_like(batch["rows"])}


def _mark_specs(specs: Mapping[str, ArraySpec], task: str) -> dict[str, ArraySpec]:
    return {**specs, task_mark(task): specs["rows"]}


class TaskInput(DerivedInput):
    """The batches of another input, for one task of a `MultiTask`, which gives the metrics.

    The other input is built with the `seed` and `repeat` of this input, and with its `batch_size`
    if that is set.
    """

    task: str  # name of the task
    input: Input  # where the batches come from
    batch_size: int | None = None  # the batch size of `input`, if it sets none

    thread_safe = True

    def check(self) -> None:
        ranges.check_positive(self.p, "batch_size")
        if self.p.max_batches is not None:
            raise ParamError("max_batches must stay None: set max_batches of `input`")

    def setup(self) -> None:
        size = {} if self.p.batch_size is None else {"batch_size": self.p.batch_size}
        self._build(seed=self.p.seed, repeat=self.p.repeat, **size)
        vars(self).update(has_text_pairs=self.input.has_text_pairs, measures=self.input.measures)

    @property
    def declares_late(self) -> bool:
        return self.input.declares_late

    def offers(self) -> dict[str, Any]:
        return {TASK_OFFERS: {self.p.task: self.input.offers()}}

    def inputs_by_task(self) -> dict[str, Input]:
        return {self.p.task: self.input}

    def unlabeled_params(self, path: str) -> Params:
        return self.p.copy().set(input=self.input.unlabeled_params(path), repeat=False)

    def prompt(self, text: str) -> Prompt:
        return self.input.prompt(text)._replace(task=self.p.task)

    def text_pairs(self, limit: int | None) -> list[TextPair]:
        return [
            pair._replace(prompt=pair.prompt._replace(task=self.p.task))
            for pair in self.input.text_pairs(limit)
        ]

    def score(self, predictions: Mapping[str, np.ndarray]) -> tuple[dict[str, float], list[Answer]]:
        return self.input.score(predictions)

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        return _mark(self.input.batch(step, rows=rows), self.p.task)

    def check_batch(self, batch: Mapping[str, np.ndarray]) -> None:
        mark = task_mark(self.p.task)
        self.input.check_batch({name: v for name, v in batch.items() if name != mark})

    def shape_id(self, step: int) -> int:
        return self.input.shape_id(step)

    def specs(self) -> dict[str, ArraySpec]:
        return _mark_specs(self.input.specs(), self.p.task)

    def num_batches(self) -> int:
        return self.input.num_batches()

    def pass_batches(self) -> int:
        return self.input.pass_batches()

    def examples_before(self, step: int) -> int:
        return self.input.examples_before(step)

    def example_ids(self, step: int) -> np.ndarray:
        return self.input.example_ids(step)

    def epochs(self, step: int) -> float:
        return self.input.epochs(step)


class TaskStep(NamedTuple):
    """The task that is trained in a step, and the step's number among the steps of this task."""

    task: int  # index of the task
    step: int


class MultiTaskInput(Input):
    """In each cycle of steps, batches of one task, which the schedule picks at random.

    The choice is a function of (seed, cycle), and of earlier evaluations if the schedule follows
    them. Each task's batches come in order, without gaps, exactly as its own input gives them. An
    input without `batch_size` takes the batch size of the MultiTaskInput; its seed is the
    MultiTaskInput's.

    No loop (`steps_per_loop`) has steps of two tasks, so long loops need long cycles. `specs`
    describe the largest batch of all tasks. An example's `example_id` is its number in the task's
    input times the number of tasks, plus the index of the task.
    """

    inputs: dict[str, Input]  # task -> its training data
    schedule: TaskSchedule = ConstantTasks  # how often each task is trained
    cycle_steps: int = 1  # number of consecutive steps that train one task
    batch_size: int | None = None  # the batch size of inputs that set none
    prompt_task: str | None = None  # the task that reads prompts; None: the first task with texts

    thread_safe = True

    def check(self) -> None:
        p = self.p
        ranges.check_positive(p, "batch_size", "cycle_steps")
        if not p.inputs:
            raise ParamError("inputs is empty: give an input for each task")
        if not p.repeat or p.max_batches is not None:
            raise ParamError(
                "a MultiTaskInput never ends: it is for training; an evaluation takes"
                " TaskInput(task=..., input=...)"
            )
        if p.prompt_task is not None and p.prompt_task not in p.inputs:
            raise ParamError(
                f"prompt_task={p.prompt_task!r} is not one of inputs: {', '.join(p.inputs)}."
                f"{suggest(p.prompt_task, p.inputs)}"
            )

    def setup(self) -> None:
        p = self.p
        size = {} if p.batch_size is None else {"batch_size": p.batch_size}
        self.inputs = {k: v.build(seed=p.seed, **size) for k, v in p.inputs.items()}
        self._parts, self._names = list(self.inputs.values()), tuple(self.inputs)
        for name, part in self.inputs.items():
            if not part.p.repeat:
                raise ParamError(f"inputs[{name!r}] has repeat=False, but training never ends")
        self.schedule = p.schedule.build(tasks=self._names)
        self.follow(())
        texts = [name for name in self._names if hasattr(self.inputs[name], "tokenizer")]
        self._prompt_task = p.prompt_task or next(iter(texts), None)
        if self._prompt_task in texts:
            self.tokenizer = vars(self.inputs[self._prompt_task])["tokenizer"]

    @property
    def declares_late(self) -> bool:
        return any(part.declares_late for part in self._parts)

    def offers(self) -> dict[str, Any]:
        return {TASK_OFFERS: {name: part.offers() for name, part in self.inputs.items()}}

    def allows_threads(self) -> bool:
        return super().allows_threads() and all(part.allows_threads() for part in self._parts)

    def prompt(self, text: str) -> Prompt:
        if (task := self._prompt_task) is None:
            raise ParamError("no task has a tokenizer: none of the inputs holds texts")
        return self.inputs[task].prompt(text)._replace(task=task)

    def prepare(self, *, progress: Progress | None = None) -> None:
        for part in self._parts:
            part.prepare(progress=progress)

    # ---- tasks of steps

    def followed_metrics(self) -> list[str]:
        return self.schedule.metrics()

    def follow(self, evaluations: Sequence[Evaluated]) -> None:
        timeline = Timeline(self.p.cycle_steps, evaluations=tuple(evaluations))
        draw = functools.partial(self._draw, timeline=timeline)
        self._picks = _Picks(draw, num_tasks=len(self._names))

    def locate_step(self, step: int) -> TaskStep:
        """Returns the task of a step of the run, and the step's number in this task's input."""
        cycle, rest = divmod(step, self.p.cycle_steps)
        task, number = self._picks.pick(cycle)
        return TaskStep(task, number * self.p.cycle_steps + rest)

    def task_steps(self, step: int) -> dict[str, int]:
        """Returns how many of the steps before `step` trained each task."""
        cycle, rest = divmod(step, self.p.cycle_steps)
        steps = self._picks.counts(cycle) * self.p.cycle_steps
        if rest:
            steps[self._picks.pick(cycle)[0]] += rest
        return dict(zip(self._names, steps.tolist(), strict=True))

    def _draw(self, cycles: np.ndarray, *, timeline: Timeline) -> np.ndarray:
        """Returns the index of the task of each cycle, int64 [N]."""
        key = random.fold(random.root_key(self.p.seed), random.text_hash("task"))
        numbers = random.host_words(key, cycles.astype(np.uint64)) / 2.0**32
        below = np.cumsum(self.schedule.probabilities(cycles, timeline), axis=1)[:, :-1]
        return np.sum(below <= numbers[:, None], axis=1)

    # ---- batches

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        self.check_step(step)
        task, own = self.locate_step(step)
        batch = self._parts[task].batch(own, rows=rows)
        ids = self._run_ids(task, batch["example_id"])
        return _mark(batch, self._names[task]) | {"example_id": ids}

    def check_batch(self, batch: Mapping[str, np.ndarray]) -> None:
        for name, part in self.inputs.items():
            if (mark := task_mark(name)) in batch:
                part.check_batch({k: v for k, v in batch.items() if k != mark})

    def shape_id(self, step: int) -> int:
        task, own = self.locate_step(step)
        return self._parts[task].shape_id(own) * len(self._parts) + task

    def specs(self) -> dict[str, ArraySpec]:
        def size(name: str) -> int:
            return sum(math.prod(shape) for shape, _ in self.inputs[name].specs().values())

        largest = max(self._names, key=size)
        return _mark_specs(self.inputs[largest].specs(), largest)

    def inputs_by_task(self) -> dict[str, Input]:
        return dict(self.inputs)

    def num_examples(self) -> int:
        return sum(part.num_examples() for part in self._parts)

    def pass_batches(self) -> int:
        return sum(part.pass_batches() for part in self._parts)

    def num_rows(self, step: int) -> int:
        task, own = self.locate_step(step)
        return self._parts[task].num_rows(own)

    def examples_before(self, step: int) -> int:
        """Returns how many examples, of all tasks, earlier steps read."""
        steps = self.task_steps(step).items()
        return sum(self.inputs[name].examples_before(own) for name, own in steps)

    def example_ids(self, step: int) -> np.ndarray:
        task, own = self.locate_step(step)
        return self._run_ids(task, self._parts[task].example_ids(own))

    def epochs(self, step: int) -> float:
        """Returns the number of passes over data, summed over tasks."""
        return sum(self.inputs[name].epochs(own) for name, own in self.task_steps(step).items())

    def origins(self, numbers: np.ndarray) -> list[str]:
        """Returns the origins of examples, [B]: "lm/2:17" is "2:17" of the task `lm`."""
        num = len(self._parts)
        return [
            f"{self._names[n % num]}/{self._parts[n % num].origins(np.array([n // num]))[0]}"
            for n in numbers.tolist()
        ]

    def fingerprint(self) -> dict[str, Any]:
        return {name: part.fingerprint() for name, part in self.inputs.items()}

    def remarks(self) -> list[str]:
        parts = self.inputs.items()
        return [f"{name}: {remark}" for name, part in parts for remark in part.remarks()]

    def check_specs(self) -> None:
        for part in self._parts:
            part.check_specs()

    def check_size(self) -> None:
        for part in self._parts:
            part.check_size()

    def check_repeatable(self) -> None:
        for part in self._parts:
            part.check_repeatable()

    def _run_ids(self, task: int, ids: np.ndarray) -> np.ndarray:
        """Returns the `example_id` in the run, int64 [B], of examples of a task's input."""
        return ids * len(self._parts) + task


class _Picks:
    """The task of each cycle, and how many earlier cycles had the same task; drawn on demand."""

    def __init__(self, draw: Callable[[np.ndarray], np.ndarray], *, num_tasks: int) -> None:
        """Draws nothing yet. `draw` returns the tasks of cycles: int64 [N] -> int64 [N]."""
        self._draw, self._num_tasks = draw, num_tasks
        self._counts = [np.zeros(num_tasks, np.int64)]  # of cycles before each block
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []  # (tasks, numbers), int64 [N]
        self._lock = threading.Lock()

    def pick(self, cycle: int) -> tuple[int, int]:
        """Returns the task of a cycle, and how many earlier cycles have this task."""
        block, rest = divmod(cycle, _BLOCK)
        self._extend(block + 1)
        tasks, numbers = self._blocks[block]
        return int(tasks[rest]), int(numbers[rest])

    def counts(self, cycle: int) -> np.ndarray:
        """Returns how many of the cycles before `cycle` have each task, int64 [K]."""
        block, rest = divmod(cycle, _BLOCK)
        self._extend(block + 1)
        own = np.bincount(self._blocks[block][0][:rest], minlength=self._num_tasks)
        return self._counts[block] + own

    def _extend(self, num_blocks: int) -> None:
        with self._lock:
            for block in range(len(self._blocks), num_blocks):
                tasks = self._draw(np.arange(block * _BLOCK, (block + 1) * _BLOCK))
                before, numbers = self._counts[block], np.empty_like(tasks)
                for task in range(self._num_tasks):
                    here = np.flatnonzero(tasks == task)
                    numbers[here] = before[task] + np.arange(len(here))
                counts = before + np.bincount(tasks, minlength=self._num_tasks)
                self._counts.append(counts)
                self._blocks.append((tasks, numbers))
