"""The contract of a task: a model, its losses and its metrics.

A task only adds; the training step divides. `loss` returns sums over the examples of a batch;
`loss_denominators` returns the divisor of each sum, from the batch alone. So the gradients of
replicas, micro-batches and accumulation steps simply add, however unevenly a batch is split or
padded.

Axes: B examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

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
from lingo.learner.phase import Phase
from lingo.metrics.media import Media, media_problem
from lingo.metrics.results import is_known, read_state, state_summaries
from lingo.ops.kind import describe_kind, is_real

Batch = Mapping[str, Any]
"""{name: [B, ...] tensor}, as `Input.batch` describes it."""

BATCH_EXAMPLE = "experiment.train_input.batch(0) shows what a batch is"
"""The end of messages about a batch that a user made."""

RESERVED_PREDICTIONS = ("example_id", "weights")
"""Names that no prediction may have: a batch's arrays with these names come with predictions."""

_MEAN = {"sum", "weight"}  # entries of the state of a metric that is a mean


class CheckedBatch(dict[str, Any]):
    """A copy of a batch. Reading an array that it lacks raises an error that lists its arrays."""

    def __missing__(self, name: str) -> Any:
        names = ", ".join(self) or "nothing"
        near = suggest(name, self)
        raise ParamError(f"the batch has no {name!r}, but {names}.{near} {BATCH_EXAMPLE}")


LOSS = "loss/"
"""First part of the name of a loss term among metrics."""


