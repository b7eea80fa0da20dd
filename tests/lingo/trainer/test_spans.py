"""Which steps are done together."""

from __future__ import annotations

from lingo.trainer.spans import spans


def test_loops_end_where_something_is_due() -> None:
    assert list(spans(3, 21, size=10, due=[6, 20])) == [
        range(3, 6), range(6, 12), range(12, 18), range(18, 20), range(20, 21),
    ]  # fmt: skip
    assert list(spans(0, 9, size=10, due=[20], bounds=(3, 5))) == [
        range(0, 3), range(3, 5), range(5, 9),
    ]  # fmt: skip
