"""Evaluates four tasks on one device and on several; prints the results as JSON.

    python on_devices.py N                         Local, and Replicated and Mesh with N devices
    TF_CONFIG=... python on_devices.py replicated  one of several processes; or mesh

A process of its own, because TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np

from lingo import layers as nn
from lingo import models
from lingo.config.params import Params
from lingo.data.array_input import ArrayInput
from lingo.learner.state import Learner, initial_state
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from lingo.trainer.evaluation.evaluate import evaluate
from tasks.detection.task import ObjectDetection
from tasks.image.segmentation import Segmentation
from tasks.image.task import ImageClassification
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

SIZE, BATCH = 11, 3  # neither divides the other, nor by 2 or 8: four batches, of 3, 3, 3 and 2
K, T, V = 7, 5, 11
IMAGE, VOLUME = (8, 6, 1), (2, 6, 4, 1)


def arrays() -> dict[str, np.ndarray]:
    """Returns the examples of all tasks."""
    draw = np.random.default_rng(0)
    corners = draw.uniform(0, 0.5, [SIZE, 3, 2])
    return {
        "images": draw.normal(size=[SIZE, *IMAGE]).astype("f"),
        "labels": draw.integers(0, K, [SIZE], np.int32),
        "boxes": np.concatenate([corners, corners + 0.4], -1).astype("f"),
        "box_labels": draw.integers(0, 3, [SIZE, 3], np.int32),
    }


def volumes() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    return {
        "images": draw.normal(size=[SIZE, *VOLUME]).astype("f"),
        "labels": draw.integers(0, 3, [SIZE, *VOLUME[:-1]], np.int32),
    }


def texts() -> dict[str, np.ndarray]:
    """Returns texts of unequal lengths: the mean over tokens is not that over examples."""
    draw = np.random.default_rng(2)
    return {
        "tokens": draw.integers(0, V, [SIZE, T], np.int32),
        "targets": draw.integers(0, V, [SIZE, T], np.int32),
        "segments": (np.arange(T) < draw.integers(1, T + 1, [SIZE, 1])).astype(np.int32),
        "positions": np.tile(np.arange(T, dtype=np.int32), (SIZE, 1)),
    }


def classification() -> Params:
    layers = [nn.ConvNorm.params(dim=1, output_dim=4, stride=2)]
    model = nn.Chain.params(layers=[*layers, nn.ImageHead.params(dim=4, num_classes=K)])
    return ImageClassification.params(model=model, num_classes=K, image_shape=IMAGE, confusion=True)


def detection() -> Params:
    model = models.Ssd.params(
        trunk=nn.ConvNorm.params(dim=1, output_dim=4, stride=2),
        extras=[models.ExtraMap.params(dim=4, hidden_dim=4, output_dim=4)],
        scales=(3.0, 5.0, 8.0),
        ratios=((2.0,), ()),
    )
    return ObjectDetection.params(
        model=model,
        num_classes=2,
        image_shape=IMAGE,
        max_overlap=0.9,
        max_detections=60,
        num_eval_images=SIZE,
    )


def segmentation() -> Params:
    model = models.UNet3D.params(dim=1, num_classes=3, width=2, num_levels=2)
    return Segmentation.params(model=model, num_classes=3, volume_shape=VOLUME)


def language_model() -> Params:
    layer = nn.TransformerLayer.params()
    layer.attention.num_heads = 2
    stack = nn.Stack.params(layer=layer)
    return LanguageModeling.params(vocab_size=V, model=LanguageModel.params(dim=4, stack=stack))


TASKS = {
    "classification": (classification, arrays),
    "detection": (detection, arrays),
    "segmentation": (segmentation, volumes),
    "language model": (language_model, texts),
}


def results(runtime: Params, *, batch_size: int = BATCH) -> dict[str, dict[str, float]]:
    """Returns the metrics of all tasks with their initial weights, by task."""
    found = {}
    for name, (task, function) in TASKS.items():
        learner = Learner(task().build(), Sgd.params(learning_rate=0.1).build())
        program = runtime.build().start(learner, initial_state(learner))
        data = ArrayInput.params(
            function=function, batch_size=batch_size, shuffle=False, repeat=False
        ).build()
        found[name] = evaluate(learner.task, program, data)
    return found


def on_devices(num_devices: int) -> dict[str, dict[str, dict[str, float]]]:
    devices = [f"CPU:{i}" for i in range(num_devices)]
    runtimes = {
        "local": Local.params(),
        "replicated": Replicated.params(devices=devices),
        "mesh": Mesh.params(data=num_devices),
    }
    if num_devices == 8:
        runtimes["parts of images"] = Mesh.params(data=2, height=4)
    for runtime in runtimes.values():
        runtime.build().make_devices(num_devices)
    found = {name: results(runtime) for name, runtime in runtimes.items()}
    return {"one batch": results(runtimes["local"], batch_size=SIZE), **found}


def in_processes(name: str) -> dict[str, dict[str, float]]:
    """Returns what this process finds of all examples, of which it reads its own."""
    runtime = {"replicated": Replicated.params(), "mesh": Mesh.params(data=2)}[name]
    with runtime.build().join():
        return results(runtime)


if __name__ == "__main__":
    several = "TF_CONFIG" in os.environ
    print(json.dumps(in_processes(sys.argv[1]) if several else on_devices(int(sys.argv[1]))))
