"""How often each computation of a compiled program runs: what is in a loop counts once a turn.

XLA seldom says how often a loop turns, but a condition `i < n` does, where `n` is a constant or
enters the loop as one. The loop of a gradient turns as often as the forward loop did: its `n` is
the count that the forward loop ended with.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lingo.mesh.hlo.module import Instruction, Module

_TRIPS = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"(\d+)"')
_SAME = {"copy", "bitcast", "convert", "reshape", "broadcast", "copy-done", "optimization-barrier"}


class Carried(NamedTuple):
    """What a loop hands from turn to turn: an element of its tuple, or (None) all of it."""

    element: int | None = None


Value = int | Carried | None
"""What is known of a scalar: its value, where in a loop it comes from, or nothing."""


class Runs(NamedTuple):
    """How often a computation runs.

    Attributes:
        times: in one run of the program.
        is_known: False if it stands in a loop of unknown length, whose turns count once.
    """

    times: int
    is_known: bool


def runs(module: Module) -> dict[str, Runs]:
    """Returns how often each computation runs; of a condition every branch counts."""
    found: dict[str, Runs] = {}
    loops = Loops(module)

    def visit(computation: str, times: int, known: bool) -> None:
        before = found.get(computation, Runs(0, True))
        found[computation] = Runs(before.times + times, before.is_known and known)
        for instruction in module.computations[computation].values():
            called = [name for name in instruction.callees if name in module.computations]
            turns = loops.trips(instruction, computation) if instruction.opcode == "while" else 1
            for name in called:
                visit(name, times * (turns or 1), known and turns is not None)

    visit(module.entry, 1, True)
    return found


class Loops:
    """Follows scalars through a program, as far as loops need it."""

    def __init__(self, module: Module) -> None:
        """Looks at nothing yet; `module` is the whole program."""
        self._module = module
        self._trips: dict[tuple[str, str], int | None] = {}

    def trips(self, loop: Instruction, computation: str) -> int | None:
        """Returns how often a loop turns, None if that is not known.

        Args:
            loop: the `while`.
            computation: in which it stands.
        """
        key = (computation, loop.name)
        if key not in self._trips:
            said = _TRIPS.search(loop.rest)
            self._trips[key] = int(said[1]) if said else self._counted(loop, computation)
        return self._trips[key]

    def _counted(self, loop: Instruction, computation: str) -> int | None:
        """Returns the least n - i of the conditions `i < n`, where i begins."""
        condition = loop.attribute("condition") or ""
        trips = [
            limit - start
            for i, n in self._bounds(self._module.root(condition), condition, [Carried()])
            if isinstance(i, Carried)
            and isinstance(start := self._before(loop, computation, i), int)
            and isinstance(limit := self._before(loop, computation, n), int)
        ]
        return min(trips) if trips else None

    def _before(self, loop: Instruction, computation: str, value: Value) -> Value:
        """Returns what a value of the loop's body is before the first turn."""
        if not isinstance(value, Carried) or value.element is None:
            return value
        return self._element(loop.operands[0], value.element, computation, [])

    def _bounds(
        self, instruction: Instruction, computation: str, arguments: list[Value]
    ) -> list[tuple[Value, Value]]:
        """Returns the (i, n) of every `i < n` that a condition asks for."""
        body = self._module.computations[computation]
        if instruction.opcode == "and":
            operands = [body[name] for name in instruction.operands]
            return [pair for o in operands for pair in self._bounds(o, computation, arguments)]
        values = [self._value(name, computation, arguments) for name in instruction.operands]
        if instruction.opcode in ("fusion", "call"):
            inner = instruction.callees[0]
            return self._bounds(self._module.root(inner), inner, values)
        is_less = instruction.opcode == "compare" and instruction.attribute("direction") == "LT"
        return [(values[0], values[1])] if is_less else []

    def _value(self, name: str, computation: str, arguments: list[Value]) -> Value:
        """Returns what is known of a scalar of a computation that was given some arguments."""
        instruction = self._module.computations[computation][name]
        opcode = instruction.opcode
        if opcode == "constant":
            text = instruction.arguments
            return int(text) if re.fullmatch(r"-?\d+", text) else None
        if opcode == "parameter":
            number = int(instruction.arguments)
            return arguments[number] if number < len(arguments) else None
        if opcode in _SAME:
            return self._value(instruction.operands[0], computation, arguments)
        if opcode == "get-tuple-element":
            index = int(instruction.attribute("index") or 0)
            return self._element(instruction.operands[0], index, computation, arguments)
        if opcode in ("fusion", "call"):
            inner = instruction.callees[0]
            values = [self._value(o, computation, arguments) for o in instruction.operands]
            return self._value(self._module.root(inner).name, inner, values)
        return None

    def _element(self, name: str, index: int, computation: str, arguments: list[Value]) -> Value:
        """Returns what is known of an element of a tuple."""
        instruction = self._module.computations[computation][name]
        if instruction.opcode == "tuple":
            return self._value(instruction.operands[index], computation, arguments)
        if instruction.opcode == "while":
            return self._after(instruction, index, computation)
        if instruction.opcode in _SAME:
            return self._element(instruction.operands[0], index, computation, arguments)
        whole = self._value(name, computation, arguments)
        return Carried(index) if whole == Carried() else None

    def _after(self, loop: Instruction, index: int, computation: str) -> Value:
        """Returns an element of a loop's result: what no turn changes, or what counts the turns."""
        start = self._element(loop.operands[0], index, computation, [])
        body = loop.attribute("body") or ""
        root = self._module.root(body)
        if root.opcode != "tuple" or not isinstance(start, int):
            return None
        if self._value(root.operands[index], body, [Carried()]) == Carried(index):
            return start
        trips = self.trips(loop, computation)
        return None if trips is None else start + trips
