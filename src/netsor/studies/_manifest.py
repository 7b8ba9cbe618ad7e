"""What stands beside the results of every study: their data as tidy tables, and what they were made with."""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from .. import __version__


def surroundings() -> dict[str, Any]:
    """The versions and the machine, as a manifest has them."""
    return {
        "versions": {
            "netsor": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "scipy", "matplotlib")},
        },
        "machine": {"system": platform.system(), "architecture": platform.machine(), "cores": os.cpu_count()},
    }


def tidy(rows: Iterable[dict[str, Any]]) -> bytes:
    """A table as CSV: one observation a row, ten digits."""
    table = list(rows)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({k: f"{v:.10g}" if isinstance(v, float) else v for k, v in row.items()})
    return buffer.getvalue().encode()
