"""The pre-training of BERT: masked tokens, and whether the second text follows the first.

Axes: B batch, T positions, K chosen positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers import CallInputs, Linear
from lingo.learner.task import Batch, Task
from lingo.metrics.media import Media, Table, TokenIds
from lingo.metrics.metric import weighted_mean
from lingo.ops.losses import cross_entropy, log_probs
from tasks.bert.model import DENSE, Bert, MaskedHead, check_vocab_size, select_positions

_CONTEXT = 8  # tokens on each side of a masked one, in tables
_MAX_SHOWN = 100  # masked tokens in a table


class BertPretraining(Task):
    """Two cross-entropies: of masked tokens, and of the next sentence (Devlin et al. 2019, 3.1).

    The first is a mean over the masked tokens of the whole batch, the second a mean over its rows.
    The loss is their sum, in nats. Examples of weight 0 are ignored. A batch without `is_random`
    has one text per row: set `next_sentence=None`, which also removes the pooler, or freeze
    `next_sentence` and the pooler by the optimizer `Frozen`.

    Metrics are `masked_loss`, `masked_accuracy` and `loss` (the sum of the two losses). Batches of
    pairs also have `next_sentence_loss` and `next_sentence_accuracy`.

    Batches: `tokens`, `types` and `segments` (0: padding), int32 [B, T], and optionally
    `positions`, int32 [B, T]; `masked_positions`, and `masked_ids` (the tokens before masking),
    int32 [B, K]; `masked_weights`, float32 [B, K], 1 for a masked token, then 0; `is_random`, int32
    [B], 1 if the second text comes from another document; `weights`, float32 [B].
    """

    vocab_size: int  # V; the input offers it
    model: Bert = Bert  # from tokens to vectors
    head: MaskedHead = MaskedHead  # from vectors of masked tokens to logits
    next_sentence: Linear | None = DENSE  # from the pooled vector to 2 logits; None: one text

    def setup(self) -> None:
        p = self.p
        # without next_sentence nothing reads the pooler, and it would never be trained
        pooler = {"pooler": None} if p.next_sentence is None else {}
        self.model = p.model.build(vocab_size=p.vocab_size, **pooler)
        dim = self.model.p.dim
        self.head = p.head.build(dim=dim, vocab_size=p.vocab_size)
        self.next_sentence = p.next_sentence and p.next_sentence.build(dim=dim, output_dim=2)
        if self.next_sentence is not None and self.model.pooler is None:
            raise ParamError(
                "next_sentence reads the pooled vector, but model.pooler=None: set"
                " next_sentence=None too, or give the model a pooler"
            )

    def check_input(self, offers: Mapping[str, Any]) -> None:
        check_vocab_size(self.p.vocab_size, offers)

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        denominators = super().loss_denominators(batch)
        denominators["masked_tokens"] = tf.reduce_sum(_masked_weights(batch))
        if self._has_pairs(batch):
            denominators["next_sentence"] = denominators["examples"]
        return denominators

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        x = self._encode(batch)
        nats = cross_entropy(self._masked_logits(x, batch), batch["masked_ids"])
        terms = {"masked_tokens": tf.reduce_sum(nats * _masked_weights(batch))}
        if self._has_pairs(batch):
            nats = cross_entropy(self._pair_logits(x), batch["is_random"])
            terms["next_sentence"] = tf.reduce_sum(nats * batch["weights"])
        return terms

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        x, ids = self._encode(batch), batch["masked_ids"]
        states = _scores("masked", self._masked_logits(x, batch), ids, _masked_weights(batch))
        if self._has_pairs(batch):
            labels, weights = batch["is_random"], batch["weights"]
            states |= _scores("next_sentence", self._pair_logits(x), labels, weights)
        return states

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        losses = [
            means[f"{name}_loss"] for name in ("masked", "next_sentence") if f"{name}_loss" in means
        ]
        return {**means, **({"loss": sum(losses)} if losses else {})}

    def loss_metrics(self) -> dict[str, str]:
        return {"masked_tokens": "masked_loss", "next_sentence": "next_sentence_loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the likeliest token at each chosen position, given the text on both sides.

        Without `masked_positions` in the batch, all T positions are chosen. Values after the last
        masked token, or at padding, have no meaning.

        Returns:
            `tokens`: int32 [B, K].
            `log_probs`: float32 [B, K], their log-probabilities, in nats.
            `target_log_probs`: float32 [B, K], log-probabilities of the true tokens; only if the
                batch has `masked_ids`.
            `random_probs`: float32 [B], the probability that the second text does not follow the
                first; only with `next_sentence`.
        """
        x = self._encode(batch)
        logits = self._masked_logits(x, batch)
        tokens = tf.argmax(logits, axis=-1, output_type=tf.int32)
        results = {"tokens": tokens, "log_probs": log_probs(logits, tokens)}
        if "masked_ids" in batch and "masked_positions" in batch:
            results["target_log_probs"] = log_probs(logits, batch["masked_ids"])
        if self.next_sentence is not None:
            results["random_probs"] = tf.nn.softmax(self._pair_logits(x))[:, 1]
        return results

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        """Returns a table of masked tokens: their context, the input, the right token, the guess.

        `batch` has arrays [B, ...], and `predictions` the results of `predict`, [B, K].
        """
        places = np.argwhere(batch["masked_weights"] > 0)[:_MAX_SHOWN]
        if not len(places):
            return {}
        rows: list[tuple[list[int], ...]] = []
        for example, k in places:
            text = batch["tokens"][example][batch["segments"][example] > 0].tolist()
            at = int(batch["masked_positions"][example, k])
            right, guess = batch["masked_ids"][example, k], predictions["tokens"][example, k]
            before, after = text[max(0, at - _CONTEXT) : at], text[at + 1 : at + 1 + _CONTEXT]
            rows.append((before, [text[at]], after, [int(right)], [int(guess)]))
        titles = ("before", "input", "after", "right", "guess")
        columns: dict[str, Any] = {
            title: TokenIds(cells)
            for title, cells in zip(titles, zip(*rows, strict=True), strict=True)
        }
        columns["probability of the right token"] = np.exp(
            [predictions["target_log_probs"][example, k] for example, k in places]
        )
        return {"masked tokens": Table(columns)}

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["tokens"]
        (batch, num_chosen), _ = specs["masked_positions"]
        dim = self.model.p.dim
        pairs = 0 if self.next_sentence is None else self.next_sentence.flops([batch, dim])
        return self.model.flops(shape) + self.head.flops([batch, num_chosen, dim]) + pairs

    def _has_pairs(self, batch: Batch) -> bool:
        return self.next_sentence is not None and "is_random" in batch

    def _encode(self, batch: Batch) -> tf.Tensor:
        """Returns the vectors of all positions, [B, T, D], any float type."""
        inputs = CallInputs(segments=batch.get("segments"), position_ids=batch.get("positions"))
        return self.model(batch["tokens"], types=batch.get("types"), inputs=inputs)

    def _masked_logits(self, x: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns logits at the chosen positions, float32 [B, K, V], for vectors [B, T, D]."""
        if "masked_positions" in batch:
            x = select_positions(x, batch["masked_positions"])
        return self.head(x, self.model.embedding.vectors())

    def _pair_logits(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits of rows, float32 [B, 2]: the second text follows, or it is random."""
        if self.next_sentence is None:
            raise ParamError("next_sentence=None: the task has no logits of pairs")
        return tf.cast(self.next_sentence(self.model.pool(x)), tf.float32)


def _masked_weights(batch: Batch) -> tf.Tensor:
    """Returns the weight of each masked token in the loss, float32 [B, K]."""
    return batch["masked_weights"] * batch["weights"][:, None]


def _scores(
    name: str, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> dict[str, dict[str, tf.Tensor]]:
    """Returns states of loss and accuracy for logits [..., V], labels [...] and weights [...]."""
    right = tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels
    return {
        f"{name}_loss": weighted_mean(cross_entropy(logits, labels), weights),
        f"{name}_accuracy": weighted_mean(right, weights),
    }
