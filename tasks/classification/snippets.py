"""Classification as text to text: a snippet of code goes in, its label comes out as a word.

This is a small suite of tasks from real code, for fine-tuning. Every snippet begins with the name
of its task, so that one model can learn several tasks. `split=heldout` shares neither a file nor a
text with `split=train`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import itertools
import keyword
import re
import textwrap
import token
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.data.files import File, Read, list_files
from lingo.data.pairs.pair import SEPARATOR, PairSource, Part, pair
from lingo.data.record_source import PythonPackages
from lingo.datasets import syntax
from lingo.datasets.docstrings import summary


class LabelledText(NamedTuple):
    """A snippet, without the name of its task, and the word that the model must answer."""

    text: str
    label: str


class Snippets(PythonPackages, PairSource):
    """Labelled snippets of Python files.

    A subclass finds snippets in a file (`candidates`) and labels them (`label`). From each file it
    takes the snippets whose bytes have the smallest hashes, up to `per_label` of each label, so
    that neither large files nor frequent labels dominate.
    """

    heldout_fraction: float = 0.1  # share that is held out, chosen by a hash
    per_label: int = 4  # most snippets of each label from one file
    unique: bool = True  # leave out a snippet if an earlier one in any split has the same text

    unit: ClassVar[str] = "snippet"
    identified_by: ClassVar[Part] = "source"
    task: ClassVar[str]  # every snippet begins with it
    labels: ClassVar[list[str]]  # all answers, one word each

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "per_label")

    def candidates(self, code: syntax.Parsed) -> Iterable[tuple[int, int]]:
        """Returns the (start, end) byte offsets of the parts of a file that may be snippets."""
        raise NotImplementedError(f"{type(self).__name__} has no candidates")

    def label(self, file: File, data: bytes) -> LabelledText | None:
        """Returns a snippet with its label, or None to skip it; only the arguments decide."""
        raise NotImplementedError(f"{type(self).__name__} has no label")

    def quota(self, file: File) -> int:
        """Returns the largest number of snippets of each label from a file."""
        del file
        return self.p.per_label

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        data = read(0, file.size)
        if (code := syntax.parse(data)) is None:
            return iter(())
        snippets = {(a, b): data[a:b] for a, b in self.candidates(code)}
        left = dict.fromkeys(self.labels, self.quota(file))
        spans = []
        for begin, end in sorted(snippets, key=lambda span: (draw(snippets[span]), span)):
            if not any(left.values()):
                break
            example = self.label(file, snippets[begin, end])
            if example and left[example.label]:
                left[example.label] -= 1
                spans.append((begin, end - begin))
        return iter(sorted(spans))

    def document(self, file: File, data: bytes, where: str) -> bytes:
        example = self.label(file, data)
        if example is None or SEPARATOR in data:  # a pair cannot hold a separator
            return b""
        return pair(f"{self.task}: {example.text}", example.label, where)


def draw(data: bytes, name: str = "") -> int:
    """Returns a pseudo-random int below 2**64 that depends on the bytes and the name only."""
    return int.from_bytes(hashlib.sha256(name.encode() + b"\0" + data).digest()[:8], "big")


def _statements(code: syntax.Parsed) -> Iterator[ast.stmt]:
    return itertools.chain.from_iterable(syntax.blocks(code.tree))


class Brackets(Snippets):
    """`brackets: f(x[0)` -> `differ`: whether brackets match; brackets in strings count, too.

    In half of the statements, chosen by their hash, one bracket is removed or replaced.
    """

    task = "brackets"
    labels = ["match", "differ"]

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for statement in _statements(code):
            start, stop = code.start(statement), code.end(statement)
            if _is_simple(statement) and stop - start <= 160:
                yield start, stop

    def label(self, file: File, data: bytes) -> LabelledText | None:
        del file
        text = data.decode()
        indices = [i for i, character in enumerate(text) if character in _BRACKETS]
        if len(indices) < 4 or not brackets_match(text):
            return None
        if draw(data, "label") % 2:
            return LabelledText(text, "match")
        index = indices[draw(data, "place") % len(indices)]
        others = ["", *_BRACKETS.replace(text[index], "")]
        other = others[draw(data, "other") % len(others)]
        return LabelledText(text[:index] + other + text[index + 1 :], "differ")


_OPENING = {")": "(", "]": "[", "}": "{"}
_BRACKETS = "()[]{}"


def brackets_match(text: str) -> bool:
    """Returns whether each closing bracket matches the last open one, and none stays open."""
    stack: list[str] = []
    for character in text:
        if character in _OPENING:
            if not stack or stack.pop() != _OPENING[character]:
                return False
        elif character in _BRACKETS:
            stack.append(character)
    return not stack


def _is_simple(statement: ast.stmt) -> bool:
    """Returns whether a statement contains no other statement and is not a docstring."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    return isinstance(
        statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Assert
    )


