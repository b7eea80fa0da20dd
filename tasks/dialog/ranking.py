"""A model rates its own candidates; unsafe ones are left out, and the best is the answer.

    P(SENSIBLE 1) = p("1") / (p("0") + p("1"))     after `<context> RESPONSE <candidate> SENSIBLE`
    quality       = 3 P(SENSIBLE 1) + P(SPECIFIC 1) + P(INTERESTING 1)

(Thoppilan et al. 2022, sec. 4.2 and 6.1.) Equal candidates count as one. The paper does not
say which probability of UNSAFE is too large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError
from lingo.data.pairs.pair import Pair
from lingo.decode.chat import ChatModel
from lingo.decode.chat import Turn as ChatTurn
from tasks.dialog.formats import all_ratings
from tasks.dialog.input import DialogInput
from tasks.dialog.turns import ATTRIBUTES, Attribute, Dialog, Response, Turn

_STEP = 64  # row lengths are multiples of this, so that few programs are compiled

Ratings = Mapping[Attribute, float]
"""The probability of rating 1, by attribute."""


class Candidate(NamedTuple):
    """A text that may be the answer."""

    text: str
    times: int  # how often it was drawn
    ratings: Ratings


class Ranking(Configurable):
    """Says how many candidates are drawn, which are left out, and which is best."""

    num_candidates: int = 16
    top_k: int = 40  # each token is drawn among this many likeliest tokens
    temperature: float = 1.0
    max_unsafe: float = 0.5  # a candidate with a higher probability of UNSAFE 1 is left out
    weights: dict[Attribute, float] = {"sensible": 3.0, "specific": 1.0, "interesting": 1.0}
    fallback: str = "I would rather not say something about that."  # if all are left out

    def check(self) -> None:
        p = self.p
        ranges.check_positive(p, "num_candidates", "top_k")
        ranges.check_fraction(p, "max_unsafe")
        if unknown := p.weights.keys() - set(ATTRIBUTES):
            raise ParamError(
                f"weights: no attribute {min(unknown)!r}: there are {', '.join(ATTRIBUTES)}"
            )

    def quality(self, ratings: Ratings) -> float:
        """Returns the weighted sum of ratings."""
        return sum(weight * ratings[name] for name, weight in self.p.weights.items())

    def is_safe(self, ratings: Ratings) -> bool:
        """Returns whether a candidate may be the answer."""
        return ratings["unsafe"] <= self.p.max_unsafe

    def sort(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Returns the safe candidates, the best first; among equals, the one drawn more often."""
        safe = [candidate for candidate in candidates if self.is_safe(candidate.ratings)]
        return sorted(safe, key=lambda c: (-self.quality(c.ratings), -c.times))

    def candidates(
        self, model: ChatModel, context: Sequence[ChatTurn], texts: Sequence[str]
    ) -> list[Candidate]:
        """Returns each different text as a candidate after a context; all are rated in one pass.

        Texts that are empty, or too long for a row of the model's dialogs, are left out.
        """
        times = {text: texts.count(text) for text in texts if text.strip()}
        turns = tuple(Turn(turn.speaker, turn.text) for turn in context)
        responses = [Response(turns, Turn("model", text)) for text in times]
        rated = rate(model, responses, batch_size=self.p.num_candidates)
        return [
            Candidate(text, number, ratings)
            for (text, number), ratings in zip(times.items(), rated, strict=True)
            if ratings is not None
        ]


def rate(
    model: ChatModel, responses: Sequence[Response], *, batch_size: int = 16
) -> list[Ratings | None]:
    """Returns the ratings of responses, in order, by a model that was trained to rate.

    A response that is too long for a row gets None. All batches have the same size, so few programs
    are compiled. Raises ParamError for a model whose dialogs do not share a prefix.
    """
    data = rating_input(model.experiment.train_input)
    keys = {"tokenizer": data.tokenizer, "length": data.p.length}
    pairs = [all_ratings(response, **keys) for response in responses]
    kept = [pair for pair in pairs if pair is not None]
    rated: list[Ratings] = []
    for start in range(0, len(kept), batch_size):
        batch = kept[start : start + batch_size]
        whole = [*batch, *[batch[-1]] * (batch_size - len(batch))]
        rated += _rate_batch(model, data, whole)[: len(batch)]
    ratings = iter(rated)
    return [None if pair is None else next(ratings) for pair in pairs]


def rating_input(data: Any) -> DialogInput:
    """Returns the input with `shares_prefix`: `data`, or the first such input of a mixture."""
    parts = [data, *getattr(data, "inputs", {}).values()]
    for part in parts:
        if isinstance(part, DialogInput) and part.p.shares_prefix:
            return part
    raise ParamError(
        f"{type(data).__name__}: to rate candidates, a model needs a DialogInput with"
        " shares_prefix=True; this one has none"
    )


def _rate_batch(model: ChatModel, data: DialogInput, pairs: Sequence[Pair]) -> list[Ratings]:
    """Returns the ratings of each pair of `all_ratings`, in order."""
    arrays = data.rows_of_ratings(pairs)
    longest = int(np.flatnonzero(arrays.is_rating.any(axis=0))[-1]) + 1
    used = slice(0, -(-longest // _STEP) * _STEP)
    inputs = {name: array[:, used] for name, array in arrays.inputs.items()}
    log_probs = model.predict(inputs, batch_size=len(pairs))["target_log_probs"]
    by_rating = np.asarray(log_probs)[arrays.is_rating[:, used]]
    by_rating = by_rating.reshape(len(pairs), 2, len(ATTRIBUTES))
    probabilities = 1 / (1 + np.exp(by_rating[:, 0] - by_rating[:, 1]))
    return [dict(zip(ATTRIBUTES, map(float, row), strict=True)) for row in probabilities]


def filter_dialogs(
    model: ChatModel, dialogs: Sequence[Dialog], ranking: Ranking, *, min_quality: float
) -> Iterator[Dialog]:
    """Yields the beginning of each dialog, up to its last response before a bad one.

    A response is bad if it is unsafe, below `min_quality`, or too long to rate. A dialog without a
    response, or with a bad first response, is left out. A model that is fine-tuned on these dialogs
    learns from responses that its own ratings approve.
    """

    def passes(ratings: Ratings | None) -> bool:
        if ratings is None or not ranking.is_safe(ratings):
            return False
        return ranking.quality(ratings) >= min_quality

    responses = [list(dialog.responses()) for dialog in dialogs]
    rated = iter(rate(model, [one for some in responses for one in some]))
    for dialog, some in zip(dialogs, responses, strict=True):
        are_kept = [passes(next(rated)) for _ in some]
        number = [*are_kept, False].index(False)
        if number:
            last = some[number - 1].turn
            size = next(i for i, turn in enumerate(dialog.turns, 1) if turn is last)
            yield dialog if number == len(some) else Dialog(dialog.turns[:size])
