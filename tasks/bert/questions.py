"""Questions that a span of a text answers: SQuAD's files, and questions about docstrings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import FilePath
from lingo.config.params import Configurable, ParamError
from lingo.data.files import DataError
from lingo.data.index import Progress, open_index
from lingo.data.record_source import TextFiles
from lingo.datasets.docstrings import Docstrings

_MAX_BYTES = 1 << 30  # of a file of questions
_SECTION = re.compile(r"^(Args|Arguments|Returns):\n((?:(?: +.*)?\n)+)", re.MULTILINE)
_ARGUMENT = re.compile(r"^( +)(\w+): +(?=\S)", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n\s*\n")
_MIN_ANSWER, _MAX_ANSWER = 4, 120  # characters


class Question(NamedTuple):
    """A question about a text, and its right answers."""

    id: str
    context: str
    question: str
    answers: tuple[str, ...]  # one or more
    answer_start: int  # character of the context where the first answer begins


class QuestionSource(Configurable, interface=True):
    """A source of questions, which fit into memory."""

    def questions(self, *, progress: Progress | None = None) -> list[Question]:
        """Returns all questions in one fixed order; raises DataError if they cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} has no questions")

    def describe(self) -> str:
        """Returns the source in one line."""
        raise NotImplementedError(f"{type(self).__name__} has no description")


class SquadFiles(QuestionSource):
    """Files in the format of SQuAD 1.1 (Rajpurkar et al. 2016), such as `train-v1.1.json`.

    Every question needs an answer in its text; SQuAD 2.0's unanswerable questions raise DataError.
    """

    pattern: FilePath  # a path, or a glob such as ~/squad/train*.json

    def check(self) -> None:
        if not self.p.pattern:
            raise ParamError("pattern is empty: give a path or a glob, such as ~/squad/train*.json")

    def questions(self, *, progress: Progress | None = None) -> list[Question]:
        del progress
        questions: list[Question] = []
        for file in TextFiles.params(pattern=self.p.pattern).build().files():
            if file.size > _MAX_BYTES:
                raise DataError(f"{file.path} is larger than the {_MAX_BYTES:,} bytes allowed.")
            questions.extend(read_squad(file.read(0, file.size), file.path))
        return questions

    def describe(self) -> str:
        return f"SquadFiles(pattern={self.p.pattern!r})"


def read_squad(data: bytes, path: str) -> Iterator[Question]:
    """Yields the questions of a file in SQuAD's format; error messages name its `path`.

    Raises DataError, which names the article and the question, for a file in another format.
    """
    try:
        articles = json.loads(data)["data"]
    except (ValueError, RecursionError) as error:  # also an integer of too many digits
        raise DataError(f"{path} is not JSON: {error}") from None
    except (KeyError, TypeError):
        raise DataError(f'{path}: SQuAD\'s files are objects with a list "data".') from None
    where = path
    try:
        for number, article in enumerate(articles):
            where = f"{path}, article {number}"
            for paragraph in article["paragraphs"]:
                context = _text(paragraph["context"])
                for question in paragraph["qas"]:
                    where = f"{path}, article {number}, question {question['id']!r}"
                    yield _squad_question(question, context, where)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where}: not in SQuAD's format: {what}.") from None


def _squad_question(question: Any, context: str, where: str) -> Question:
    answers = [(_text(one["text"]), _index(one["answer_start"])) for one in question["answers"]]
    if not answers:
        raise DataError(
            f"{where} has no answer: leave SQuAD 2.0's unanswerable questions out of the file."
        )
    (text, start), texts = answers[0], tuple(dict.fromkeys(text for text, _ in answers))
    if not text or context[start : start + len(text)] != text:
        raise DataError(
            f"{where}: the answer {text[:40]!r} is not at character {start} of its text."
        )
    return Question(str(question["id"]), context, _text(question["question"]), texts, start)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a text")
    return value.encode(errors="replace").decode()


def _index(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"answer_start={value!r:.40} is not an integer of 0 or more")
    return value


class DocstringQuestions(QuestionSource):
    """Questions about the arguments and results of functions, answered by their docstrings.

    Docstrings in Google's style list arguments as `name: description`. The first sentence of the
    description answers "What is NAME?", the first of `Returns:` answers "What is returned?".
    Questions come from these two templates; texts and answers are real. All questions about one
    docstring are in the same split.
    """

    source: Docstrings = Docstrings  # the docstrings, and their split
    max_characters: int = 800  # of a docstring; longer ones are left out

    def check(self) -> None:
        ranges.check_positive(self.p, "max_characters")

    def setup(self) -> None:
        self.source = self.p.source.build()

    def questions(self, *, progress: Progress | None = None) -> list[Question]:
        index = open_index(self.source, progress=progress)
        texts = index.texts(np.arange(len(index.units)))
        docstrings = [text.decode() for text in texts]
        return [
            question
            for docstring in docstrings
            if len(docstring) <= self.p.max_characters
            for question in docstring_questions(docstring)
        ]

    def describe(self) -> str:
        return f"questions about {self.source.describe()}, max_characters={self.p.max_characters}"


def docstring_questions(text: str) -> Iterator[Question]:
    """Yields the questions about a docstring, whose indentation is removed.

    >>> text = "Adds.\\n\\nArgs:\\n  x: A number. Any.\\n"
    >>> [(one.question, one.answers) for one in docstring_questions(text)]
    [('What is x?', ('A number',))]
    """
    for section in _SECTION.finditer(text):
        name, body = section[1], section[2]
        if name == "Returns":
            begins = [("What is returned?", len(body) - len(body.lstrip()))]
        else:
            items = list(_ARGUMENT.finditer(body))
            indentation = min((item[1] for item in items), key=len, default="")
            begins = [
                (f"What is {item[2]}?", item.end()) for item in items if item[1] == indentation
            ]
        for question, begin in begins:
            answer = first_sentence(body[begin:])
            start = section.start(2) + begin
            if _MIN_ANSWER <= len(answer) <= _MAX_ANSWER and text[start:].startswith(answer):
                number = hashlib.sha256(f"{text}\0{start}".encode()).hexdigest()[:16]
                yield Question(number, text, question, (answer,), start)


def first_sentence(text: str) -> str:
    """Returns a text up to the end of its first sentence or paragraph, or up to its next item.

    >>> first_sentence("A float, at least 0. Others fail.")
    'A float, at least 0'
    """
    end = _SENTENCE_END.search(text)
    sentence = text[: end.start()] if end else text
    item = _ARGUMENT.search(sentence)
    return (sentence[: item.start()] if item else sentence).strip()


def content_digest(questions: Sequence[Question]) -> str:
    """Returns the SHA-256 of questions, hexadecimal."""
    digest = hashlib.sha256()
    for question in questions:
        digest.update(json.dumps(question).encode())
    return digest.hexdigest()
