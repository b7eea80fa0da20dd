"""The study of docs/bert_study.md: LAMB against AdamW by batch size, and the gain by pre-training.

All pre-trainings see the same number of rows. Accuracies are measured on masked tokens of held-out
docstrings after the last step, even if an earlier evaluation was better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib import pyplot

from tools.studies.batches import Point, RateSearch, draw_curves, percent_curve
from tools.studies.page import mean_over_seeds, percent_over_seeds, spread, table
from tools.studies.trial import PRETRAINED, Results, Trial, over_seeds, over_seeds_of_both

PAGE = Path(__file__).parent.parent.parent / "docs" / "bert_study.md"
PICTURE = "bert_optimizers.png"

METRIC = "masked_accuracy"
EPOCHS = 3.0
BATCHES = (32, 256, 1024, 4096)
RATES = {"lamb": (0.0025, 0.005, 0.01), "adamw": (0.0005, 0.001, 0.002)}
"""Optimizer -> learning rates for 32 rows, which grow with the root of the batch."""

NAMES = {"lamb": "LAMB", "adamw": "AdamW"}

PRETRAINING = Trial(f"lm.bert.tiny_bert(epochs={EPOCHS}, stages=True)")
"""The model that is fine-tuned: LAMB with 32 rows, the last tenth of the steps with 128 tokens."""


class TaskMetric(NamedTuple):
    """A metric of a fine-tuned model."""

    experiment: str
    tag: str


MEASURES = {
    "answers, span F1": TaskMetric("lm.bert.tiny_questions", "f1"),
    "answers, exact match": TaskMetric("lm.bert.tiny_questions", "exact_match"),
    "does the docstring fit": TaskMetric("lm.bert.tiny_labels(task='docstring')", "accuracy"),
    "which exception is raised": TaskMetric("lm.bert.tiny_labels(task='exception')", "accuracy"),
    "kind of a token of code": TaskMetric("lm.bert.tiny_labels(task='kind')", "accuracy"),
}


def search(optimizer: str, batch: int) -> RateSearch:
    """Returns the search of an optimizer's learning rate."""
    tried = [
        Trial(
            f"lm.bert.tiny_bert(optimizer='{optimizer}', batch_size={batch},"
            f" learning_rate={rate}, epochs={EPOCHS})"
        )
        for rate in RATES[optimizer]
    ]
    return RateSearch(tried, METRIC)


def fine_tunings(experiment: str, *, pretrained: bool) -> list[Trial]:
    """Returns a task's trainings with each seed, from pre-trained or from random weights."""
    if not pretrained:
        return over_seeds(Trial(experiment))
    settings = (f"exp.pretrained={PRETRAINED}",)
    return over_seeds_of_both(Trial(experiment, overrides=settings, start=PRETRAINING))


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trials that are known by the results so far."""
    for batch in reversed(BATCHES):
        for optimizer in RATES:
            yield from search(optimizer, batch).trials(results)
    yield from over_seeds(PRETRAINING)
    for experiment in dict.fromkeys(one.experiment for one in MEASURES.values()):
        for pretrained in (False, True):
            yield from fine_tunings(experiment, pretrained=pretrained)


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the page's tables by name; with results, `best` also has a picture."""
    head = ["batch", "optimizer", "best rate for 32 rows", "masked tokens, %", "their loss"]
    rows = [
        [f"{batch:,}", NAMES[name], *_best_cells(results, name, batch)]
        for batch in BATCHES
        for name in RATES
    ]
    is_drawn = any(curve(results, name) for name in RATES)
    picture = ["", f"![accuracy over batch size](images/{PICTURE})"]
    return {
        "best": [
            *table([*head, "next sentence, %", "seconds"], rows),
            *(picture if is_drawn else []),
        ],
        **{f"rates_{name}": _rates_table(results, name) for name in RATES},
        "tasks": table(
            ["task", "from random weights, %", "pre-trained, %"],
            [
                [
                    name,
                    *(
                        percent_over_seeds(
                            results, fine_tunings(one.experiment, pretrained=p), one.tag
                        )
                        for p in (False, True)
                    ),
                ]
                for name, one in MEASURES.items()
            ],
        ),
    }


def _best_cells(results: Results, optimizer: str, batch: int) -> list[str]:
    one = search(optimizer, batch)
    best, trials = one.best(results), one.best_over_seeds(results)
    return [
        "-" if best is None else f"{RATES[optimizer][one.tried.index(best)]:g}",
        percent_over_seeds(results, trials, METRIC),
        mean_over_seeds(results, trials, "masked_loss", digits=3),
        percent_over_seeds(results, trials, "next_sentence_accuracy"),
        _seconds(results, trials),
    ]


def _seconds(results: Results, trials: Sequence[Trial]) -> str:
    seconds = [result.seconds for trial in trials if (result := results.get(trial))]
    return spread(seconds, len(trials), digits=0)


def _rates_table(results: Results, optimizer: str) -> list[str]:
    """Returns the accuracies of seed 0 with all learning rates of an optimizer."""
    return table(
        ["batch", *(f"{rate:g}" for rate in RATES[optimizer])],
        [
            [
                f"{batch:,}",
                *(
                    percent_over_seeds(results, [trial], METRIC)
                    for trial in search(optimizer, batch).tried
                ),
            ]
            for batch in BATCHES
        ],
    )


def curve(results: Results, optimizer: str) -> dict[int, Point]:
    """Returns an optimizer's accuracies in percent by batch size, without those not finished."""
    return percent_curve(results, {batch: search(optimizer, batch) for batch in BATCHES})


def draw(results: Results, folder: Path) -> None:
    """Draws accuracy over batch size for each optimizer, if there is a result."""
    curves = {NAMES[name]: curve(results, name) for name in RATES}
    if not any(curves.values()):
        return
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    draw_curves(axes, curves, batches=BATCHES)
    axes.set(ylabel="held-out masked tokens, %", ylim=(0, 100))
    figure.savefig(folder / PICTURE, dpi=120)
    pyplot.close(figure)
