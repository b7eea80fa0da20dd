"""Evaluates one task with all metrics on 1 and N devices; prints the results as JSON.

    python tests/lingo/metrics/on_devices.py N

A process of its own, because TensorFlow and JAX choose their devices once a process, and replicas
of one process all reduce in one group.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from sklearn import metrics as sklearn

from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.data.array_input import ArrayInput
from lingo.layers.linear import Linear
from lingo.learner.state import initial_state
from lingo.learner.task import Task
from lingo.metrics.classification import confusion, score_counts, score_table, top_k_accuracy
from lingo.metrics.mask import paste_mask, run_lengths
from lingo.metrics.mean_average_precision import detection_results, detection_table
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from lingo.trainer.evaluation.evaluate import evaluate, trace_evaluations

SIZE = 60  # batches of 24: the last has 12


def arrays():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, SIZE)
    corners = draw.uniform(0, 0.5, (SIZE, 4, 2))
    boxes = np.concatenate([corners, corners + 0.4], -1).astype("f")
    box_labels = draw.integers(0, 3, (SIZE, 4)).astype(np.int32)
    image_sizes = draw.integers(50, 500, (SIZE, 2)).astype(np.int32)
    masks = draw.uniform(size=(SIZE, 4, 5, 5)) < 0.8
    return {
        "x": (draw.normal(size=(SIZE, 3)) + np.eye(3)[labels]).astype("f"),
        "label": labels,
        "importance": draw.uniform(0.5, 3, SIZE).astype("f"),
        "boxes": boxes,
        "box_labels": box_labels,
        "image_sizes": image_sizes,
        "mask_counts": run_lengths_of(masks, boxes, box_labels, image_sizes),
        "found/boxes": (boxes + 0.03 * draw.normal(size=boxes.shape)).astype("f"),
        "found/box_labels": np.where(draw.uniform(size=box_labels.shape) < 0.2, 1, box_labels),
        "found/box_scores": draw.uniform(size=box_labels.shape).astype("f").round(1),  # some equal
        "found/masks": np.where(masks, 0.8, 0.1).astype("f"),
    }


def run_lengths_of(masks, boxes, labels, sizes):
    """Returns the run lengths of masks in their images, int32 [SIZE, 4, K]."""
    counts = np.zeros([*labels.shape, 4000], np.int32)
    for i, j in np.argwhere(labels > 0):
        own = run_lengths(paste_mask(masks[i, j], boxes[i, j], size=tuple(sizes[i].tolist())))
        counts[i, j, : len(own)] = own
    return counts[..., : counts.any((0, 1)).sum() + 1]


def detections(batch):
    """Returns the detections, which are data: the same bits on all devices."""
    return {name: batch[f"found/{name}"] for name in ("boxes", "box_labels", "box_scores", "masks")}


class Classify(Task):
    """Three classes by a matrix that is the identity."""

    linear: Linear = Linear.params(dim=3, output_dim=3)

    def setup(self):
        self.linear = self.p.linear.build()

    def logits(self, batch):
        return self.linear(batch["x"]) * 0.0 + batch["x"]

    def loss(self, batch):
        logits = self.linear(batch["x"])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        return {"loss": tf.reduce_sum(batch["weights"] * losses)}

    def metrics(self, batch):
        logits, labels, weights = self.logits(batch), batch["label"], batch["weights"]
        score, is_two = tf.nn.sigmoid(logits[:, 2]), labels == 2
        ids = batch["example_id"]
        return {
            "top_2": top_k_accuracy(logits, labels, weights, k=2),
            "quality": confusion(labels, tf.argmax(logits, 1), weights, num_classes=3),
            "bins": score_counts(score, is_two, weights, num_bins=64),
            "exact": score_table(score, is_two, weights, ids, num_examples=SIZE),
            "tied": score_table(
                tf.round(2 * logits[:, 2]),
                is_two,
                weights * batch["importance"],
                ids,
                num_examples=SIZE,
            ),
            "coco": detection_table(batch, detections(batch), num_examples=SIZE),
            "twice": {"doubled": 2 * tf.reduce_sum(tf.cast(weights, tf.float64))},
        }

    def read_metric(self, name, state):
        if name == "twice":
            return {name: float(state["doubled"]) / 2}
        return super().read_metric(name, state)


def build(runtime):
    data = ArrayInput.params(function=arrays, batch_size=24, shuffle=False)
    return Experiment.params(
        task=Classify,
        train_input=data,
        eval_inputs={"all": data.copy().set(repeat=False)},
        optimizer=Sgd.params(learning_rate=0.1),
        runtime=runtime,
    ).build()


def expected():
    whole = arrays()
    x, labels = whole["x"], whole["label"]
    batch = {name: tf.constant(array) for name, array in whole.items()}
    batch |= {"example_id": tf.range(SIZE, dtype=tf.int64), "weights": tf.ones(SIZE)}
    state = detection_table(batch, detections(batch), num_examples=SIZE)
    boxes = detection_results({name: value.numpy() for name, value in state.items()})
    guess, score = x.argmax(1), tf.nn.sigmoid(x[:, 2]).numpy()
    values = {
        "top_2": sklearn.top_k_accuracy_score(labels, x, k=2),
        "exact/auc": sklearn.roc_auc_score(labels == 2, score),
        "tied/auc": sklearn.roc_auc_score(
            labels == 2, np.round(2 * x[:, 2]), sample_weight=whole["importance"].astype(float)
        ),
        "quality/accuracy": sklearn.accuracy_score(labels, guess),
        "quality/f1_micro": sklearn.f1_score(labels, guess, average="micro"),
    }
    values |= {f"coco/{name}": value for name, value in boxes.items()}
    parts = sklearn.precision_recall_fscore_support(labels, guess)
    for name, part in zip(("precision", "recall", "f1"), parts, strict=False):
        values[f"quality/{name}_macro"] = part.mean()
        values |= {f"quality/{name}_{i}": value for i, value in enumerate(part)}
    return {name: float(value) for name, value in values.items()}


def main(num_devices):
    devices = [f"CPU:{i}" for i in range(num_devices)]
    runtimes = [
        Local.params(),
        Replicated.params(devices=devices),
        Mesh.params(data=num_devices),
    ]
    experiments = [build(runtime) for runtime in runtimes]
    for experiment in experiments[1:]:
        experiment.runtime.make_devices(num_devices)
    found = {"expected": expected()}
    for experiment in experiments:
        program = experiment.runtime.start(experiment.learner, initial_state(experiment.learner))
        results = evaluate(experiment.task, program, experiment.eval_inputs["all"])
        found[type(experiment.runtime).__name__] = results
        assert trace_evaluations(experiment)["all"].keys() == results.keys()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