class DocstringMatch(Snippets):
    """`docstring: def mean(x)`, and on the next line `Adds two numbers.` -> `differ`.

    A snippet is a signature and the first paragraph of a docstring. The label says whether the
    docstring belongs to the signature.

    Among the functions and classes with docstrings in a block, the second, fourth, ... is paired
    with the next one's docstring. The next one is also paired with its own docstring, so that a
    docstring alone does not reveal the label. A span with one docstring is a match; a span with two
    is not.
    """

    task = "docstring"
    labels = ["match", "differ"]

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for block in syntax.blocks(code.tree):
            nodes = syntax.documented_among(block)
            for other, own in zip(nodes[1::2], nodes[2::2], strict=False):
                for first in (other, own):
                    yield code.line(first.owner), code.end(own.literal)

    def label(self, file: File, data: bytes) -> LabelledText | None:
        del file
        nodes = syntax.excerpt(data)
        if not nodes:
            return None
        own, last = summary(nodes[0].docstring), summary(nodes[-1].docstring)
        label = "match" if len(nodes) == 1 else "differ"
        if not last or (label == "differ" and own == last):
            return None
        return LabelledText(f"{nodes[0].signature}\n{last}", label)


class Exceptions(Snippets):
    """`exception: if x < 0: raise ...("x is negative")` -> one of five frequent exceptions.

    A snippet is a `raise` with up to four lines before it.
    """

    per_label: int = 2  # most snippets of each label from one file

    task = "exception"
    labels = ["ValueError", "TypeError", "NotImplementedError", "RuntimeError", "AttributeError"]

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for statement in _statements(code):
            if isinstance(statement, ast.Raise) and _exception(statement) in self.labels:
                start = code.lines[max(statement.lineno - 5, 0)]
                if (stop := code.end(statement)) - start <= 320:
                    yield start, stop

    def label(self, file: File, data: bytes) -> LabelledText | None:
        del file
        text = textwrap.dedent(data.decode()).strip()
        match = _LAST_RAISE.match(text)
        if not match or match[1] not in self.labels or text.count(match[1]) > 1:
            return None
        return LabelledText(text[: match.start(1)] + "..." + text[match.end(1) :], match[1])


_LAST_RAISE = re.compile(r"(?s:.*)(?:^|[:;])[ \t]*raise (\w+)", re.MULTILINE)


def _exception(statement: ast.Raise) -> str | None:
    """Returns the name of the exception of a `raise`, with or without arguments; else None."""
    cause = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
    return cause.id if isinstance(cause, ast.Name) else None


class Libraries(Snippets):
    """`library: def f(x): ...` -> the package that has the function.

    Functions that name one of the packages are left out. The fewer files a package has, the more
    functions are taken from each of its files.
    """

    task = "library"

    def check(self) -> None:
        super().check()
        if len(self.p.packages) < 2:
            raise ParamError(f"packages={list(self.p.packages)}: there is nothing to tell apart")

    @property
    def labels(self) -> list[str]:
        return list(self.p.packages)

    def quota(self, file: File) -> int:
        files = self._num_files
        return round(self.p.per_label * max(files.values()) / files[_package(file)])

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for node in _statements(code):
            start, stop = code.line(node), code.end(node)
            if isinstance(node, syntax.Definition) and stop - start <= 400:
                yield start, stop

    def label(self, file: File, data: bytes) -> LabelledText | None:
        text = textwrap.dedent(data.decode())
        names = re.search(rf"\b({'|'.join(self.p.packages)})\b", text)
        return None if names else LabelledText(text, _package(file))

    @functools.cached_property
    def _num_files(self) -> Counter[str]:
        """Number of files of each package, in all splits."""
        return Counter(map(_package, list_files(self.places())))


def _package(file: File) -> str:
    return file.name.partition("/")[0]


class TokenKinds(Snippets):
    """`kind: x = «len»(y)` -> `name`: the kind of the token between « and », by `tokenize`.

    Kinds are comment, number, string, keyword, operator and name. The hash of a line chooses one of
    the kinds that the line has: the first in this order with probability 1/2, the next with 1/4,
    and so on. It also chooses a token of that kind. So rare kinds are asked for more often than
    they occur.
    """

    task = "kind"
    labels = ["comment", "number", "string", "keyword", "operator", "name"]  # the rarest first

    def candidates(self, code: syntax.Parsed) -> Iterator[tuple[int, int]]:
        for statement in _statements(code):
            if statement.lineno == statement.end_lineno:
                start, stop = code.start(statement), code.lines[statement.lineno]
                if stop - start <= 120:
                    yield start, stop

    def label(self, file: File, data: bytes) -> LabelledText | None:
        del file
        line = data.decode().strip()
        if "«" in line or "»" in line:
            return None
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(line).readline))
        except (tokenize.TokenError, SyntaxError):  # part of a line may be no code by itself
            return None
        present = {_kind(t) for t in tokens}
        kinds = [label for label in self.labels if label in present]
        if not kinds:
            return None
        number = draw(data, "kind")
        zeros = (number & -number).bit_length() - 1  # 0 with probability 1/2, 1 with 1/4, ...
        label = kinds[min(zeros, len(kinds) - 1)]
        spans = [(t.start[1], t.end[1]) for t in tokens if _kind(t) == label]
        begin, end = spans[draw(data, "place") % len(spans)]
        return LabelledText(f"{line[:begin]}«{line[begin:end]}»{line[end:]}", label)


_KINDS = {
    token.COMMENT: "comment",
    token.NUMBER: "number",
    token.STRING: "string",
    token.OP: "operator",
    token.NAME: "name",
}


def _kind(info: tokenize.TokenInfo) -> str | None:
    if info.type == token.NAME and keyword.iskeyword(info.string):
        return "keyword"
    return _KINDS.get(info.type)
