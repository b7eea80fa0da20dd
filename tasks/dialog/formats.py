"""How a dialog becomes tokens: examples that teach a model to answer, and to rate answers.

    generative       What's up? RESPONSE not much.               loss on "not much." and the end
    discriminative   What's up? RESPONSE not much. SENSIBLE 1    loss on "1"

(Thoppilan et al. 2022, sec. 6.1.) Words in capitals and ratings are sentinels: token ids to which
no text is encoded, so that a text with such a word cannot forge a sentinel. Turns follow one
another, each after the sentinel of its speaker, except for a user's turn at the beginning.

A context that is too long loses its first turns. If its last turn alone is too long, this turn
loses its first tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingo.config.params import ParamError
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.data.pairs.pair import Pair
from tasks.dialog.turns import ATTRIBUTES, Attribute, Dialog, Response, Turn

_SPEAKERS = {"user": "USER", "model": "RESPONSE", "tools": "TOOLS"}
SENTINELS = (*_SPEAKERS.values(), *(name.upper() for name in ATTRIBUTES), "0", "1")
"""Words of the sentinels, in the order of their ids."""

_SMALLEST_PREFIX = 3  # a speaker, a token of a turn, RESPONSE


class DialogTokenizer(SentinelTokenizer):
    """Another tokenizer's ids, followed by the ids of sentinels, which `encode` never returns.

    `decode` writes a sentinel as its word, between spaces.
    """

    num_sentinels: int = len(SENTINELS)  # ids for sentinels; ids without a word stay unused

    def check(self) -> None:
        if self.p.num_sentinels < len(SENTINELS):
            raise ParamError(
                f"num_sentinels={self.p.num_sentinels}: dialogs need {len(SENTINELS)}:"
                f" {', '.join(SENTINELS)}"
            )

    def sentinel(self, word: str) -> int:
        """Returns the id of one of SENTINELS; raises ValueError for another word."""
        return self.tokenizer.vocab_size + SENTINELS.index(word)

    @property
    def rating_ids(self) -> tuple[int, int]:
        """The ids of the ratings 0 and 1."""
        return self.sentinel("0"), self.sentinel("1")

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        ids = np.asarray(ids, np.int64)
        first = self.tokenizer.vocab_size
        head, *others = np.split(ids, np.flatnonzero(ids >= first))
        parts = [self.tokenizer.decode(head)]
        for part in others:  # each begins with a sentinel
            number = int(part[0]) - first
            parts += [*SENTINELS[number : number + 1], self.tokenizer.decode(part[1:])]
        return " ".join(filter(None, parts))

    def answer(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of generated ids, [any number], up to the first end or sentinel."""
        ids = np.asarray(ids, np.int64)
        stops = np.flatnonzero((ids == self.end_id) | (ids >= self.tokenizer.vocab_size))
        return self.tokenizer.decode(ids[: stops[0]] if len(stops) else ids)


def response_prefix(
    context: Sequence[Turn], *, tokenizer: DialogTokenizer, max_tokens: int
) -> np.ndarray:
    """Returns the prompt for a response to turns: token ids, int32 [<= `max_tokens`].

    It has the turns and RESPONSE; the start token before them is not included. Raises ParamError
    if there are no turns, or if `max_tokens` is less than 3.
    """
    if max_tokens < _SMALLEST_PREFIX or not context:
        raise ParamError(
            f"{max_tokens=} for {len(context)} turns: wanted {_SMALLEST_PREFIX} tokens and 1 turn,"
            " or more"
        )
    ids = _join_turns(context, tokenizer, max_tokens - 1)
    return np.append(ids, tokenizer.sentinel("RESPONSE")).astype(np.int32)


def rating_prefix(
    response: Response, attribute: Attribute, *, tokenizer: DialogTokenizer, max_tokens: int
) -> np.ndarray:
    """Returns the prompt for a response's rating: token ids, int32 [<= `max_tokens`].

    It has the context, the response and the attribute's sentinel, such as SENSIBLE. The rating
    that follows is one of `rating_ids`. The response is never cut. Raises ParamError like
    `response_prefix`, if response and attribute leave too few tokens for the context.
    """
    answer = tokenizer.encode(response.turn.text)
    room = max_tokens - len(answer) - 1
    prefix = response_prefix(response.context, tokenizer=tokenizer, max_tokens=room)
    return np.concatenate([prefix, answer, [tokenizer.sentinel(attribute.upper())]]).astype(
        np.int32
    )


