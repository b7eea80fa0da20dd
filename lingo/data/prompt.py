"""A prompt in the layout of a model's input, as `Input.prompt` returns it, and answers to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Prompt(NamedTuple):
    """The tokens that a model reads before it generates."""

    tokens: np.ndarray  # int32 [at least 1], the tokens before the first new one, start included
    source: np.ndarray | None = None  # int32 [any number], the encoder's tokens
    is_prefix: bool = False  # whether `tokens` is a prefix, whose positions attend to each other
    is_answered: bool = False  # whether the new tokens are an answer; else they continue the prompt
    task: str = ""  # the task that reads the prompt, of a model of several tasks

    @property
    def size(self) -> int:
        """The number of tokens, `source` included."""
        return len(self.tokens) + (0 if self.source is None else len(self.source))

    def num_positions(self, max_tokens: int) -> int:
        """Returns how many positions a model needs for `max_tokens` new tokens.

        The last new token needs no position. A model with an encoder and a decoder needs the larger
        of their two numbers.
        """
        return max(len(self.tokens) + max_tokens - 1, self.size - len(self.tokens))


class TextPair(NamedTuple):
    """A source, which a model is to answer, and its target."""

    prompt: Prompt  # the source as the model reads it: cut, if it is too long for the input
    source: str
    target: str  # the whole target


class Answer(NamedTuple):
    """A model's answer to a source, and the right answer."""

    source: str
    target: str  # the right answer
    text: str  # the model's answer
