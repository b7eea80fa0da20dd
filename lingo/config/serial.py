"""Writes configurations as JSON, and reads them: fields that were set, and an experiment's origin.

    {
      "format": 1,
      "experiment": {"name": "lm.source.tiny", "file": ..., "function": "tiny", ...},
      "files": {},
      "digest": "9f86d0...",
      "params": {"@": "lingo.contract:Experiment", "max_steps": 100, ...}
    }

Params are objects whose "@" names their class. A function is an object with only an "@", and a
tuple is {"@tuple": [...]}. A default template is written only if something inside was changed.
Reading restores exactly what was written, and runs no code except the imports that `trust` allows.
`codec` handles values, and this file the rest.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from lingo.config import source_record
from lingo.config.base import regular_file
from lingo.config.base.errors import UnknownClass
from lingo.config.codec import CLASS, MAX_BYTES, Decoder, Encoder, Json, check_size, parse
from lingo.config.node.fiddle_api import Location, record_location
from lingo.config.node.label import value_text
from lingo.config.params import ParamError, Params
from lingo.config.roots import roots as roots_
from lingo.config.roots.roots import Roots
from lingo.config.trust import Finder, Namer, OwnFile

FORMAT = 1

_PATH = re.compile("/[^\0-\x1f\x7f\ud800-\udc7f]{1,4095}")  # \udc80 to \udcff: not UTF-8


class Origin(NamedTuple):
    """The origin of an experiment: the function that made it, its arguments, and the overrides."""

    name: str = ""  # the experiment's name in the registry; "" if the user named a file
    file: str = ""  # the file that defines the function
    function: str = ""  # the function's name; "" if the experiment was made in Python
    arguments: dict[str, Any] = {}  # the function's arguments, as parameter values
    overrides: tuple[str, ...] = ()  # the texts of all overrides, in order

    @property
    def call(self) -> str:
        """The experiment as `--exp` gave it; "experiment" if it was made in Python."""
        name = self.name or (f"{Path(self.file).name}:{self.function}" if self.file else "")
        arguments = ", ".join(f"{k}={value_text(v)}" for k, v in self.arguments.items())
        return f"{name}({arguments})" if arguments else name or "experiment"


class Saved(NamedTuple):
    """The content of a configuration file."""

    params: Params
    origin: Origin
    digest: str  # the digest of the resolved text when the file was written
    changed_files: tuple[str, ...] = ()  # the user's own files that have changed since then


# ---- writing ---------------------------------------------------------------------------------


def dump(params: Params, origin: Origin, digest: str, roots: Roots | None = None) -> str:
    """Returns the JSON of a configuration, with its origin and the digest of its resolved text.

    Raises ParamError for a value that could not be read back, such as a class that is in no file.
    """
    namer = Namer((roots or roots_.find()).trusted_roots())
    encoder = Encoder(namer.name)
    experiment: dict[str, Any] = origin._asdict() | {"overrides": list(origin.overrides)}
    saved: dict[str, Any] = {
        "format": FORMAT,
        "experiment": encoder.encode(experiment),
        "files": {},
        "digest": digest,
        "params": encoder.encode(params),
    }
    saved["files"] = {name: file._asdict() for name, file in namer.files.items()}
    content = json.dumps(saved, indent=1) + "\n"
    try:
        check_size(content)
        _check_header(saved)
    except ParamError as error:
        raise ParamError(f"this cannot be saved, since it could not be read: {error}") from None
    return content


# ---- reading ---------------------------------------------------------------------------------


def read(
    file: str | os.PathLike[str],
    trust: Sequence[str | os.PathLike[str]] = (),
    roots: Roots | None = None,
) -> Saved:
    """Reads a configuration file; raises ParamError as `load` does, or if it cannot be read."""
    try:
        content = regular_file.read(file, max_bytes=MAX_BYTES)
    except OSError as error:
        raise ParamError(f"{os.fspath(file)} cannot be read: {error.strerror}") from None
    return load(content, trust, roots, source=os.fspath(file))


def load(
    content: str | bytes,
    trust: Sequence[str | os.PathLike[str]] = (),
    roots: Roots | None = None,
    source: str = "config.json",
) -> Saved:
    """Reads the JSON of a configuration, as `dump` returns it; raises ParamError for other content.

    The configuration's classes must be in `roots` (by default this installation's), in a file that
    `trust` names, or in an unchanged file that this user has trained. `source` says where the
    content comes from, for messages and histories.
    """
    try:
        saved, names = parse(content)
        _check_header(saved)
        if not all(isinstance(name, str) for name in names):
            raise ParamError(f"it has an {CLASS!r} that is not the name of a class")
        files = {name: OwnFile(**file) for name, file in saved["files"].items()}
        finder = Finder(files, trust, roots or roots_.find())
        classes = finder.find(names)
        decoder = Decoder(classes)
        with record_location(Location(source, 0, None)):
            arguments = decoder.decode(saved["experiment"]["arguments"])
            params = decoder.decode(saved["params"])
        if not isinstance(arguments, dict) or not isinstance(params, Params):
            raise ParamError("its params have no class, or its arguments have one")
    except UnknownClass as error:
        raise UnknownClass(f"{source}: {_add_kept_files(str(error), source)}") from None
    except ParamError as error:
        raise ParamError(f"{source}: {error}") from None
    experiment = saved["experiment"] | {
        "arguments": arguments,
        "overrides": tuple(saved["experiment"]["overrides"]),
    }
    return Saved(params, Origin(**experiment), saved["digest"], finder.changed_files(classes))


def _add_kept_files(message: str, file: str) -> str:
    """Adds to a message where copies of the user's files are, if the run's directory has copies."""
    folder = os.path.join(os.path.dirname(file), source_record.FOLDER)
    if not os.path.isdir(folder):
        return message
    return (
        f"{message.rstrip('.')}. {folder} has the files as they were when the run began: compare"
        " them, and give renamed or moved classes and files their old names and places."
    )


def recorded_digest(content: str) -> str | None:
    """Returns the digest in a configuration's JSON, without imports; None: not a configuration."""
    try:
        saved, _ = parse(content)
        _check_header(saved)
    except ParamError:
        return None
    return saved["digest"]


