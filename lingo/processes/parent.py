"""Processes that do not outlive the one that started them, on Linux."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def prepare_die_with_parent(number: int) -> Callable[[], None]:
    """Returns what a child of this process calls first, to be sent a signal when this one ends.

    The C library is looked up here: after a fork its locks may be held by a thread that is gone.

    Args:
        number: the signal.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # it has died meanwhile
            os._exit(1)

    return die_with_parent
