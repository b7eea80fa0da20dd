"""The study of docs/detection.md: a small SSD on scenes of glyphs.

Held-out scenes are of another family of typefaces, over other parts of the photographs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from matplotlib import pyplot

from lingo.trainer.directory.run_directory import RunDirectory
from tools.studies.page import percent_over_seeds, table
from tools.studies.trial import Results, Trial, over_seeds

PAGE = Path(__file__).parent.parent.parent / "docs" / "detection.md"

SCENES = Trial("image.ssd.scenes", overrides=("evaluate.every_steps=60",))
"""With more evaluations than registered, for the curve: they do not change the training."""

METRICS = {
    "`ap`": "ap",
    "`ap50`": "ap50",
    "`ap75`": "coco/ap75",
    "`ap_small`": "coco/ap_small",
    "`ap_medium`": "coco/ap_medium",
    "`ar100`": "coco/ar100",
}
"""Name -> tag."""

CURVES = {"ap50": "ap at an overlap of 0.5", "ap": "ap"}
"""Name of a metric -> its label."""


def trials(results: Results) -> Iterator[Trial]:
    """Yields a training for each seed."""
    del results  # no trial depends on another's
    yield from over_seeds(SCENES)


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns the average precisions of all evaluations of a run, as "ap@60" for step 60."""
    del trial
    rows = [row for row in RunDirectory(run).metrics.read() if "eval/ap" in row]
    return {f"{name}@{row['step']}": row[f"eval/{name}"] for row in rows for name in CURVES}


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the table of the page, by its name."""
    cells = [percent_over_seeds(results, over_seeds(SCENES), tag) for tag in METRICS.values()]
    return {"scenes": table([*METRICS], [cells])}


def curve(results: Results, name: str) -> dict[int, list[float]]:
    """Returns values of a metric, in percent, by the steps that some seed has."""
    points: dict[int, list[float]] = {}
    for result in map(results.get, over_seeds(SCENES)):
        for tag, value in (result.metrics if result else {}).items():
            metric, is_of_step, step = tag.partition("@")
            if is_of_step and metric == name:
                points.setdefault(int(step), []).append(100 * value)
    return dict(sorted(points.items()))


def draw(results: Results, folder: Path) -> None:
    """Draws average precision over steps: the mean over seeds, and their range."""
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for name, label in CURVES.items():
        if points := curve(results, name):
            steps, values = [*points], [*points.values()]
            line = axes.plot(steps, [statistics.fmean(v) for v in values], marker="o", label=label)
            low, high = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(steps, low, high, color=line[0].get_color(), alpha=0.2)
    axes.set(xlabel="step", ylabel="average precision, held out, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False, loc="lower right")
    figure.savefig(folder / "scenes_precision.png", dpi=120)
    pyplot.close(figure)
