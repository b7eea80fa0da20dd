"""The contract of a task: a model, its losses and its metrics.

A task only adds; the training step divides. `loss` returns sums over the examples of a batch,
`loss_denominators` returns, from the batch alone, what each of them is divided by. So the gradients
of replicas, micro-batches and accumulation steps simply add, however unevenly a batch is split or
padded.

Axes: B examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError, suggest
from lingo.config.roots.user_line import definition_line, is_lingos
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.layers import path
from lingo.layers.flops import FlopsCall, record_flops
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall
from lingo.metrics.media import Media, media_problem
from lingo.metrics.results import is_known, read_state, state_summaries
from lingo.ops.kind import describe_kind, is_real

Batch = Mapping[str, Any]
"""{name: [B, ...] tensor}, as `Input.batch` describes it."""

BATCH_EXAMPLE = "experiment.train_input.batch(0) shows what a batch is"
"""Ends messages about batches that a user makes."""

RESERVED_PREDICTIONS = ("example_id", "weights")
"""Names that no prediction has: those of arrays of a batch that come with predictions."""

_MEAN = {"sum", "weight"}  # entries of the state of a metric


class CheckedBatch(dict[str, Any]):
    """A copy of a batch, whose error names the missing array, and those that there are."""

    def __missing__(self, name: str) -> Any:
        names = ", ".join(self) or "nothing"
        near = suggest(name, self)
        raise ParamError(f"the batch has no {name!r}, but {names}.{near} {BATCH_EXAMPLE}")


class Task(Layer, interface=True):
    """A model with a loss.

    Subclasses define `loss`, override `loss_denominators` and `metrics` where needed, define
    `predict` to be of use after training, `summaries` to show examples in TensorBoard, and, if they
    continue texts, `decode` and `check_positions`.
    """

    def check_input(self, offers: Mapping[str, Any]) -> None:
        """Raises ParamError if an input with such `offers` does not suit the task."""

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the float32 scalar that divides each loss term: its weight in a [B, ...] batch.

        It depends on the batch alone (masks, labels), never on weights: the step adds denominators
        over replicas before it computes the first loss. `examples`, by default the sum of the
        float32 `weights` [B], is for every term that has none of its own, such as the auxiliary
        losses of layers.
        """
        return {"examples": tf.reduce_sum(batch["weights"])}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns each loss term, weighted and summed over a [B, ...] batch: float32 scalars."""
        raise self._missing_method("loss", "it returns {term: sum over the batch}")

    def coefficients(self) -> dict[str, float]:
        """Returns the coefficients of loss terms in the total loss; 1 for a term not named."""
        return {}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        """Returns additive metric states of a [B, ...] batch: {name: state}.

        A state is what a function of `lingo.metrics` returns, such as {"sum", "weight"}, the
        scalars of a mean; or other tensors that add up over batches, if `read_metric` knows them.
        float64 sums (`weighted_mean`) do not depend on how examples are split into batches. States
        of several batches are added by name and entry, which not every batch needs to have. The
        default reports each loss term.
        """
        weights = self.loss_denominators(batch)
        return {
            f"loss/{term}": {"sum": total, "weight": weights.get(term, weights["examples"])}
            for term, total in self.loss(batch).items()
        }

    def batch_flops(self, specs: Specs) -> int:
        """Returns the floating-point operations of the matrix products of one forward pass.

        They are those of a whole batch with the `specs` of an `Input`: a multiply-add counts as
        two, rematerialization does not count. 0 if the task does not count its operations.
        """
        return 0

    def read_metric(self, name: str, state: Mapping[str, Any]) -> dict[str, float]:
        """Returns results by name from the state of a metric, added up over all examples.

        The entries of a state are float64 arrays. Override it for a state of your own.
        """
        return read_state(name, state)

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns what the model says of each example of a [B, ...] batch: {name: [B, ...]}.

        Any float, integer or boolean types; float types of 16 bits become float32. The batch may
        lack what only the loss reads, such as labels. Raises ParamError if the task does not say
        what a prediction is.
        """
        raise self._missing_method(
            "predict", "it returns {name: [B, ...] tensor}, such as {'logits': self.model(x)}"
        )

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics to report, from what `read_metric` has returned for all of them."""
        return dict(means)

    def loss_metrics(self) -> dict[str, str]:
        """Returns {loss term: metric} of metrics that are a term under another name.

        TensorBoard shows a term in training and in evaluations in one chart. A metric that has the
        name of a term, or `loss/<term>`, needs no entry.
        """
        return {}

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        """Returns what TensorBoard shows of some examples at each evaluation, by name.

        That is an `Image`, `Histogram`, `Text` or `Table` of `lingo.metrics`, or a number. The
        arrays are [B, ...] of the first B <= `summary.num_examples` examples of an evaluation
        input, without padding; `predictions` are those of `predict`. Before the first step it is
        called with predictions of zeros, so that a mistake is found then; later, an exception is a
        warning.
        """
        return {}

    def metric_summaries(
        self, name: str, state: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        """Returns what TensorBoard shows of the state of a metric over all examples, by name.

        By default a `confusion` is shown as an image. The entries of a state are float64 arrays.
        """
        return dict(state_summaries(name, state))

    def check_positions(self, num_positions: int) -> None:
        """Raises ParamError if the task cannot continue texts up to `num_positions` positions."""
        raise ParamError(f"{type(self).__name__} continues no text: it has no `decode`")

    def decode(self, batch: Batch, decoding: Decoding) -> dict[str, tf.Tensor]:
        """Continues prompts; draws from the random key of the current call context.

        `batch` is that of `lingo.decode.text.prompt_batch`, {name: [B, ...] tensor}; the results
        are `tokens`, int32, and `log_probs`, float32, with the shapes of `Decoding.decode`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decode")

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


