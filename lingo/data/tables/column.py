"""The meaning of a table's columns, as configurations hold it."""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.params import Configurable
from lingo.data.tables.cells import DateOrder


class Column(Configurable, interface=True):
    """The meaning of the cells of a table's column."""


class NumberColumn(Column):
    """Cells are numbers, such as 3, -0.5 or 1e-3."""


class DateColumn(Column):
    """Cells are dates, perhaps with a time of day; a model gets days since 1970."""

    order: DateOrder = "year_first"  # 2024-01-31, 31.1.2024 or 1/31/2024


class CategoryColumn(Column):
    """Cells are names of categories."""

    num_values: int  # largest number of categories a model tells apart; others are unknown

    def check(self) -> None:
        ranges.check_positive(self.p, "num_values")
