"""Reads the HLO text of a compiled program, to count collectives, FLOPs and cycles in it.

    HloModule jit_step
    %body (...) -> ... {                                     a computation
      %x = f32[2,8]{1,0} parameter(0)                        an instruction: name, type, opcode
      ROOT %sum = f32[2,8]{1,0} all-reduce(%x), replica_groups={{0,1}}, metadata={op_name="a/b"}
    }
    ENTRY %main (...) -> ... {

The text is one device's: under GSPMD all devices run the same program on their own parts.

`runs` says how often each computation runs: in a loop, once per iteration. XLA seldom states the
trip count of a loop. It follows from a condition `i < n`, if `n` is a constant or enters the loop
as one. The loop of a gradient has as many iterations as the forward loop: its `n` is the final
count of the forward loop.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from lingo.config.params import ParamError

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*)$")
_ARRAY = re.compile(r"([a-z]+[0-9]*[a-z0-9]*)\[([\d,<=]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
    r"|\b(?:branch_computations|called_computations|calls)=\{([^}]*)\}"
)
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_UNNAMED = 8  # the most instructions to follow back to an instruction with a name
_TOGETHER = re.compile(r"(?:^|/)\(")  # start of the names of several combined operations
_BITS = re.compile(r"\D+(\d+)")
_BYTES = {"pred": 1, "token": 0, "opaque": 0}


class Array(NamedTuple):
    """The type of an array."""

    dtype: str  # in XLA's words, such as "f32" or "bf16"
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the array; two 4-bit elements take one byte."""
        if self.dtype in _BYTES:
            return _BYTES[self.dtype] * math.prod(self.shape)
        bits = _BITS.match(self.dtype)
        return math.ceil(math.prod(self.shape) * int(bits[1]) / 8) if bits else 0


class Instruction(NamedTuple):
    """One instruction."""

    name: str  # unique in its computation
    type: str  # text of the result's type
    opcode: str  # the operation, such as "add"
    rest: str  # the line after the parenthesis that opens the operands
    is_root: bool  # whether it is the computation's result

    @property
    def arrays(self) -> list[Array]:
        """Types of the arrays in the result: one, or all arrays of a tuple."""
        return [_array(*found) for found in _ARRAY.findall(self.type)]

    @property
    def arguments(self) -> str:
        """Text in the parentheses: operands, or the value of a constant."""
        depth = 1
        for position, character in enumerate(self.rest):
            depth += (character == "(") - (character == ")")
            if not depth:
                return self.rest[:position]
        return self.rest

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return _OPERAND.findall(self.arguments)

    @property
    def op_name(self) -> str:
        """The framework's name of the operation that the instruction comes from; may be ""."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    @property
    def callees(self) -> list[str]:
        """Names of the computations that the instruction runs."""
        found: list[str] = []
        for one, several in _CALLED.findall(self.rest):
            found += [one] if one else re.findall(r"[\w.\-]+", several)
        return found

    def attribute(self, name: str) -> str | None:
        """Returns the value of an attribute that is a number or a word: `index=3`, `body=%loop`."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return found[1] if found else None


Computation = dict[str, Instruction]
"""Instructions by name, in order."""


class Module(NamedTuple):
    """A program: its computations by name."""

    computations: dict[str, Computation]
    entry: str  # name of the computation that runs first

    def root(self, computation: str) -> Instruction:
        """Returns the instruction whose result is the result of the computation."""
        *others, last = self.computations[computation].values()
        return next((instruction for instruction in others if instruction.is_root), last)


def parse(text: str) -> Module:
    """Reads the text of a compiled program, as `compiled.as_text()` returns it."""
    computations: dict[str, Computation] = {}
    entry, inside = "", None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            entry = header[2] if header[1] else entry
            inside = computations.setdefault(header[2], {})
        elif line.startswith("}"):
            inside = None
        elif inside is not None and (found := _INSTRUCTION.match(line)):
            root, name, type, opcode, rest = found.groups()
            inside[name] = Instruction(name, type, opcode, rest, bool(root))
    if not entry:
        raise ParamError("this is not the text of a compiled program: it has no ENTRY computation")
    return Module(computations, entry)


def _array(dtype: str, sizes: str) -> Array:
    return Array(dtype, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size))


