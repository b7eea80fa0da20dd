"""Describes in a few lines how the tensors of a model differ from those of a checkpoint.

missing       the model has it, the checkpoint does not
unexpected    the checkpoint has it, the model does not

A weight, or a whole layer, that only one side has is one line. If both sides have one of the same
content under different names, it may have been renamed. Numbered layers share a line:
`model/stack/layers/0-11/ffn`. Slots of a weight that differs are not listed.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lingo.config.params import suggest
from lingo.data.array_spec import ArraySpec, Specs

MAX_LINES = 20
MAX_NAMES = 4  # names of weights that are listed for a layer

_WEIGHTS = "weights/"  # left out of what is printed
_SLOT = re.compile(r"(slots/[^/]+)/(.+)")
_NUMBER = re.compile(r"(?<=/)[0-9]+(?=/|$)")
_PATH = "\0"


class _Remark(NamedTuple):
    """A line: a text, and the paths that replace each `_PATH` in it."""

    text: str
    paths: tuple[str, ...]


def difference(*, model: Specs, checkpoint: Specs) -> list[str]:
    """Returns a line per difference between the tensors of a model and those of a checkpoint."""
    own, its = _without_slots(model), _without_slots(checkpoint)
    remarks = [*_one_sided(own, its), *_find_changed(own, its)]
    lines = [*_merge_remarks(remarks), *_slots(model, checkpoint)]
    more = [f"... and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return [*lines[:MAX_LINES], *more]


def _without_slots(tensors: Specs) -> dict[str, ArraySpec]:
    """Returns tensors by layer path, weights first, without optimizer slots."""
    names = sorted(tensors, key=lambda name: (not name.startswith(_WEIGHTS), name))
    return {n.removeprefix(_WEIGHTS): tensors[n] for n in names if not _SLOT.fullmatch(n)}


# ---- on one side only --------------------------------------------------------------------------


def _one_sided(own: Specs, its: Specs) -> Iterator[_Remark]:
    missing, unexpected = _units(own, its), _units(its, own)
    for path, twin in _find_renamed(missing, unexpected).items():
        text = f"missing {_PATH}{_describe_content(missing[path])}, unexpected {_PATH}: renamed?"
        yield _Remark(text, (path, twin))
        del missing[path], unexpected[twin]
    near = {_NUMBER.sub("*", path) for path in unexpected}
    for path, content in missing.items():
        hint = suggest(_NUMBER.sub("*", path), near)
        text = f"missing {_PATH}{_describe_content(content)}{'.' if hint else ''}{hint}"
        yield _Remark(text, (path,))
    for path, content in unexpected.items():
        yield _Remark(f"unexpected {_PATH}{_describe_content(content)}", (path,))


def _units(tensors: Specs, others: Collection[str]) -> dict[str, dict[str, ArraySpec]]:
    """Returns the tensors that only one side has, by the largest layers that the other side lacks.

    The result is path of a tensor or layer -> {path in it, "" for a tensor: (shape, dtype)}.
    """
    shared = {path for name in others for path in _prefixes(name)}
    units: defaultdict[str, dict[str, ArraySpec]] = defaultdict(dict)
    for name, spec in tensors.items():
        if name not in others:
            unit = next((path for path in _prefixes(name) if path not in shared), name)
            units[unit][name[len(unit) + 1 :]] = spec
    return dict(units)


def _prefixes(name: str) -> list[str]:
    return list(itertools.accumulate(name.split("/"), "{}/{}".format))


def _find_renamed(missing: Mapping[str, Specs], unexpected: Mapping[str, Specs]) -> dict[str, str]:
    """Returns path on the one side -> path on the other with the same content and layer numbers.

    Of several it takes the most similar name; for a single tensor the name must be similar.
    """
    candidates: defaultdict[Hashable, list[str]] = defaultdict(list)
    for path, content in unexpected.items():
        candidates[_numbers(path), frozenset(content.items())].append(path)
    twins = {}
    for path, content in missing.items():
        equal = candidates[_numbers(path), frozenset(content.items())]
        cutoff = 0.6 if "" in content else 0.0
        if near := difflib.get_close_matches(path, equal, 1, cutoff):
            twins[path] = near[0]
            equal.remove(near[0])
    return twins


def _describe_content(content: Specs) -> str:
    if "" in content:
        shape, dtype = content[""]
        return f" {list(shape)} {dtype}"
    if len(content) <= MAX_NAMES:
        return f" ({', '.join(content)})"
    return f" ({len(content)} tensors, such as {next(iter(content))})"


# ---- on both sides -----------------------------------------------------------------------------


def _find_changed(own: Specs, its: Specs) -> Iterator[_Remark]:
    for path in (path for path in own if path in its):
        (shape, dtype), (its_shape, its_dtype) = own[path], its[path]
        if shape != its_shape:
            text = f"shape {_PATH}: checkpoint {list(its_shape)}, model {list(shape)}"
            yield _Remark(text, (path,))
        if dtype != its_dtype:
            yield _Remark(f"dtype {_PATH}: checkpoint {its_dtype}, model {dtype}", (path,))


def _slots(model: Specs, checkpoint: Specs) -> Iterator[str]:
    """Yields differences in slots of weights that do not differ: the optimizer has changed."""
    differences: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted(model.keys() | checkpoint.keys()):
        own, its, match = model.get(name), checkpoint.get(name), _SLOT.fullmatch(name)
        if match is None or own == its:
            continue
        weight = _WEIGHTS + match[2]
        if model.get(weight) == checkpoint.get(weight):
            kind = "unexpected" if own is None else "missing" if its is None else "other"
            differences[kind, match[1]].append(match[2])
    for (kind, slot), paths in sorted(differences.items()):
        others = f" and {len(paths) - 1} more weights" if len(paths) > 1 else ""
        yield f"{kind} {slot} of {paths[0]}{others}: another optimizer?"


# ---- numbered layers ---------------------------------------------------------------------------


def _merge_remarks(remarks: Iterable[_Remark]) -> list[str]:
    """Returns a line per remark; remarks that differ only in layer numbers share a line."""
    groups: defaultdict[tuple[str, ...], list[_Remark]] = defaultdict(list)
    for remark in remarks:
        groups[remark.text, *(_NUMBER.sub("*", path) for path in remark.paths)].append(remark)
    lines = []
    for (text, *_), group in groups.items():
        axes = list(zip(*(_numbers(remark.paths[0]) for remark in group), strict=True))
        ranges = [_ranges(sorted(set(axis))) for axis in axes]
        if math.prod(len(set(axis)) for axis in axes) == len(group):
            lines.append(_fill_paths(text, [_number_path(path, ranges) for path in group[0].paths]))
        else:
            lines += [_fill_paths(text, remark.paths) for remark in group]
    return lines


def _fill_paths(text: str, paths: Sequence[str]) -> str:
    first, *rest = text.split(_PATH)
    return first + "".join(path + part for path, part in zip(paths, rest, strict=True))


def _numbers(path: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(path)))


def _number_path(path: str, ranges: Sequence[str]) -> str:
    """Returns a path with its numbers replaced by ranges."""
    remaining = iter(ranges)
    return _NUMBER.sub(lambda _: next(remaining), path)


def _ranges(numbers: Sequence[int]) -> str:
    """Returns "0-3,7" for 0, 1, 2, 3, 7."""
    runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(run) for _, run in runs)]
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ends)
