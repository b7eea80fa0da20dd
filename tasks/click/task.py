"""Click-through rates: how likely somebody clicks on what is shown.

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
from lingo.metrics.classification import score_table
from lingo.metrics.metric import weighted_mean
from tasks.click.model import Dlrm


class ClickPrediction(Task):
    """The binary cross-entropy of clicks, in nats, averaged over the examples of the whole batch.

    Metrics are this loss, `click_rate`, the share of examples with a click, `predicted_rate`, the
    mean of their probabilities, and, where `num_eval_examples` is set, `auc`, exactly: the area
    under the ROC curve of the logits. If the data comes from a known model, whose logits are in
    the batch, the area under the curve of these is `planted_auc`: no model has a larger one on
    average.

    Batches: `numbers`, any float type, [B, N]; `categories`, int32 [B, T], each below the
    vocabulary size of its feature; `labels`, int32 [B], 1 for a click, else 0; `weights`, float32
    [B]; and perhaps `planted_logits`, float32 [B].
    """

    model: Dlrm
    num_numbers: int  # N; the input offers it
    vocab_sizes: tuple[int, ...]  # of the T features; the input offers it
    num_eval_examples: int = 0  # of the largest evaluation, or more, for areas; 0: no areas

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

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        losses = _cross_entropy(self._logits(batch), batch["labels"])
        return {"cross_entropy": tf.reduce_sum(losses * batch["weights"])}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        logits, labels, weights = self._logits(batch), batch["labels"], batch["weights"]
        scores = {"trained": logits}
        if "planted_logits" in batch:
            scores["planted"] = batch["planted_logits"]
        num_examples, ids = self.p.num_eval_examples, batch["example_id"]
        areas = {
            name: score_table(values, labels, weights, ids, num_examples=num_examples)
            for name, values in scores.items()
            if num_examples
        }
        return areas | {
            "loss": weighted_mean(_cross_entropy(logits, labels), weights),
            "click_rate": weighted_mean(labels, weights),
            "predicted_rate": weighted_mean(tf.sigmoid(logits), weights),
        }

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics; the areas of both models as `auc` and `planted_auc`."""
        shown = {"trained/auc": "auc", "planted/auc": "planted_auc"}
        return {shown.get(name, name): value for name, value in means.items()}

    def loss_metrics(self) -> dict[str, str]:
        return {"cross_entropy": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `logits` and `probabilities` of a click, float32 [B]."""
        logits = self._logits(batch)
        return {"logits": logits, "probabilities": tf.sigmoid(logits)}

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["numbers"]
        return self.model.flops(shape)

    def _logits(self, batch: Batch) -> tf.Tensor:
        """Returns the logits of a batch, float32 [B]."""
        p = self.p
        for name, width in (("numbers", p.num_numbers), ("categories", len(p.vocab_sizes))):
            if not batch[name].shape[1:].is_compatible_with([width]):
                raise ParamError(
                    f"a batch has {name} of shape {batch[name].shape}, but the task is of"
                    f" [B, {width}]"
                )
        return self.model(batch["numbers"], batch["categories"])


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of labels, 0 or 1, [B], in nats, float32 [B]."""
    return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits)
