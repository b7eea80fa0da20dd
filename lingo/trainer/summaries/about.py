"""The first page of a run in TensorBoard: what it trains, and the charts to look at first."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from lingo.config.serial import Origin
from lingo.config.text import Change
from lingo.trainer.directory.environment import count_devices
from lingo.trainer.summaries.events import tensor_value, text_block

_layout: Any = layout_pb2  # Any, since protobuf makes the names of this module on import

TAG = "about"
"""The tag of the text; TensorBoard sorts texts by tag, and it is before the others."""

_VERSIONS = ("python", "lingo-tf", "tensorflow", "tensorflow-cpu")

_CHARTS = {
    "learning rate": "learner/learning_rate",
    "gradient norm": "learner/grad_norm",
    "examples per second": "perf/examples_per_sec",
    "share of time waiting for data": "perf/input_wait_fraction",
    "utilization": "perf/model_flops_utilization",
}
"""Chart -> its tag, which training and evaluations may share."""


def about_text(
    origin: Origin, environment: Mapping[str, Any], changes: Sequence[Change], *, num_weights: int
) -> str:
    """Returns Markdown about a run: experiment, changes from its defaults, command, code, devices.

    Args:
        origin: where the experiment came from.
        environment: the content of environment.json.
        changes: how the experiment differs from its function's defaults.
        num_weights: the number of trained parameters.
    """
    git, versions, argv = (environment[name] for name in ("git", "versions", "argv"))
    shown = {name: version for name, version in versions.items() if name in _VERSIONS}
    facts = {
        "weights": f"{num_weights:,}",
        "command": f"`{shlex.join([Path(argv[0]).name, *argv[1:]])}`",
        **({"commit": _commit(git)} if git else {}),
        "devices": count_devices(environment["devices"]),
        "host": environment["host"]["name"],
        "versions": ", ".join(f"{name} {version}" for name, version in shown.items()),
        "time": environment["time"],
    }
    rows = "\n".join(
        f"| {name} | {value.replace('|', '&#124;')} |" for name, value in facts.items()
    )
    title = "Changed from the experiment's defaults" if changes else "The experiment's defaults"
    lines = text_block("\n".join(map(str, changes))) if changes else ""
    return f"## {origin.call}\n\n**{title}**\n\n{lines}\n| | |\n|---|---|\n{rows}\n"


def _commit(git: Mapping[str, str]) -> str:
    return f"{git['commit']}, with uncommitted changes" if git["patch"] else git["commit"]


def layout_summary(metric: str) -> Summary:
    """Returns the layout of TensorBoard's tab Custom Scalars: a page that begins with the loss.

    The second chart is of `metric`, a metric of evaluations, such as accuracy.
    """
    tags = {"loss": "loss/total", metric: f"eval/{metric}", **_CHARTS}
    charts = [
        _layout.Chart(
            title=title, multiline=_layout.MultilineChartContent(tag=[f"^{re.escape(tag)}$"])
        )
        for title, tag in tags.items()
    ]
    page = _layout.Layout(category=[_layout.Category(title="overview", chart=charts)])
    content, kind = np.array(page.SerializeToString(), object), metadata.create_summary_metadata()
    return Summary(value=[tensor_value(metadata.CONFIG_SUMMARY_TAG, content, kind)])
