"""Retrieval of the facts in templated dialogs."""

from __future__ import annotations

from collections.abc import Iterator

from lingo.config.base.errors import check_package
from lingo.datasets.signatures import Signatures
from tasks.dialog import facts
from tasks.dialog.tools.retrieval import Entry, Retrieval


class FactRetrieval(Retrieval):
    """Answers `Japan currency` with `Japan / currency / Japanese Yen`.

    It has the facts of `tasks/dialog/facts.py`, except for two kinds: `Translator` knows words in
    other languages, and `Calculator` arithmetic. Facts of `file` are added. Raises MissingPackage
    without Babel.
    """

    functions: Signatures = facts.FUNCTIONS  # functions whose purposes are known

    def setup(self) -> None:
        check_package("babel", "the tool FactRetrieval", extra="dialog")
        self.functions: Signatures = self.p.functions.build()
        super().setup()

    def entries(self) -> Iterator[Entry]:
        known = [*facts.cldr_facts(), *facts.documented_facts(self.functions)]
        for fact in known:
            if fact.kind != "word":
                source = "docstrings" if fact.kind == "purpose" else "Unicode CLDR"
                yield Entry(fact.subject, fact.relation, fact.value, source)
        yield from super().entries()
