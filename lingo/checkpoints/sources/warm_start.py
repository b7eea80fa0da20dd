r"""Initial weights of a run from an earlier training, instead of random ones.

    WarmStart.params(path="runs/pretrained")                      every weight, by its own name
    WarmStart.params(path="bert.safetensors", partial=True,
                     rename={r"model/stack/layers/(\d+)/(.*)": r"encoder.\1.\2"})

A rule maps the name of a weight of the model to its name in the source, as in Lingvo's
`init_from_checkpoint_rules`, so every weight of the model is accounted for. A name belongs to the
weight of one layer, even where a program stacks layers.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from lingo.checkpoints.errors import CheckpointMismatch
from lingo.checkpoints.sources.find import SLOTS, find_source
from lingo.checkpoints.sources.layout import WeightLayout
from lingo.checkpoints.sources.transfer import Grid, TensorRead, Transfer, fits, grid_text
from lingo.checkpoints.sources.weight_source import FLOATS, Tensor, WeightSource, printable
from lingo.config import ranges
from lingo.config.base.types import FilePath
from lingo.config.params import Configurable, ParamError, suggest
from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.optim.pattern import check_patterns, check_used, match_patterns, name_field

_MAX_LINES = 20  # differences in an error
_MAX_CANDIDATES = 5000  # names that are searched for a similar name
_NUM_EXAMPLES = 3
_CHANGES: dict[str, Any] = {"parts": (0, 1), "scale": 1.0, "offset": 0.0, "resize": None}
"""Field {pattern: change of values} -> the change for a weight that no pattern matches."""

Shape = tuple[int, ...]

_NO_SLOTS: Mapping[str, Mapping[str, Shape]] = MappingProxyType({})


class WarmStart(Configurable):
    """Reads weights and moving statistics when a run begins; the run's steps start at 0.

    A run that resumes from its own checkpoint does not read the source again. Other float types are
    cast to float32. Patterns are regular expressions that match the whole name of a weight of the
    model.

    The optimizer's slots have their initial values, unless `slots` reads them. Even then the
    optimizer counts steps from 0. So Adam's bias correction treats the means that were read like
    sums of a few gradients: with default decays the first step is 0.32 times as long as it should
    be, the twelfth 0.15 times, the thousandth 0.8 times. Adafactor's decay is 0 at its first step,
    which therefore replaces all factors that were read. `optimizer.slot_steps`, set to the source's
    number of steps, corrects both optimizers; schedules begin at 0 in any case.
    """

    path: FilePath  # a run or checkpoint, a TensorFlow checkpoint, a .safetensors file or its index
    step: int | None = None  # of a run's checkpoint; None: the latest undamaged checkpoint
    weights: Literal["trained", "ema"] = "trained"  # ema: moving averages, of a lingo run only
    slots: bool = False  # whether the optimizer's slots are read, too; from a lingo run only
    # Pattern -> name in the source, with \1 for the pattern's first group. The first match counts.
    rename: dict[str, str] = {}
    only: tuple[str, ...] = ()  # patterns of the weights that are read; empty: all
    skip: tuple[str, ...] = ()  # patterns of weights that are not read
    transpose: tuple[str, ...] = ()  # patterns of weights whose axes are reversed in the source
    reshape: bool = False  # whether the source's tensors may have neighbouring axes split or merged
    # Pattern -> (i, n): the weight is part i, from 0, of n equal parts of a tensor's last axis.
    parts: dict[str, tuple[int, int]] = {}
    scale: dict[str, float] = {}  # pattern -> factor of the source's values
    offset: dict[str, float] = {}  # pattern -> number to add, after `scale`
    # Pattern -> (source's grid, model's grid) of position embeddings, which are interpolated.
    resize: dict[str, tuple[Grid, Grid]] = {}
    partial: bool = False  # whether weights that the source lacks get their usual initial values
    # The names and forms of all tensors, in place of the fields from `rename` to `offset`.
    layout: WeightLayout | None = None

    def check(self) -> None:
        ranges.check_not_negative(self.p, "step")
        if not self.p.path or "\0" in self.p.path:
            raise ParamError(f"path={self.p.path!r} names nothing")
        for field in ("rename", "only", "skip", "transpose", *_CHANGES):
            with name_field(field):
                check_patterns(getattr(self.p, field))
        for pattern, (i, n) in self.p.parts.items():
            if not 0 <= i < n:
                raise ParamError(f"parts[{pattern!r}]={(i, n)}: (0, 3) is the first of three parts")
        for pattern, (old, new) in self.p.resize.items():
            if not old or len(old) != len(new) or min(*old, *new) < 1:
                raise ParamError(
                    f"resize[{pattern!r}]={(old, new)}: ((14, 14), (24, 24)) are the grids of"
                    " patches in the source and in the model"
                )
        for field in ("rename", "transpose", "reshape", "parts", "scale", "offset"):
            if self.p.layout is not None and getattr(self.p, field):
                raise ParamError(
                    f"{field}={getattr(self.p, field)!r} with layout={self.p.layout!r}: the layout"
                    " says how weights are read; leave out one of the two"
                )
        for field in ("transpose", "reshape", "layout", *_CHANGES):
            if self.p.slots and getattr(self.p, field):
                raise ParamError(
                    f"slots=true reads slots as they are, and {field}={getattr(self.p, field)!r}"
                    f" changes weights: leave out {field}, or slots, for new slots"
                )
        for pattern, template in self.p.rename.items():
            if not (template and template.isprintable()):
                raise ParamError(
                    f"rename[{pattern!r}]={template!r} is not a name; in quotes on a command line a"
                    r" backslash is doubled: '\\1' is the first group"
                )

    def setup(self) -> None:
        self.layout = self.p.layout and self.p.layout.build()

    def check_weights(self, names: Sequence[str]) -> None:
        """Raises ParamError if patterns or templates do not fit the weights of a model."""
        for field in ("only", "skip", "transpose", *_CHANGES):
            with name_field(f"init_from.{field}"):
                check_used([*getattr(self.p, field)], names)
        with name_field("init_from.rename"):
            rules = list(self.p.rename)
            check_used(rules, names)
            used = {pattern for name in names for pattern in match_patterns(rules, name)[:1]}
            if hidden := [pattern for pattern in rules if pattern not in used]:
                raise ParamError(
                    f"{hidden[0]!r} matches only weights that earlier patterns match: put it first"
                )
            for name in [] if self.layout else names:
                self.source_name(name)
        if not self._select_weights(names):
            raise ParamError("init_from.only and init_from.skip leave no weight to read")

    def transfer(
        self, shapes: Mapping[str, Shape], slots: Mapping[str, Mapping[str, Shape]] = _NO_SLOTS
    ) -> Transfer:
        """Finds a model's weights in the source, without reading them.

        `shapes` is {weight: shape}; `slots` is {weight: {slot: shape}} of the optimizer's slots.

        Raises:
            ParamError: if `step`, `weights` or `slots` does not fit the kind of source.
            CheckpointMismatch: if a weight or slot is missing, or has another shape or dtype.
            UnusableSource, NoUsableCheckpoint, DamagedCheckpoint: if the source cannot be used.
        """
        p = self.p
        file = Path(os.path.expanduser(p.path))
        source = find_source(file, step=p.step, averages=p.weights == "ema", slots=p.slots)
        wanted = self.reads(shapes)
        names = {weight: read.name for weight, read in wanted.items()}
        absent = {weight: name for weight, name in names.items() if name not in source.tensors}
        reads = {weight: read for weight, read in wanted.items() if weight not in absent}
        if not reads:
            raise CheckpointMismatch(_describe_no_match(source, names))
        used = {read.name for read in reads.values()}
        lines = [] if p.partial else list(_describe_missing(source, absent, used))
        if self.layout is not None:
            lines += self._foreign_tensors(source, shapes)
        for weight, read in reads.items():
            if line := self._difference(source.tensors[read.name], weight, read):
                lines.append(line)
        if lines:
            raise CheckpointMismatch(_describe_misfit(source, lines, used, partial=p.partial))
        others = [weight for weight in shapes if weight not in names]
        if not p.slots:
            return Transfer(source, reads, absent, others)
        slot_reads = {
            (weight, slot): TensorRead(f"{SLOTS}{slot}/{read.name}", shape)
            for weight, read in reads.items()
            for slot, shape in slots.get(weight, {}).items()
        }
        _check_slots(source, slot_reads)
        return Transfer(source, reads, absent, others, slot_reads)

    def reads(self, shapes: Mapping[str, Shape]) -> dict[str, TensorRead]:
        """Returns weight -> how it is read; `shapes` has weights that the source must all have."""
        names = self._select_weights(shapes)
        if self.layout is None:
            return {name: self._read(name, shapes[name]) for name in names}
        reads = self.layout.reads({name: shapes[name] for name in names})
        return {
            name: read._replace(resize=self._change("resize", name)) for name, read in reads.items()
        }

    def _read(self, weight: str, shape: Shape) -> TensorRead:
        """Returns how a weight is read."""
        changes = {field: self._change(field, weight) for field in _CHANGES}
        reverse = bool(match_patterns(self.p.transpose, weight))
        name = self.source_name(weight)
        return TensorRead(
            name,
            shape,
            reverse,
            changes["parts"],
            changes["scale"],
            changes["offset"],
            changes["resize"],
        )

    def _change(self, field: str, weight: str) -> Any:
        """Returns the value of the field's first pattern that matches a weight, or the default."""
        patterns = getattr(self.p, field).items()
        return next((v for k, v in patterns if re.fullmatch(k, weight)), _CHANGES[field])

    def _foreign_tensors(self, source: WeightSource, shapes: Mapping[str, Shape]) -> list[str]:
        """Returns a line per tensor of the source that the layout's network does not have."""
        known = {read.name for read in self.layout.reads(shapes).values()} if self.layout else set()
        return [
            f"unknown {printable(name)}: the network has no such tensor"
            for name in source.tensors
            if name not in known and not (self.layout and self.layout.is_ignored(name))
        ]

    def _select_weights(self, names: Collection[str]) -> list[str]:
        """Returns the names that `only` and `skip` select."""
        only = self.p.only or (".*",)
        return [n for n in names if match_patterns(only, n) and not match_patterns(self.p.skip, n)]

    def source_name(self, weight: str) -> str:
        """Returns the source's name for the model's weight, by the first rule that matches it."""
        for pattern, template in self.p.rename.items():
            if match := re.fullmatch(pattern, weight):
                try:
                    return match.expand(template)
                except (re.error, IndexError) as error:
                    raise ParamError(f"[{pattern!r}]={template!r}: {error}") from None
        return weight

    def _difference(self, tensor: Tensor, weight: str, read: TensorRead) -> str:
        """Returns a line on how the source's tensor does not fit a weight; "" if it fits."""
        name = f"{weight}{'' if weight == read.name else f' ({printable(read.name)})'}"
        if tensor.dtype not in FLOATS:
            dtype = printable(tensor.dtype)
            return f"dtype {name}: {dtype} in the source, but {', '.join(FLOATS)} are read"
        ordered = read.ordered_shape(tensor.shape)
        if (n := read.part[1]) > 1 and (not ordered or ordered[-1] % n):
            return f"shape {name}: {list(tensor.shape)} in the source has no {n} equal parts"
        shape = read.part_shape(tensor.shape)
        shape = shape[::-1] if read.reverse else shape
        if read.resize is not None:
            old, new = read.resize
            shape = shape[-2:] if read.form else shape
            if shape[:1] != (read.num_kept + math.prod(old),):
                grid = grid_text(old)
                return f"shape {name}: {list(tensor.shape)} in the source, not a grid of {grid}"
            shape = (read.num_kept + math.prod(new), *shape[1:])
        elif shape == read.form:
            return ""
        if shape == read.shape or (self.p.reshape and fits(shape, read.shape)):
            return ""
        hint = _shape_hint(shape, read) if self.layout is None else ""
        return (
            f"shape {name}: {list(tensor.shape)} in the source, {list(read.shape)} in the model"
            f"{hint}"
        )


