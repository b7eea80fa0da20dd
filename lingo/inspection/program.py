"""The report on a compiled step: collectives by layer, memory, FLOPs, and a TPU's cycles.

    kind        tensors  type     bytes  axes   phase    layer
    all-reduce        8  f32   2.00 MiB  model  forward  model/stack/layers/*/ffn

A row has the tensors of all equal layers. A collective's bytes count the larger of its input
and output on one device, summed over a step. They depend on the compiler's dtypes: a program
for CPUs has float32 where a program for accelerators has bfloat16.

An operation belongs to the layer that its name contains:

    jit(run)/while/body/call_tf/local/stack/layers/3/ffn/einsum/Einsum
    jit(run)/.../gradient_tape/local/stack/while/gradients/.../layers/_0_12_/IdentityN_grad/ffn/...

TensorFlow names an operation after its scopes. Layers open scopes, and so does the training step
(`local`, `loss_denominators`, `update`). Gradients, loops and compilers add words of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lingo.config.base.errors import LingoError
from lingo.inspection.memory import size
from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.layers.tree import scope_name
from lingo.mesh.hlo import flops, module, tpu
from lingo.mesh.hlo.collectives import collectives
from lingo.mesh.split import Axes
from lingo.runtimes.mesh.tpu_compiler import Generation, generation
from lingo.runtimes.program import CompiledProgram


class UnreadableProgram(LingoError):
    """The text of a compiled program is in no format of XLA that lingo can parse."""


class Row(NamedTuple):
    """The collectives of one kind in a step that belong to one layer."""

    kind: str  # "all-reduce", ...
    dtype: str  # dtype of the tensors, as XLA names it
    axes: Axes | None  # mesh axes along which devices communicate; None: not along mesh axes
    phase: str  # phase of the step, one of `PHASES`; "" if unknown
    layer: str  # path of the layer; "" if the collectives belong to no layer
    tensors: int = 0  # number of tensors; a tensor in a loop counts once per iteration
    bytes: int = 0  # bytes of all tensors on one device
    # False if some tensors are in a loop of unknown length, whose iterations count once.
    is_known: bool = True

    def plus(self, tensors: int, num_bytes: int, *, is_known: bool) -> Row:
        """Returns the row with tensors and their bytes added."""
        return self._replace(
            tensors=self.tensors + tensors,
            bytes=self.bytes + num_bytes,
            is_known=self.is_known and is_known,
        )

    def per(self, num_steps: int) -> Row:
        """Returns the row per step, for a program of `num_steps` steps; numbers are rounded up."""
        tensors, num_bytes = -(-self.tensors // num_steps), -(-self.bytes // num_steps)
        return self._replace(tensors=tensors, bytes=num_bytes)


class ProgramReport(NamedTuple):
    """The report on a compiled training or evaluation step."""

    program: CompiledProgram
    rows: list[Row]  # collectives, in program order
    product_flops: int  # FLOPs of matrix products per step and device (`flops.product_flops`)
    operations: int = 0  # number of operations per step and device (`flops.operations`)
    update_operations: int = 0  # number of these operations in the phase `update`
    cycles: int = 0  # cycles of a step, as a TPU's compiler estimates them; 0: another compiler
    padding: int = 0  # bytes by which arguments are padded to tiles of a TPU's memory

    @property
    def seconds(self) -> float:
        """The time that a step's cycles take on a TPU, without collectives."""
        return self.cycles / self._generation.clock

    @property
    def utilization(self) -> float:
        """The FLOPs of products, relative to a TPU's bfloat16 peak in the time `seconds`."""
        return self.product_flops / (self.seconds * self._generation.flops_per_second)

    @property
    def _generation(self) -> Generation:
        return generation(self.program.topology or "")

    @property
    def update_bytes(self) -> int:
        """The bytes that a device exchanges in the phase `update`, per step."""
        return sum(row.bytes for row in self.rows if row.phase == "update")


def report(program: CompiledProgram, task: Layer) -> ProgramReport:
    """Returns the report on a compiled program; `task` is the task that the program computes.

    Raises UnreadableProgram if the program's text cannot be parsed.
    """
    finder = LayerFinder(task)
    rows: dict[Row, Row] = {}
    try:
        read = module.parse(program.text)
        exchanges, is_tpu = collectives(read, program.mesh), program.topology is not None
        products = flops.product_flops(read, is_tpu=is_tpu)
        counts = list(flops.operations(read, is_tpu=is_tpu))
    except (LookupError, ValueError, TypeError) as error:
        kind = type(error).__name__
        raise UnreadableProgram(f"the compiled program cannot be read: {kind}: {error}") from error
    for one in exchanges:
        origin = finder.find(one.op_name)
        empty = Row(one.kind, one.array.dtype, one.axes, origin.phase, origin.layer)
        row = rows.get(empty, empty)
        rows[empty] = row.plus(one.runs.times, one.num_bytes, is_known=one.runs.is_known)
    per_step = [row.per(program.num_steps) for row in rows.values()]
    phases = {name: finder.find(name).phase for name in {name for name, _ in counts}}
    updates = sum(count for name, count in counts if phases[name] == "update")
    everything = sum(count for _, count in counts)
    num = program.num_steps
    return ProgramReport(
        program,
        per_step,
        product_flops=products // num,
        operations=everything // num,
        update_operations=updates // num,
        cycles=tpu.cycles(read) // num,
        padding=tpu.padding_bytes(read),
    )


