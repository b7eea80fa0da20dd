"""The study of docs/segmentation.md: small Mask R-CNNs whose trunks convolve or attend.

Held-out scenes are of another family of typefaces, over other parts of the photographs. All arms
train for the same number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import lingo
from tools.studies.page import minutes_over_seeds, percent_over_seeds, table
from tools.studies.trial import SEEDS, Results, Trial, over_seeds

PAGE = Path(__file__).parent.parent.parent / "docs" / "segmentation.md"
PICTURES = PAGE.parent / "images"

NAME = "image.mask_rcnn.scenes"
ARMS = {
    "ResNet": Trial(NAME),
    "BoTNet, relative positions": Trial(f"{NAME}(trunk='botnet')"),
    "BoTNet, absolute positions": Trial(f"{NAME}(trunk='botnet', positions='absolute')"),
    "BoTNet, no positions": Trial(f"{NAME}(trunk='botnet', positions='none')"),
}
"""Name -> trial with seed 0."""

DRAWN = {"ResNet": "masks_resnet.png", "BoTNet, relative positions": "masks_botnet.png"}
"""Arms whose run with seed 0 is drawn -> the file of the picture."""

NUM_DRAWN = 4  # held-out scenes in a picture

METRICS = {"`ap`": "ap", "`ap50`": "ap50", "`mask_ap`": "mask_ap", "`mask_ap50`": "mask_ap50"}
"""Name -> tag."""


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trainings, seed by seed."""
    del results  # none depends on another
    for seed in SEEDS:
        yield from (trial._replace(seed=seed) for trial in ARMS.values())


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Draws what a run of `DRAWN` finds in held-out scenes; the evaluation has all metrics."""
    for name, file in DRAWN.items():
        if trial == ARMS[name]:
            Image.fromarray(draw_scenes(run)).save(PICTURES / file)
    return {}


def draw_scenes(run: Path) -> np.ndarray:
    """Returns a picture of held-out scenes with true and found objects, uint8 [H, W, 3]."""
    model = lingo.load(run)
    data = model.experiment.eval_inputs["heldout"]
    batch = {name: array[:NUM_DRAWN] for name, array in data.batch(0).items()}
    found = model.predict({"images": batch["images"]})
    picture: Any = model.experiment.task.summaries(batch, found)["boxes"]
    return picture.to_rgb()


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the table and the pictures of the page, by name."""
    rows = []
    for name, trial in ARMS.items():
        trained = over_seeds(trial)
        cells = [percent_over_seeds(results, trained, tag) for tag in METRICS.values()]
        rows.append([name, *cells, minutes_over_seeds(results, trained)])
    pictures = [
        f"![Digits with green true and orange found boxes and masks: {name}](images/{file})"
        for name, file in DRAWN.items()
        if (PICTURES / file).exists()
    ]
    return {"trunks": table(["trunk", *METRICS, "minutes"], rows), "pictures": pictures}
