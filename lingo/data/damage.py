"""What of a source is left out because it is damaged: counted and listed, never in silence."""

from __future__ import annotations

from typing import NamedTuple

_LISTED = 5


class Damage(NamedTuple):
    """Records that were left out.

    Attributes:
        records: how many; where a file was left with no way to find its next record, so many as its
            last bytes would be, by the mean size of those before.
        num_bytes: of them, in the files.
        listed: what was wrong with the first few: file, record, byte, reason.
    """

    records: int = 0
    num_bytes: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, what: str, *, num_bytes: int, records: int = 1) -> Damage:
        """Returns this and more.

        Args:
            what: file, record, byte and reason.
            num_bytes: that are left out.
            records: that these are.
        """
        listed = (*self.examples, what)[:_LISTED]
        return Damage(self.records + records, self.num_bytes + num_bytes, listed)

    def __str__(self) -> str:
        """Says how many, and which the first are, a line each."""
        count = "1 damaged record" if self.records == 1 else f"{self.records:,} damaged records"
        first = "" if self.records == len(self.examples) else ", the first"
        return f"{count} of {self.num_bytes:,} bytes{first}:" + "".join(
            f"\n  {what}" for what in self.examples
        )
