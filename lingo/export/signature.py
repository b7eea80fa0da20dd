"""The functions (signatures) of an exported model, and the examples that check them.

    predict       arrays of a batch -> the outputs of `Task.predict` for each example
    score         arrays of a batch with targets -> the log-probabilities of the targets
    decode        token ids of prompts -> their continuations, computed with caches
    ..._text      the same for texts (`lingo/export/text_signature.py`)

A signature computes its outputs in two ways, which must agree. `compute` is TensorFlow code that is
exported. `reference` uses the run: the trained model in lingo.

Axes: B examples, T positions, S texts of a prompt, N new tokens of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.array_spec import ArraySpec
from lingo.data.prompt import Prompt
from lingo.data.tokenizer import Tokenizer
from lingo.decode.decoding import Decoding
from lingo.decode.sampling import Sampling
from lingo.decode.text import Continuation
from lingo.export.exported_model import Arrays, ExportedModel
from lingo.learner.task import Task
from lingo.metrics.class_names import add_classes, name_classes, predicts_classes
from lingo.ops.shape import sizes_of

Inputs = dict[str, tuple[tuple[int | None, ...], str]]
"""The inputs of a signature: name -> (shape, dtype); a size is None if it may vary."""

_MIN_PROMPT, _MAX_PROMPT = 4, 16  # least and largest number of tokens in a check's prompts


class Mean(NamedTuple):
    """A mean, as the sum of `count` values, so that means of batches can be merged."""

    sum: float
    count: int


class Run(Protocol):
    """A trained model, computed by lingo as in training, not by an export."""

    def predict(self, arrays: Arrays) -> Arrays:
        """Returns the outputs of `Task.predict` for a batch, {name: [B, ...]}."""
        ...

    def decode(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Continuation]]:
        """Returns the texts generated for each prompt, with seed 0.

        The random numbers of a prompt depend on its index in `prompts`.
        """
        ...


class Signature:
    """A function of an exported model; `inputs` describes the arrays that the function takes."""

    name: str
    inputs: Inputs

    def compute(
        self, model: ExportedModel, inputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns the outputs, {name: [B, ...]}, for inputs {name: [B, ...]}, in TensorFlow."""
        raise NotImplementedError

    def examples(self, batch: Arrays) -> dict[str, np.ndarray]:
        """Makes inputs of the function, {name: [B, ...]}, from a batch of an evaluation input."""
        return {name: batch[name] for name in self.inputs}

    def reference(self, run: Run, inputs: Arrays) -> dict[str, np.ndarray]:
        """Returns the run's outputs for inputs, with the names and shapes that `compute` gives."""
        raise NotImplementedError

    def comparable(self, expected: Arrays, found: Arrays) -> np.ndarray:
        """Returns whether the float outputs of each example are compared, bool [B]; default: all.

        `expected` are the run's outputs, `found` are the export's.
        """
        del found
        return np.ones(len(next(iter(expected.values()))), bool)

    def count_unequal(self, expected: Arrays, found: Arrays) -> tuple[int, int]:
        """Returns how many integers and texts differ, and how many are compared; default: all."""
        pairs = [(v, found[name]) for name, v in expected.items() if v.dtype.kind != "f"]
        return sum(int((a != b).sum()) for a, b in pairs), sum(a.size for a, _ in pairs)

    def evaluate(self, batch: Arrays, outputs: Arrays) -> dict[str, Mean]:
        """Returns metrics of the outputs for an evaluation batch: metric -> mean; default: {}."""
        del batch, outputs
        return {}


