"""Retention: which checkpoints are kept, by which rules."""

import pytest

from lingo.checkpoints.retention import Retention


@pytest.mark.parametrize(
    ("steps", "retention", "kept"),
    [
        ([], Retention(1), {}),
        ([5], Retention(3), {5: ["latest"]}),
        ([4, 1, 3, 2], Retention(2), {3: ["latest"], 4: ["latest"]}),
        ([10, 20, 30, 40], Retention(1, every=20), {20: ["every"], 40: ["latest", "every"]}),
        ([1, 2, 3], Retention(1, best=[1, 3, 9]), {1: ["best"], 3: ["latest", "best"]}),
        ([1, 2, 3], Retention(1, rewind=[2]), {2: ["rewind"], 3: ["latest"]}),
        ([1, 2], Retention(), {1: ["latest"], 2: ["latest"]}),
    ],
)
def test_what_is_kept_has_its_reasons(steps, retention, kept):
    assert retention.reasons(steps) == kept
