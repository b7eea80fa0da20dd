"""One thread at a time uses `ast`: in Python 3.11 two that parse spoil each other's trees."""

from __future__ import annotations

import threading

AST_LOCK = threading.RLock()
"""Held while `ast` parses."""