def weight_shapes(model: Layer) -> dict[str, Shape]:
    """Returns name -> shape of every weight and moving statistic of each layer, not stacked."""
    specs = {**model.weights(), **model.states()}
    return {name: spec.shape for where, spec in specs.items() for name in path.names(where)}


def _check_slots(source: WeightSource, reads: Mapping[tuple[str, str], TensorRead]) -> None:
    """Raises CheckpointMismatch unless the source has every slot in `reads`, (weight, slot).

    Weights whose slots differ in the same way share a line.
    """
    wrong: dict[tuple[str, str], list[str]] = {}
    for (weight, slot), read in reads.items():
        tensor = source.tensors.get(read.name)
        if tensor is None:
            wrong.setdefault(("missing", slot), []).append(f"{weight}{list(read.shape)}")
        elif (tensor.shape, tensor.dtype) != (read.shape, "float32"):
            line = f"{weight}{list(read.shape)}, {tensor.dtype}{list(tensor.shape)} in the source"
            wrong.setdefault(("other", slot), []).append(line)
    if not wrong:
        return
    lines = [
        f"{kind} slot {slot!r} of {first}{f' and {len(rest)} more weights' if rest else ''}"
        for (kind, slot), (first, *rest) in wrong.items()
    ]
    kept = {name.split("/")[1] for name in source.tensors if name.startswith(SLOTS)}
    there = ", ".join(map(printable, sorted(kept))) or "none"
    text = "\n  ".join([f"{source.path} does not have the slots of the optimizer:", *lines])
    raise CheckpointMismatch(
        f"{text}\nIts slots: {there}. Take the optimizer of that run, or begin all slots anew by"
        " init_from.slots=false."
    )