class Predict(Signature):
    """The predictions of the task, without the outputs that need targets.

    With names of classes, a classifier's outputs are also `class`, string [B], the name of the
    likeliest class in UTF-8, and its `probability`, float32 [B].
    """

    name = "predict"

    def __init__(self, inputs: Inputs, *, class_names: Sequence[str] = ()) -> None:
        self.inputs, self._names = inputs, class_names

    def compute(
        self, model: ExportedModel, inputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        outputs = model.predict(inputs)
        if not self._names or "class" in outputs or not predicts_classes(outputs):
            return outputs
        logits, labels = outputs["logits"], outputs["labels"]
        names = tf.constant(name_classes(logits.shape[1] or len(self._names), self._names))
        shares = tf.gather(tf.nn.softmax(logits), labels, batch_dims=1)
        return {**outputs, "class": tf.gather(names, labels), "probability": shares}

    def reference(self, run: Run, inputs: Arrays) -> dict[str, np.ndarray]:
        outputs = dict(run.predict(inputs))
        if not self._names:
            return outputs
        named = add_classes(outputs, self._names)
        if "class" in outputs or "class" not in named:
            return outputs
        return {**named, "class": np.array([name.encode() for name in named["class"]], object)}

    def evaluate(self, batch: Arrays, outputs: Arrays) -> dict[str, Mean]:
        """Returns the accuracy: the fraction of predicted `labels` that equal the batch's."""
        if "labels" not in outputs or "labels" not in batch:
            return {}
        right = outputs["labels"] == batch["labels"]
        return {"accuracy": Mean(float(right.sum()), right.size)}


class Score(Signature):
    """The log-probabilities of given targets, in nats.

    Outputs: `log_probs`, float32 [B, T], which are 0 at padding and at positions of weight 0;
    `log_prob`, float32 [B], the sum of an example's `log_probs`; `num_tokens`, int32 [B], the
    number of its positions, padding and positions of weight 0 left out.
    """

    name = "score"

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs

    def compute(
        self, model: ExportedModel, inputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        counts = tf.cast(self._counts(inputs, tf.ones_like), tf.float32)
        log_probs = tf.where(counts > 0, model.predict(inputs)["target_log_probs"], 0.0)
        return {
            "log_probs": log_probs,
            "log_prob": tf.reduce_sum(log_probs, axis=1),
            "num_tokens": tf.cast(tf.reduce_sum(counts, axis=1), tf.int32),
        }

    def reference(self, run: Run, inputs: Arrays) -> dict[str, np.ndarray]:
        counts = self._counts(inputs, np.ones_like)
        log_probs = np.where(counts > 0, run.predict(inputs)["target_log_probs"], np.float32(0))
        return {
            "log_probs": log_probs,
            "log_prob": log_probs.sum(axis=1),
            "num_tokens": (counts > 0).sum(axis=1).astype(np.int32),
        }

    def evaluate(self, batch: Arrays, outputs: Arrays) -> dict[str, Mean]:
        """Returns the loss, in nats per token."""
        return {"loss": Mean(-float(outputs["log_prob"].sum()), int(outputs["num_tokens"].sum()))}

    def _counts(self, inputs: Mapping[str, Any], ones_like: Any) -> Any:
        """Returns whether positions count, bool [B, T]; padding and weight 0 do not."""
        counts = inputs["segments"] > 0 if "segments" in inputs else ones_like(inputs["tokens"]) > 0
        return counts & (inputs["target_weights"] > 0) if "target_weights" in inputs else counts


class Decode(Signature):
    """Continues prompts, or answers sources, with the experiment's decoding settings.

    Inputs:

    - `tokens`, int32 [B, T]: the ids of each prompt, or of its source if the model has an encoder,
      padded with any ids.
    - `lengths`, int32 [B]: the number of ids of each prompt without padding. If T is static,
      lengths outside of 1..T are clipped. If T is static and prompts are prefixes (their positions
      attend to each other), there is no `lengths`, and prompts have T ids.
    - `seeds`, int32 [B], only if texts are sampled: the same prompt and seed give the same text.

    Outputs:

    - `tokens`, int32 [B, S, N]: the new ids, padded with the end id.
    - `lengths`, int32 [B, S]: the number of new ids, without the end id.
    - `log_probs`, float32 [B, S, N]: log-probabilities of the new ids and the first end id, then 0.
    """

    name = "decode"

    def __init__(self, experiment: Experiment, *, num_columns: int | None = None) -> None:
        """Prepares the signature; `num_columns` is T if it is static, None if it may vary.

        Raises ParamError if the experiment's task cannot continue texts.
        """
        tokenizer = getattr(experiment.train_input, "tokenizer", None)
        if type(experiment.task).decode is Task.decode or not isinstance(tokenizer, Tokenizer):
            raise ParamError(
                f"--signature=decode: {type(experiment.task).__name__} cannot continue texts:"
                " leave decode out"
            )
        self.decoding: Decoding = experiment.evaluate.sampling
        self.empty = experiment.train_input.prompt("")
        self._num_columns, self._end_id = num_columns, tokenizer.end_id
        if num_columns is not None:
            self._check_positions(experiment, num_columns)
        self.inputs: Inputs = {"tokens": ((None, None), "int32")}
        if num_columns is None or not self.empty.is_prefix:
            self.inputs |= {"lengths": ((None,), "int32")}
        if isinstance(self.decoding, Sampling) and self.decoding.p.temperature > 0:
            self.inputs |= {"seeds": ((None,), "int32")}

    def compute(
        self, model: ExportedModel, inputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        batch = self._batch(inputs)
        decoded = model.decode(batch, self.decoding)
        new = batch["rest_length"][:, None, None] + tf.range(self.decoding.p.max_tokens)
        new = tf.repeat(new, self.decoding.p.num_samples, axis=1)
        tokens, log_probs = (
            tf.gather(decoded[name], new, batch_dims=2) for name in ("tokens", "log_probs")
        )
        is_end = tf.cast(tokens == self._end_id, tf.int32)
        ends_before = tf.cumsum(is_end, axis=2, exclusive=True) > 0
        is_text = ~ends_before & (is_end == 0)
        return {
            "tokens": tf.where(ends_before, self._end_id, tokens),
            "lengths": tf.reduce_sum(tf.cast(is_text, tf.int32), axis=2),
            "log_probs": tf.where(ends_before, 0.0, log_probs),
        }

    def examples(self, batch: Arrays) -> dict[str, np.ndarray]:
        """Makes prompts of a batch: the beginning of each text, or each example's first source."""
        numbers = np.arange(len(batch["weights"]), dtype=np.int32)
        if self.empty.source is not None:
            tokens = batch["source_tokens"]
            lengths = (batch["source_segments"] == 1).sum(axis=1)
        elif self.empty.is_prefix:
            tokens = batch["tokens"]
            lengths = np.full_like(numbers, self._num_columns or _MIN_PROMPT)
        else:
            tokens = batch["tokens"]
            lengths = _MIN_PROMPT + numbers % (_MAX_PROMPT - _MIN_PROMPT + 1)
        lengths = np.clip(lengths, 1, self._num_columns or tokens.shape[1]).astype(np.int32)
        width = self._num_columns or int(lengths.max())
        tokens = np.pad(tokens[:, :width], [(0, 0), (0, max(0, width - tokens.shape[1]))])
        inputs = {"tokens": tokens, "lengths": lengths, "seeds": numbers}
        return {name: inputs[name] for name in self.inputs}

    def reference(self, run: Run, inputs: Arrays) -> dict[str, np.ndarray]:
        whole = np.full(len(inputs["tokens"]), inputs["tokens"].shape[1])
        pairs = zip(inputs["tokens"], inputs.get("lengths", whole), strict=True)
        texts = run.decode([self._prompt(ids[:size]) for ids, size in pairs], self.decoding)
        shape = (len(texts), self.decoding.p.num_samples, self.decoding.p.max_tokens)
        tokens, log_probs = np.full(shape, self._end_id, np.int32), np.zeros(shape, np.float32)
        lengths = np.zeros(shape[:2], np.int32)
        for i, samples in enumerate(texts):
            for k, text in enumerate(samples):
                lengths[i, k] = len(text.tokens)
                tokens[i, k, : len(text.tokens)] = text.tokens
                log_probs[i, k, : len(text.log_probs)] = text.log_probs
        return {"tokens": tokens, "lengths": lengths, "log_probs": log_probs}

    def comparable(self, expected: Arrays, found: Arrays) -> np.ndarray:
        """Returns which prompts have equal texts, since other texts have other log-probabilities.

        The result is bool [B].
        """
        return (expected["tokens"] == found["tokens"]).all(axis=(1, 2))

    def count_unequal(self, expected: Arrays, found: Arrays) -> tuple[int, int]:
        unequal, number = count_changes(
            expected["tokens"], found["tokens"], np.maximum(expected["lengths"], found["lengths"])
        )
        rows = self.comparable(expected, found)
        lengths = expected["lengths"][rows] != found["lengths"][rows]
        return unequal + int(lengths.sum()), number + lengths.size

    def _check_positions(self, experiment: Experiment, num_columns: int) -> None:
        """Raises ParamError if the model has too few positions for prompts of `num_columns` ids."""
        num = self.decoding.p.max_tokens
        prompt = self._prompt(np.zeros(num_columns, np.int32))
        try:
            experiment.task.check_positions(prompt.num_positions(num))
        except ParamError as error:
            raise ParamError(
                f"prompt_length={num_columns} and evaluate.sampling.max_tokens={num}: {error};"
                " make one of the two smaller, or name the other signatures by --signature"
            ) from None

    def _prompt(self, ids: np.ndarray) -> Prompt:
        whole = "tokens" if self.empty.source is None else "source"
        return self.empty._replace(**{whole: ids})

    def _batch(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns a batch like `lingo.decode.text.prompt_batch`; it has static shapes if T is."""
        if self._num_columns is None:
            lengths = self._check_lengths(inputs)
            first, last = tf.reduce_min(lengths), tf.reduce_max(lengths)
        else:  # in static shapes, the tokens of a prompt after the first are read one by one
            last = self._num_columns
            first = last if self.empty.is_prefix else 1
            given: Any = inputs.get("lengths", last)
            lengths = tf.clip_by_value(given, 1, last)
        size, columns = sizes_of(inputs["tokens"])
        lengths = tf.broadcast_to(lengths, [size])
        is_id = tf.sequence_mask(lengths, columns, tf.int32)
        ids = inputs["tokens"] * is_id
        batch = {
            "rows": inputs["seeds"] if "seeds" in inputs else tf.range(size),
            "end_id": tf.fill([size], self._end_id),
        }
        if self.empty.source is not None:
            prefix = tf.repeat(tf.constant(self.empty.tokens)[None], size, axis=0)
            return batch | {
                "prefix": prefix,
                "rest": prefix[:, :0],
                "rest_length": tf.zeros([size], tf.int32),
                "source_tokens": ids,
                "source_segments": is_id,
                "source_positions": tf.range(columns)[None] * is_id,
            }
        batch |= {
            "prefix": ids[:, :first],
            "rest": ids[:, first:last],
            "rest_length": lengths - first,
        }
        if self.empty.is_prefix:
            batch["prefix_seen"] = tf.ones_like(batch["prefix"], tf.bool)
        return batch

    def _check_lengths(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the lengths, int32 [B]; computing them fails if a length is out of range."""
        ids, lengths = inputs["tokens"], inputs["lengths"]
        message = "lengths must be from 1 to the number of columns of tokens"
        checks = [
            tf.debugging.assert_greater(lengths, 0, message=message),
            tf.debugging.assert_less_equal(lengths, tf.shape(ids)[1], message=message),
        ]
        if self.empty.is_prefix:
            same = "this model reads prompts as a whole: all prompts of a call need the same length"
            checks.append(tf.debugging.assert_equal(lengths, lengths[:1], message=same))
        with tf.control_dependencies(checks):
            return tf.identity(lengths)


def count_changes(expected: np.ndarray, found: np.ndarray, lengths: np.ndarray) -> tuple[int, int]:
    """Returns how many texts differ, and how many positions are compared.

    Texts, [B, S, N] of ids or bytes, are compared up to their `lengths`, int [B, S]. If two texts
    differ, they are compared only up to the first difference, since they continue differently.
    """
    same = expected == found
    is_compared = np.arange(same.shape[-1]) <= lengths[..., None]
    is_compared[..., 1:] &= np.logical_and.accumulate(same, axis=-1)[..., :-1]
    return int((is_compared & ~same).sum()), int(is_compared.sum())


def find_signatures(
    model: ExportedModel,
    names: Sequence[str],
    specs: Mapping[str, ArraySpec],
    *,
    num_columns: int | None = None,
) -> list[Signature]:
    """Returns the signatures that an export of a model has.

    Args:
        model: the model.
        names: names of the signatures; if empty, all that the task can compute.
        specs: name -> (shape, dtype) of the arrays in the evaluation input's batches.
        num_columns: tokens per prompt, if shapes are static; None: the number may vary.

    Raises:
        ParamError: for an unknown name, or a signature that the task cannot compute.
    """
    known = ("predict", "score", "decode")
    if unknown := [name for name in names if name not in known]:
        raise ParamError(f"--signature={unknown[0]} is not one of {', '.join(known)}")
    reads = model.reads(specs)
    has_text = hasattr(model.experiment.train_input, "tokenizer")

    def inputs(arrays: Sequence[str]) -> Inputs:
        return {name: (_vary(specs[name][0], has_text), specs[name][1]) for name in arrays}

    signatures: list[Signature] = []
    if not names or "predict" in names:
        signatures.append(Predict(inputs(reads.arrays), class_names=model.class_names))
    is_scored = "targets" in reads.optional and "tokens" in reads.arrays
    if "score" in names and not is_scored:
        raise ParamError(
            f"--signature=score: {type(model.task).__name__} predicts no tokens: leave score out"
        )
    if is_scored and (not names or "score" in names):
        more = [n for n in ("segments", "target_weights") if n in specs]
        signatures.append(Score(inputs(list(dict.fromkeys([*reads.arrays, "targets", *more])))))
    can_decode = type(model.task).decode is not Task.decode and has_text
    if "decode" in names or (can_decode and not names):
        signatures.append(Decode(model.experiment, num_columns=num_columns))
    return signatures


def _vary(shape: Sequence[int], has_text: bool) -> tuple[int | None, ...]:
    """Returns a shape in which the batch size, and also the length of tokens, may vary (None)."""
    return (None, None) if has_text and len(shape) == 2 else (None, *shape[1:])
