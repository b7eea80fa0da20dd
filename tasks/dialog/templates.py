"""Dialogs by templates over real facts: with planted ratings, or with calls of tools."""

from __future__ import annotations

import hashlib
import importlib.metadata
import random
from pathlib import Path
from typing import Literal

from lingo.config import ranges
from lingo.data.index import Progress, open_index
from lingo.data.record_source import Splittable
from lingo.datasets.signatures import Signatures
from tasks.dialog import facts
from tasks.dialog.facts import Fact
from tasks.dialog.research_writer import ResearchWriter
from tasks.dialog.small_talk import small_talk
from tasks.dialog.tools.calculator import Calculator
from tasks.dialog.tools.fact_retrieval import FactRetrieval
from tasks.dialog.tools.tool import Tool
from tasks.dialog.tools.translator import Translator
from tasks.dialog.turns import Dialog, DialogSource
from tasks.dialog.writer import Asked, Writer

_FOLDER = Path(__file__).parent


class TemplateDialogs(DialogSource):
    """Dialogs by templates over facts of CLDR and of docstrings. `pip install 'lingo-tf[dialog]'`.

    Responses are rated by the rules of `tasks/dialog/writer.py`. `train` has neither the subjects
    of `heldout_facts` nor the wordings of `heldout_templates`; each of these shares all else with
    it. Dialog i of a split is a function of the seed and i. Small talk of the package
    `chatterbot-corpus`, without ratings, follows in `train`, if it is installed.
    """

    split: Literal["train", "heldout_facts", "heldout_templates"] = "train"
    num_dialogs: int  # without small talk
    seed: int = 0  # of the dialogs; the seed of a run only changes their order
    functions: Signatures = facts.FUNCTIONS  # that are asked about

    def check(self) -> None:
        ranges.check_positive(self.p, "num_dialogs")

    def setup(self) -> None:
        self.functions: Signatures = self.p.functions.build()

    describe = Splittable.describe

    def dialogs(self, *, progress: Progress | None = None) -> list[Dialog]:
        writer = self._writer(progress=progress)
        dialogs = [writer.dialog(rng) for rng in self._generators()]
        return dialogs + (small_talk() if self.p.split == "train" else [])

    def content_id(self) -> str:
        """Returns a digest of the facts and of the code that dialogs are written by.

        Writing them takes seconds, and each input of an experiment would write them again.
        """
        code = hashlib.sha256()
        for path in sorted(_FOLDER.rglob("*.*")):
            if path.suffix in (".py", ".tsv"):
                code.update(path.read_bytes())
        functions = open_index(self.functions).digest
        tables = importlib.metadata.version("babel")
        return f"{self.p} {functions} {tables} {code.hexdigest()}"

    def questions(self) -> list[Asked]:
        """Returns what is asked after the first words of as many dialogs as the source has."""
        writer = self._writer()
        return [writer.ask(rng) for rng in self._generators()]

    def remarks(self) -> list[str]:
        if self.p.split == "train" and not small_talk():
            return ["no small talk: the package chatterbot-corpus is not installed"]
        return []

    def writer(self, known: list[Fact], *, heldout: bool) -> Writer:
        """Returns what writes the dialogs, about some facts, in the wordings of a split."""
        return Writer(known, heldout=heldout)

    def _generators(self) -> list[random.Random]:
        p = self.p
        return [random.Random(f"{p.seed} {p.split} {i}") for i in range(p.num_dialogs)]

    def _writer(self, *, progress: Progress | None = None) -> Writer:
        known = facts.all_facts(self.functions, progress=progress)
        split = self.p.split
        kept = [fact for fact in known if fact.is_heldout == (split == "heldout_facts")]
        return self.writer(kept, heldout=split == "heldout_templates")


class ResearchDialogs(TemplateDialogs):
    """As TemplateDialogs, but all responses are good, and rest on what tools found.

    `tasks/dialog/research_writer.py` shows one. There are no ratings and no small talk. Purposes of
    other `functions` are found if `FactRetrieval.functions` has them, too.
    """

    tools: list[Tool] = [Calculator, Translator, FactRetrieval]

    def setup(self) -> None:
        super().setup()
        self.tools: list[Tool] = [tool.build() for tool in self.p.tools]

    def dialogs(self, *, progress: Progress | None = None) -> list[Dialog]:
        return super().dialogs(progress=progress)[: self.p.num_dialogs]

    def remarks(self) -> list[str]:
        return []

    def writer(self, known: list[Fact], *, heldout: bool) -> Writer:
        return ResearchWriter(known, self.tools, heldout=heldout)
