"""Programs of these tests, and of processes that they start, take less time to compile."""

import os

from tests.lingo.runtimes.child import QUICK_TO_COMPILE

for name, value in QUICK_TO_COMPILE.items():
    os.environ.setdefault(name, value)
