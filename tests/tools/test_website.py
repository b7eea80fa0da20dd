"""The reference has an example for each exported class; tests/test_site.py builds them."""

from __future__ import annotations

import ast

from tools.website.examples import WIDTH, example
from tools.website.reference import public_names


def test_every_exported_class_has_an_example_or_shows_one() -> None:
    names = public_names()
    texts = {name: example(cls, names) for cls, name in names.items()}
    assert len(texts) > 100
    for name, text in texts.items():
        ast.parse(text)
        assert max(map(len, text.splitlines()), default=0) <= WIDTH, name
