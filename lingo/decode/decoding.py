"""The contract of decoding: how next-token logits of a model become texts.

    logits, caches = step(prefix, 0, caches)         # the first tokens of all prompts, one chunk
    while not all rows are done:
        token, caches = a choice by the logits
        logits, caches = step(token, index, caches)  # one position of every row

A row is one text of one prompt. Only the last position of a chunk has logits: the tokens after the
other positions are known. If prompts differ in length, the further tokens of longer prompts are
forced, while shorter prompts already get new tokens. The texts of a prompt do not depend on the
other prompts of its batch.

Axes: B prompts, S texts per prompt, C tokens that every prompt has, R further tokens of the longest
prompt, at most N new tokens per text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable
from lingo.ops import random
from lingo.ops.shape import size_of

Caches = Mapping[str, Any]
"""Path -> tensor [stacked axes, rows, ...], with stacked layers as one tensor."""

Step = Callable[[Any, Any, Caches], tuple[Any, Caches]]
"""(tokens int32 [rows, C], index int32 scalar, caches) -> logits after the last of these positions,
float32 [rows, V], and the new caches; tensors that do not change are the same objects."""


class Decoding(Configurable, interface=True):
    """Continues prompts, in one program on the device from the first token to the last."""

    max_tokens: int = 200  # most tokens that are added to a prompt
    num_samples: int = 1  # texts per prompt

    def check(self) -> None:
        ranges.check_positive(self.p, "max_tokens", "num_samples")

    @property
    def rows_per_prompt(self) -> int:
        """Number of texts per prompt that are computed at once."""
        return self.p.num_samples

    def decode(
        self,
        step: Step,
        caches: Caches,
        batch: Mapping[str, tf.Tensor],
        key: random.Key,
        *,
        read: Step | None = None,
    ) -> dict[str, tf.Tensor]:
        """Continues prompts.

        Args:
            step: computes the next positions from the caches of earlier ones.
            caches: caches of B rows before the first position, as `empty_caches` returns them.
            batch: prompts, as `lingo.decode.text.prompt_batch` returns them.
            key: the random key of all draws, a scalar.
            read: the first step if it is not `step`, such as a step that also fills caches with
                a memory. None: `step`.

        Returns:
            `tokens`: int32 [B, S, R + N], the tokens of each text from position C on, then its end
                id;
            `log_probs`: float32 [B, S, R + N], the log-probability of each token up to the end,
                under the model itself (temperature 1, all tokens).
        """
        raise NotImplementedError(f"{type(self).__name__} has no decode")

    def score(self, log_probs: Sequence[float]) -> float:
        """Returns the score of a text from each new token's log-probability, end token included.

        By default this is their sum.
        """
        return float(sum(log_probs))


def forced_tokens(batch: Mapping[str, tf.Tensor], decoding: Decoding) -> tf.Tensor:
    """Returns prompt tokens from position C on, int32 [B, R + N]; -1 where a token is chosen."""
    rest, num_new = batch["rest"], decoding.p.max_tokens
    is_forced = tf.range(size_of(rest, 1)) < batch["rest_length"][:, None]
    return tf.pad(tf.where(is_forced, rest, -1), [[0, 0], [0, num_new]], constant_values=-1)
