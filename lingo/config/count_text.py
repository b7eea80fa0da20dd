"""Text such as "3 chips" in messages."""

from __future__ import annotations


def count_text(number: int, noun: str) -> str:
    """Returns a number and a noun, with an s after the noun unless the number is 1.

    >>> count_text(1, "chip"), count_text(1024, "chip")
    ('1 chip', '1,024 chips')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
