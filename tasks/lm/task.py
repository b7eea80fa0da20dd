"""Language modelling: predicts each token from the tokens before it.

Axes: B batch, T positions, D model width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.decode.caches import empty_caches, stepper
from lingo.decode.decoding import Decoding
from lingo.layers import CallInputs, Layer
from lingo.learner.task import Batch
from tasks.lm.model import LanguageModel
from tasks.token_prediction import TokenPrediction


class LanguageModeling(TokenPrediction):
    """Cross-entropy of the next token, averaged over the tokens of the whole batch.

    Batches: `tokens`, `targets`, `segments`, `positions`, int32 [B, T]; `weights`, float32 [B]. For
    prefix language modelling (Raffel et al. 2020, sec. 3.2.1), attention has `mask=Prefix`, and
    batches also have `prefix`, bool [B, T], True at positions that the whole document sees, and
    `target_weights`, float32 [B, T], 0 where the target is in the prefix.
    """

    model: LanguageModel = LanguageModel  # from tokens to logits

    @property
    def decoder_stack(self) -> Layer:
        return self.model

    def activations(self, batch: Batch) -> tf.Tensor:
        inputs = CallInputs(
            segments=batch.get("segments"),
            position_ids=batch.get("positions"),
            prefix=batch.get("prefix"),
        )
        return self.model.activations(batch["tokens"], inputs=inputs)

    def decode(self, batch: Batch, decoding: Decoding) -> dict[str, tf.Tensor]:
        step: Any = stepper(self.model, batch, decoding)
        read = partial(step, inputs=CallInputs(prefix=batch.get("prefix_seen")))
        caches = empty_caches(self.model, batch, decoding)
        return decoding.decode(step, caches, batch, self.random_key("decode"), read=read)

    def flops(self, shape: Any) -> int:
        return self.model.flops(shape)

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["tokens"]
        return self.flops(shape)
