"""Click-through rates: the probability that a user clicks on a shown item.

Axes: B batch, N numbers, T categorical features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.learner.task import Batch, Task
from lingo.metrics.classification import score_counts, score_table
from lingo.metrics.metric import weighted_mean
from tasks.click.model import Dlrm


class ClickPrediction(Task):
    """The binary cross-entropy of clicks, in nats, averaged over the examples of the whole batch.

    Metrics are this loss; `click_rate`, the share of examples with a click; `predicted_rate`, the
    mean predicted probability; and `auc`, the area under the logits' ROC curve. The area is exact
    if `num_eval_examples` is set: the metric's state then has three float64 numbers for each
    example of an evaluation. Otherwise it comes from a histogram of probabilities, and is off by at
    most `auc_error`. If the data comes from a known model whose logits are in the batch,
    `planted_auc` is the area of these logits: on average no model has a larger one.

    Batches: `numbers`, any float type, [B, N]; `categories`, int32 [B, T], each below the
    vocabulary size of its feature; `labels`, int32 [B], 1 for a click, else 0; `weights`, float32
    [B]; and perhaps `planted_logits`, float32 [B].
    """

    model: Dlrm
    num_numbers: int  # N; the input offers it
    vocab_sizes: tuple[int, ...]  # of the T features; the input offers it
    num_eval_examples: int = 0  # at least the largest evaluation's, for exact areas; 0: histograms

    def check(self) -> None:
        ranges.check_not_negative(self.p, "num_eval_examples")

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build(num_numbers=p.num_numbers, vocab_sizes=p.vocab_sizes)

    def check_input(self, offers: Mapping[str, Any]) -> None:
        for name in ("num_numbers", "vocab_sizes"):
            mine = getattr(self.p, name)
            if name in offers and offers[name] != mine:
                raise ParamError(f"task.{name}={mine}, but the input has {offers[name]}")
        slots, size = self.p.num_eval_examples, offers.get("num_eval_examples", 0)
        if 0 < slots < size:
            raise ParamError(f"task.num_eval_examples={slots}, but an evaluation has {size}")

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        losses = _cross_entropy(self._logits(batch), batch["labels"])
        return {"cross_entropy": tf.reduce_sum(losses * batch["weights"])}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        logits, labels, weights = self._logits(batch), batch["labels"], batch["weights"]
        states = {
            "trained": self._area(logits, batch),
            "loss": weighted_mean(_cross_entropy(logits, labels), weights),
            "click_rate": weighted_mean(labels, weights),
            "predicted_rate": weighted_mean(tf.sigmoid(logits), weights),
        }
        if "planted_logits" in batch:
            states["planted"] = self._area(batch["planted_logits"], batch)
        return states

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics: `trained/auc` as `auc`, `planted/auc` as `planted_auc`."""
        return {
            name.removeprefix("trained/").replace("planted/", "planted_"): value
            for name, value in means.items()
        }

    def loss_metrics(self) -> dict[str, str]:
        return {"cross_entropy": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `logits` and `probabilities` of a click, float32 [B]."""
        logits = self._logits(batch)
        return {"logits": logits, "probabilities": tf.sigmoid(logits)}

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["numbers"]
        return self.model.flops(shape)

    def _area(self, logits: tf.Tensor, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the state of the area under the ROC curve of logits, float32 [B]."""
        labels, weights, size = batch["labels"], batch["weights"], self.p.num_eval_examples
        if not size:
            return score_counts(tf.sigmoid(logits), labels, weights)
        return score_table(logits, labels, weights, batch["example_id"], num_examples=size)

    def _logits(self, batch: Batch) -> tf.Tensor:
        """Returns the logits of a batch, float32 [B]."""
        p = self.p
        for name, width in (("numbers", p.num_numbers), ("categories", len(p.vocab_sizes))):
            if not batch[name].shape[1:].is_compatible_with([width]):
                raise ParamError(
                    f"a batch has {name} of shape {batch[name].shape}, but the task wants"
                    f" [B, {width}]"
                )
        return self.model(batch["numbers"], batch["categories"])


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy in nats, float32 [B], of labels [B], which are 0 or 1."""
    return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits)
