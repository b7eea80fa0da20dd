"""Sequence to sequence: predicts each target token from the source and earlier target tokens.

Axes: B batch, S source positions, T target positions, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.decode.caches import empty_caches, stepper
from lingo.decode.decoding import Decoding
from lingo.layers import CallInputs, Embedding, Layer
from lingo.layers.context import current, enter_call
from lingo.learner.task import Batch
from lingo.ops.losses import token_losses
from tasks.seq2seq.model import EncoderDecoder
from tasks.token_prediction import TokenPrediction, token_weights


class SequenceToSequence(TokenPrediction):
    """Cross-entropy of the target's tokens, given the source (Sutskever et al. 2014, sec. 2).

    It is averaged over the target tokens of the whole batch. `exact_match` is the fraction of
    targets whose tokens are all predicted correctly, each from the true tokens before it.

    Batches: `source_tokens`, `source_segments`, `source_positions`, int32 [B, S]; `tokens`,
    `targets`, `segments`, `positions`, int32 [B, T]; `weights`, float32 [B]. Pair i of a packed
    example has segment i in source and target.
    """

    model: EncoderDecoder = EncoderDecoder  # from source and target tokens to logits

    @property
    def decoder_stack(self) -> Layer:
        return self.model.decoder

    def check_input(self, offers: Mapping[str, Any]) -> None:
        super().check_input(offers)
        for layer in self.model.tree():
            if isinstance(layer, Embedding) and offers["vocab_size"] > layer.p.vocab_size:
                raise ParamError(
                    f"{layer.path} has vocab_size={layer.p.vocab_size}, but the input has"
                    f" {offers['vocab_size']} token ids"
                )

    def activations(self, batch: Batch) -> tf.Tensor:
        inputs = self._memory_inputs(batch)._replace(
            segments=batch["segments"], position_ids=batch["positions"]
        )
        return self.model.activations(batch["tokens"], inputs=inputs)

    def has_answers(self, batch: Batch) -> bool:
        return True

    def decode(self, batch: Batch, decoding: Decoding) -> dict[str, tf.Tensor]:
        """Decodes targets; `batch` has prompts and the `source_...` tensors, int32 [B, S]."""
        step: Any = stepper(self.model, batch, decoding)
        read = partial(step, inputs=self._memory_inputs(batch))
        caches = empty_caches(self.model, batch, decoding)
        return decoding.decode(step, caches, batch, self.random_key("decode"), read=read)

    def flops(self, shape: Any, *, source_length: int | None = None) -> int:
        return self.model.flops(shape, source_length=source_length)

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["tokens"]
        (_, source_length), _ = specs["source_tokens"]
        return self.flops(shape, source_length=source_length)

    def _memory_inputs(self, batch: Batch) -> CallInputs:
        """Returns the encoded sources of a batch as inputs of the decoder."""
        segments = batch["source_segments"]
        inputs = CallInputs(segments=segments, position_ids=batch.get("source_positions"))
        memory = self.model.encode(batch["source_tokens"], inputs=inputs)
        return CallInputs(memory=memory, memory_segments=segments)


class Distillation(SequenceToSequence):
    """Cross-entropy of the target's tokens, mixed with cross-entropy to a teacher's probabilities.

    (Hinton et al. 2015.) Fedus et al. 2022, sec. 4.1, give the teacher a share of 0.25. The teacher
    predicts as in evaluation, without dropout. Its weights are named `teacher/...`: the experiment
    reads them by `init_from`, and freezes them by `ByPath` with `Frozen`. Metrics, answers and
    FLOPs are the student's, `model`.
    """

    teacher: EncoderDecoder  # gives each token a probability; has the same vocabulary
    teacher_share: float = 0.25  # of the loss; the rest is for the targets

    def check(self) -> None:
        super().check()
        if not 0 <= self.p.teacher_share <= 1:
            raise ParamError(f"teacher_share={self.p.teacher_share} is not in [0, 1]")
        if self.p.chunk_size is not None:
            raise ParamError(
                f"chunk_size={self.p.chunk_size}, but distillation needs all positions' logits at"
                " once: leave it None"
            )

    def setup(self) -> None:
        super().setup()
        self.teacher = self.p.teacher.build(vocab_size=self.p.vocab_size)

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        logits, weights = self.model.logits(self.activations(batch)), token_weights(batch)
        hard = token_losses(logits, batch["targets"], label_smoothing=self.p.label_smoothing)
        per_token = hard._asdict() | {
            "distillation": tf.nn.softmax_cross_entropy_with_logits(
                self._teacher_probabilities(batch), logits
            )
        }
        return {term: tf.reduce_sum(per_token[term] * weights) for term in self._terms()}

    def coefficients(self) -> dict[str, float]:
        share = self.p.teacher_share
        return super().coefficients() | {"cross_entropy": 1.0 - share, "distillation": share}

    def _terms(self) -> tuple[str, ...]:
        return (*super()._terms(), "distillation")

    def _teacher_probabilities(self, batch: Batch) -> tf.Tensor:
        """Returns the teacher's probability of each token, float32 [B, T, V]."""
        with enter_call(current().derive(training=False)):  # its side losses are dropped
            logits = self.teacher(
                batch["tokens"],
                source_tokens=batch["source_tokens"],
                source_inputs=CallInputs(
                    segments=batch["source_segments"], position_ids=batch["source_positions"]
                ),
                inputs=CallInputs(segments=batch["segments"], position_ids=batch["positions"]),
            )
        return tf.stop_gradient(tf.nn.softmax(logits))