def _check_header(saved: Json) -> None:
    """Raises ParamError for JSON that does not have the form that `dump` writes."""
    if not isinstance(saved, dict) or "format" not in saved:
        raise ParamError("it is not a configuration of lingo")
    found = saved["format"]
    if type(found) is not int or found != FORMAT:
        raise ParamError(f"it has format {found!r:.20}, and this lingo reads format {FORMAT}")
    shape = {"format": int, "experiment": dict, "files": dict, "digest": str, "params": dict}
    _check_shape(saved, shape, "it")
    shape = {"name": str, "file": str, "function": str, "arguments": dict, "overrides": list}
    overrides = _check_shape(saved["experiment"], shape, "its 'experiment'")["overrides"]
    if not all(isinstance(text, str) for text in cast("list[Json]", overrides)):
        raise ParamError("its 'overrides' are not all texts")
    for name, file in cast("dict[str, Json]", saved["files"]).items():
        shape = {"path": str, "sha256": str, "module": str}
        found = _check_shape(file, shape, f"its file {name!r:.80}")
        if not _PATH.fullmatch(cast("str", found["path"])):
            raise ParamError(f"its file {name!r:.80} has the path {found['path']!r:.80}")


def _check_shape(value: Json, shape: dict[str, type], what: str) -> dict[str, Json]:
    """Returns a value as a JSON object; raises ParamError unless it has exactly certain members.

    `shape` is name -> type of the members, and `what` names the object in messages.
    """
    if not isinstance(value, dict) or value.keys() != shape.keys():
        raise ParamError(f"{what} must consist of {', '.join(shape)}")
    for name, kind in shape.items():
        if not isinstance(value[name], kind):
            raise ParamError(f"{what} has a {name!r} that is not a {kind.__name__}")
    return value
