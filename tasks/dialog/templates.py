"""Templated dialogs about real facts, with planted ratings or with calls of tools; small talk.

The conversations are read from the files of the package `chatterbot-corpus`, if it is installed;
the package is never imported.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import random
from pathlib import Path
from typing import ClassVar, Literal

from lingo.config import ranges
from lingo.data.files import DataError
from lingo.data.index import Progress, open_index
from lingo.data.record_source import Splittable
from lingo.datasets.signatures import Signatures
from tasks.dialog import facts
from tasks.dialog.facts import Fact
from tasks.dialog.research_writer import ResearchWriter
from tasks.dialog.tools.calculator import Calculator
from tasks.dialog.tools.fact_retrieval import FactRetrieval
from tasks.dialog.tools.tool import Tool
from tasks.dialog.tools.translator import Translator
from tasks.dialog.turns import Dialog, DialogSource, Turn
from tasks.dialog.writer import Asked, Writer

_FOLDER = Path(__file__).parent


class TemplateDialogs(DialogSource):
    """Templated dialogs about facts of CLDR and docstrings. Needs `pip install 'lingo-tf[dialog]'`.

    Responses are rated by the rules of `tasks/dialog/writer.py`. `heldout_facts` has other subjects
    than `train`, but the same wordings; `heldout_templates` has other wordings, but the same
    subjects. Dialog i of a split is a function of the seed and i. If the package
    `chatterbot-corpus` is installed, its small talk, without ratings, follows in `train`.
    """

    split: Literal["train", "heldout_facts", "heldout_templates"] = "train"
    num_dialogs: int  # without small talk
    seed: int = 0  # of the dialogs; the seed of a run only changes their order
    functions: Signatures = facts.FUNCTIONS  # functions that are asked about

    has_small_talk: ClassVar[bool] = True  # whether `train` has small talk

    def check(self) -> None:
        ranges.check_positive(self.p, "num_dialogs")

    def setup(self) -> None:
        self.functions: Signatures = self.p.functions.build()

    describe = Splittable.describe

    def dialogs(self, *, progress: Progress | None = None) -> list[Dialog]:
        writer = self._writer(progress=progress)
        dialogs = [writer.dialog(rng) for rng in self._generators()]
        return dialogs + (small_talk() if self._wants_small_talk else [])

    def content_id(self) -> str:
        """Returns a digest of the facts, the small talk and the code that writes dialogs.

        The dialogs themselves would take seconds to write, again for each input of an experiment.
        """
        code = hashlib.sha256()
        for path in sorted(_FOLDER.rglob("*.*")):
            if path.suffix in (".py", ".tsv"):
                code.update(path.read_bytes())
        functions = open_index(self.functions).digest
        tables = importlib.metadata.version("babel")
        for path in _small_talk_files() if self._wants_small_talk else []:
            code.update(path.read_bytes())
        return f"{self.p} {functions} {tables} {code.hexdigest()}"

    def questions(self) -> list[Asked]:
        """Returns `num_dialogs` questions and requests; they are not those of `dialogs`."""
        writer = self._writer()
        return [writer.ask(rng) for rng in self._generators()]

    def remarks(self) -> list[str]:
        if self._wants_small_talk and not _small_talk_files():
            return ["no small talk: the package chatterbot-corpus is not installed"]
        return []

    def writer(self, known: list[Fact], *, heldout: bool) -> Writer:
        """Returns the writer of dialogs about some facts, in the wordings of a split."""
        return Writer(known, heldout=heldout)

    @property
    def _wants_small_talk(self) -> bool:
        return self.has_small_talk and self.p.split == "train"

    def _generators(self) -> list[random.Random]:
        p = self.p
        return [random.Random(f"{p.seed} {p.split} {i}") for i in range(p.num_dialogs)]

    def _writer(self, *, progress: Progress | None = None) -> Writer:
        known = facts.all_facts(self.functions, progress=progress)
        split = self.p.split
        kept = [fact for fact in known if fact.is_heldout == (split == "heldout_facts")]
        return self.writer(kept, heldout=split == "heldout_templates")


class ResearchDialogs(TemplateDialogs):
    """Like TemplateDialogs, but all responses are good, and based on the tools' results.

    `tasks/dialog/research_writer.py` shows examples. There are no ratings and no small talk. If
    `functions` is changed, set `FactRetrieval.functions` to the same, so that purposes are found.
    """

    tools: list[Tool] = [Calculator, Translator, FactRetrieval]
    invented_share: float = 0.0  # share of the questions with invented names

    has_small_talk = False

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "invented_share")

    def setup(self) -> None:
        super().setup()
        self.tools: list[Tool] = [tool.build() for tool in self.p.tools]

    def writer(self, known: list[Fact], *, heldout: bool) -> Writer:
        share = self.p.invented_share
        return ResearchWriter(known, self.tools, heldout=heldout, invented_share=share)


def small_talk() -> list[Dialog]:
    """Returns the conversations of the package, in the order of its files; [] without it.

    User and model take turns. Raises DataError if a file does not have the package's format.
    """
    files = _small_talk_files()
    if not files:
        return []
    import yaml

    dialogs = []
    for path in files:
        try:
            content = yaml.safe_load(path.read_text())
            conversations = [list(map(str, texts)) for texts in content["conversations"]]
        except (yaml.YAMLError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: no conversations: {error}.") from None
        dialogs += [_dialog(texts) for texts in conversations if len(texts) > 1]
    return dialogs


def _small_talk_files() -> list[Path]:
    """Returns the files of the package; [] without it, or without PyYAML."""
    spec = importlib.util.find_spec("chatterbot_corpus")
    if spec is None or spec.origin is None or importlib.util.find_spec("yaml") is None:
        return []
    return sorted((Path(spec.origin).parent / "data/english").glob("*.yml"))


def _dialog(texts: list[str]) -> Dialog:
    return Dialog(tuple(Turn("model" if i % 2 else "user", text) for i, text in enumerate(texts)))
