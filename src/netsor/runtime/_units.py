"""Times and sizes as text."""

from __future__ import annotations


def in_time(seconds: float) -> str:
    """A time as text with two or more digits, in the largest unit of which it has two.

    For example, 90 seconds are "90 s" and 5400 seconds "90 min".
    """
    seconds_of_units = {
        "years": 31_557_600.0,
        "days": 86_400.0,
        "h": 3_600.0,
        "min": 60.0,
    }
    number = seconds
    unit = "s"
    for larger_unit, size in seconds_of_units.items():
        if seconds >= 2 * size:
            number = seconds / size
            unit = larger_unit
            break
    digits = f"{number:.0f}" if 10 <= number < 1e6 else f"{number:.2g}"
    return f"{digits} {unit}"


def in_bytes(size: float) -> str:
    """A size in bytes as text, in MiB or GiB."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
