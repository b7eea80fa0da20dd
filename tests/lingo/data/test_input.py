"""The input contract counts batches and epochs from the number of examples."""

from __future__ import annotations

from typing import Any

import pytest

from lingo.data.input import Input


class Seven(Input):
    """Has seven examples."""

    def num_examples(self) -> int:
        return 7


def seven(**fields: Any) -> Input:
    return Seven.params(**fields).build()


@pytest.mark.parametrize(("batch_size", "batches"), [(1, 7), (3, 3), (7, 1), (100, 1)])
def test_the_last_batch_of_a_pass_counts(batch_size: int, batches: int) -> None:
    assert seven(batch_size=batch_size, repeat=False).num_batches() == batches


def test_epochs_are_passes_over_the_data() -> None:
    assert [seven(batch_size=14).epochs(step) for step in (0, 1, 5)] == [0.0, 2.0, 10.0]


def test_a_parent_offers_what_an_evaluation_needs() -> None:
    assert Seven.params(batch_size=2).build(repeat=False, seed=4).num_batches() == 4


def test_an_input_offers_nothing_unless_it_says_so() -> None:
    assert seven(batch_size=1).offers() == {}
