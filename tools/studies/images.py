"""The study of docs/image_studies.md: networks, optimizers and augmentation on glyphs.

Held-out glyphs are of another family of typefaces than those that are trained on. Each result is
the accuracy on them after the last step, never the best one of a training.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from matplotlib import pyplot

from lingo.optim import scale_by_root
from params.image.resnet import RATES, SCALES
from tools.studies.batches import Point, RateSearch, draw_curves, percent_curve
from tools.studies.page import percent_over_seeds, table
from tools.studies.trial import PRETRAINED, Results, Trial, over_seeds

METRIC = "accuracy"
PAGE = Path(__file__).parent.parent.parent / "docs" / "image_studies.md"

NETWORKS = {
    "ResNet": "image.resnet.glyphs",
    "BoTNet": "image.botnet.glyphs",
    "EfficientNet": "image.efficientnet.glyphs",
    "ViT": "image.vit.glyphs",
}
"""Name -> experiment."""

VITS = {
    "sines and cosines, mean of patches": ("sinusoid", "mean"),
    "learned, class token": ("learned", "first"),
}
"""Name -> positions and pooling of a ViT."""

GLYPHS = Trial("image.resnet.glyphs")
STEPS_ON_DIGITS = (20, 60, 180)

OPTIMIZERS = tuple(RATES)
BATCHES = (64, 256, 1024, 4096)
FACTORS = {batch: (1 / 4, 1.0, 4.0) for batch in BATCHES} | {4096: (1 / 16, 1 / 4, 1.0, 4.0, 16.0)}
"""The learning rates to try, over the experiment's: the same number for each optimizer."""


def vit(name: str, *, augment: bool) -> Trial:
    """Returns the trial of a ViT, with or without RandAugment and MixUp."""
    positions, pooling = VITS[name]
    arguments = f"positions='{positions}', pooling='{pooling}', augment={augment}"
    return Trial(f"image.vit.glyphs({arguments})")


def digits(num_steps: int, *, pretrained: bool) -> Trial:
    """Returns the trial of the network of `GLYPHS` on digits, from its weights or from none."""
    experiment = f"image.transfer.digits(num_steps={num_steps})"
    if not pretrained:
        return Trial(experiment)
    source = f"init_from=WarmStart(path={PRETRAINED}, skip=['.*/linear/.*'])"
    return Trial(experiment, overrides=(source,), start=GLYPHS)


def search(optimizer: str, batch: int) -> RateSearch:
    """Returns the search of an optimizer's learning rate."""
    scale = SCALES.get(optimizer, scale_by_root)
    middle = scale(RATES[optimizer], batch_size=batch, base_batch_size=BATCHES[0])
    tried = [
        Trial(
            f"image.resnet.glyphs(optimizer='{optimizer}', batch_size={batch},"
            f" learning_rate={middle * factor:.4g})"
        )
        for factor in FACTORS[batch]
    ]
    return RateSearch(tried, METRIC)


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trials, as far as the results at hand tell them."""
    for experiment in NETWORKS.values():
        yield from over_seeds(Trial(experiment))
    for name in VITS:
        for augment in (False, True):
            yield from over_seeds(vit(name, augment=augment))
    for num_steps in STEPS_ON_DIGITS:
        for pretrained in (False, True):
            yield from over_seeds(digits(num_steps, pretrained=pretrained))
    for batch in reversed(BATCHES):
        for optimizer in OPTIMIZERS:
            yield from search(optimizer, batch).trials(results)


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    cell = functools.partial(percent_over_seeds, results)
    return {
        "networks": table(
            ["network", "held-out accuracy, %"],
            [[name, cell(over_seeds(Trial(e)))] for name, e in NETWORKS.items()],
        ),
        "vits": table(
            ["positions, head", "plain", "RandAugment and MixUp"],
            [
                [name, *(cell(over_seeds(vit(name, augment=a))) for a in (False, True))]
                for name in VITS
            ],
        ),
        "transfer": table(
            ["steps on digits", "from random weights", "from glyphs"],
            [
                [str(n), *(cell(over_seeds(digits(n, pretrained=p))) for p in (False, True))]
                for n in STEPS_ON_DIGITS
            ],
        ),
        "optimizers": table(
            ["batch", *OPTIMIZERS],
            [
                [
                    str(batch),
                    *(cell(search(name, batch).best_over_seeds(results)) for name in OPTIMIZERS),
                ]
                for batch in BATCHES
            ],
        ),
    }


def curve(results: Results, optimizer: str) -> dict[int, Point]:
    """Returns an optimizer's accuracies, in percent, by the batch sizes that have some."""
    return percent_curve(results, {batch: search(optimizer, batch) for batch in BATCHES})


def draw(results: Results, folder: Path) -> None:
    """Draws accuracy over batch size for each optimizer that has a point."""
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    draw_curves(axes, {name: curve(results, name) for name in OPTIMIZERS}, batches=BATCHES)
    axes.set(ylabel="held-out accuracy, %", ylim=(0, 100))
    figure.savefig(folder / "image_optimizers.png", dpi=120)
    pyplot.close(figure)