def as_json(report: ProgramReport) -> dict[str, Any]:
    """Returns a report as JSON values, in which equal layers have separate rows."""
    program = report.program
    return {
        "mesh": dict(program.mesh.sizes),
        "devices": program.mesh.num_devices,
        "collectives": [
            row._asdict() | {"axes": None if row.axes is None else list(row.axes)}
            for row in report.rows
        ],
        "bytes_by_kind": _totals(report.rows),
        "memory": dict(program.memory),
        "product_flops": report.product_flops,
        "operations": report.operations,
        "update_operations": report.update_operations,
        "update_bytes": report.update_bytes,
        "gradient_sums": gradient_sums(report),
        "tpu": _tpu_json(report) if report.cycles else None,
        "trace_seconds": program.trace_seconds,
        "compile_seconds": program.compile_seconds,
    }


def _tpu_json(report: ProgramReport) -> dict[str, Any]:
    return {
        "topology": report.program.topology,
        "cycles": report.cycles,
        "seconds": report.seconds,
        "utilization": report.utilization,
        "padding": report.padding,
    }


def text(report: ProgramReport) -> str:
    """Returns a report as text: the largest rows first, one row for equal layers, totals below."""
    program, rows = report.program, _fold_layers(report.rows)
    rows.sort(key=lambda row: (-row.bytes, -row.tensors))
    num = program.mesh.num_devices
    where = f"one of {num} devices: {program.mesh}" if num > 1 else "one device"
    whose = f", compiled for TPUs, {program.topology}" if program.topology else ""
    lines = [f"on {where}{whose}", "", *_table(rows)]
    if not all(row.is_known for row in rows):
        lines += ["* at least: in a loop of unknown length, whose iterations count once"]
    lines += [""] + ([_memory(program.memory)] if program.memory else [])
    lines += [f"FLOPs    {report.product_flops:.4g}, of products and convolutions"]
    lines += [*_tpu(report), *_update(report)]
    return "".join(f"{line}\n" for line in lines)


def seconds(program: CompiledProgram) -> str:
    """Returns a line of text with the time that tracing and compiling a program took."""
    trace, compiled = program.trace_seconds, program.compile_seconds
    return f"seconds  {trace:.1f} to trace, {compiled:.1f} to compile\n"


def _tpu(report: ProgramReport) -> list[str]:
    """Returns lines on the estimates of a TPU's compiler; [] for other compilers."""
    if not report.cycles:
        return []
    seconds, share = report.seconds, report.utilization
    padding = report.padding / (report.program.memory.get("arguments") or 1)
    return [
        f"cycles   {report.cycles:.4g} by the compiler's estimate, exchanges left out:"
        f" {1000 * seconds:.4g} ms, {share:.1%} of the peak",
        f"padding  {size(report.padding)}, {padding:.1%} of the arguments, which fill whole tiles",
    ]


def _update(report: ProgramReport) -> list[str]:
    """Returns lines on the optimizer update's share of a step; [] for an evaluation step."""
    if not report.update_operations:
        return []
    share = f"{report.update_operations / report.operations:.1%} of {report.operations:.4g}"
    exchanged = sum(row.bytes for row in report.rows)
    part = f", {report.update_bytes / exchanged:.1%} of the bytes exchanged" if exchanged else ""
    lines = [f"update   {share} operations{part}"]
    sums = gradient_sums(report)
    if scattered := sums.get("reduce-scatter"):
        lines += [
            f"         reduce-scatter: {scattered:,} tensors, devices sum their own shards of them"
        ]
    if whole := sums.get("all-reduce"):
        lines += [
            f"         no reduce-scatter: {whole:,} tensors, summed whole, then cut in shards"
        ]
    return lines


def gradient_sums(report: ProgramReport) -> dict[str, int]:
    """Returns how many tensors are summed for a sharded update: kind of collective -> number.

    They are gradients and gradient norms, summed in the phases backward and update, along the mesh
    axes along which the update gathers weights. {}: the update gathers no weights.
    """
    axes = {row.axes for row in report.rows if (row.kind, row.phase) == ("all-gather", "update")}
    sums: dict[str, int] = {}
    for row in report.rows:
        is_sum = row.kind in ("all-reduce", "reduce-scatter")
        if is_sum and row.axes in axes and row.phase in ("backward", "update"):
            sums[row.kind] = sums.get(row.kind, 0) + row.tensors
    return sums


def _memory(memory: Mapping[str, int]) -> str:
    new_outputs = memory["outputs"] - memory["aliased"]
    return (
        f"memory   {size(memory['arguments'])} arguments, {size(new_outputs)} new outputs,"
        f" {size(memory['temporaries'])} temporaries"
    )


