"""Configurations as JSON: the fields that were set, and where they came from.

    {
      "format": 1,
      "experiment": {"name": "lm.source.tiny", "file": ..., "function": "tiny", ...},
      "files": {},
      "digest": "9f86d0...",
      "params": {"@": "lingo.train.experiment:Experiment", "max_steps": 100, ...}
    }

Params are objects whose "@" names their class; a tuple is {"@tuple": [...]}. A default template is
written only if something inside was changed. Reading gives back exactly what was written, runs no
code but the import of the classes, and refuses, before it imports anything, every class that is not
a `class` statement of a trusted place: the roots, where its bases must lead to `Configurable`, or a
file that the caller trusts.
"""
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from fiddle import history

from lingo.config import regular_file
from lingo.config import roots as roots_
from lingo.config.classes import is_configurable, leads_to_configurable
from lingo.config.params import (
    Configurable,
    ParamError,
    Params,
    Value,
    fields,
    nodes,
    restored,
    same,
)
from lingo.config.roots import Roots

FORMAT = 1
MAX_BYTES = 16 * 2**20
MAX_DEPTH = 64
MAX_VALUES = 500_000
MAX_PARAMS = 50_000
MAX_NAME = 200

CLASS, TUPLE, DICT = "@", "@tuple", "@dict"

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_DEEP = (dict, list)

_NAME = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[^/\\:\0]+\.py):[A-Za-z_]\w*", re.ASCII)
_PATH = re.compile("/[^\0-\x1f\x7f\ud800-\udc7f]{1,4095}")  # \udc80 to \udcff: bytes of no text


class Origin(NamedTuple):
    """Where an experiment came from.

    Attributes:
        name: in the registry; "" for a file.
        file: that defines it.
        function: of that file.
        arguments: of the call, as parameter values.
        overrides: all texts, in order.
    """

    name: str = ""
    file: str = ""
    function: str = ""
    arguments: dict[str, Any] = {}
    overrides: tuple[str, ...] = ()


class OwnFile(NamedTuple):
    """A file outside the trusted places that defines classes of a configuration."""

    path: str
    sha256: str


class Saved(NamedTuple):
    """What a configuration file says.

    Attributes:
        params: the root.
        origin: where it came from when it was written.
        digest: of the resolved text then.
        changed: own files whose content is no longer what it was then.
    """

    params: Params
    origin: Origin
    digest: str
    changed: tuple[str, ...] = ()


# ---- writing ---------------------------------------------------------------------------------


def dump(params: Params, origin: Origin, digest: str, roots: Roots | None = None) -> str:
    """Returns the JSON of a configuration.

    Args:
        params: the root.
        origin: where it came from.
        digest: of its resolved text.
        roots: the trusted places; those of this installation if None.

    Raises:
        ParamError: for a class that could not be found again: one that is no statement at the top
            of a file; or for whatever else could not be read, as a tree that is too deep.
    """
    if len(nodes(params)) + len(nodes(origin.arguments)) > MAX_PARAMS:
        raise ParamError(f"it holds more than {MAX_PARAMS} Params: too many to be saved.")
    writer = _Writer((roots if roots is not None else roots_.find()).trusted())
    fields_of_origin: dict[str, Any] = origin._asdict() | {"overrides": list(origin.overrides)}
    experiment = writer.text(fields_of_origin, "\n ", "")
    tree = writer.text(params, "\n ", "")
    files = writer.text({**writer.files}, "\n ", "")
    texts = [
        f'"format": {FORMAT}',
        f'"experiment": {experiment}',
        f'"files": {files}',
        f'"digest": {_quoted(digest)}',
        f'"params": {tree}',
    ]
    content = _braced("{}", texts, "\n") + "\n"
    try:
        _check_header(_parsed(content)[0])
    except ParamError as error:
        raise ParamError(f"this cannot be saved, since it could not be read: {error}") from None
    return content


