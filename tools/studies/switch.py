"""The study of docs/switch_study.md: experts at equal compute, and what distillation keeps of them.

Losses are nats a token of held-out docstrings, of the spans that were taken out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib import pyplot

from lingo.trainer.directory.run_directory import RunDirectory
from tools.studies.page import mean_over_seeds, spread, table
from tools.studies.trial import PRETRAINED, SEEDS, Results, Trial, over_seeds

PAGE = Path(__file__).parent.parent.parent / "docs" / "switch_study.md"

SIZES = (1, 4, 16, 64)
TEACHER = 16  # experts of the model that is distilled
LOSS = "loss"


def sized(num_experts: int) -> Trial:
    """Returns the trial of a model with some experts; 1: the dense model."""
    return Trial(
        f"lm.switch.tiny_switch(num_experts={num_experts})", overrides=("evaluate.every_steps=400",)
    )


ROUTERS = {
    "float32": sized(TEACHER),
    "bfloat16": sized(TEACHER)._replace(
        overrides=(*sized(TEACHER).overrides, "SwitchRouter.dtype=bfloat16")
    ),
}
"""Dtype of the router -> trial."""

RECIPES = {
    "soft labels": (1.0, False),
    "hard labels, the teacher's other weights": (0.0, True),
    "a quarter soft, the teacher's other weights": (0.25, True),
}
"""Name -> share of the teacher's labels, and whether the student begins with its weights."""


def distilled(recipe: str, seed: int) -> Trial:
    """Returns the trial of a student of the model with `TEACHER` experts."""
    share, starts = RECIPES[recipe]
    arguments = f"num_experts={TEACHER}, teacher_share={share}, starts_from_teacher={starts}"
    return Trial(
        f"lm.switch.tiny_distilled({arguments})",
        seed,
        (f"exp.teacher={PRETRAINED}",),
        sized(TEACHER)._replace(seed=seed),
    )


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trainings, seed by seed."""
    del results  # none depends on another
    for seed in SEEDS:
        yield from (sized(size)._replace(seed=seed) for size in SIZES)
        yield from (distilled(recipe, seed) for recipe in RECIPES)
        yield ROUTERS["bfloat16"]._replace(seed=seed)


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns the losses of all evaluations of a run, as "loss@400", and its seconds a step."""
    del trial
    rows = list(RunDirectory(run).metrics.read())
    found = {f"{LOSS}@{row['step']}": row["eval/loss"] for row in rows if "eval/loss" in row}
    times = [row["perf/step_time_ms"] for row in rows if "perf/step_time_ms" in row]
    return found | {"seconds": statistics.median(times) / 1000}


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    dense = over_seeds(sized(1))
    return {
        "sizes": table(
            ["experts", "loss", "steps to the dense model's loss", "seconds a step"],
            [[str(size), *_row(results, over_seeds(sized(size)), dense)] for size in SIZES],
        ),
        "routers": table(
            ["router", "loss", "steps to the dense model's loss", "seconds a step"],
            [[name, *_row(results, over_seeds(trial), dense)] for name, trial in ROUTERS.items()],
        ),
        "recipes": table(
            ["student", "loss", "share of the gain kept, %"],
            [
                [
                    recipe,
                    mean_over_seeds(
                        results, [distilled(recipe, seed) for seed in SEEDS], LOSS, digits=3
                    ),
                    spread([100 * kept for kept in _kept(results, recipe)], len(SEEDS), digits=0),
                ]
                for recipe in RECIPES
            ],
        ),
    }


def _row(results: Results, trials: Sequence[Trial], dense: Sequence[Trial]) -> list[str]:
    pairs = zip(trials, dense, strict=True)
    steps = [step for trial, other in pairs if (step := _steps_to(results, trial, other))]
    return [
        mean_over_seeds(results, trials, LOSS, digits=3),
        spread(steps, len(trials), digits=0),
        mean_over_seeds(results, trials, "seconds", digits=2),
    ]


def _steps_to(results: Results, trial: Trial, dense: Trial) -> int | None:
    """Returns after how many steps a model is at least as good as the dense one at its end."""
    goal, found = results.metric(dense, LOSS), curve(results, trial)
    return next((step for step, loss in found.items() if goal and loss <= goal), None)


def _kept(results: Results, recipe: str) -> list[float]:
    """Returns the share of the teacher's gain over the dense model that students keep, by seed."""
    found = []
    for seed in SEEDS:
        dense, teacher, student = (
            results.metric(trial, LOSS)
            for trial in (
                sized(1)._replace(seed=seed),
                sized(TEACHER)._replace(seed=seed),
                distilled(recipe, seed),
            )
        )
        if dense is not None and teacher is not None and student is not None:
            found.append((dense - student) / (dense - teacher))
    return found


def curve(results: Results, trial: Trial) -> dict[int, float]:
    """Returns the losses of a trial by step."""
    result = results.get(trial)
    points = {
        int(tag.partition("@")[2]): value
        for tag, value in (result.metrics if result else {}).items()
        if tag.startswith(f"{LOSS}@")
    }
    return dict(sorted(points.items()))


def draw(results: Results, folder: Path) -> None:
    """Draws the loss over steps: the mean over seeds that have a result."""
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for size in SIZES:
        curves = [points for one in over_seeds(sized(size)) if (points := curve(results, one))]
        if curves:
            means = [statistics.fmean(c[step] for c in curves) for step in curves[0]]
            label = "dense" if size == 1 else f"{size} experts"
            axes.plot([*curves[0]], means, marker=".", label=label)
    axes.set(xlabel="step", ylabel="held-out loss, nats a token")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)
    figure.savefig(folder / "switch_loss.png", dpi=120)
    pyplot.close(figure)
