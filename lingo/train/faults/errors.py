"""What ends a run that could go on, because its results would be worth nothing."""

from __future__ import annotations

from typing import ClassVar

from lingo.config.errors import LingoError


class NumericFailure(LingoError):
    """Numbers are not finite: losses or gradients for too many steps in a row, or a weight."""

    exit_code: ClassVar[int] = 8
