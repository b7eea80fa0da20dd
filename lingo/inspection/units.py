"""Formats numbers of bytes for reports."""

from __future__ import annotations


def size(num_bytes: float) -> str:
    """Returns a number of bytes as text with a unit, "1.5 MiB", with three or four digits."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if num_bytes < 1024 or unit == "PiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} {unit}" if num_bytes >= 1000 else f"{num_bytes:.3g} {unit}"
