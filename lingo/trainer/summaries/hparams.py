"""Hyperparameters: the row of a run in TensorBoard's HParams table.

A row has the overrides and arguments of the experiment, and a few keys that every run has. The row
does not declare the table's columns. So TensorBoard uses the keys of all runs, shows keys that
differ first, and offers every scalar of `train/` and `eval_<name>/` as a metric. If a run declared
columns, all runs shown with it would have only these columns.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2

from lingo.config import override_reader
from lingo.config.base.ast_lock import AST_LOCK
from lingo.config.registry import ARGUMENT
from lingo.config.serial import Origin
from lingo.config.text import Line
from lingo.storage.rows import State

ParameterValue: TypeAlias = bool | int | float | str

_api: Any = api_pb2  # Any, since protobuf makes the names of these modules on import
_records: Any = plugin_data_pb2
_summaries: Any = summary_v2.summary_pb2

HEADLINES = {
    "optimizer.learning_rate": "learning_rate",
    "train_input.batch_size": "batch_size",
    "max_steps": "max_steps",
    "seed": "seed",
}
"""Parameter that every row has -> its key."""

_STATUS: dict[State, Any] = {
    "running": _api.STATUS_RUNNING,
    "done": _api.STATUS_SUCCESS,
    "done (early)": _api.STATUS_SUCCESS,
    "failed": _api.STATUS_FAILURE,
    "stopped": _api.STATUS_UNKNOWN,  # TensorBoard has no better status
}


def hparams(
    lines: Sequence[Line], origin: Origin, *, total_parameters: int
) -> dict[str, ParameterValue]:
    """Returns a run's row, key -> value; `lines` are the run's resolved configuration text.

    An override's key is its left side as typed, `FeedForward.dropout_rate`. An argument's key is
    its name, or `exp.<argument>` if another key has that name.
    """
    resolved = parameter_values(lines)
    values = {name: resolved[path] for path, name in HEADLINES.items() if path in resolved}
    if origin.function:
        values["experiment"] = origin.name or f"{origin.file}:{origin.function}"
    for override in origin.overrides:
        key, _, typed = override_reader.partition(override, "=")
        if key not in HEADLINES and not key.startswith(ARGUMENT):
            values[key] = resolved.get(key, _value(typed))
    for name, value in origin.arguments.items():
        values[f"{ARGUMENT}{name}" if name in values else name] = _simple(value)
    return values | {"weights": total_parameters}


def parameter_values(lines: Sequence[Line]) -> dict[str, ParameterValue]:
    """Returns path -> value of all parameters in a configuration text; numbers as numbers."""
    return {line.path: _value(line.value) for line in lines}


def _value(text: str) -> ParameterValue:
    """Returns the value of a text that is a literal number, bool or string; else the text."""
    try:
        with AST_LOCK:
            return _simple(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return text


def _simple(value: Any) -> ParameterValue:
    return value if isinstance(value, (bool, int, float, str)) else repr(value)


# ---- as summaries ------------------------------------------------------------------------------


def start_summary(values: Mapping[str, ParameterValue]) -> bytes:
    """Returns the serialized summary that starts a row."""
    # TensorBoard names a row with id "" after its folder. A hash of the values as the id would
    # merge runs with equal values.
    return summary_v2.hparams_pb(dict(values), trial_id="").SerializeToString()


def end_summary(state: State) -> bytes:
    """Returns the serialized summary that records how the run of a row ended."""
    info = _records.SessionEndInfo(status=_STATUS[state], end_time_secs=time.time())
    content = metadata.create_summary_metadata(_records.HParamsPluginData(session_end_info=info))
    summary = _summaries.Summary()
    summary.value.add(
        tag=metadata.SESSION_END_INFO_TAG, metadata=content, tensor=metadata.NULL_TENSOR
    )
    return summary.SerializeToString()
