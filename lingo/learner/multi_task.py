"""Several tasks in one model, which may share layers (Lingvo's `MultiTaskModel`).

    MultiTask.params(
        tasks={"translation": SequenceToSequence.params(...), "lm": LanguageModeling.params(...)},
        shared={"tasks/lm/model/stack": "tasks/translation/model/encoder"},
    )

A step trains one task, which the batch names: `MultiTaskInput` picks it, `TaskInput` does so for
evaluations. The choice is made when a program is compiled, so each task has its own program, which
computes and updates nothing of the other tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.config.node.tree import same
from lingo.config.params import ParamError, fields, inherited_values, suggest
from lingo.config.regex import check_regex
from lingo.data.array_spec import Specs, marked_task, task_mark
from lingo.data.multi_task_input import TASK_OFFERS
from lingo.decode.decoding import Decoding
from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.learner.task import Batch, Task

_FOLDER = "tasks"  # of the tasks' paths
_NAME = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)


class MultiTask(Task):
    """Tasks that are trained in turn, each by its own loss, in one model.

    `shared` replaces layers: the layer at a path that a pattern matches is replaced by the layer at
    another path, which both parents then call. The pattern is a regular expression for the whole
    path of a layer, and the other path may use its groups, as `\\1`. Both layers have the same
    class, fields and weights. A weight is at the path of the layer that stays.

    A step changes the weights, slots, averages and statistics of its own task, shared ones
    included, and leaves all others as they are. Schedules of learning rates count the steps of all
    tasks. Optimizers that count updates, such as Adam, count the updates of a weight, by the states
    `tasks/<name>/updates`.
    """

    tasks: dict[str, Task]  # the tasks by name; the MultiTaskInput has the same names
    shared: dict[str, str] = {}  # pattern of paths of layers -> path of the layer to use instead

    def check(self) -> None:
        if not self.p.tasks:
            raise ParamError("tasks is empty: give at least one task")
        for name in self.p.tasks:
            if not _NAME.fullmatch(name):
                raise ParamError(
                    f"tasks[{name!r:.80}]: the name becomes part of paths and of an array's name:"
                    " use up to 64 letters, digits and '_', the first of them a letter"
                )
        for pattern in self.p.shared:
            check_regex(pattern)

    def setup(self) -> None:
        offers: Mapping[str, Mapping[str, Any]] = inherited_values().get(TASK_OFFERS, {})
        if offers and offers.keys() != self.p.tasks.keys():
            raise ParamError(
                f"tasks are {', '.join(self.p.tasks)}, but the inputs of train_input are for"
                f" {', '.join(offers)}: both need the same names"
            )
        self.tasks = {k: task.build(**offers.get(k, {})) for k, task in self.p.tasks.items()}
        for name, task in self.tasks.items():
            if task.phases() or task.parts():
                raise ParamError(
                    f"tasks[{name!r}] has phases or tasks of its own: a MultiTask takes tasks with"
                    " one loss"
                )
        _share_layers(self.tasks, self.p.shared)

    def parts(self) -> Mapping[str, Task]:
        return self.tasks

    def select(self, batch: Iterable[str]) -> Task:
        """Returns the task that a batch with these arrays is for; ParamError if it names none."""
        if (name := marked_task(names := list(batch))) is None:
            raise ParamError(
                f"a batch of {', '.join(names)} names no task: MultiTask takes the batches of"
                " MultiTaskInput, and in evaluations TaskInput(task=..., input=...)"
            )
        if name not in self.tasks:
            listed = ", ".join(self.tasks)
            raise ParamError(
                f"a batch is for the task {name!r}, but tasks are {listed}."
                f"{suggest(name, self.tasks)}"
            )
        return self.tasks[name]

    def check_input(self, offers: Mapping[str, Any]) -> None:
        if TASK_OFFERS not in offers:
            raise ParamError(
                "an input of the experiment names no task: take MultiTaskInput as train_input, and"
                " TaskInput(task=..., input=...) in eval_inputs"
            )
        for name, own in offers[TASK_OFFERS].items():
            self.select([task_mark(name)]).check_input(own)

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        return self.select(batch).loss_denominators(batch)

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        return self.select(batch).loss(batch)

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        return self.select(batch).metrics(batch)

    def evaluation_metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        return self.select(batch).evaluation_metrics(batch)

    def batch_flops(self, specs: Specs) -> int:
        return self.select(specs).batch_flops(specs)

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        return self.select(batch).predict(batch)

    def decode(self, batch: Batch, decoding: Decoding) -> dict[str, tf.Tensor]:
        return self.select(batch).decode(batch, decoding)

    def check_positions(self, num_positions: int) -> None:
        errors = []
        for task in self.tasks.values():
            try:
                task.check_positions(num_positions)
            except ParamError as error:
                errors.append(error)
        if len(errors) == len(self.tasks):
            raise errors[0]


# ---- shared layers -------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A layer in the tree of tasks that is not complete yet, and where its parent has it."""

    path: str  # from the root
    parent: Layer
    part: str  # of the path, in the parent
    layer: Layer


