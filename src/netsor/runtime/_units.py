"""Times and sizes as text."""

from __future__ import annotations


def in_time(seconds: float) -> str:
    """A time as text, with two or more digits, in a suitable unit."""
    units = (
        (31_557_600.0, "years"),
        (86_400.0, "days"),
        (3_600.0, "h"),
        (60.0, "min"),
    )
    number, name = seconds, "s"
    for size, unit in units:
        if seconds >= 2 * size:
            number, name = seconds / size, unit
            break
    digits = f"{number:.0f}" if 10 <= number < 1e6 else f"{number:.2g}"
    return f"{digits} {name}"


def in_bytes(size: float) -> str:
    """A size in bytes as text, in MiB or GiB."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