class Task(Layer, interface=True):
    """A model with a loss.

    Subclasses define `loss`, override `loss_denominators` and `metrics` where needed, define
    `predict` for use after training, `summaries` to show examples in TensorBoard, and, if they
    continue texts, `decode` and `check_positions`.
    """

    # `call` and `forward` may be methods that `loss` calls
    _never_called: ClassVar[dict[str, str]] = {"build": Layer._never_called["build"]}

    def parts(self) -> Mapping[str, Task]:
        """Returns the tasks by name, if each step trains one of several; {}: there is only this."""
        return {}

    def select(self, batch: Iterable[str]) -> Task:
        """Returns the task that a batch with these arrays is for: this one, or one of `parts`."""
        return self

    def check_input(self, offers: Mapping[str, Any]) -> None:
        """Raises ParamError if an input with these `Input.offers` does not suit the task."""

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns each loss term's divisor, its weight in a [B, ...] batch, as a float32 scalar.

        Divisors depend on the batch alone (masks, labels), never on the model's weights: the step
        adds them over replicas before it computes the first loss. `examples`, by default the sum of
        the float32 `weights` [B], divides every term without its own denominator, such as layers'
        auxiliary losses.
        """
        return {"examples": tf.reduce_sum(batch["weights"])}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns each loss term, weighted and summed over a [B, ...] batch: float32 scalars.

        A task with `phases` need not define it: these are then the terms of all phases, each as
        `<phase>/<term>`.
        """
        phases = self.phases()
        if not phases or any(phase.loss == "loss" for phase in phases.values()):
            raise self._missing_method("loss", "it returns {term: sum over the batch}")
        return {
            f"{name}/{term}": value
            for name, phase in phases.items()
            for term, value in getattr(self, phase.loss)(batch).items()
        }

    def phases(self) -> Mapping[str, Phase]:
        """Returns the phases of a step by name, in order; {}: `loss` moves all weights at once.

        Each `Phase` minimizes its own loss by its own weights. Its terms, denominators and
        coefficients have the phase's name in front: `<phase>/<term>`. The optimizer `ByPath` gives
        each phase an optimizer of its own.
        """
        return {}

    def coefficients(self) -> dict[str, float]:
        """Returns the coefficients of loss terms in the total loss; 1 for a term not named."""
        return {}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        """Returns additive metric states of a [B, ...] batch: {name: state}.

        A state is the result of a function of `lingo.metrics`, such as {"sum", "weight"}, the
        scalars of a mean. It may hold other tensors that add up over batches, if `read_metric`
        knows them. float64 sums (`weighted_mean`) do not depend on how examples are split into
        batches. States are added over batches by name and entry; a batch may lack some of them.
        The default reports each loss term. Evaluations add these to your own metrics, unless one of
        them is named `loss/...`, or `loss_metrics` names some.
        """
        weights = self.loss_denominators(batch)
        return {
            f"{LOSS}{term}": {"sum": total, "weight": weights.get(term, weights["examples"])}
            for term, total in self.loss(batch).items()
        }

    def evaluation_metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        """Returns the `metrics` of a batch, and its loss terms if they are not among them."""
        states = self.metrics(batch)
        check_metrics(self, states)
        has_terms = self.loss_metrics() or any(name.startswith(LOSS) for name in states)
        if has_terms or type(self).metrics is Task.metrics:
            return states
        terms = Task.metrics(self, batch)
        return states | {k: v for k, v in terms.items() if k.removeprefix(LOSS) not in states}

    def batch_flops(self, specs: Specs) -> int:
        """Returns the floating-point operations of the matrix products of one forward pass.

        The pass is over a whole batch with the `specs` of an `Input`. A multiply-add counts as two;
        rematerialization does not count. 0: the task does not count its operations.
        """
        return 0

    def step_flops(self, specs: Specs) -> int:
        """Returns the operations of the matrix products of a training step.

        They are three times the forward pass's: the backward pass takes twice as many (Chowdhery
        et al. 2022, app. B). A task whose phases call its layers several times overrides this.
        Plans of memory and time count one forward pass, and its gradient.
        """
        return 3 * self.batch_flops(specs)

    def read_metric(self, name: str, state: Mapping[str, Any]) -> dict[str, float]:
        """Returns a metric's results by name, from its state added up over all examples.

        The entries of a state are float64 arrays. Override this for your own kind of state.
        """
        return read_state(name, state)

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the model's predictions for each example of a [B, ...] batch: {name: [B, ...]}.

        Predictions may have any float, integer or boolean type; 16-bit floats become float32. The
        batch may lack arrays that only the loss reads, such as labels. Raises ParamError if the
        task does not define a prediction.
        """
        raise self._missing_method(
            "predict", "it returns {name: [B, ...] tensor}, such as {'logits': self.model(x)}"
        )

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics to report; `means` holds the results of `read_metric`, by name."""
        return dict(means)

    def loss_metrics(self) -> dict[str, str]:
        """Returns {loss term: metric} for each term that is a metric under another name.

        TensorBoard then shows the term's values in training and in evaluations in one chart. A
        metric that has the name of a term, or `loss/<term>`, needs no entry.
        """
        return {}

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        """Returns TensorBoard summaries of some examples at each evaluation, by name.

        A summary is an `Image`, `Audio`, `Histogram`, `Text` or `Table` of `lingo.metrics`, or a
        number. The arrays are [B, ...] of the first B <= `summary.num_examples` examples of an
        evaluation input, without padding; `predictions` are the results of `predict`. To find
        mistakes early, this method is also called before the first step, with zeros as predictions.
        Later, an exception is only a warning.
        """
        return {}

    def metric_summaries(
        self, name: str, state: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        """Returns TensorBoard summaries of a metric's state over all examples, by name.

        By default a `confusion` is shown as an image. The entries of a state are float64 arrays.
        """
        return dict(state_summaries(name, state))

    def check_positions(self, num_positions: int) -> None:
        """Raises ParamError if the task cannot continue texts up to `num_positions` positions."""
        raise ParamError(f"{type(self).__name__} continues no text: it has no `decode`")

    def decode(self, batch: Batch, decoding: Decoding) -> dict[str, tf.Tensor]:
        """Continues prompts; sampling uses the random key of the current call context.

        `batch` comes from `lingo.decode.text.prompt_batch`, {name: [B, ...] tensor}; the results
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
                " (`batch_flops`), so the pipeline's input shape is unknown"
            )
    return {layer: calls[layer] for layer in layers}


def find_owner(task: Task, where: str) -> tuple[Layer, str]:
    """Returns the layer that declares the weight at path `where`, and the weight's name in it."""
    return next(
        (layer, spec.path)
        for layer in task.tree()
        for spec in layer.declarations()
        if path.join(layer.path, spec.path) == where
    )


def untrained_error(task: Task, where: str) -> ParamError:
    """Returns the error for the weight at path `where`, on which the loss does not depend."""
    owner, name = find_owner(task, where)
    line = "" if is_lingos(type(owner)) else f"{definition_line(type(owner))}: "
    return ParamError(
        f"{line}{owner}: the loss does not depend on the weight {name!r}, which would never be"
        " trained.\n"
        "Use it in the layer's call, without tf.stop_gradient, or do not declare it; a weight that"
        " should stay as it is can be Frozen, by the optimizer ByPath."
    )


# ---- checks of methods' results at the first trace -----------------------------------------------


def _mistake(method: Callable[..., Any], text: str) -> ParamError:
    return ParamError(f"{definition_line(method)}: {method.__qualname__}{text}")


def _check_mapping(method: Callable[..., Any], result: Any, wanted: str, *, full: bool) -> None:
    """Raises ParamError unless a method's result is a mapping, and not an empty one if `full`.

    `wanted` is the message's description of a correct result.
    """
    if not (isinstance(result, Mapping) and (result or not full)):
        raise _mistake(method, f" returned {describe_kind(result)}: it returns {wanted}")


def check_losses(task: Task, losses: Any, *, method: str = "loss") -> None:
    """Raises ParamError unless losses are {term: float32 scalar}, as `Task.loss` returns them.

    `method` is the name of the task's method that returned them.
    """
    wanted = "{term: sum over the batch}, as in {'loss': tf.reduce_sum(batch['weights'] * errors)}"
    loss = getattr(task, method)
    _check_mapping(loss, losses, wanted, full=True)
    for term, value in losses.items():
        if term == "total":
            raise _mistake(loss, ": 'total' is the name of the sum of all terms: rename yours")
        if not (tf.is_tensor(value) and value.dtype == tf.float32 and value.shape.rank == 0):
            raise _mistake(
                loss,
                f" returned {describe_kind(value)} as {term!r}: a term is a float32 scalar, the sum"
                " over the batch, as in tf.reduce_sum(batch['weights'] * errors)",
            )


def check_denominators(task: Task, denominators: Any) -> None:
    """Raises ParamError unless denominators are {term: scalar} with the term `examples`."""
    method = task.loss_denominators
    _check_mapping(method, denominators, "{term: weight of the batch}", full=False)
    if "examples" not in denominators:
        raise _mistake(
            method,
            " has no 'examples', the denominator of every term without its own:"
            " return super().loss_denominators(batch) | {...}",
        )
    for term, value in denominators.items():
        if np.shape(value) != () or not is_real(value):
            raise _mistake(
                method,
                f" returned {describe_kind(value)} as {term!r}: a scalar, the weight of the batch,"
                " is wanted",
            )


def check_coefficients(task: Task, terms: Collection[str], *, others: Collection[str] = ()) -> None:
    """Raises ParamError unless coefficients are {term: finite number} of existing terms.

    lingo's own tasks return coefficients for every term that some setting of theirs adds. So
    coefficients inherited from them may be of terms that do not exist. `others` are the phases that
    have other terms.
    """
    coefficients = task.coefficients()
    _check_mapping(task.coefficients, coefficients, "{term: number}", full=False)
    for term, value in coefficients.items():
        if term.partition("/")[0] in others:
            continue
        if not (isinstance(value, (int, float, np.number)) and np.isfinite(value)):
            text = f" returned {value!r:.40} as {term!r}: a number is wanted"
            raise _mistake(task.coefficients, text)
        if term not in {*terms, *_inherited_coefficients(task)}:
            text = f" has {term!r}, and the losses are {', '.join(sorted(terms))}."
            raise _mistake(task.coefficients, f"{text}{suggest(term, terms)}")


def _inherited_coefficients(task: Task) -> Iterable[str]:
    """Returns the terms with coefficients in the first base class that lingo defines."""
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

    `num_examples` is B, or None if B is not known.
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

    None of them may have the name of one of `metrics`, which TensorBoard shows under the same tag.
    """
    wanted = "{name: summary}, such as {'examples': lingo.metrics.Table({'label': batch['label']})}"
    _check_mapping(method, summaries, wanted, full=False)
    for name, value in summaries.items():
        _check_name(method, name, "a summary")
        if why := media_problem(value):
            raise _mistake(
                method,
                f" returned a summary {name!r} that cannot be shown: {why}. A summary is an"
                " Image, Audio, Histogram, Text or Table of lingo.metrics, or a number",
            )
        if name in metrics:
            raise _mistake(method, f": {name!r} is the name of a metric: rename the summary")
