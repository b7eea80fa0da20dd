"""Makes text from files, names and models safe to print on a terminal."""

from __future__ import annotations

import os
import unicodedata


def escape_controls(text: str) -> str:
    """Returns a text, which may come from a file or a name, with control characters escaped."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def escape_text(text: str) -> str:
    """Returns a model's text with control characters and bytes that are not UTF-8 escaped.

    Newlines and tabs stay as they are.
    """
    return "".join(
        ascii(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c
        for c in text
    )


def relative_path(file: str) -> str:
    """Returns a path relative to the working directory; unchanged if it is not inside that."""
    try:
        relative = os.path.relpath(file)
    except OSError:  # the working directory is gone
        return file
    return file if relative.startswith(os.pardir) else relative