def first_calls(task: Task, specs: Specs, layers: Iterable[Layer]) -> dict[Layer, FlopsCall]:
    """Returns the input shape and the FLOPs of each layer's first call in a forward pass.

    They are recorded while the task counts its FLOPs, without a batch. Raises ParamError if
    `batch_flops` does not count one of the layers.
    """
    with record_flops() as calls:
        task.batch_flops(specs)
    for layer in layers:
        if layer not in calls:
            raise ParamError(
                f"{layer.path}: {type(task).__name__} does not count the operations of a batch"
                " (`batch_flops`), so nobody knows which shape comes to the pipeline"
            )
    return {layer: calls[layer] for layer in layers}


def find_owner(task: Task, where: str) -> tuple[Layer, str]:
    """Returns the layer that declares the weight of a program path, and the weight's name there."""
    return next(
        (layer, spec.path)
        for layer in task.tree()
        for spec in layer.declarations()
        if path.join(layer.path, spec.path) == where
    )


def untrained_error(task: Task, where: str) -> ParamError:
    """Returns the error for a weight, by program path, that has no gradient."""
    owner, name = find_owner(task, where)
    line = "" if is_lingos(type(owner)) else f"{definition_line(type(owner))}: "
    return ParamError(
        f"{line}{owner}: the loss does not depend on the weight {name!r}, which would never be"
        " trained.\n"
        "Use it in the layer's call, without tf.stop_gradient, or do not declare it; a weight that"
        " should stay as it is can be Frozen, by the optimizer ByPath."
    )


# ---- checks of what methods return: each mistake is one sentence, at the first trace -------------


def _mistake(method: Callable[..., Any], text: str) -> ParamError:
    return ParamError(f"{definition_line(method)}: {method.__qualname__}{text}")


def _check_mapping(method: Callable[..., Any], result: Any, wanted: str, *, full: bool) -> None:
    """Raises ParamError unless a method's result is a mapping, with entries if it has to be `full`.

    `wanted` says what the method returns.
    """
    if not (isinstance(result, Mapping) and (result or not full)):
        raise _mistake(method, f" returned {describe_kind(result)}: it returns {wanted}")


def check_losses(task: Task, losses: Any) -> None:
    """Raises ParamError unless losses are {term: float32 scalar}, as `Task.loss` returns them."""
    wanted = "{term: sum over the batch}, as in {'loss': tf.reduce_sum(batch['weights'] * errors)}"
    _check_mapping(task.loss, losses, wanted, full=True)
    for term, value in losses.items():
        if term == "total":
            raise _mistake(task.loss, ": 'total' is the name of the sum of all terms: rename yours")
        if not (tf.is_tensor(value) and value.dtype == tf.float32 and value.shape.rank == 0):
            raise _mistake(
                task.loss,
                f" returned {describe_kind(value)} as {term!r}: a term is a float32 scalar, the sum"
                " over the batch, as in tf.reduce_sum(batch['weights'] * errors)",
            )


def check_denominators(task: Task, denominators: Any) -> None:
    """Raises ParamError unless denominators are {term: scalar}, with one for `examples`."""
    method = task.loss_denominators
    _check_mapping(method, denominators, "{term: weight of the batch}", full=False)
    if "examples" not in denominators:
        raise _mistake(
            method,
            " has no 'examples', which is for every term without one of its own:"
            " return super().loss_denominators(batch) | {...}",
        )
    for term, value in denominators.items():
        if np.shape(value) != () or not is_real(value):
            raise _mistake(
                method,
                f" returned {describe_kind(value)} as {term!r}: a scalar, the weight of the batch,"
                " is wanted",
            )


