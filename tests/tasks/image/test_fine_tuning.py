"""A Vision Transformer trained on small images goes on with larger ones and other classes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

import lingo
from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data import ImageInput
from lingo.datasets import Digits
from lingo.layers import Chain, LayerNorm, context
from lingo.layers.vision.patch import LearnedImagePositions, PatchEmbedding, PatchHead
from lingo.learner.state import initial_state, load_arrays
from lingo.models.image.vit import Encoder, encoder_stack
from lingo.optim import AdamW
from tasks.image.task import ImageClassification

DIM, PATCH = 8, 2
SMALL, LARGE = (4, 4), (8, 4)
POSITIONS, HEAD = "model/layers/1/vectors", "model/layers/4/.*"


def experiment(grid: tuple[int, int], *, num_classes: int, **fields: Any) -> Params:
    """Returns the training of a network on digits, which are enlarged if the grid is large."""
    layers = [
        PatchEmbedding.params(dim=1, output_dim=DIM, patch=PATCH),
        LearnedImagePositions.params(dim=DIM, grid=grid),
        encoder_stack(Encoder(DIM, 1, 2)),
        LayerNorm.params(dim=DIM),
        PatchHead.params(dim=DIM, num_classes=num_classes),
    ]
    shape = (PATCH * grid[0], PATCH * grid[1], 1)
    model = Chain.params(layers=layers)
    return Experiment.params(
        task=ImageClassification.params(model=model, num_classes=num_classes),
        train_input=ImageInput.params(source=Digits, batch_size=8, enlarged_to=shape),
        optimizer=AdamW.params(learning_rate=1e-2),
        **fields,
    )


def test_fine_tuning_starts_with_the_features_of_the_old_network(tmp_path: pathlib.Path) -> None:
    lingo.train(experiment(SMALL, num_classes=10, max_steps=3), tmp_path / "old")
    old = lingo.load(tmp_path / "old").weights
    start = WarmStart.params(
        path=str(tmp_path / "old"), skip=(HEAD,), resize={POSITIONS: (SMALL, LARGE)}
    )
    cfg = experiment(LARGE, num_classes=12, init_from=start, max_steps=1)
    lingo.train(cfg, tmp_path / "new")

    grid = old[POSITIONS].reshape(*SMALL, DIM)
    resized = tf.image.resize(grid, LARGE, antialias=True).numpy().reshape(-1, DIM)
    built = cfg.build()
    weights = {
        name: value if "layers/4" in name else old[name]
        for name, value in load_arrays(initial_state(built.learner)).weights.items()
    } | {POSITIONS: resized}
    batch = {name: tf.constant(array) for name, array in built.train_input.batch(0).items()}
    losses, _ = context.apply(built.task, weights, batch, method="loss")
    rows = map(json.loads, (tmp_path / "new/metrics.jsonl").read_text().splitlines())
    first = next(row["loss/total"] for row in rows if row["step"] == 1 and "loss/total" in row)
    np.testing.assert_allclose(first, losses["cross_entropy"] / 8, rtol=1e-5)
    log = (tmp_path / "new/warm_start.txt").read_text()
    assert "resized from 4 x 4 to 8 x 4" in log
