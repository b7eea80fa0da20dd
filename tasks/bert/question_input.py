"""Rows of a question and the text that answers it, for a model that marks a span.

Axes: B examples (rows), T tokens per row, N rows of an evaluation.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.epoch_order import EpochOrder
from lingo.data.files import DataError
from lingo.data.hugging_face_tokenizer import LibraryTokenizer
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.data.prompt import Answer
from lingo.metrics.text import answer_f1, answer_match
from tasks.bert.questions import Question, QuestionSource, content_digest
from tasks.bert.rows import ROW_ARRAYS, blank_rows, fill_row, row_specs

_NUM_SPECIAL = 3  # [CLS] question [SEP] text [SEP]


class _Encoded(NamedTuple):
    question: np.ndarray  # int32 [its tokens]
    context: np.ndarray  # int32 [its tokens]
    offsets: np.ndarray  # int64 [tokens of the context, 2], each token's first character and end
    answer: tuple[int, int]  # first and last token of the answer in the context


class Window(NamedTuple):
    """The part of a question's text that is in one row."""

    question: int  # index of the question
    begin: int  # first token of the part
    end: int  # one after its last token


class QuestionInput(Input):
    """Rows `[CLS] question [SEP] text [SEP]`, with the span of the answer (Devlin et al. 2019).

    A text that is too long has several rows, which begin `stride` tokens apart. In a row without
    the whole answer, the span is [CLS].
    """

    source: QuestionSource  # where questions are
    tokenizer: LibraryTokenizer  # how texts become integers, and where tokens are in the text
    length: int = 384  # T, tokens per row
    stride: int = 128  # tokens between the beginnings of two rows of one text
    max_question: int = 64  # tokens of a question; later ones are left out
    max_answer: int = 30  # tokens of the longest predicted answer
    shuffle: bool = True  # a new order of rows each epoch; False: the source's order

    measures: ClassVar[tuple[str, ...]] = ("exact_match", "f1")

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "stride", "max_question", "max_answer")
        if (room := p.length - p.max_question - _NUM_SPECIAL) < p.stride:
            raise ParamError(
                f"length={p.length} leaves {room} tokens for a text after max_question="
                f"{p.max_question}, fewer than stride={p.stride}: some tokens would be in no row"
            )

    def setup(self) -> None:
        self.source = self.p.source.build()
        self.tokenizer = self.p.tokenizer.build()
        self.vocab_size = self.tokenizer.vocab_size

    def offers(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size}

    def prepare(self, *, progress: Progress | None = None) -> None:
        if "questions" not in self.__dict__:
            self.questions = self._read(progress)

    @functools.cached_property
    def questions(self) -> list[Question]:
        """All questions of the source; read at first use."""
        return self._read(None)

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the rows with ids (`example_id`) `numbers`, int64 [B].

        Returns:
            `tokens`, `types`, `segments`: int32 [B, T], as `fill_row` writes them;
            `starts`, `ends`: int32 [B], first and last token of the answer; 0 without an answer.
        """
        out = blank_rows(len(numbers), length=self.p.length, tokenizer=self.tokenizer)
        out |= {name: np.zeros(len(numbers), np.int32) for name in ("starts", "ends")}
        indices = self._order.indices(numbers)
        for i, (number, index) in enumerate(zip(numbers.tolist(), indices.tolist(), strict=True)):
            if not (self.p.repeat or number < self.num_examples()):
                continue
            window = self.windows[index]
            encoded = self._encoded[window.question]
            context = encoded.context[window.begin : window.end]
            row = {name: out[name][i] for name in ROW_ARRAYS}
            fill_row(row, [encoded.question, context], tokenizer=self.tokenizer)
            first, last = encoded.answer
            if window.begin <= first and last < window.end:
                shift = len(encoded.question) + 2 - window.begin
                out["starts"][i], out["ends"][i] = first + shift, last + shift
        return out

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        ends: dict[str, ArraySpec] = {name: ((size,), "int32") for name in ("starts", "ends")}
        return super().specs() | row_specs(size, length=self.p.length) | ends

    def num_examples(self) -> int:
        return len(self.windows)

    def num_items(self) -> int:
        return len(self.questions)

    def fingerprint(self) -> dict[str, Any]:
        return {
            "source": self.source.describe(),
            "tokenizer": self.tokenizer.describe(),
            "questions": len(self.questions),
            "digest": content_digest(self.questions),
        }

    def score(self, predictions: Mapping[str, np.ndarray]) -> tuple[dict[str, float], list[Answer]]:
        """Returns exact match and F1 by SQuAD's rules, each in 0..1, and the answers.

        `predictions` has `start_logits` and `end_logits`, float32 [N, T], of the first N rows. A
        question's answer is the span of at most `max_answer` tokens with the largest sum of both
        logits in all of its rows, copied from the text with case and spaces. It is compared with
        the most similar right answer (Rajpurkar et al. 2016, sec. 6.1). Only questions whose rows
        are all predicted are scored; both scores are NaN if no question is.
        """
        rows = self._order.indices(np.arange(len(predictions["start_logits"])))
        num_missing = Counter(window.question for window in self.windows)
        best: dict[int, tuple[float, str]] = {}
        for row, starts, ends in zip(
            rows.tolist(), predictions["start_logits"], predictions["end_logits"], strict=True
        ):
            window = self.windows[row]
            num_missing[window.question] -= 1
            encoded, question = self._encoded[window.question], self.questions[window.question]
            first = len(encoded.question) + 2
            own = slice(first, first + window.end - window.begin)
            score, begin, end = best_span(starts[own], ends[own], max_length=self.p.max_answer)
            if window.question not in best or score > best[window.question][0]:
                offsets = encoded.offsets[window.begin : window.end]
                text = question.context[offsets[begin, 0] : offsets[end, 1]]
                best[window.question] = (score, text)
        answers, matches, shares = list[Answer](), list[float](), list[float]()
        for number, (_, text) in best.items():
            if num_missing[number]:
                continue
            question = self.questions[number]
            answers.append(Answer(question.question, question.answers[0], text))
            matches.append(max(answer_match(text, right) for right in question.answers))
            shares.append(max(answer_f1(text, right) for right in question.answers))
        num = len(answers) or np.nan
        return {"exact_match": sum(matches) / num, "f1": sum(shares) / num}, answers

    @functools.cached_property
    def windows(self) -> list[Window]:
        """The part of a text in each row, in the source's order."""
        return [
            Window(number, begin, min(begin + room, size))
            for number, encoded in enumerate(self._encoded)
            for size, room in [(len(encoded.context), self._room(encoded))]
            for begin in range(0, max(size - room + self.p.stride, 1), self.p.stride)
        ]

    def _room(self, encoded: _Encoded) -> int:
        return self.p.length - len(encoded.question) - _NUM_SPECIAL

    @functools.cached_property
    def _order(self) -> EpochOrder:
        size, p = self.num_examples(), self.p
        return EpochOrder(size, seed=p.seed, name="questions", shuffle=p.shuffle)

    @functools.cached_property
    def _encoded(self) -> list[_Encoded]:
        contexts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        found = []
        for question in self.questions:
            if question.context not in contexts:
                contexts[question.context] = self.tokenizer.locate(question.context)
            ids, offsets = contexts[question.context]
            stop = question.answer_start + len(question.answers[0])
            inside = np.flatnonzero(
                (offsets[:, 1] > question.answer_start) & (offsets[:, 0] < stop)
            )
            if not len(inside):
                raise DataError(
                    f"{self.source.describe()}: question {question.id}: its answer"
                    f" {question.answers[0][:40]!r} has no token."
                )
            asked = self.tokenizer.encode(question.question)[: self.p.max_question]
            found.append(_Encoded(asked, ids, offsets, (int(inside[0]), int(inside[-1]))))
        return found

    def _read(self, progress: Progress | None) -> list[Question]:
        questions = self.source.questions(progress=progress)
        if not questions:
            raise DataError(f"{self.source.describe()} has no question.")
        return questions


def best_span(starts: np.ndarray, ends: np.ndarray, *, max_length: int) -> tuple[float, int, int]:
    """Returns the largest sum of a start and an end logit, and the positions of both.

    `starts` and `ends` are floats [tokens]; a span has 1 to `max_length` tokens. The first of equal
    spans wins.

    >>> best_span(np.array([0.0, 5.0, 1.0]), np.array([9.0, 0.0, 2.0]), max_length=3)
    (9.0, 0, 0)
    """
    sums = starts[:, None].astype(np.float64) + ends[None, :]
    lengths = np.arange(len(ends))[None, :] - np.arange(len(starts))[:, None] + 1
    sums[(lengths < 1) | (lengths > max_length)] = -np.inf
    begin, end = np.unravel_index(int(sums.argmax()), sums.shape)
    return float(sums[begin, end]), int(begin), int(end)
