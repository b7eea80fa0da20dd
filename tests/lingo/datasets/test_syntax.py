"""Python code is cut where its syntax says, in bytes."""

import ast

import pytest

from lingo.datasets import syntax

CODE = '''class Größe:
    """A size."""

    @staticmethod
    def f(x):
        """Does f."""

    async def g(self, *, y: int = 1, **rest) -> None:
        "Does g."
        return

if True:
    def h(): "Does h."
'''


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_nodes_know_their_bytes(mark):
    data = mark + CODE.encode()
    code = syntax.parse(data)
    assert code is not None
    found = syntax.documented_nodes(code.tree)
    assert [item.docstring for item in found] == ["A size.", "Does f.", "Does g.", "Does h."]
    for owner, literal in found:
        assert isinstance(owner, syntax.Definition)
        assert data[code.start(literal) : code.end(literal)].strip(b'"').endswith(b".")
        assert data[code.start(owner) :].startswith((b"class", b"def", b"async"))
        assert data[code.line(owner) : code.start(owner)].strip() == b""
    assert code.line(code.tree) == len(mark)


def test_signatures_are_in_one_line():
    tree = ast.parse(CODE)
    assert [item.signature for item in syntax.documented_nodes(tree)] == [
        "class Größe",
        "def f(x)",
        "async def g(self, *, y: int=1, **rest) -> None",
        "def h()",
    ]
    (node,) = ast.parse("class A(\n  B,\n  metaclass=C):\n  pass").body
    assert isinstance(node, ast.ClassDef)
    assert syntax.signature(node) == "class A(B, metaclass=C)"
    assert syntax.signature(tree) == ""


def test_blocks_are_those_of_the_module_and_of_all_in_it():
    tree = ast.parse("try:\n  a\nexcept E:\n  b\nelse:\n  c\nfinally:\n  d\nf = lambda: 1\n")
    first_letters = sorted(ast.unparse(block[0])[0] for block in syntax.blocks(tree))
    assert first_letters == ["a", "b", "c", "d", "t"]


def test_an_excerpt_is_read_with_its_indentation():
    data = CODE.encode()
    first = data.index(b"    def f")
    one = syntax.excerpt(data[first : data.index(b'f."""') + 5])
    assert [(d.signature, d.docstring) for d in one] == [("def f(x)", "Does f.")]
    two = syntax.excerpt(data[first : data.index(b'g."') + 3])
    assert [d.docstring for d in two] == ["Does f.", "Does g."]
    assert [d.docstring for d in syntax.excerpt(data[: data.index(b"size.") + 8])] == ["A size."]
    assert syntax.excerpt(b"def f(:") == []
    assert syntax.excerpt(b"x = 1\n") == []