def _places(layer: Layer, where: str) -> Iterator[_Place]:
    """Yields the places of all layers inside a layer at path `where`, parents first."""
    for part, child in layer.__dict__.get("_children", {}).items():
        place = _Place(path.join(where, part), layer, part, child.layer)
        yield place
        yield from _places(child.layer, place.path)


def _share_layers(tasks: Mapping[str, Task], rules: Mapping[str, str]) -> None:
    """Replaces layers of tasks by others, as `MultiTask.shared` says."""
    every = [p for name, task in tasks.items() for p in _places(task, path.join(_FOLDER, name))]
    owners: dict[str, _Place] = {}
    for place in every:
        owners.setdefault(place.path, place)  # the outermost of the wrappers at a path
    used: set[str] = set()
    shared: dict[str, str] = {}
    for where in owners:
        if any(where.startswith(f"{outer}/") for outer in shared):
            continue
        matches = {rule: m for rule in rules if (m := re.fullmatch(rule, where))}
        used |= matches.keys()
        if len(matches) > 1:
            one, other, *_ = matches
            raise ParamError(f"shared: {one!r} and {other!r} both match {where}: leave out one")
        for rule, match in matches.items():
            if (target := _expand(match, rule, rules[rule])) != where:
                shared[where] = target
    if unused := [rule for rule in rules if rule not in used]:
        example = f", such as {min(owners)}" if owners else ""
        near = suggest(unused[0], owners)
        raise ParamError(f"shared: {unused[0]!r} matches no layer{example}.{near}")
    for where, target in shared.items():
        _check_pair(where, target, owners, shared)
        place = owners[where]
        place.parent.share(place.part, owners[target].layer)


def _expand(match: re.Match[str], rule: str, template: str) -> str:
    try:
        return match.expand(template)
    except (re.error, IndexError) as error:
        raise ParamError(f"shared[{rule!r}]={template!r}: {error}") from None


def _check_pair(
    where: str, target: str, owners: Mapping[str, _Place], shared: Mapping[str, str]
) -> None:
    """Raises ParamError unless the layer at `target` can replace the one at `where`."""
    if target not in owners:
        raise ParamError(
            f"shared: {where} is to be the layer {target}, which does not exist."
            f"{suggest(target, owners)}"
        )
    for outer in shared:
        if target == outer or target.startswith(f"{outer}/"):
            raise ParamError(
                f"shared: {where} is to be the layer {target}, but {outer} is replaced itself:"
                f" name a layer inside {shared[outer]}"
            )
    if target.startswith(f"{where}/") or where.startswith(f"{target}/"):
        raise ParamError(f"shared: one of {where} and {target} is inside the other")
    for stacked in (where, target):
        if "[" in stacked:
            raise ParamError(
                f"shared: {stacked} is one of the layers that a program stacks: share the whole"
                f" stack, {stacked.partition('/[')[0].rpartition('/')[0]}, or take Stack in place"
                " of Repeat"
            )
    one, other = owners[where].layer, owners[target].layer
    if difference := _difference(one, other):
        raise ParamError(f"shared: {where} and {target} differ: {difference}")


def _difference(one: Layer, other: Layer) -> str:
    """Returns a phrase on a difference of two layers in class, fields or weights; "": none."""
    if field := _different_field(one.p, other.p):
        return field
    mine, others = _shapes(one), _shapes(other)
    differ = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
    if not differ:
        return ""
    name = differ[0]
    return f"the weight {name} is {mine.get(name)} and {others.get(name)}"


def _shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight and state, by its path in the layer."""
    specs = {**layer.weights(), **layer.states()}
    return {where[len(layer.path) :]: spec.program_shape for where, spec in specs.items()}


def _different_field(one: Any, other: Any, where: str = "") -> str:
    """Returns a phrase on the first field in which two Params differ; "" if in none."""
    if one.cls is not other.cls:
        return f"{where or 'they'} are {one.cls.__name__} and {other.cls.__name__}"
    for name in fields(one.cls):
        mine, others = getattr(one, name, None), getattr(other, name, None)
        inner = f"{where}.{name}" if where else name
        if hasattr(mine, "cls") and hasattr(others, "cls"):
            if found := _different_field(mine, others, inner):
                return found
        elif not same(mine, others):
            return f"{inner} is {mine!r:.60} and {others!r:.60}"
    return ""
