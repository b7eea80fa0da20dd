"""Optimizers chosen by the names of weights: embeddings, for example, may stay frozen.

ByPath.params(
    learning_rate=1e-3,
    groups={"model/embedding/.*": Frozen, "(?!model/embedding/).*": Adam},
)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError, fields
from lingo.optim.optimizer import Optimizer, Slot, Update, UpdatedWeight, Weight, select
from lingo.optim.pattern import check_patterns, check_used, match_patterns, name_field
from lingo.optim.schedule import Schedule

_INHERITED_FIELDS = ("learning_rate", "schedule", "weight_decay", "min_decay_rank", "slot_steps")
_GLOBAL_FIELDS = (
    "max_grad_norm",
    "discard_grad_norm",
    "max_weight_grad_norm",
    "max_grad_value",
    "ema_decay",
    "ema_warmup",
    "average_steps",
    "plateau",
)


class Frozen(Optimizer):
    """Leaves weights unchanged, and needs no slots."""

    learning_rate: float = 0.0  # has no effect

    takes_rows = True
    skips_zeros = True

    def update(self, update: Update) -> UpdatedWeight:
        return UpdatedWeight(update.value, {})

    def trainable_layers(self, weight: Weight) -> tuple[bool, ...]:
        return (False,) * len(weight.names)

    def rates(self, step: Any) -> dict[str, Any]:
        return {"learning_rate": 0.0 * self.schedule(step)}


class ByPath(Optimizer):
    """Updates each weight by the one group whose pattern matches the weight's whole name.

    A pattern is a regular expression for the name of one layer's weight, whether layers are stacked
    or not; `(?!model/head/).*` matches every name that does not start with `model/head/`. It is an
    error if a weight matches no pattern or several, or if a pattern matches no weight.

    Groups inherit `learning_rate`, `schedule`, `weight_decay`, `min_decay_rank` and `slot_steps`
    unless they set them. Clipping and moving averages apply to all weights: a group cannot set
    them.
    """

    learning_rate: float | None = None  # peak for groups that do not set it
    schedule: Schedule | None = None  # for groups that do not set it
    groups: dict[str, Optimizer]  # pattern -> optimizer of the weights that match

    def check(self) -> None:
        super().check()
        if not self.p.groups:
            raise ParamError("groups is empty; give at least {'.*': Adam.params(...)}")
        if self.p.no_decay:
            raise ParamError("no_decay is for the weights of one group: set it on a group")
        check_patterns(self.p.groups)
        for pattern, group in self.p.groups.items():
            if issubclass(group.cls, ByPath):
                raise ParamError(f"groups[{pattern!r}] is a ByPath: list its groups here instead")
            for name in _GLOBAL_FIELDS:
                if getattr(group, name) != fields(Optimizer)[name].default:
                    raise ParamError(
                        f"groups[{pattern!r}].{name} is for all weights: set it on ByPath"
                    )

    def setup(self) -> None:
        inherited = {
            name: getattr(self.p, name)
            for name in _INHERITED_FIELDS
            if self.p.is_given(name) and getattr(self.p, name) is not None
        }
        self.plateau = self.p.plateau and self.p.plateau.build()
        self.groups = {name: group.build(**inherited) for name, group in self.p.groups.items()}

    def schedules(self) -> list[Schedule]:
        return [schedule for group in self.groups.values() for schedule in group.schedules()]

    def updates_rows(self) -> bool:
        return all(group.updates_rows() for group in self.groups.values())

    def dense_reason(self, weight: Weight) -> str | None:
        if self.keeps_averages:
            return super().dense_reason(weight)
        return self.groups[self._group(weight.names[0])].dense_reason(weight)

    def rates(self, step: Any) -> dict[str, Any]:
        xp = np if isinstance(step, (int, np.integer, np.ndarray)) else tf
        own = {pattern: group.rates(step) for pattern, group in self.groups.items()}
        largest = functools.reduce(xp.maximum, [rates["learning_rate"] for rates in own.values()])
        tagged = {"learning_rate": largest}
        for pattern, rates in own.items():
            tagged |= {f"{tag}/{pattern}": rate for tag, rate in rates.items()}
        return tagged

    def slots(self, weight: Weight) -> dict[str, Slot]:
        declared: dict[str, Slot] = {}
        for pattern, chosen in self._select_groups(weight).items():
            for slot, mine in self.groups[pattern].slots(weight).items():
                shape, fill, _, axes = mine
                old = declared.get(slot, mine._replace(names=()))
                if (old.shape, old.fill, old.axes) != (shape, fill, axes):
                    raise ParamError(
                        f"{weight.path}: two groups want different slots {slot!r}, "
                        f"{list(old.shape)} and {list(shape)}, for layers that one tensor stacks;"
                        " do not repeat these layers"
                    )
                users = zip(weight.names, chosen, strict=True)
                names = tuple(name for name, uses in users if uses or name in old.names)
                declared[slot] = mine._replace(names=names)
        return declared

    def update(self, update: Update) -> UpdatedWeight:
        weight, value, slots = update.weight, update.value, dict(update.slots)
        for pattern, chosen in self._select_groups(weight).items():
            group = self.groups[pattern]
            own_rates = {tag: update.rates[f"{tag}/{pattern}"] for tag in group.rates(0)}
            own_slots = {slot: update.slots[slot] for slot in group.slots(weight)}
            new = group.update(update._replace(slots=own_slots, rates=own_rates))
            value = select(weight, chosen, new.value, value)
            slots |= {k: select(weight, chosen, v, slots[k]) for k, v in new.slots.items()}
        return UpdatedWeight(value, slots)

    def trainable_layers(self, weight: Weight) -> tuple[bool, ...]:
        masks = [
            np.logical_and(chosen, self.groups[pattern].trainable_layers(weight))
            for pattern, chosen in self._select_groups(weight).items()
        ]
        return tuple(np.any(masks, axis=0).tolist())

    def check_weights(self, weights: Iterable[Weight]) -> None:
        weights = list(weights)
        names = [name for weight in weights for name in weight.names]
        with name_field("optimizer.groups"):
            check_used(list(self.groups), names)
        for weight in weights:
            self.slots(weight)
            self.check_sparse(weight)
        for pattern, group in self.groups.items():
            group.check_weights(
                weight._replace(names=names)
                for weight in weights
                if (names := tuple(n for n in weight.names if self._group(n) == pattern))
            )

    def _group(self, name: str) -> str:
        """Returns the one pattern that matches the name of a weight."""
        patterns = list(self.groups)
        match match_patterns(patterns, name):
            case [pattern]:
                return pattern
            case []:
                raise ParamError(
                    f"no group for the weight {name!r}: no pattern of {patterns} matches it"
                )
            case several:
                raise ParamError(
                    f"{len(several)} groups for the weight {name!r}: {several} match it"
                )

    def _select_groups(self, weight: Weight) -> dict[str, tuple[bool, ...]]:
        """Returns {pattern: mask of `weight.names`} for the groups with a weight in the tensor."""
        own = [self._group(name) for name in weight.names]
        return {
            pattern: tuple(pattern == mine for mine in own)
            for pattern in self.groups
            if pattern in own
        }
