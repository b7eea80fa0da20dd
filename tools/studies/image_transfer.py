"""The study of docs/image_transfer_study.md: a small AmoebaNet-B, pretrained or not, on other sets.

It is GPipe's transfer (Huang et al. 2019, sec. 4, table 4) in small. Each result is the accuracy on
held-out images after the last step, never the best one of a training. Every fine-tuning begins with
the pretraining of its own seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.studies.page import percent_over_seeds, table
from tools.studies.trial import PRETRAINED, Results, Trial
from tools.studies.trial import over_seeds_of_both as over_seeds

PAGE = Path(__file__).parent.parent.parent / "docs" / "image_transfer_study.md"

PRETRAIN = Trial("image.transfer.amoebanet_pretrain")


class ImageSet(NamedTuple):
    """A set to fine-tune on, with a number of training images."""

    name: str
    kind: str  # "real" or "drawn"
    arguments: str  # of the experiment
    num_train: int
    num_heldout: int


SETS = (
    ImageSet("digits of scikit-learn", "real", "heldout_fraction=0.8", 385, 1412),
    ImageSet("digits of scikit-learn", "real", "heldout_fraction=0.2", 1463, 334),
    ImageSet("5,000 of MNIST", "real", "target='mnist', heldout_fraction=0.8", 1022, 3978),
    ImageSet("5,000 of MNIST", "real", "target='mnist', heldout_fraction=0.2", 3984, 1016),
    ImageSet("letters", "drawn", "target='letters', images_per_class=12", 564, 4512),
    ImageSet("letters", "drawn", "target='letters', images_per_class=48", 2256, 4512),
)


def tuned(image_set: ImageSet, *, pretrained: bool) -> Trial:
    """Returns the trial of a training on a set, from the weights of `PRETRAIN` or random ones."""
    experiment = f"image.transfer.amoebanet_finetune({image_set.arguments})"
    if not pretrained:
        return Trial(experiment)
    return Trial(experiment, overrides=(f"exp.pretrained={PRETRAINED}",), start=PRETRAIN)


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trainings, seed after seed."""
    del results  # none depends on another
    tunings = [tuned(one, pretrained=pretrained) for one in SETS for pretrained in (False, True)]
    for of_one_seed in zip(*map(over_seeds, [PRETRAIN, *tunings]), strict=True):
        yield from of_one_seed


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    heads = ["set", "images are", "to train on", "held out", "from scratch, %", "fine-tuned, %"]
    return {
        "pretraining": table(
            ["held-out letters over photographs, %"],
            [[percent_over_seeds(results, over_seeds(PRETRAIN))]],
        ),
        "transfer": table(
            heads,
            [
                [
                    one.name,
                    one.kind,
                    f"{one.num_train:,}",
                    f"{one.num_heldout:,}",
                    *(
                        percent_over_seeds(results, over_seeds(tuned(one, pretrained=pretrained)))
                        for pretrained in (False, True)
                    ),
                ]
                for one in SETS
            ],
        ),
    }
