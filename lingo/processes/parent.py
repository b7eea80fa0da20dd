"""Child processes that end when their parent ends; Linux only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def prepare_die_with_parent(number: int) -> Callable[[], None]:
    """Returns a function that a new child calls to get signal `number` when this process ends.

    The C library is loaded here, before the fork: in the child, its locks may be held by threads
    that no longer exist.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # the parent has died meanwhile
            os._exit(1)

    return die_with_parent