def generative(response: Response, *, tokenizer: DialogTokenizer, length: int) -> Pair | None:
    """Returns a pair: the source is the context, the target is the response with an end token.

    Together they have at most `length` tokens. Returns None if there is no room for a context.
    """
    target = np.append(tokenizer.encode(response.turn.text), tokenizer.end_id).astype(np.int32)
    room = length - len(target)
    if room < _SMALLEST_PREFIX:
        return None
    prefix = response_prefix(response.context, tokenizer=tokenizer, max_tokens=room)
    return Pair(prefix, target)


def discriminative(
    response: Response, *attributes: Attribute, tokenizer: DialogTokenizer, length: int
) -> Pair | None:
    """Returns a pair whose target is the rating of the first attribute.

    The source is the context, the response and the first attribute. The ratings of further
    attributes follow in the target. Together they have at most `length` tokens. Returns None if
    there is no room for a context. Raises KeyError if the response lacks one of the ratings.
    """
    ratings = [tokenizer.rating_ids[response.turn.ratings[name]] for name in attributes]
    return _rated(response, attributes[0], ratings, tokenizer=tokenizer, length=length)


def all_ratings(response: Response, *, tokenizer: DialogTokenizer, length: int) -> Pair | None:
    """Like `discriminative`, but the target is rating 0 for each of ATTRIBUTES, then rating 1."""
    ratings = [rating for rating in tokenizer.rating_ids for _ in ATTRIBUTES]
    return _rated(response, ATTRIBUTES[0], ratings, tokenizer=tokenizer, length=length)


def _rated(
    response: Response,
    attribute: Attribute,
    ratings: Sequence[int],
    *,
    tokenizer: DialogTokenizer,
    length: int,
) -> Pair | None:
    room = length - len(ratings)
    if room - len(tokenizer.encode(response.turn.text)) - 1 < _SMALLEST_PREFIX:
        return None
    prefix = rating_prefix(response, attribute, tokenizer=tokenizer, max_tokens=room)
    return Pair(prefix, np.array(ratings, np.int32))


def running_text(dialog: Dialog, *, tokenizer: DialogTokenizer, length: int) -> list[Pair]:
    """Returns a dialog as pairs without a source, for pre-training.

    A dialog that is too long is cut between turns, into parts of at most `length` tokens. A single
    turn that is too long loses its end. The last part has an end token, unless its turn was cut.
    """
    parts, turns = [], list(dialog.turns)
    while turns:
        sizes = np.cumsum([1 + len(tokenizer.encode(turn.text)) for turn in turns])
        kept = max(int(np.searchsorted(sizes, length - 1, side="right")), 1)
        ids = _join_turns(turns[:kept], tokenizer, int(sizes[kept - 1]))
        turns = turns[kept:]
        parts.append(ids if turns else np.append(ids, tokenizer.end_id))
    return [Pair(np.zeros(0, np.int32), ids[:length].astype(np.int32)) for ids in parts]


def _join_turns(turns: Sequence[Turn], tokenizer: DialogTokenizer, room: int) -> np.ndarray:
    """Returns the tokens of the last turns, as many as fit, int32 [at most `room`]."""
    ids = [
        np.append(tokenizer.sentinel(_SPEAKERS[turn.speaker]), tokenizer.encode(turn.text))
        for turn in turns
    ]
    needed = np.cumsum([len(turn) for turn in reversed(ids)])
    needed -= [turn.speaker == "user" for turn in reversed(turns)]  # a first USER is left out
    kept = max(int(np.searchsorted(needed, room, side="right")), 1)
    joined = np.concatenate(ids[-kept:]).astype(np.int32)
    if turns[-kept].speaker == "user":
        return joined[1:][-room:]
    return joined if len(joined) <= room else np.append(joined[0], joined[1 - room :])
