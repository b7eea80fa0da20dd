"""Text for terminals."""

from __future__ import annotations

import os
import unicodedata


def escape_controls(text: str) -> str:
    """Returns a text with control characters escaped, as it may come from a file or a name."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def escape_text(text: str) -> str:
    """Returns a model's text with control characters, and bytes that are not UTF-8, escaped.

    Newlines and tabs stay.
    """
    return "".join(
        ascii(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c
        for c in text
    )


def relative_path(file: str) -> str:
    """Returns a path relative to the working directory, if it is below that."""
    try:
        relative = os.path.relpath(file)
    except OSError:  # the working directory is gone
        return file
    return file if relative.startswith(os.pardir) else relative
