"""Classifies functions by the library that they are from."""

from __future__ import annotations

import functools
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from lingo.config.params import ParamError
from lingo.data.sources import syntax
from lingo.data.sources.files import File, list_files
from tasks.classification.snippets import LabelledText, Snippets

_MAX_BYTES = 400


class Libraries(Snippets):
    """`library: def f(x): ...` -> the package that the function is from.

    Functions that mention one of the packages are left out. The fewer files a package has, the more
    functions come from each file.
    """

    task: ClassVar[str] = "library"

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
        for block in syntax.blocks(code.tree):
            for node in block:
                start, stop = code.line(node), code.end(node)
                if isinstance(node, syntax.Definition) and stop - start <= _MAX_BYTES:
                    yield start, stop

    def label(self, file: File, data: bytes) -> LabelledText | None:
        text = textwrap.dedent(data.decode())
        return None if self._names.search(text) else LabelledText(text, _package(file))

    @functools.cached_property
    def _num_files(self) -> Counter[str]:
        """Number of files of each package, in all splits."""
        return Counter(map(_package, list_files(self.places())))

    @functools.cached_property
    def _names(self) -> re.Pattern[str]:
        return re.compile(rf"\b({'|'.join(self.p.packages)})\b")


def _package(file: File) -> str:
    return file.name.partition("/")[0]
