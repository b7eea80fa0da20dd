"""Prediction of a column of a table, a class or a number, from the other columns.

        output                        [B, K]
        network                       layers with a ReLU, then a matrix product
    z of numbers, one-hot categories  [B, D]
      numbers        categories       [B, N], [B, T, 2]

Axes: B rows, N columns of numbers and dates, T columns of categories, D features,
K outputs (classes, or 1 for a number).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers import FanIn, Layer, Linear, Normalize, OneHot, Vocabulary
from lingo.layers.context import annotate
from lingo.layers.residual import Residual, ResidualCall
from lingo.learner.task import Batch, Task
from lingo.metrics.classification import confusion
from lingo.metrics.media import Media
from lingo.metrics.metric import weighted_mean
from lingo.metrics.results import state_summaries
from lingo.ops.losses import token_losses
from tasks.click.model import Mlp


class TableModel(Layer):
    """A network of normalized numbers and one-hot categories.

    The columns of numbers are normalized by the training rows. A category is a vector that is 1 at
    its id in the vocabulary of its column, where unknown and missing categories have their own ids.
    """

    num_numbers: int  # N; the task offers it
    category_sizes: tuple[int, ...]  # most known categories per column, [T]; the task offers it
    output_dim: int  # K; the task offers it
    numbers: Normalize = Normalize  # of the columns of numbers and dates
    categories: Vocabulary = Vocabulary  # ids of the categories
    one_hot: OneHot = OneHot  # vectors of the ids
    hidden: Mlp = Mlp.params(output_dims=(64, 64))  # the network before the last product
    head: Linear = Linear.params(use_bias=True, init=FanIn, axes=(None, None))  # the last product

    def check(self) -> None:
        if not self.p.num_numbers and not self.p.category_sizes:
            raise ParamError("the table has neither a column of numbers nor one of categories")

    def setup(self) -> None:
        p, dim = self.p, self.p.num_numbers
        if p.num_numbers:
            self.numbers = p.numbers.build(dim=p.num_numbers)
        if p.category_sizes:
            self.categories = p.categories.build(sizes=p.category_sizes)
            self.one_hot = p.one_hot.build(sizes=self.categories.id_counts)
            dim += self.one_hot.output_dim
        self.hidden = p.hidden.build(dim=dim)
        self.head = p.head.build(dim=p.hidden.output_dims[-1], output_dim=p.output_dim)

    def __call__(
        self, numbers: tf.Tensor | None = None, categories: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the outputs, float32 [B, K].

        Args:
            numbers: [B, N], any float type, NaN where missing; None: the table has no numbers.
            categories: int32 [B, T, 2], fingerprints (`lingo.ops.fingerprint`); None: the table has
                no categories.
        """
        features = []
        if numbers is not None:
            features.append(self.numbers(numbers))
        if categories is not None:
            features.append(self.one_hot(self.categories(categories)))
        x = annotate(tf.concat(features, axis=-1), "batch", None)
        return tf.cast(self.head(self.hidden(x)), tf.float32)

    def flops(self, shape: Sequence[int]) -> int:
        return self.hidden.flops([shape[0], self.hidden.p.dim]) + self.head.flops(
            [shape[0], self.head.p.dim]
        )

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []  # products keep their inputs


