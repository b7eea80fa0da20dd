"""Counts and lists the damaged records of a source that are left out."""

from __future__ import annotations

from typing import NamedTuple

_LISTED = 5


class Damage(NamedTuple):
    """Damaged records that were left out.

    Attributes:
        records: number of records; where the next record of a file cannot be found, the rest of the
            file counts by the mean size of the records before.
        num_bytes: their bytes in the files.
        examples: what is wrong with the first few: file, record, byte, reason.
    """

    records: int = 0
    num_bytes: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, what: str, *, num_bytes: int, records: int = 1) -> Damage:
        """Returns this damage and some more.

        Args:
            what: file, record, byte and reason.
            num_bytes: bytes that are left out.
            records: number of records in these bytes.
        """
        listed = (*self.examples, what)[:_LISTED]
        return Damage(self.records + records, self.num_bytes + num_bytes, listed)

    def __str__(self) -> str:
        """Returns the number of records, and the first few on a line each."""
        count = "1 damaged record" if self.records == 1 else f"{self.records:,} damaged records"
        first = "" if self.records == len(self.examples) else ", the first"
        return f"{count} of {self.num_bytes:,} bytes{first}:" + "".join(
            f"\n  {what}" for what in self.examples
        )