def check_coefficients(task: Task, terms: Collection[str]) -> None:
    """Raises ParamError unless coefficients are {term: finite number}, of terms that there are.

    A task of lingo names the terms of all its settings, so that its own method, inherited or
    called, may have some that are not there.
    """
    coefficients = task.coefficients()
    _check_mapping(task.coefficients, coefficients, "{term: number}", full=False)
    for term, value in coefficients.items():
        if not (isinstance(value, (int, float, np.number)) and np.isfinite(value)):
            text = f" returned {value!r:.40} as {term!r}: a number is wanted"
            raise _mistake(task.coefficients, text)
        if term not in {*terms, *_inherited_coefficients(task)}:
            text = f" has {term!r}, and the losses are {', '.join(sorted(terms))}."
            raise _mistake(task.coefficients, f"{text}{suggest(term, terms)}")


def _inherited_coefficients(task: Task) -> Iterable[str]:
    """Returns the terms that the nearest class of lingo gives coefficients."""
    definers = (cls for cls in type(task).__mro__ if "coefficients" in vars(cls))
    return next(filter(is_lingos, definers)).coefficients(task)


def check_metrics(task: Task, states: Any) -> None:
    """Raises ParamError unless states are {name: state}, as `Task.metrics` returns them."""
    wanted = "{name: state}, as in {'error': lingo.metrics.weighted_mean(errors, batch['weights'])}"
    _check_mapping(task.metrics, states, wanted, full=False)
    has_own = type(task).read_metric is not Task.read_metric
    for name, state in states.items():
        _check_name(task.metrics, name, "a metric")
        if not (isinstance(state, Mapping) and (has_own or is_known(state))):
            entries = f" with {sorted(state)}" if isinstance(state, Mapping) else ""
            raise _mistake(
                task.metrics,
                f" returned {describe_kind(state)}{entries} as {name!r}: a state is {{'sum',"
                " 'weight'}, as lingo.metrics.weighted_mean(values, weights) returns it",
            )
        for entry, value in state.items():
            if set(state) == _MEAN and tf.is_tensor(value) and value.shape.rank:
                raise _mistake(
                    task.metrics,
                    f" returned {describe_kind(value)} as the {entry!r} of {name!r}: a scalar,"
                    " added up over the batch, is wanted",
                )


def _check_name(method: Callable[..., Any], name: Any, kind: str) -> None:
    if not (isinstance(name, str) and name):
        raise _mistake(method, f": the name of {kind} is a str, not {name!r:.80}")


def check_predictions(task: Task, predictions: Any, *, num_examples: int | None) -> None:
    """Raises ParamError unless predictions are {name: [B, ...]}, as `Task.predict` returns them.

    `num_examples` is B, None if it is not known.
    """
    wanted = "{name: [B, ...] tensor}, such as {'logits': self.model(x)}"
    _check_mapping(task.predict, predictions, wanted, full=True)
    for name, value in predictions.items():
        if not isinstance(name, str):
            raise _mistake(task.predict, f": the name of a prediction is a str, not {name!r}")
        if name in RESERVED_PREDICTIONS:
            text = f": {name!r} is the name of an array of a batch: rename yours"
            raise _mistake(task.predict, text)
        if not (_is_numbers(value) and value.shape[:1].is_compatible_with([num_examples])):
            raise _mistake(
                task.predict,
                f" returned {describe_kind(value)} as {name!r}: numbers with an entry for each"
                f" example, [{num_examples or 'B'}, ...], are wanted",
            )


def _is_numbers(value: Any) -> bool:
    """Returns whether a value is a tensor of numbers or booleans that has axes."""
    if not tf.is_tensor(value) or value.shape.rank == 0:
        return False
    return value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool


def check_results(method: Callable[..., Any], results: Any) -> None:
    """Raises ParamError unless a method's results are {name: number}.

    The method is `results` of a task, or `read_metric`.
    """
    _check_mapping(method, results, "{metric: number}", full=False)
    for name, value in results.items():
        if not (np.shape(value) == () and np.asarray(value).dtype.kind in "biuf"):
            text = f" returned {describe_kind(value)} as {name!r}: a number is wanted"
            raise _mistake(method, text)


def check_summaries(
    method: Callable[..., Any], summaries: Any, *, metrics: Collection[str] = ()
) -> None:
    """Raises ParamError unless a method's summaries are {name: Media or number}.

    No number has a name of one of `metrics`, which are shown under the same tags.
    """
    wanted = "{name: summary}, such as {'examples': lingo.metrics.Table({'label': batch['label']})}"
    _check_mapping(method, summaries, wanted, full=False)
    for name, value in summaries.items():
        _check_name(method, name, "a summary")
        if why := media_problem(value):
            raise _mistake(
                method,
                f" returned a summary {name!r} that cannot be shown: {why}. A summary is an"
                " Image, Histogram, Text or Table of lingo.metrics, or a number",
            )
        if name in metrics:
            raise _mistake(method, f": {name!r} is the name of a metric: rename the summary")
