"""The request of `lingo train` or `lingo.train`, and the objects that all parts of a run share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from lingo.config.params import Params
from lingo.config.serial import Origin
from lingo.config.source_files import SourceFile
from lingo.contract import Experiment
from lingo.processes.processes import ALONE, Processes
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.observers import Observers
from lingo.trainer.progress import Progress

NO_STEPS = range(0)


class Request(NamedTuple):
    """What to train, and how `lingo train` was asked to do it."""

    params: Params  # the Params of an Experiment
    config: str  # the text of config.json
    flags: str  # the text of flags.txt
    origin: Origin = Origin()  # where the parameters came from
    profile_steps: range = NO_STEPS  # range(10, 15): begins after 10 steps, ends after 15
    note: str | None = None  # a line about the run; None: a resumed run keeps its own
    tags: Sequence[str] = ()  # words about the run; (): a resumed run keeps its own
    audit: bool = False  # whether to write audit.jsonl; an existing file is always continued
    allow_change: bool = False  # whether to resume although configuration or code has changed
    source: Mapping[str, SourceFile] = MappingProxyType({})  # the user's own files by name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The objects that all parts of a run share from its start to its end."""

    request: Request
    experiment: Experiment  # built from `request.params`
    directory: RunDirectory  # locked by the leader; in other processes it is not enabled
    progress: Progress
    observers: Observers  # get all events; the experiment's observers exist only in the leader
    processes: Processes = ALONE  # all processes of the run; the leader shares what it has read
