"""A committed checkpoint: its content, its verification, and reading its tensors.

    step_00000200/
        tensors.index, tensors.data-00000-of-00001    a TensorBundle
        MANIFEST.json                                 their content, and the digest of each file

Every tensor belongs to one layer and is named after the layer's weight or state (`weights/<name>`,
`slots/<slot>/<name>`, `state/<name>`). So any program that has these weights can read the
checkpoint, however the program stacks or shards them.

A report on differences from a model has a line per difference: a renamed tensor, a `missing` tensor
(which only the model has) or an `unexpected` tensor (which only the checkpoint has).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import itertools
import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingo.checkpoints.bundle import BUNDLE, restore, slice_spec
from lingo.checkpoints.errors import CheckpointMismatch, DamagedCheckpoint, DeletedCheckpoint
from lingo.checkpoints.manifest import explain_damage, open_plain, read_manifest, unreadable_now
from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import suggest
from lingo.data.array_spec import ArraySpec, Specs
from lingo.storage.bucket import parts
from lingo.storage.shards import box, box_shape

_OTHER_MODEL = "Nothing was read. `init_from` begins another run with the weights that they share."
_GROUP_ELEMENTS = 32 << 20  # elements that `digests` reads at a time

MAX_LINES = 20
MAX_NAMES = 4  # names of weights that are listed for a layer

_WEIGHTS = "weights/"  # left out of messages
_SLOT = re.compile(r"(slots/[^/]+)/(.+)")
_NUMBER = re.compile(r"(?<=/)[0-9]+(?=/|$)")
_DATA = re.compile(rf"{BUNDLE}\.data-[0-9]{{5}}-of-[0-9]{{5}}")
_PATH = "\0"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    path: Path  # its directory
    # Content of MANIFEST.json: `format`, `step`, `metadata`, `tensors`, `files`.
    manifest: Mapping[str, Any]
    # Errors of damaged checkpoints of later steps, which were skipped to choose this checkpoint.
    later_errors: tuple[DamagedCheckpoint, ...] = ()

    @property
    def step(self) -> int:
        """The number of steps done when the checkpoint was written."""
        return self.manifest["step"]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata that were saved with the tensors."""
        return self.manifest["metadata"]

    @property
    def tensors(self) -> dict[str, ArraySpec]:
        """Name -> (shape, dtype) of every tensor in the checkpoint."""
        entries = self.manifest["tensors"].items()
        return {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in entries}

    @property
    def num_bytes(self) -> int:
        """The size of the checkpoint's files without the manifest."""
        return sum(entry["size"] for entry in self.manifest["files"].values())

    def verify(self, *, content: bool = True) -> None:
        """Checks that every file exists with its recorded size, and digest if `content`.

        A file that only the bucket has, of whose run this is a local copy, counts as checked.

        Raises DamagedCheckpoint for the first file that differs, DeletedCheckpoint if the
        checkpoint was deleted meanwhile, NoUsableCheckpoint if a file is not readable now.
        """
        files = self.manifest["files"]
        absent = {name: files[name] for name in files if not os.path.lexists(self.path / name)}
        if parts.has(self.path, absent):
            files = {name: files[name] for name in files if name not in absent}
        for name, expected in files.items():
            with explain_damage(self.path, name), open_plain(self.path / name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected["size"]:
                    reason = f"{size} bytes, {expected['size']} were written"
                    raise DamagedCheckpoint(self.path, name, reason)
                sha256 = hashlib.file_digest(file, "sha256").hexdigest() if content else None
            if content and sha256 != expected["sha256"]:
                raise DamagedCheckpoint(self.path, name, "its bytes have changed")

    def require(self, expected: Mapping[str, tuple[Sequence[int], str]]) -> None:
        """Raises CheckpointMismatch unless it holds exactly a model's tensors.

        `expected` has name -> (shape, dtype) of the model's tensors. The error lists differences
        and similar names.
        """
        model = {name: (tuple(shape), dtype) for name, (shape, dtype) in expected.items()}
        if lines := difference(model=model, checkpoint=self.tensors):
            text = "\n  ".join([f"{self.path} is of another model:", *lines])
            raise CheckpointMismatch(f"{text}\n{_OTHER_MODEL}")

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads whole tensors, each in its shape and dtype (bfloat16 from `ml_dtypes`).

        Raises CheckpointMismatch for a name that the checkpoint does not hold, DamagedCheckpoint if
        a tensor is damaged, DeletedCheckpoint if the checkpoint was deleted since it was opened,
        and NoUsableCheckpoint if it cannot be read now.
        """
        names = list(names)
        return dict(zip(names, self._restore(names, [""] * len(names)), strict=True))

    def read_slices(self, names: Sequence[str], index: Sequence[slice]) -> list[np.ndarray]:
        """Reads the same slice (step 1) of several tensors, without reading the rest.

        Each array has the slice's shape and its tensor's dtype. Raises the errors of `read`.
        """
        entries = [self._entry(name) for name in names]
        cuts = [box(index, entry["shape"]) for entry in entries]
        if all(math.prod(box_shape(cut)) for cut in cuts):
            specs = [slice_spec(e["shape"], cut) for e, cut in zip(entries, cuts, strict=True)]
            return self._restore(list(names), specs)
        return [  # `zeros` for empty slices, which RestoreV2 refuses
            whole[tuple(index)] for whole in self._restore(list(names), [""] * len(names))
        ]

    def digests(self) -> Iterator[tuple[str, str]]:
        """Yields (name, digest of its values) of every tensor."""
        for names in self._groups():
            for name, value in self.read(names).items():
                yield name, digest(value)

    def _groups(self) -> Iterator[list[str]]:
        """Yields lists of names of tensors that are read together."""
        names, num_elements = [], 0
        for name, (shape, _) in self.tensors.items():
            size = math.prod(shape)
            if names and num_elements + size > _GROUP_ELEMENTS:
                yield names
                names, num_elements = [], 0
            names.append(name)
            num_elements += size
        yield names

    def _entry(self, name: str) -> Mapping[str, Any]:
        entries = self.manifest["tensors"]
        if name not in entries:
            near = suggest(name, entries)
            raise CheckpointMismatch(f"{self.path} holds no tensor {name!r}.{near}")
        return entries[name]

    def _restore(self, names: list[str], specs: list[str]) -> list[np.ndarray]:
        dtypes: list[str] = [self._entry(name)["dtype"] for name in names]
        try:
            values = restore(self.path, names, specs, dtypes)
        except tf.errors.OpError as error:
            if self._fetch_absent(error):
                return self._restore(names, specs)
            raise self._read_error(error) from error
        for name, spec, value in zip(names, specs, values, strict=True):
            if not spec and list(value.shape) != self._entry(name)["shape"]:
                reason = f"{name} has shape {list(value.shape)}, not the manifest's"
                raise DamagedCheckpoint(self.path, BUNDLE, reason)
        return values

    def _fetch_absent(self, error: tf.errors.OpError) -> bool:
        """Reads the file of data that an error misses from the bucket; returns whether it did.

        So a process reads only those files that have shards which it needs.
        """
        if (match := _DATA.search(str(error))) is None or (self.path / match[0]).exists():
            return False
        return parts.fetch(self.path / match[0])

    def _read_error(self, error: tf.errors.OpError) -> LingoError:
        """Returns the error to raise for tensors that TensorFlow cannot read, without its text."""
        if not os.path.lexists(self.path):
            return DeletedCheckpoint(self.path)
        if isinstance(error, tf.errors.ResourceExhaustedError):
            return unreadable_now(self.path, BUNDLE, "there is no memory for it")
        if isinstance(error, (tf.errors.PermissionDeniedError, tf.errors.UnknownError)):
            return unreadable_now(self.path, BUNDLE, "the disk or its permissions prevent it")
        return DamagedCheckpoint(self.path, BUNDLE, "no tensors can be read from its bytes")


def open_checkpoint(path: Path) -> Checkpoint:
    """Returns a checkpoint after checking its manifest, but not its other files.

    Raises the errors of `read_manifest`.
    """
    with explain_damage(path, path.name):
        is_link = path.is_symlink()
    if is_link:
        raise DamagedCheckpoint(path, path.name, "it is a link to elsewhere")
    return Checkpoint(path, read_manifest(path))


def open_sound(path: Path) -> Checkpoint:
    """Returns a checkpoint after verifying every byte; raises the errors of `Checkpoint.verify`."""
    checkpoint = open_checkpoint(path)
    checkpoint.verify()
    return checkpoint


def digest(value: np.ndarray) -> str:
    """Returns the SHA-256 of a tensor of any shape, independent of how it was stored or split.

    Hashed are a line such as `float32[3, 4]` and then the elements, little-endian, in C order.
    """
    line = f"{value.dtype.name}{list(value.shape)}\n".encode()
    elements = np.asarray(value, value.dtype.newbyteorder("<"), order="C")
    return hashlib.sha256(line + elements.tobytes()).hexdigest()


# ---- differences from a model --------------------------------------------------------------------


class _Remark(NamedTuple):
    """A line about a difference: a text, and the paths that replace each `_PATH` in it."""

    text: str
    paths: tuple[str, ...]


def difference(*, model: Specs, checkpoint: Specs) -> list[str]:
    """Returns a line per difference between the tensors of a model and a checkpoint's tensors.

    A weight, or a whole layer, that only one side has is one line. If each side has a layer with
    the same content but another name, both share a line, as perhaps renamed. Numbered layers share
    a line: `model/stack/layers/0-11/ffn`. If a weight differs, its slots are not listed.
    """
    own, its = _without_slots(model), _without_slots(checkpoint)
    remarks = [*_one_sided(own, its), *_find_changed(own, its)]
    lines = [*_merge_remarks(remarks), *_slots(model, checkpoint)]
    more = [f"... and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return [*lines[:MAX_LINES], *more]


def _without_slots(tensors: Specs) -> dict[str, ArraySpec]:
    """Returns name without "weights/" -> spec, weights first, without optimizer slots."""
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
    """Groups the tensors that only one side has by the largest layers that the other side lacks.

    Returns path of a layer or tensor -> {path inside the layer, or "": (shape, dtype)}.
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
    """Returns missing path -> an unexpected path with the same content and layer numbers.

    Of several candidates the one with the most similar name is taken. A layer may have any other
    name, but a single tensor's name must be similar.
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
    """Yields differences in slots of weights that both sides have alike (another optimizer)."""
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
