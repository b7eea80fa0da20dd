"""Questions that a span of a given text answers: SQuAD's files, and questions over docstrings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable
from lingo.data.files import DataError
from lingo.data.index import Progress, open_index
from lingo.data.record_source import MatchingFiles, PythonPackages
from lingo.datasets.docstrings import Docstrings

_MAX_BYTES = 1 << 30  # of a file of questions
_SECTION = re.compile(r"^(Args|Arguments|Returns):\n((?:(?: +.*)?\n)+)", re.MULTILINE)
_ARGUMENT = re.compile(r"^( +)(\w+): +(?=\S)", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n\s*\n")
_MIN_ANSWER, _MAX_ANSWER = 4, 120  # characters


class Question(NamedTuple):
    """A question about a text, with its answers."""

    id: str
    context: str
    question: str
    answers: tuple[str, ...]  # the right ones, at least one
    start: int  # character of the context where the first answer begins


class QuestionSource(Configurable, interface=True):
    """Where questions are. They fit into memory."""

    def questions(self, *, progress: Progress | None = None) -> list[Question]:
        """Returns all questions in one fixed order; raises DataError if they cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} has no questions")

    def describe(self) -> str:
        """Returns the source in one line."""
        raise NotImplementedError(f"{type(self).__name__} has no description")


class SquadFiles(MatchingFiles, QuestionSource):
    """Files in the format of SQuAD 1.1 (Rajpurkar et al. 2016), such as `train-v1.1.json`.

    Every question has an answer that is a part of its text. Those of SQuAD 2.0 without one are an
    error.
    """

    unit: ClassVar[str] = "file"

    def questions(self, *, progress: Progress | None = None) -> list[Question]:
        del progress
        found: list[Question] = []
        for file in self.files():
            if file.size > _MAX_BYTES:
                raise DataError(
                    f"{file.path} has more than the {_MAX_BYTES:,} bytes that are read."
                )
            found.extend(read_squad(file.read(0, file.size), file.path))
        return found


def read_squad(data: bytes, path: str) -> Iterator[Question]:
    """Yields the questions of a file in SQuAD's format; `path` is for errors.

    Raises DataError that names the article and the question which have another form.
    """
    try:
        articles = json.loads(data)["data"]
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path}: it is no JSON: {error}") from None
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
    answers = [(_text(one["text"]), int(one["answer_start"])) for one in question["answers"]]
    if not answers:
        raise DataError(
            f"{where} has no answer. SQuAD 2.0 has such questions: leave them out of the file."
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


class DocstringQuestions(PythonPackages, QuestionSource):
    """Questions about the arguments and results of functions, answered by their docstrings.

    Docstrings in Google's style list arguments as `name: description`. "What is NAME?" is answered
    by the first sentence of the description, "What is returned?" by the first of `Returns:`. The
    questions are templates; texts and answers are real. A docstring is held out with all of its
    questions.
    """

    max_characters: int = 800  # of a docstring; longer ones are left out

    unit: ClassVar[str] = "docstring"

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "max_characters")

    def questions(self, *, progress: Progress | None = None) -> list[Question]:
        p = self.p
        source = Docstrings.params(
            packages=list(p.packages), split=p.split, heldout_fraction=p.heldout_fraction
        ).build()
        index = open_index(source, progress=progress)
        texts = index.texts(np.arange(len(index.units)))
        docstrings = [text.decode() for text in texts]
        return [
            question
            for docstring in docstrings
            if len(docstring) <= p.max_characters
            for question in docstring_questions(docstring)
        ]


def docstring_questions(text: str) -> Iterator[Question]:
    """Yields the questions about a docstring without its indentation.

    >>> text = "Adds.\\n\\nArgs:\\n  x: A number. Any.\\n"
    >>> [(one.question, one.answers) for one in docstring_questions(text)]
    [('What is x?', ('A number',))]
    """
    for section in _SECTION.finditer(text):
        name, body = section[1], section[2]
        if name == "Returns":
            starts = [("What is returned?", len(body) - len(body.lstrip()))]
        else:
            items = list(_ARGUMENT.finditer(body))
            indentation = min((item[1] for item in items), key=len, default="")
            starts = [
                (f"What is {item[2]}?", item.end()) for item in items if item[1] == indentation
            ]
        for question, begin in starts:
            answer = first_sentence(body[begin:])
            start = section.start(2) + begin
            if _MIN_ANSWER <= len(answer) <= _MAX_ANSWER and text[start:].startswith(answer):
                number = hashlib.sha256(f"{text}\0{start}".encode()).hexdigest()[:16]
                yield Question(number, text, question, (answer,), start)


def first_sentence(text: str) -> str:
    """Returns a text up to the end of its first sentence or paragraph, or to its next item.

    >>> first_sentence("A float, at least 0. Others fail.")
    'A float, at least 0'
    """
    end = _SENTENCE_END.search(text)
    found = text[: end.start()] if end else text
    item = _ARGUMENT.search(found)
    return (found[: item.start()] if item else found).strip()


def content_digest(questions: Sequence[Question]) -> str:
    """Returns another string whenever questions change: a SHA-256, hexadecimal."""
    digest = hashlib.sha256()
    for question in questions:
        digest.update(json.dumps(question).encode())
    return digest.hexdigest()
