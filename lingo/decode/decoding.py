"""The contract of decoding: how a model's next-token scores become texts.

    logits, caches = step(prefix, 0, caches)         # what every prompt has, in one chunk
    while not all rows are done:
        token, caches = a choice by the logits
        logits, caches = step(token, index, caches)  # one position of every row

Only the last position of a chunk has logits: those before it are followed by what is known. A
prompt that is longer than the shortest has its further tokens forced while others choose. What a
prompt becomes does not depend on the prompts beside it.

Axes: B prompts, S texts of each, C tokens that every prompt has, R further tokens of the longest
prompt, N new tokens of a text at most, V vocabulary.
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
"""Program path -> [stacked axes, rows, ...] tensor."""

Step = Callable[[Any, Any, Caches], tuple[Any, Caches]]
"""(tokens int32 [rows, C], index int32 scalar, caches) -> logits of what follows the last of these
positions, float32 [rows, V], and new caches; those that it leaves alone are the same objects."""


class Decoding(Configurable, kind=True):
    """How prompts are continued: a program of the device from the first token to the last."""

    max_tokens: int = 200  # tokens that are added to a prompt, at most
    num_samples: int = 1  # texts for each prompt

    def check(self) -> None:
        ranges.check_positive(self.p, "max_tokens", "num_samples")

    @property
    def rows_per_prompt(self) -> int:
        """How many texts of a prompt are computed at a time."""
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
            step: computes the next positions from the caches of those before.
            caches: of B rows before the first position, as `empty_caches` makes them.
            batch: prompts, as `lingo.decode.text.prompt_batch` makes them.
            key: of all that is drawn.
            read: the first step, where it is another: one that is given a memory to remember.

        Returns:
            `tokens`: int32 [B, S, R + N], those of each text from position C on, its end id once it
                is done;
            `log_probs`: float32 [B, S, R + N], the log-probability of each until then, under the
                model itself: at temperature 1, among all tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decode")

    def score(self, log_probs: Sequence[float]) -> float:
        """Returns how good a text is: the log-probability of all that the model has chosen.

        Args:
            log_probs: of each token, the end among them.
        """
        return float(sum(log_probs))


def num_positions(batch: Mapping[str, tf.Tensor], decoding: Decoding) -> Any:
    """Returns how many positions a decoding computes at most; the last token needs none.

    An int if the shapes are known, else an int32 scalar.
    """
    return size_of(batch["prefix"], 1) + size_of(batch["rest"], 1) + decoding.p.max_tokens - 1


def forced_tokens(batch: Mapping[str, tf.Tensor], decoding: Decoding) -> tf.Tensor:
    """Returns int32 [B, R + N]: the tokens of longer prompts; -1 where a row chooses."""
    rest, num_new = batch["rest"], decoding.p.max_tokens
    is_forced = tf.range(size_of(rest, 1)) < batch["rest_length"][:, None]
    return tf.pad(tf.where(is_forced, rest, -1), [[0, 0], [0, num_new]], constant_values=-1)
