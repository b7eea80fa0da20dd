"""Tiny trained models of several kinds."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import pytest

import lingo
from lingo.config.params import Params
from lingo.layers import ConvNorm, ImageHead, MaxPool
from lingo.layers.vision.resnet import resnet
from lingo.optim import ConstantRate
from lingo.trainer.trained import Trained

TINY = ("eval_inputs={}", "evaluate.prompts=[]", "max_steps=1", "evaluate.sampling.max_tokens=6")
EXPERIMENTS = {
    "tiny": "lm.source.tiny(model_dim=16, num_layers=1)",
    "tiny_moe": "lm.source.tiny_moe(num_experts=4)",
    "pairs": "seq2seq.source.signatures(model_dim=16, num_layers=1)",
    "convolution": "image.amoebanet.digits(num_filters=8)",
    "resnet": "image.resnet.glyphs",
    "vit": "image.vit.glyphs(augment=False)",
    "bfloat16": "lm.source.tiny(model_dim=16, num_layers=1)",
    "average": "lm.source.tiny(model_dim=16, num_layers=1)",
}


def small(name: str) -> Params:
    """Returns a small experiment, whose evaluation input is a pass over what it trains on."""
    params = lingo.get(EXPERIMENTS[name], *TINY)
    if name == "tiny_moe":
        params.task.model.set(dim=16)
        params.task.model.stack.num_layers = 1
    if name == "convolution":
        head = ImageHead.params(dim=8, num_classes=10)
        params.task.model.layers = [ConvNorm.params(dim=1, output_dim=8), MaxPool, head]
    if name == "resnet":
        shape = {"num_layers": 18, "num_classes": 47, "channels": 1, "width": 4}
        params.task.model.layers = resnet(**shape, small_images=True, stem_stride=2)
    if name in ("resnet", "vit"):
        params.train_input.batch_size = 32
    if name == "bfloat16":
        params.task.dtype = "bfloat16"
    if name == "average":  # the first of three evaluations has the largest loss
        params.set(max_steps=3).optimizer.set(ema_decay=0.5, learning_rate=0.01)
        params.optimizer.schedule = ConstantRate.params()
        params.evaluate.set(weights="ema", every_steps=1, metric="same/loss", goal="max")
        params.checkpoint.keep_best = 1
    if name.startswith("tiny") or name in ("bfloat16", "average"):
        params.train_input.length = 32
    if name == "pairs":
        params.train_input.set(source_length=48, target_length=32)
    data = params.train_input.copy().set(repeat=False, batch_size=24, max_batches=3)
    return params.set(eval_inputs={"same": data})


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Returns a function that trains one of the experiments for a step, the first time."""

    @functools.cache
    def train(name: str) -> Trained:
        folder: pathlib.Path = tmp_path_factory.mktemp(name) / "run"
        lingo.train(small(name), folder)
        return lingo.load(folder)

    return train


@pytest.fixture(scope="session")
def saved(
    trained: Callable[[str], Trained], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], pathlib.Path]:
    """Returns a function that exports one of the models as a SavedModel, the first time."""

    @functools.cache
    def export(name: str) -> pathlib.Path:
        folder: pathlib.Path = tmp_path_factory.mktemp(name) / "saved"
        trained(name).export(folder, format="savedmodel")
        return folder

    return export