class _Writer:
    """Writes values; remembers the own files that classes come from."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.files: dict[str, dict[str, Value]] = {}
        self._names: dict[type, str] = {}

    def text(self, value: Value, margin: str, path: str) -> str:
        """Returns a value as JSON, where `margin` starts a line."""
        scalar = _SCALARS.get(type(value))
        if scalar:
            return scalar(value)
        if len(margin) > MAX_DEPTH:
            raise ParamError(
                f"{path or 'this'} stands more than {MAX_DEPTH} deep: too deep to be saved."
            )
        if isinstance(value, Params):
            return _braced("{}", self._fields(value, margin + " ", path), margin)
        if isinstance(value, list):
            inner = margin + " "
            return _braced(
                "[]", [self.text(v, inner, f"{path}[{i}]") for i, v in enumerate(value)], margin
            )
        if isinstance(value, tuple):
            return f'{{"{TUPLE}": {self.text(list(value), margin, path)}}}'
        return self._dict(cast("dict[str, Value]", value), margin, path)

    def _dict(self, value: dict[str, Value], margin: str, path: str) -> str:
        if any(key.startswith(CLASS) for key in value):
            pairs: list[Value] = [[key, inner] for key, inner in value.items()]
            return f'{{"{DICT}": {self.text(pairs, margin, path)}}}'
        texts = [
            f"{_quoted(key)}: {self.text(inner, margin + ' ', f'{path}[{key!r}]')}"
            for key, inner in value.items()
        ]
        return _braced("{}", texts, margin)

    def _fields(self, node: Params, margin: str, path: str) -> list[str]:
        given, arguments = node.__argument_history__, node.__arguments__
        texts = [f'"{CLASS}": {_quoted(self._name(node.cls))}']
        for name, field in fields(node.cls).items():
            if name not in arguments:
                continue
            value = arguments[name]
            if not given.get(name) and same(value, field.default):
                continue
            scalar = _SCALARS.get(type(value))
            if scalar:
                texts.append(f'"{name}": {scalar(value)}')
                continue
            if isinstance(value, (list, tuple, dict)):
                value = field.fit(value)  # it may have changed since it was set
            where = f"{path}.{name}" if path else name
            texts.append(f'"{name}": {self.text(value, margin, where)}')
        return texts

    def _name(self, cls: type[Configurable]) -> str:
        if cls not in self._names:
            name = self._named(cls)
            if not _is_name(name):
                raise ParamError(
                    f"{name} cannot be saved: give the class and its file names that are shorter,"
                    " of letters of English, digits and underscores."
                )
            self._names[cls] = name
        return self._names[cls]

    def _named(self, cls: type[Configurable]) -> str:
        file = roots_.source_file(cls)
        if "." in cls.__qualname__ or file is None:
            hint = "" if file else " (a notebook's %%writefile writes a cell into one)"
            raise ParamError(
                f"{cls.__module__}:{cls.__qualname__} cannot be saved:"
                f" define the class at the top level of a file{hint}."
            )
        located = roots_.locate(cls.__module__, self.roots)
        if located is not None and os.path.samefile(located, file):
            return f"{cls.__module__}:{cls.__qualname__}"
        content = OwnFile(str(file), _sha256(file))._asdict()
        if self.files.setdefault(file.name, content) != content:
            other = self.files[file.name]["path"]
            raise ParamError(f"{other} and {file} have the same name: rename one of them.")
        return f"{file.name}:{cls.__qualname__}"


_quoted = json.encoder.encode_basestring_ascii
_SCALARS: dict[type, Callable[[Any], str]] = {
    str: _quoted,
    int: int.__repr__,
    float: float.__repr__,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
}


def _braced(brackets: str, texts: list[str], margin: str) -> str:
    if not texts:
        return brackets
    return f"{brackets[0]}{margin} {f',{margin} '.join(texts)}{margin}{brackets[1]}"


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def _sha256(file: Path) -> str:
    return hashlib.sha256(roots_.source(file)).hexdigest()


# ---- reading ---------------------------------------------------------------------------------


def read(
    file: str | os.PathLike[str],
    trust: Sequence[str | os.PathLike[str]] = (),
    roots: Roots | None = None,
) -> Saved:
    """Reads a configuration file; see `load`.

    Raises:
        ParamError: if it cannot be read, too.
    """
    try:
        content = regular_file.read(file, max_bytes=MAX_BYTES)
    except OSError as error:
        raise ParamError(f"{os.fspath(file)} cannot be read: {error.strerror}.") from None
    return load(content, trust, roots, source=os.fspath(file))


def load(
    content: str | bytes,
    trust: Sequence[str | os.PathLike[str]] = (),
    roots: Roots | None = None,
    source: str = "config.json",
) -> Saved:
    """Reads the JSON of a configuration.

    Args:
        content: what `dump` returned.
        trust: files, besides the trusted places, that may be imported for their classes.
        roots: the trusted places; those of this installation if None.
        source: where the content came from, for messages and histories.

    Raises:
        ParamError: for anything that `dump` would not have written, and for a class from elsewhere.
    """
    try:
        saved, names = _parsed(content)
        _check_header(saved)
        loader = _Loader(
            saved["files"], trust, (roots if roots is not None else roots_.find()).trusted(), source
        )
        loader.check(names)
        arguments = loader.decode(saved["experiment"]["arguments"], None, 0)
        params = loader.decode(saved["params"], None, 0)
        if not isinstance(arguments, dict) or not isinstance(params, Params):
            raise ParamError("its params have no class, or its arguments have one.")
    except ParamError as error:
        raise ParamError(f"{source}: {error}") from None
    experiment = saved["experiment"] | {
        "arguments": arguments,
        "overrides": tuple(saved["experiment"]["overrides"]),
    }
    return Saved(params, Origin(**experiment), saved["digest"], loader.changed())


def recorded_digest(content: str) -> str | None:
    """Returns the digest that a configuration names of its resolved text; None if it is none.

    Nothing is imported: the classes need not be there.
    """
    try:
        saved, _ = _parsed(content)
        _check_header(saved)
    except ParamError:
        return None
    return saved["digest"]


def _parsed(content: str | bytes) -> tuple[Any, list[Any]]:
    """Returns the JSON, and the name of every class in it."""
    if len(content) > MAX_BYTES:
        raise ParamError(f"it is larger than {MAX_BYTES >> 20} MiB.")
    names: list[Any] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ParamError(f"{_first_twin(pairs)!r:.80} stands twice in one object.")
        if CLASS in found:
            names.append(found[CLASS])
        return found

    try:
        text = content.decode() if isinstance(content, bytes) else content
        if text.count(",") > MAX_VALUES:
            raise ParamError(f"it holds more than {MAX_VALUES} values.")
        return json.loads(
            text, object_pairs_hook=collect, parse_float=_finite, parse_constant=_finite
        ), names
    except RecursionError:
        raise ParamError(f"it is nested more than {MAX_DEPTH} deep.") from None
    except UnicodeDecodeError as error:
        raise ParamError(f"it is no text: byte {error.start} is not UTF-8.") from None
    except json.JSONDecodeError as error:
        raise ParamError(
            f"it is no JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        ) from None
    except ParamError:
        raise
    except ValueError:  # of int(), which reads no more than 4300 digits
        raise ParamError("it holds a number with too many digits.") from None


def _first_twin(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    return next(name for name, _ in pairs if name in seen or seen.add(name))


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ParamError(f"{text:.20} is no finite number.")
    return number


def _check_header(saved: Json) -> None:
    """Refuses what does not have the form that `dump` writes."""
    if not isinstance(saved, dict) or "format" not in saved:
        raise ParamError("it is no configuration of lingo.")
    found = saved["format"]
    if type(found) is not int or found != FORMAT:
        raise ParamError(f"it has format {found!r:.20}, and this lingo reads format {FORMAT}.")
    shape = {"format": int, "experiment": dict, "files": dict, "digest": str, "params": dict}
    _check_shape(saved, shape, "it")
    shape = {"name": str, "file": str, "function": str, "arguments": dict, "overrides": list}
    overrides = _check_shape(saved["experiment"], shape, "its 'experiment'")["overrides"]
    if not all(isinstance(text, str) for text in cast("list[Json]", overrides)):
        raise ParamError("its 'overrides' are not all texts.")
    for name, file in cast("dict[str, Json]", saved["files"]).items():
        found = _check_shape(file, {"path": str, "sha256": str}, f"its file {name!r:.80}")
        if not _PATH.fullmatch(cast("str", found["path"])):
            raise ParamError(f"its file {name!r:.80} has the path {found['path']!r:.80}.")


def _check_shape(value: Json, shape: dict[str, type], what: str) -> dict[str, Json]:
    """Returns an object if it has exactly these members."""
    if not isinstance(value, dict) or value.keys() != shape.keys():
        raise ParamError(f"{what} must consist of {', '.join(shape)}.")
    for name, kind in shape.items():
        if not isinstance(value[name], kind):
            raise ParamError(f"{what} has a {name!r} that is no {kind.__name__}.")
    return value


_Where: TypeAlias = tuple[Any, str | int] | None
"""A path, innermost first: (what is around, field or key)."""


class _Loader:
    """Decodes what is in a file, from classes that have been checked."""

    def __init__(
        self,
        files: dict[str, Any],
        trust: Iterable[str | os.PathLike[str]],
        roots: Roots,
        source: str,
    ) -> None:
        self.files = {name: OwnFile(**file) for name, file in files.items()}
        self.trusted = [Path(os.path.realpath(t)) for t in trust]
        self.roots = roots
        self.location = history.Location(source, 0, None)
        self._classes: dict[str, type[Configurable]] = {}
        self._defaults: dict[str, dict[str, int]] = {}  # Params in the defaults of a class's fields
        self._count = 0

    def check(self, names: list[Any]) -> None:
        """Checks every class, then imports them."""
        if not all(isinstance(name, str) for name in names):
            raise ParamError(f"it has an {CLASS!r} that is no name of a class.")
        found = {name: self._locate(name) for name in dict.fromkeys(names)}
        for name, file in found.items():
            cls = self._classes[name] = self._import(name, file)
            defaults = Params(cls).__arguments__.items()
            self._defaults[name] = {field: len(nodes(value)) for field, value in defaults}

    def _locate(self, name: str) -> Path:
        """Returns the file of a class of a trusted place, without importing it."""
        if not _is_name(name):
            raise ParamError(f"{name!r:.80} is no name of a class: 'module:Class' is.")
        module, _, cls = name.partition(":")
        file = self._own(module) if module.endswith(".py") else roots_.locate(module, self.roots)
        if file is None:
            places = ", ".join(str(d) for dirs in self.roots.packages.values() for d in dirs)
            raise ParamError(
                f"{name!r:.120} is in no trusted place: {places}."
                " --params_dir=DIR adds one, for experiments."
            )
        if not self._defines(module, file, cls):
            raise ParamError(f"{file} has no class {cls} to configure.")
        return file

    def _defines(self, module: str, file: Path, cls: str) -> bool:
        """Returns whether a file has a class; one of the roots must lead to Configurable.

        What the user's own files do to make a class, only Python knows.
        """
        if module.endswith(".py"):
            return roots_.defines_class(file, cls)
        return leads_to_configurable(module, file, cls, self.roots)

    def _own(self, name: str) -> Path:
        """Returns an own file, or the one of its name that is trusted: it may have moved."""
        if name not in self.files:
            raise ParamError(f"its 'files' does not say where {name!r:.80} is.")
        recorded = Path(self.files[name].path)
        if Path(os.path.realpath(recorded)) in self.trusted:
            return recorded
        if moved := [file for file in self.trusted if file.name == name]:
            return moved[0]
        gone = (
            ""
            if os.path.exists(recorded)
            else " It is not there any more; name it where it is now."
        )
        raise ParamError(
            f"it uses classes of {recorded}, a file outside the trusted places."
            f" To run it: --trust={shlex.quote(str(recorded))}{gone}"
        )

    def _import(self, name: str, file: Path) -> type[Configurable]:
        module, _, cls = name.partition(":")
        if module.endswith(".py"):
            imported = roots_.import_file(file, self.roots)
        else:
            imported = roots_.import_module(module, file, self.roots)
        found = getattr(imported, cls, None)
        if not is_configurable(found) or found.__module__ != imported.__name__:
            raise ParamError(f"{file} has no class {cls} to configure.")
        return found

    def decode(self, value: Json, where: _Where, depth: int) -> Any:
        """Returns the parameter value that JSON stands for."""
        if depth > MAX_DEPTH:
            raise ParamError(f"it is nested more than {MAX_DEPTH} deep.")
        if isinstance(value, list):
            return [
                self.decode(inner, (where, i), depth + 1) if type(inner) in _DEEP else inner
                for i, inner in enumerate(value)
            ]
        if not isinstance(value, dict):
            return value
        name = value.pop(CLASS, None)
        if name is None and any(key.startswith(CLASS) for key in value):
            return self._marked(value, where, depth)
        for key, inner in value.items():
            if type(inner) in _DEEP:
                value[key] = self.decode(inner, (where, key), depth + 1)
        if name is None:
            return value
        self._unfold(cast("str", name), value)
        try:
            return restored(self._classes[cast("str", name)], value, self.location)
        except ParamError as error:
            raise ParamError(f"{_path(where)}: {error}" if where else str(error)) from None

    def _unfold(self, name: str, given: dict[str, Any]) -> None:
        """Counts an object and the default templates it brings: a small file may stand for much."""
        brought = sum(size for field, size in self._defaults[name].items() if field not in given)
        self._count += 1 + brought
        if self._count > MAX_PARAMS:
            raise ParamError(f"it holds more than {MAX_PARAMS} Params.")

    def _marked(self, value: dict[str, Json], where: _Where, depth: int) -> Any:
        """Returns a tuple, or a dict some key of which looks like a mark."""
        (key, inner), *others = value.items()
        if others or key not in (TUPLE, DICT) or not isinstance(inner, list):
            raise ParamError(f"{_path(where)}: {key!r:.80} means nothing here.")
        values = self.decode(inner, where, depth)
        if key == TUPLE:
            return tuple(values)
        if not all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) for p in inner):
            raise ParamError(f"{_path(where)}: {DICT!r} holds pairs of a key and a value.")
        return dict(values)

    def changed(self) -> tuple[str, ...]:
        """Returns the own files that are not what they were, of those that were needed."""
        names = {name.partition(":")[0] for name in self._classes} & self.files.keys()
        used = {name: self._own(name) for name in sorted(names)}
        return tuple(
            str(file) for name, file in used.items() if _sha256(file) != self.files[name].sha256
        )


def _path(where: _Where) -> str:
    parts: list[str] = []
    while where:
        where, part = where
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(reversed(parts)).removeprefix(".")