class TablePrediction(Task):
    """Predicts the label of each row: a class if there are `class_names`, else a number.

    The loss of classes is the cross-entropy in nats; metrics are `loss` and `accuracy`. The loss of
    numbers is the squared error in units of the training rows' variance. Their metrics are `loss`;
    `mae` and `rmse`, the mean absolute and the root mean squared error, in the label's units; and
    `r2`, 1 minus the squared error over the variance of the evaluated labels.

    Batches: as `lingo.data.TableInput` makes them.
    """

    model: TableModel = TableModel
    num_numbers: int  # N; the input offers it
    category_sizes: tuple[int, ...]  # most known categories per column, [T]; the input offers it
    class_names: tuple[str, ...] = ()  # [K]; empty: the label is a number; the input offers it
    target: Normalize = Normalize.params(dtype="float32")  # of labels that are numbers
    confusion: bool = False  # evaluations count (label, guess) pairs: precision, recall, a picture

    def check(self) -> None:
        if self.p.confusion and not self.p.class_names:
            raise ParamError("confusion=True needs classes, but the label is a number")

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build(
            num_numbers=p.num_numbers,
            category_sizes=p.category_sizes,
            output_dim=len(p.class_names) or 1,
        )
        if not p.class_names:
            self.target = p.target.build(dim=1)

    def check_input(self, offers: Mapping[str, Any]) -> None:
        for name in ("num_numbers", "category_sizes", "class_names"):
            if name not in offers:
                raise ParamError("the input is no table: give one that read_table returns")
            if offers[name] != getattr(self.p, name):
                raise ParamError(
                    f"task.{name}={getattr(self.p, name)!r:.80}, but the input has"
                    f" {offers[name]!r:.80}"
                )

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        name = "cross_entropy" if self.p.class_names else "squared_error"
        return {name: tf.reduce_sum(self._losses(self._outputs(batch), batch) * batch["weights"])}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        outputs, weights = self._outputs(batch), batch["weights"]
        states = {"loss": weighted_mean(self._losses(outputs, batch), weights)}
        if names := self.p.class_names:
            labels, guesses = batch["labels"], tf.argmax(outputs, axis=-1, output_type=tf.int32)
            states["accuracy"] = weighted_mean(tf.equal(guesses, labels), weights)
            if self.p.confusion:
                states["classes"] = confusion(labels, guesses, weights, num_classes=len(names))
            return states
        z, scale = self._scaled(batch), self.target.scale[0]
        errors = scale * tf.abs(outputs[:, 0] - z)
        return states | {
            "mae": weighted_mean(errors, weights),
            "mse": weighted_mean(tf.square(tf.cast(errors, tf.float64)), weights),
            "target": weighted_mean(scale * z, weights),
            "target_square": weighted_mean(tf.square(tf.cast(scale * z, tf.float64)), weights),
        }

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics: the means of targets and squares become `rmse` and `r2`."""
        found = dict(means)
        if "mse" in found:
            mse, mean = found.pop("mse"), found.pop("target")
            variance = found.pop("target_square") - mean**2
            found |= {"rmse": mse**0.5, "r2": 1 - mse / variance if variance > 0 else np.nan}
        return found

    def loss_metrics(self) -> dict[str, str]:
        return {"cross_entropy" if self.p.class_names else "squared_error": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `logits`, float32 [B, K], and the likeliest `labels`, int32 [B].

        If the label is a number, it returns `values`, float32 [B], in the label's units. If there
        are columns of categories, `unknown_categories`, int32 [B], counts a row's categories that
        have no id in the vocabulary.
        """
        outputs, found = self._outputs(batch), {}
        if self.p.category_sizes:
            found["unknown_categories"] = self.model.categories.count_unknown(batch["categories"])
        if not self.p.class_names:
            return {"values": self.target.restore(outputs)[:, 0], **found}
        labels = tf.argmax(outputs, axis=-1, output_type=tf.int32)
        return {"logits": outputs, "labels": labels, **found}

    def metric_summaries(
        self, name: str, state: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        return dict(state_summaries(name, state, class_names=self.p.class_names))

    def batch_flops(self, specs: Specs) -> int:
        (size,), _ = specs["weights"]
        return self.model.flops([size])

    def _outputs(self, batch: Batch) -> tf.Tensor:
        """Returns the logits of classes, float32 [B, K], or normalized numbers, float32 [B, 1]."""
        p = self.p
        return self.model(
            batch["numbers"] if p.num_numbers else None,
            batch["categories"] if p.category_sizes else None,
        )

    def _losses(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the loss of each row, float32 [B]."""
        if self.p.class_names:
            return token_losses(outputs[:, None], batch["labels"][:, None]).cross_entropy[:, 0]
        return tf.square(outputs[:, 0] - self._scaled(batch))

    def _scaled(self, batch: Batch) -> tf.Tensor:
        """Returns the normalized targets of a batch, float32 [B]."""
        return self.target(batch["targets"][:, None])[:, 0]
