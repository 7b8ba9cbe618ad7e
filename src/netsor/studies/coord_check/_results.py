"""What a coordinate check gives back: what was found for each parametrisation, as text, tables and files."""

from __future__ import annotations

import json
from typing import Any

from ..._document import Document
from .._output_dir import to_csv
from .._training import ByParametrisation
from ._document import document
from ._measurements import Check
from ._network import CHANGE
from ._request import Request


class CoordCheck(ByParametrisation[Check]):
    """A coordinate check: one `Check` for each parametrisation, by its name or its place; `ns.coord_check` makes it.

    Print it for the table; `save(folder)` writes the report, the figures and the tables.

    Parameters
    ----------
    request : Request
        The arguments of the check.
    parts : sequence of Check
        The result for each parametrisation.
    random_numbers : int
        About how many random numbers were drawn.
    seconds : float
        Seconds of one core that the draws took, including those kept from an earlier run.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
    >>> found = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)
    >>> found
    <CoordCheck of gpt2: sp not as expected; print it for the table>
    >>> found["sp"]["logits"].verdict
    'grows'
    >>> row = found.rows()[-1]
    >>> row["what"], row["name"], row["width"]
    ('change', 'loss', 64)
    """

    request: Request

    def __repr__(self) -> str:
        found = "; ".join(f"{c.name} {'nothing unexpected' if c.kept else 'not as expected'}" for c in self.parts)
        return f"<CoordCheck of {self.request.name}: {found}; print it for the table>"

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        return document(self.parts, manifest)

    def _files(self) -> dict[str, bytes]:
        from ._plots import figure_files  # matplotlib is slow to import

        pdf, png = figure_files(self.parts, CHANGE, "pdf", "png")
        return {
            "coord-check.csv": to_csv(self.rows()),
            "coord-check.json": json.dumps(self.as_dict(), indent=1, allow_nan=False).encode(),
            "coord-check.pdf": pdf,
            "coord-check.png": png,
        }

    def as_dict(self) -> dict[str, Any]:
        """What `netsor coord-check --json` prints."""
        r = self.request
        return {
            "model": r.name,
            "axis": r.axis,
            "at": list(r.at),
            "optimiser": r.optimiser,
            "steps": r.steps,
            "eps": r.eps if isinstance(r.eps, int | float) else None,
            "lr": r.lr if isinstance(r.lr, int | float) or (isinstance(r.lr, dict) and not r.own) else None,
            "ids": r.ids,
            "targets": r.targets,
            "draws": r.draws,
            "grow": None if r.own else r.grow,
            "tolerance": r.tolerance,
            "checks": [check.as_dict() for check in self.parts],
            "random_numbers": self.random_numbers,
            "seconds": round(self.seconds, 3),
        }