# ---- error messages ------------------------------------------------------------------------------


def _shape_hint(shape: Shape, read: TensorRead) -> str:
    """Returns which field could read a tensor of another shape than the weight's; "" if none."""
    hint = "; transpose names it" if read.reverse else ""
    hint += f"; resize makes a grid of {grid_text(read.resize[1])}" if read.resize else ""
    if fits(shape, read.shape):
        hint += "; reshape=true would read it"
    elif fits(shape[::-1], read.shape):
        hint += "; it should not" if read.reverse else "; transpose could name it"
    elif shape[1:] == read.shape[1:] and len(shape) == 2 and not read.resize:
        hint += "; if these are positions in an image, resize would read them"
    return hint


def _describe_no_match(source: WeightSource, names: Mapping[str, str]) -> str:
    """Returns the message for a source that has none of the weights, with names from both sides."""
    content = _examples(source.tensors) if source.tensors else "no tensor"
    return (
        f"{source.path} holds none of {len(names)} weights: {_examples(names.values())}.\n"
        f"It holds {content}. init_from.rename says what a weight is called there."
    )


def _describe_missing(
    source: WeightSource, absent: Mapping[str, str], used: Collection[str]
) -> Iterator[str]:
    """Yields a line for each missing weight, with the most similar name in the source."""
    free = [printable(name) for name in source.tensors if name not in used][:_MAX_CANDIDATES]
    for i, (weight, name) in enumerate(absent.items()):
        ours = "" if name == weight else f" for {weight}"
        yield f"missing {printable(name)}{ours}{suggest(name, free) if i < _MAX_LINES else ''}"


def _describe_misfit(
    source: WeightSource, lines: Sequence[str], used: Collection[str], *, partial: bool
) -> str:
    """Returns the message for a source that does not fit the model."""
    more = [f"... and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    message = "\n  ".join([f"{source.path} does not fit the model:", *lines[:_MAX_LINES], *more])
    if free := [name for name in source.tensors if name not in used]:
        message += f"\n{len(free)} tensors of the source are not requested: {_examples(free)}."
    if lines[0].startswith("missing") and not partial:
        message += "\ninit_from.partial=true gives missing weights their usual initial values."
    return message


def _examples(names: Collection[str]) -> str:
    some = [printable(name) for name in list(names)[:_NUM_EXAMPLES]]
    return ", ".join(some) + (", ..." if len(names) > _NUM_EXAMPLES else "")
