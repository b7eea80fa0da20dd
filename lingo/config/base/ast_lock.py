"""A lock for `ast`: in Python 3.11, threads that parse at the same time corrupt their trees."""

from __future__ import annotations

import threading

AST_LOCK = threading.RLock()
"""Hold this lock while `ast` parses."""
