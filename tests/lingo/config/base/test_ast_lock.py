"""One thread at a time parses Python, whatever it parses it for."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lingo.config import docs
from lingo.config.base import types
from lingo.config.base.ast_lock import AST_LOCK
from lingo.config.roots import roots
from lingo.datasets import docstrings
from lingo.trainer.summaries import hparams


@pytest.mark.parametrize(
    "use",
    [
        lambda: roots.parse(pathlib.Path(__file__)),
        lambda: types.unquote("'a'"),
        lambda: docs._statements(threading.Thread),
        lambda: list(docstrings.literals(b"'a'")),
        lambda: docstrings.docstring(b"'a'"),
        lambda: hparams._value("1"),
    ],
)
def test_everybody_waits_for_who_is_parsing(use: Callable[[], Any]) -> None:
    thread = threading.Thread(target=use)
    with AST_LOCK:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()