def _fold_layers(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows, with the rows of equal layers merged into one."""
    folded: dict[Row, Row] = {}
    for row in rows:
        empty = Row(row.kind, row.dtype, row.axes, row.phase, fold_indices(row.layer))
        before = folded.get(empty, empty)
        folded[empty] = before.plus(row.tensors, row.bytes, is_known=row.is_known)
    return list(folded.values())


def _totals(rows: Iterable[Row]) -> dict[str, int]:
    """Returns the bytes of each kind of collective, the kind with the most bytes first."""
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.kind] = totals.get(row.kind, 0) + row.bytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _table(rows: Sequence[Row]) -> list[str]:
    cells = [("kind", "tensors", "type", "bytes", "axes", "phase", "layer")]
    cells += [
        (
            row.kind,
            f"{row.tensors:,}{'' if row.is_known else '*'}",
            row.dtype,
            size(row.bytes),
            "across" if row.axes is None else "+".join(row.axes) or "-",
            row.phase or "-",
            row.layer or "-",
        )
        for row in rows
    ]
    count = {kind: sum(row.tensors for row in rows if row.kind == kind) for kind in _totals(rows)}
    for kind, total in _totals(rows).items():
        cells.append((f"{kind} in all", f"{count[kind]:,}", "", size(total), "", "", ""))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [_line(row, widths) for row in cells] if rows else ["the devices exchange nothing"]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    kind, tensors, dtype, num_bytes, *rest = zip(cells, widths, strict=True)
    left = [cell.ljust(width) for cell, width in rest]
    aligned = [kind[0].ljust(kind[1]), tensors[0].rjust(tensors[1]), dtype[0].ljust(dtype[1])]
    return "  ".join([*aligned, num_bytes[0].rjust(num_bytes[1]), *left]).rstrip()


# ---- where an operation comes from ---------------------------------------------------------------


PHASES = ("loss_denominators", "forward", "backward", "update")

_FORWARD = "local"  # the scope in which the step computes losses
_BACKWARD = re.compile(r"gradient_tape|gradients|\w+_grad")
_REPEATED = re.compile(r"_\d+$")  # TensorFlow's suffix for a scope that is opened again


class OperationOrigin(NamedTuple):
    """The phase of the step and the layer that an operation of a compiled program comes from."""

    phase: str  # one of `PHASES`; "" if unknown
    layer: str  # path of the innermost layer, maybe with stacked layers as one; "": no layer


class LayerFinder:
    """Finds the layer that an operation belongs to, by the operation's name."""

    def __init__(self, root: Layer) -> None:
        """Collects the names of the layers below `root`; the root itself opens no named scope."""
        self._paths: dict[tuple[str, ...], str] = {}
        paths = [layer.path for layer in root.tree() if layer.path]
        for where in sorted(paths, key=lambda where: where.count("/")):
            parts = tuple(map(scope_name, where.split("/")))
            for start in range(len(parts)):  # outer layers that are never called open no scope
                known = self._paths.setdefault(parts[start:], where)
                if known.count("/") == where.count("/"):
                    self._paths[parts[start:]] = _common(known, where)
        self._words = {word for parts in self._paths for word in parts}

    def find(self, op_name: str) -> OperationOrigin:
        """Returns the origin of an operation, by its name in XLA.

        If XLA joined several names by ";", the first name counts.
        """
        words = op_name.partition(";")[0].split("/")
        roots = [i for i, word in enumerate(words) if _first_name(word) in (_FORWARD, *PHASES)]
        root = _first_name(words[roots[-1]]) if roots else ""
        layer = self._layer(words[roots[-1] + 1 :] if roots else words)
        if any(_BACKWARD.fullmatch(word) for word in words) and root != "update":
            return OperationOrigin("backward", layer)
        return OperationOrigin(
            "forward" if root == _FORWARD or (layer and not root) else root, layer
        )

    def _layer(self, words: Iterable[str]) -> str:
        """Returns the path of a layer that an operation's name contains; "" if there is none.

        `words` are the parts of the name. Words that are no layer's name are skipped. The layer is
        the one whose path matches the largest number of the other words, beginning at the first.
        """
        named = [word if word in self._words else _first_name(word) for word in words]
        named = [word for word in named if word in self._words]
        for length in range(len(named), 0, -1):
            if found := self._paths.get(tuple(named[:length])):
                return found
        return ""


def fold_indices(layer: str) -> str:
    """Returns a path with `*` in place of indices, so that equal layers have the same path."""
    return "/".join("*" if _is_index(part) else part for part in layer.split("/"))


def _first_name(word: str) -> str:
    return _REPEATED.sub("", word)


def _is_index(part: str) -> bool:
    return part.isdigit() or path.index_range(part) is not None


def _common(one: str, other: str) -> str:
    """Merges two paths of equal length into one, with `*` for parts in which they differ."""
    pairs = zip(one.split("/"), other.split("/"), strict=True)
    return "/".join(a if a == b else "*" for a, b in pairs)
