"""A picture of a plan: bytes on a device and time of a step, by kind, of the fastest ways."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lingo.config.base.errors import check_package
from lingo.inspection.plan.report import Report
from lingo.inspection.plan.table import describe

WAYS = 10
"""How many ways it shows at most."""


def write(report: Report, path: Path) -> None:
    """Writes a picture, in the format of the path's ending: .png, .svg or .pdf.

    Raises MissingPackage without matplotlib.
    """
    check_package("matplotlib", "a picture of a plan", extra="data")
    from matplotlib.figure import Figure

    plan, shown = report.plan, [way.estimate for way in report.ways[:WAYS]]
    figure = Figure(figsize=(13, 2.2 + 0.42 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    memory = [{kind: size / 2**30 for kind, size in one.bytes.items()} for one in shown]
    for one in memory:
        one["activations"] += one.pop("reused", 0.0)
    _draw_bars(left, memory)
    left.axvline(plan.hardware.memory_bytes / 2**30, color="black", linestyle="--")
    left.set(xlabel=f"GiB on a device (dashed: what {plan.hardware.name} has)")
    _draw_bars(right, [one.seconds for one in shown])
    right.set(xlabel="seconds of a step")
    left.set_yticks(range(len(shown)), [describe(one.candidate) for one in shown])
    left.invert_yaxis()
    figure.suptitle(f"{plan.name}: a prediction")
    figure.savefig(path, dpi=120)


def _draw_bars(axes: Any, values: Sequence[dict[str, float]]) -> None:
    """Draws a horizontal bar for each dict, of its values above 0, one after the other."""
    kinds = dict.fromkeys(kind for one in values for kind, value in one.items() if value > 0)
    ends = [0.0] * len(values)
    for kind in kinds:
        widths = [one.get(kind, 0.0) for one in values]
        axes.barh(range(len(values)), widths, left=ends, label=kind)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
