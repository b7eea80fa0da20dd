"""Questions about the facts of CLDR with answers, to test what a model knows by heart.

Both splits ask about every fact, but in different sentences: `heldout` has the sentences that
`train` lacks. So it tests whether a model has learned these facts, not whether it knows more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import ClassVar, Literal

from lingo.data.files import File, FilePattern, Read
from lingo.data.index_cache import cache_folder
from lingo.data.pairs.pair import PairSource, pair
from lingo.data.record_source import DecodedRecords
from lingo.data.sources.jsonl import lines
from lingo.storage.files import explain_write_errors, write_bytes
from tasks.dialog.facts import cldr_facts
from tasks.dialog.wordings import QUESTIONS


class FactQuestions(DecodedRecords, PairSource):
    """Questions about currencies, languages and words, and their answers. Needs the extra `dialog`.

    The questions are written to a table in the user's cache directory at first use.
    """

    wordings: Literal["train", "heldout"] = "train"  # the dialogs' sentences, or held-out sentences

    unit: ClassVar[str] = "line"

    def places(self) -> list[FilePattern]:
        """Returns the table, written at first use; raises MissingPackage without Babel."""
        rows = [
            f"{wording.format(**fact._asdict())}\t{fact.value}\n"
            for fact in cldr_facts()
            for wording in QUESTIONS[fact.kind].of(heldout=self.p.wordings == "heldout")
        ]
        content = "".join(rows).encode()
        folder = cache_folder("questions")
        path = folder / f"{hashlib.sha256(content).hexdigest()}.tsv"
        if not path.is_file():
            with explain_write_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        return [FilePattern(str(folder), path.name)]

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        return lines(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        question, _, answer = data.decode().rstrip("\n").partition("\t")
        return pair(question, answer, where)
