"""The study of docs/large_batch_study.md: an EfficientNet in large batches of glyphs.

It compares RMSProp with LARS, batch norms over groups of different sizes, and LARS's two momenta.
Held-out glyphs are of another family of typefaces than those that are trained on. Each result is
the accuracy on them after the last step, never the best one of a training.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from lingo.optim import scale_linearly
from tools.studies.batches import RateSearch
from tools.studies.page import percent_over_seeds, table
from tools.studies.trial import Results, Trial, over_seeds

METRIC = "accuracy"
PAGE = Path(__file__).parent.parent.parent / "docs" / "large_batch_study.md"

BATCHES = (64, 512, 4096)
RATES = {"rmsprop": 2e-3, "lars": 0.5}
"""The middle learning rate in batches of 64, by optimizer; it grows with the batch."""
FACTORS = {batch: (1 / 4, 1.0, 4.0) for batch in BATCHES} | {
    4096: (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)
}
"""The learning rates that are tried, over the middle one."""

GROUPS = {"1": 1, "32": 32, "all": 512}
"""Name -> images of a batch of 512 over which a batch norm has its statistics."""
GROUPED_BATCH = 512

MOMENTA = {"unscaled": "updates", "scaled": "gradients"}
"""Name of LARS's momentum -> what its slot sums (`Lars.accumulate`)."""


def trial(optimizer: str, batch: int, *, factor: float = 1.0, group: int = 32) -> Trial:
    """Returns a training whose learning rate is `factor` times the middle one."""
    middle = scale_linearly(RATES[optimizer], batch_size=batch, base_batch_size=BATCHES[0])
    return Trial(
        f"image.efficientnet.glyphs(optimizer='{optimizer}', batch_size={batch},"
        f" learning_rate={middle * factor:.4g}, statistics_over={group})"
    )


def search(optimizer: str, batch: int) -> RateSearch:
    """Returns the search of an optimizer's learning rate."""
    return RateSearch([trial(optimizer, batch, factor=f) for f in FACTORS[batch]], METRIC)


def with_momentum(name: str, batch: int, results: Results) -> list[Trial]:
    """Returns the trainings with a momentum of LARS, at the best rate with the unscaled one.

    The list is empty until all rates are tried.
    """
    best = search("lars", batch).best(results)
    if best is None:
        return []
    chosen = () if MOMENTA[name] == "updates" else (f"optimizer.accumulate='{MOMENTA[name]}'",)
    return over_seeds(best._replace(overrides=chosen))


def grouped(optimizer: str, group: int) -> list[Trial]:
    """Returns the trainings with statistics over `group` images, at the middle rate."""
    return over_seeds(trial(optimizer, GROUPED_BATCH, group=group))


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trials; some are known only after results of others."""
    for batch in reversed(BATCHES):
        for optimizer in RATES:
            yield from search(optimizer, batch).trials(results)
    for optimizer in RATES:
        for group in GROUPS.values():
            yield from grouped(optimizer, group)
    for batch in reversed(BATCHES):
        for name in MOMENTA:
            yield from with_momentum(name, batch, results)


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    cell = functools.partial(percent_over_seeds, results)
    sizes = [str(batch) for batch in BATCHES]
    return {
        "optimizers": table(
            ["batch", *RATES],
            [
                [str(batch), *(cell(search(o, batch).best_over_seeds(results)) for o in RATES)]
                for batch in BATCHES
            ],
        ),
        "groups": table(
            ["optimizer", *(f"groups of {name}" for name in GROUPS)],
            [[o, *(cell(grouped(o, group)) for group in GROUPS.values())] for o in RATES],
        ),
        "momenta": table(
            ["momentum of LARS", *sizes],
            [
                [name, *(cell(with_momentum(name, batch, results)) for batch in BATCHES)]
                for name in MOMENTA
            ],
        ),
    }
