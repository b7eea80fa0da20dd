"""Labels are what they say, by independent means."""

from __future__ import annotations

import ast
import collections
import io
import keyword
import re
import tokenize
from typing import Any

from lingo.data.files import File
from lingo.data.index import open_index
from lingo.data.pairs.pair import PairTokenizer
from lingo.datasets import syntax
from tasks.classification.snippets import (
    Brackets,
    DocstringMatch,
    Exceptions,
    LabelledText,
    Libraries,
    Snippets,
    TokenKinds,
    brackets_match,
)

FILE = File("a/b.py", "/a/b.py", 0, "")


def snippets(kind: type[Snippets]) -> list[tuple[str, str]]:
    """Returns all of rich and absl, without the name of the task."""
    source = kind.params(packages=["rich", "absl"]).build()
    index = open_index(source, PairTokenizer.params().build())
    whole = [index.read(d, 0, int(n)).decode().split("\x1e") for d, n in enumerate(index.size)]
    return [(source.partition(": ")[2], label) for source, label in whole]


def shares(found: list[tuple[str, str]]) -> dict[str, float]:
    """Returns label -> share of the snippets."""
    counts = collections.Counter(label for _, label in found)
    return {label: count / len(found) for label, count in counts.items()}


def label_all(kind: type[Snippets], code: str) -> list[LabelledText | None]:
    """Returns what becomes of every candidate in some code."""
    source, data = kind.params().build(), code.encode()
    parsed = syntax.parse(data)
    assert parsed is not None
    return [source.label(FILE, data[a:b]) for a, b in source.candidates(parsed)]


def test_the_marked_token_is_of_its_kind() -> None:
    found = snippets(TokenKinds)
    for text, label in found:
        marked = text[text.index("«") + 1 : text.index("»")]
        token = next(tokenize.generate_tokens(io.StringIO(marked).readline))
        kind = {"keyword": "NAME", "operator": "OP"}.get(label, label.upper())
        assert tokenize.tok_name[token.type] == kind, text
        assert keyword.iskeyword(marked) == (label == "keyword")
    assert set(shares(found)) == {"comment", "number", "string", "keyword", "operator", "name"}
    assert max(shares(found).values()) < 0.35


def by_removal(text: str) -> bool:
    brackets = "".join(c for c in text if c in "()[]{}")
    while brackets != (brackets := re.sub(r"\(\)|\[\]|\{\}", "", brackets)):
        pass
    return not brackets


def test_brackets_match_where_pairs_of_them_can_all_be_removed() -> None:
    found = snippets(Brackets)
    for text, label in found:
        assert (label == "match") == by_removal(text) == brackets_match(text), text
    assert 0.45 < shares(found)["match"] < 0.55
    for text in ("", "f(x)[{1: ()}]", "(]", "(", ")(", "([)]", "{{}"):
        assert brackets_match(text) == by_removal(text)


def test_docstrings_take_no_part_in_brackets() -> None:
    assert label_all(Brackets, '"((()))"\ndef f():\n  "(()())"\n') == []


def test_the_exception_that_is_raised_is_hidden_and_asked_for() -> None:
    code = """
def f(x):
    if x:
        raise ValueError("no")
    raise KeyError(x)

raise TypeError
"""
    found = label_all(Exceptions, code)
    assert LabelledText('def f(x):\n    if x:\n        raise ...("no")', "ValueError") in found
    assert [s and s.label for s in found] == ["TypeError", "ValueError"]
    for text, label in snippets(Exceptions):
        assert label not in text
        assert "raise ..." in text
    quoted = """
raise ValueError("do not raise TypeError here")
"""
    assert [s and s.label for s in label_all(Exceptions, quoted)] == ["ValueError"]


def test_every_docstring_is_shown_with_its_own_function_and_with_another() -> None:
    code = "\n".join(f'def f{i}():\n    """Does the work of {i}."""' for i in range(6))
    found = label_all(DocstringMatch, code)
    assert found == [
        LabelledText("def f1()\nDoes the work of 2.", "differ"),
        LabelledText("def f2()\nDoes the work of 2.", "match"),
        LabelledText("def f3()\nDoes the work of 4.", "differ"),
        LabelledText("def f4()\nDoes the work of 4.", "match"),
    ]


def test_equal_docstrings_are_not_said_to_differ() -> None:
    code = "\n".join(f'def f{i}():\n    """Does the same as others."""' for i in range(3))
    assert [s and s.label for s in label_all(DocstringMatch, code)] == [None, "match"]


def test_matches_are_those_of_python() -> None:
    own = set()
    for package in ("rich", "absl"):
        for file in DocstringMatch.params(packages=[package]).build().files():
            with open(file.path, encoding="utf-8") as code:
                nodes = ast.walk(ast.parse(code.read()))
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            own |= {(n.name, _summary(n)) for n in nodes if isinstance(n, kinds)}
    found = snippets(DocstringMatch)
    for text, label in found:
        signature, _, shown = text.partition("\n")
        name = re.split(r"[ (]", signature.removeprefix("async "))[1]
        if label == "match":
            assert (name, shown) in own, text
    assert 0.4 < shares(found)["match"] < 0.6


def _summary(node: Any) -> str:
    first = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return " ".join(first.split())


def test_libraries_are_those_of_the_files_and_about_equally_many() -> None:
    found = snippets(Libraries)
    assert not [text for text, _ in found if re.search(r"\b(rich|absl)\b", text)]
    assert set(shares(found)) == {"rich", "absl"}
    assert min(shares(found).values()) > 0.25
    for text, _ in found:
        ast.parse(text)
