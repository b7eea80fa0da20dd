"""Reads the HLO text of a compiled program, as far as counting collectives needs it.

    HloModule jit_step
    %body (...) -> ... {                                     a computation
      %x = f32[2,8]{1,0} parameter(0)                        an instruction: name, type, opcode
      ROOT %sum = f32[2,8]{1,0} all-reduce(%x), replica_groups={{0,1}}, metadata={op_name="a/b"}
    }
    ENTRY %main (...) -> ... {

The text is that of one device: under GSPMD all devices run the same program on their own parts.
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
    type: str  # text of the type of the result
    opcode: str  # the operation, such as "add"
    rest: str  # the line after the parenthesis that opens the operands
    is_root: bool  # whether it is the computation's result

    @property
    def arrays(self) -> list[Array]:
        """Types of the arrays in the result: one, or those of a tuple."""
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
        """The framework's name of the operation that it comes from; may be ""."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    @property
    def callees(self) -> list[str]:
        """Names of the computations that it runs."""
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
