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
from lingo.learner.task import Batch
from tasks.seq2seq.model import EncoderDecoder
from tasks.token_prediction import TokenPrediction


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