class Origins:
    """Finds the framework's name of the operation that a value comes from."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._callers = {
            callee: (name, instruction)
            for name, body in module.computations.items()
            for instruction in body.values()
            if instruction.opcode == "fusion"
            for callee in instruction.callees
        }

    def find(self, computation: str, name: str) -> str:
        """Returns the name of a value's operation; instructions that only move data are skipped.

        A fusion's parameter is followed to the operand outside. Returns "" if there is no name.
        """
        for _ in range(_UNNAMED):
            instruction = self._module.computations[computation][name]
            if (found := instruction.op_name) and not is_combined(found):
                return found
            if instruction.opcode == "parameter" and computation in self._callers:
                computation, caller = self._callers[computation]
                name = caller.operands[int(instruction.arguments)]
            elif instruction.operands:
                name = instruction.operands[0]
            else:
                return common_name(found)
        return ""


def is_combined(op_name: str) -> bool:
    """Whether a name stands for several operations: `a/b/(c:d)`."""
    return _TOGETHER.search(op_name) is not None


def common_name(op_name: str) -> str:
    """Returns the common prefix of combined operations: `a/b/` of `a/b/(c:d)`."""
    found = _TOGETHER.search(op_name)
    return op_name[: found.end() - 1] if found else op_name


# ---- how often computations run ------------------------------------------------------------------


_TRIPS = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"(\d+)"')
_SAME = {"copy", "bitcast", "convert", "reshape", "broadcast", "copy-done", "optimization-barrier"}


class Carried(NamedTuple):
    """A value that a loop carries: an element of its tuple, or the whole tuple (None)."""

    element: int | None = None


Value = int | Carried | None
"""What is known of a scalar: its value, the carried element that it is, or None (nothing)."""


class Runs(NamedTuple):
    """How often a computation runs."""

    times: int  # in one run of the program
    is_known: bool  # False in a loop with an unknown trip count, which counts as 1


def runs(module: Module) -> dict[str, Runs]:
    """Returns how often each computation runs; every branch of a conditional counts."""
    totals: dict[str, Runs] = {}
    loops = Loops(module)

    def visit(computation: str, times: int, known: bool) -> None:
        before = totals.get(computation, Runs(0, True))
        totals[computation] = Runs(before.times + times, before.is_known and known)
        for instruction in module.computations[computation].values():
            trips = loops.trips(instruction, computation) if instruction.opcode == "while" else 1
            for name in instruction.callees:
                if name in module.computations:
                    visit(name, times * (trips or 1), known and trips is not None)

    visit(module.entry, 1, True)
    return totals


def executions(module: Module) -> list[tuple[str, Computation, Runs]]:
    """Returns name, body and runs of each computation that runs, in the order of the text."""
    times = runs(module)
    return [
        (name, body, times[name]) for name, body in module.computations.items() if name in times
    ]


class Loops:
    """Computes the trip counts of loops, by following scalars through a program."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._trips: dict[tuple[str, str], int | None] = {}

    def trips(self, loop: Instruction, computation: str) -> int | None:
        """Returns the trip count of a `while` in a computation; None if it is not known."""
        key = (computation, loop.name)
        if key not in self._trips:
            stated = _TRIPS.search(loop.rest)
            self._trips[key] = int(stated[1]) if stated else self._count(loop, computation)
        return self._trips[key]

    def _count(self, loop: Instruction, computation: str) -> int | None:
        """Returns the least n - i over the conditions `i < n`, with the initial i."""
        condition = loop.attribute("condition") or ""
        trips = [
            limit - start
            for i, n in self._bounds(self._module.root(condition), condition, [Carried()])
            if isinstance(i, Carried)
            and isinstance(start := self._initial_value(loop, computation, i), int)
            and isinstance(limit := self._initial_value(loop, computation, n), int)
        ]
        return min(trips) if trips else None

    def _initial_value(self, loop: Instruction, computation: str, value: Value) -> Value:
        """Returns the value, before the loop, of a scalar in the loop's body."""
        if not isinstance(value, Carried) or value.element is None:
            return value
        return self._element(loop.operands[0], value.element, computation, [])

    def _bounds(
        self, instruction: Instruction, computation: str, arguments: list[Value]
    ) -> list[tuple[Value, Value]]:
        """Returns the (i, n) of every `i < n` that must hold for a condition to hold."""
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
        """Returns the `Value` of a scalar in a computation with the given arguments."""
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
        """Returns the `Value` of an element of a tuple."""
        instruction = self._module.computations[computation][name]
        if instruction.opcode == "tuple":
            return self._value(instruction.operands[index], computation, arguments)
        if instruction.opcode == "while":
            return self._final_value(instruction, index, computation)
        if instruction.opcode in _SAME:
            return self._element(instruction.operands[0], index, computation, arguments)
        whole = self._value(name, computation, arguments)
        return Carried(index) if whole == Carried() else None

    def _final_value(self, loop: Instruction, index: int, computation: str) -> Value:
        """Returns an element of a loop's result, if it is a constant or the loop's counter."""
        start = self._element(loop.operands[0], index, computation, [])
        body = loop.attribute("body") or ""
        root = self._module.root(body)
        if root.opcode != "tuple" or not isinstance(start, int):
            return None
        if self._value(root.operands[index], body, [Carried()]) == Carried(index):
            return start
        trips = self.trips(loop, computation)
        return None if trips is None else start + trips
