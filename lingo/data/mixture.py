"""A mixture of inputs: which input each example comes from, at fixed or changing shares.

A binary tree of choices picks the input (`lingo/data/choice_tree.py`). So log2(K) divisions find
example n of a mixture of K inputs, without the examples before it. An input is off its share by at
most half an example per level of the tree, or one if shares change. The examples of each input come
in order, without gaps, exactly as that input alone would give them.

Axes: B examples per batch, N examples, K inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.choice_tree import Choice, ChoiceTree, Stretch, constant_shares, stretches
from lingo.data.index import Progress
from lingo.data.input import Input, check_inner
from lingo.data.prompt import Prompt


class Mixture(Input):
    """Examples of several inputs, mixed within every batch.

    The inputs are built with the mixture's `batch_size`, `seed` and `repeat`, and must have the
    same arrays and vocabulary. Without `weights`, an input's share is proportional to
    min(number of items, max_examples) ** (1 / temperature) (Raffel et al. 2020, sec. 3.5.2; ST-MoE
    caps at 65,536, Zoph et al. 2022, sec. 4.1). Items are examples, or the pairs that examples
    pack: shares are shares of items, not of rows. A single pass (`repeat=False`) has every example
    of every input once, input after input.

    `weights_at` makes shares change, as a curriculum does: it has the weights at some numbers of
    examples of the mixture. Shares change between these numbers in 64 equal steps, along a straight
    line or along an exponential, and stay as they are after the last one.
    """

    inputs: dict[str, Input]  # the inputs to mix, by name
    weights: dict[str, float] | None = None  # shares by name, of any sum; None: by size
    # (number of examples before, weights by name), from 0 on; empty: shares never change
    weights_at: tuple[tuple[int, dict[str, float]], ...] = ()
    curve: Literal["linear", "exponential"] = "linear"  # how shares change between two numbers
    temperature: float = 1.0  # for shares by size; above 1, shares are more equal than sizes
    max_examples: int | None = None  # for shares by size; the most items that an input counts as

    thread_safe = True

    def check(self) -> None:
        super().check()
        p = self.p
        if not p.inputs:
            raise ParamError("inputs is empty: a mixture needs something to mix")
        if p.weights is not None:
            self._check_weights("weights", p.weights, least="positive")
        self._check_changes()
        if p.temperature <= 0 or (p.max_examples is not None and p.max_examples < 1):
            raise ParamError("temperature and max_examples must be positive")
        sized, given = p.temperature != 1.0 or p.max_examples is not None, self._has_weights()
        if sized and given:
            raise ParamError("temperature and max_examples are for shares by size, without weights")
        if not p.repeat and (sized or given):
            raise ParamError("a single pass (repeat=False) has all examples: leave out the shares")

    def _has_weights(self) -> bool:
        return self.p.weights is not None or bool(self.p.weights_at)

    def _check_changes(self) -> None:
        points = self.p.weights_at
        if points and self.p.weights is not None:
            raise ParamError("weights and weights_at are both given: leave out one")
        numbers = [number for number, _ in points]
        if points and (numbers[0] != 0 or sorted({*numbers}) != numbers):
            raise ParamError(f"weights_at has {numbers}: numbers of examples rise from 0")
        least = "positive" if self.p.curve == "exponential" else "not negative, and one positive"
        for number, weights in points:
            self._check_weights(f"weights_at[{number}]", weights, least=least)

    def _check_weights(self, field: str, weights: Mapping[str, float], *, least: str) -> None:
        names, values = self.p.inputs, weights.values()
        if weights.keys() != names.keys():
            raise ParamError(
                f"{field} are for {_list_names(weights)}, but inputs are {_list_names(names)}"
            )
        is_positive = min(values) > 0 or (least != "positive" and min(values) == 0 < max(values))
        if not (np.isfinite([*values]).all() and is_positive):
            raise ParamError(f"{field}={dict(weights)} must be {least}")

    def setup(self) -> None:
        p = self.p
        offers = {"batch_size": p.batch_size, "seed": p.seed, "repeat": p.repeat}
        self.inputs = {k: v.build(**offers) for k, v in p.inputs.items()}
        self._parts = list(self.inputs.values())
        for name, part in self.inputs.items():
            self._check_part(name, part)
        if tokenizer := getattr(self._parts[0], "tokenizer", None):
            self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size

    def _check_part(self, name: str, part: Input) -> None:
        check_inner(part, self, field=f"inputs[{name!r}]")
        first, reference = next(iter(self.inputs.items()))
        for what in ("specs", "offers"):
            mine, other = getattr(part, what)(), getattr(reference, what)()
            if mine != other:
                raise ParamError(
                    f"inputs[{name!r}] and inputs[{first!r}] differ: {_difference(mine, other)}"
                )

    def prompt(self, text: str) -> Prompt:
        return self._parts[0].prompt(text)

    def offers(self) -> dict[str, Any]:
        return self._parts[0].offers()

    def allows_threads(self) -> bool:
        return super().allows_threads() and all(part.allows_threads() for part in self._parts)

    def prepare(self, *, progress: Progress | None = None) -> None:
        for part in self._parts:
            part.prepare(progress=progress)
        check_tokenizers(self.inputs)

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        part, number = self.choice(numbers)
        arrays: dict[str, np.ndarray] = {}
        for i in np.unique(part).tolist():
            here = part == i
            for name, values in self._parts[i].examples(number[here]).items():
                if name not in arrays:
                    arrays[name] = np.empty((len(part), *values.shape[1:]), values.dtype)
                arrays[name][here] = values
        return arrays

    def choice(self, numbers: np.ndarray) -> Choice:
        """Returns the input of each example, by `example_id` in the mixture, int64 [N]."""
        if self.p.repeat:
            return self._tree.choose(numbers)
        ends = np.cumsum([part.num_examples() for part in self._parts])
        part = np.minimum(np.searchsorted(ends, numbers, side="right"), len(ends) - 1)
        return Choice(part, numbers - np.concatenate([[0], ends])[part])

    @functools.cached_property
    def _tree(self) -> ChoiceTree:
        return ChoiceTree(self._stretches())

    def _stretches(self) -> list[Stretch]:
        points = self.p.weights_at
        if not points:
            return constant_shares(self.shares)
        by_number = {n: [weights[name] for name in self.inputs] for n, weights in points}
        return stretches(by_number, curve=self.p.curve)

    @functools.cached_property
    def shares(self) -> list[float]:
        """The share of examples from each input, at first; shares add up to 1."""
        p = self.p
        if p.weights_at:
            return list(self._stretches()[0].shares)
        if p.weights is not None:
            shares = np.array([p.weights[name] for name in self.inputs])
        else:
            items = np.array([part.num_items() for part in self._parts], np.float64)
            rows = np.array([part.num_examples() for part in self._parts], np.float64)
            shares = np.minimum(items, p.max_examples or np.inf) ** (1 / p.temperature)
            shares *= rows / items  # converts shares of items to shares of examples
        return (shares / shares.sum()).tolist()

    def specs(self) -> dict[str, ArraySpec]:
        return self._parts[0].specs()

    def num_examples(self) -> int:
        return sum(part.num_examples() for part in self._parts)

    def num_items(self) -> int:
        return sum(part.num_items() for part in self._parts)

    def origins(self, numbers: np.ndarray) -> list[str]:
        """Returns the origin of each example, [B]: "wiki/2:17" is "2:17" of the input `wiki`."""
        part, number = self.choice(numbers)
        names = list(self.inputs)
        return [
            f"{names[i]}/{self._parts[i].origins(np.array([n]))[0]}"
            for i, n in zip(part.tolist(), number.tolist(), strict=True)
        ]

    def fingerprint(self) -> dict[str, Any]:
        return {name: part.fingerprint() for name, part in self.inputs.items()}

    def remarks(self) -> list[str]:
        return [
            f"{name}: {remark}" for name, part in self.inputs.items() for remark in part.remarks()
        ]


def check_tokenizers(inputs: Mapping[str, Input]) -> None:
    """Raises ParamError if the tokenizers of inputs differ; the inputs' data must be open."""
    names = {
        name: tokenizer.describe()
        for name, part in inputs.items()
        if (tokenizer := getattr(part, "tokenizer", None)) is not None
    }
    if len(set(names.values())) > 1:
        raise ParamError(f"the tokenizers of the inputs differ: {names}")


def _list_names(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names))


def _difference(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Returns a phrase that names the first entry in which two mappings differ."""
    name = next(k for k in {**mine, **other} if mine.get(k) != other.get(k))
    return f"{name} is {mine.get(name)} and {other.get(name)}"
