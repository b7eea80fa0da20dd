"""Docstrings are what Python says they are, found without importing anything."""

import ast
import inspect

import pytest

from lingo.config.params import ParamError
from lingo.data.index import open_index
from lingo.datasets.docstrings import (
    Docstrings,
    Doctests,
    docstring,
    english,
    examples,
    literals,
)
from tests.lingo.data.documents import BYTES, texts

CODE = r'''"""The module's own text."""
import sys

class A:
    "One line " "in two parts."

    def f(self):
        r"""Raw \d text, größer.

            Indented more.
        """

    async def g(self):
        """Escapes: \d, \\d, \n, \x41, \u00e4 and a \
        continued line."""

    def none(self):
        b"bytes are no docstring"

    def formatted(self):
        f"nor is {self}"


if sys:
    try:
        def h():
            """Inside other blocks."""
    finally:
        def i(): "On one line."
'''


def found(code):
    return [docstring(code[start : start + size]) for start, size in literals(code)]


def by_ast(code):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for n in ast.walk(ast.parse(code)) if isinstance(n, kinds)]
    nodes.sort(key=lambda n: getattr(n, "lineno", 0))
    return [d for n in nodes if (d := ast.get_docstring(n)) is not None]


@pytest.mark.filterwarnings("ignore:invalid escape")
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_docstrings_are_those_of_python(mark, ending):
    code = mark + CODE.encode().replace(b"\n", ending)
    assert len(by_ast(code)) == 6
    assert [d.replace("\r\n", "\n") for d in found(code)] == by_ast(code)


def test_reading_a_docstring_warns_of_nothing():
    assert docstring(rb'"a \d \q \777 \\d"') == "a \\d \\q \u01ff \\d"  # warnings are errors here


@pytest.mark.parametrize("code", [b"print 'two'", b"x = '\xff'", b"a\x00b", b"(" * 5000])
def test_a_file_that_is_no_python_has_none(code):
    assert found(code) == []


def test_english_is_prose_without_examples_and_fenced_code():
    text = """Adds two numbers to a third.

    >>> add(1, 2)
    3

    This is how:

    ```python
    add(1, 2)
    ```

    Returns the sum."""
    assert english(inspect.cleandoc(text)) == (
        "Adds two numbers to a third.\n\nThis is how:\n\nReturns the sum.\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "relu gelu silu tanh sigmoid softmax softplus",
        "Ein Text, der von anderen Dingen handelt und in keiner Weise verständlich wäre.",
        "これは英語ではない the text is not in English",
        ">>> this is the code of an example",
    ],
)
def test_what_is_not_english_is_left_out(text):
    assert english(text) == ""


def test_examples_are_prompts_and_answers_as_an_interpreter_shows_them():
    text = """Words.

        >>> x = 1
        >>> for i in range(2):
        ...     print(i + x)
        1
        2

        More words.
        >>> x
        1
        """
    assert (
        examples(text)
        == ">>> x = 1\n>>> for i in range(2):\n...     print(i + x)\n1\n2\n>>> x\n1\n"
    )


def test_examples_without_an_answer_or_with_broken_indentation_are_left_out():
    assert examples(">>> x = 1\n") == ""
    assert examples("    >>> x\n  1\n") == ""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "installed" / "a_package"
    folder.mkdir(parents=True)
    boom = '"""This is the text of a module."""\nraise RuntimeError("imported")\n'
    (folder / "__init__.py").write_text(boom)
    (folder / "copy.py").write_text(boom)
    (folder / "more.py").write_text(
        'def f():\n    """Adds one to the x.\n\n    >>> f()\n    1\n    """\n'
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    return "a_package"


def test_each_text_of_a_package_is_one_document(package):
    index = open_index(Docstrings.params(packages=[package]).build(), BYTES)
    assert [f.name for f in index.files] == [
        "a_package/__init__.py",
        "a_package/copy.py",
        "a_package/more.py",
    ]
    assert texts(index) == ["This is the text of a module.\n", "Adds one to the x.\n"]
    doctests = open_index(Doctests.params(packages=[package]).build(), BYTES)
    assert texts(doctests) == [">>> f()\n1\n"]


def test_wrong_packages_are_refused_at_build():
    with pytest.raises(ParamError, match="packages is empty"):
        Docstrings.params(packages=[]).build()
    with pytest.raises(ParamError, match=r"package='a\.b' is not the name"):
        Docstrings.params(packages=["a.b"]).build()
