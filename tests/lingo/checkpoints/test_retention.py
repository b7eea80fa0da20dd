"""Which checkpoints stay: the latest, some for ever, the best."""

from __future__ import annotations

import pytest

from lingo.checkpoints.retention import select_kept


@pytest.mark.parametrize(
    ("steps", "policy", "stay"),
    [
        ([1, 2, 3, 4], {"keep": 2}, {3: ["latest"], 4: ["latest"]}),
        ([4, 1, 3, 2], {"keep": 1}, {4: ["latest"]}),
        ([], {"keep": 1}, {}),
        ([5], {"keep": 3}, {5: ["latest"]}),
        (
            [10, 20, 30, 40],
            {"keep": 1, "keep_every_steps": 20},
            {20: ["every"], 40: ["latest", "every"]},
        ),
        ([1, 2, 3], {"keep": 1, "best": [1]}, {1: ["best"], 3: ["latest"]}),
        ([1, 2, 3], {"keep": 1, "best": [3, 9]}, {3: ["latest", "best"]}),
    ],
)
def test_what_stays_has_its_reasons_and_nothing_else_stays(
    steps: list[int], policy: dict, stay: dict
) -> None:
    assert select_kept(steps, **policy) == stay
