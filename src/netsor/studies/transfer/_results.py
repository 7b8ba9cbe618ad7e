"""What a learning-rate sweep gives back: a sweep for each parametrisation, as text, tables, a figure and files."""

from __future__ import annotations

import json
from typing import Any

from ..._document import Document
from ..._mpl_style import rendered, styled
from .._output_dir import to_csv
from .._training import ByParametrisation
from ._document import document, figure
from ._request import Request
from ._sweep import Sweep


class Transfer(ByParametrisation[Sweep]):
    """A learning-rate sweep: one `Sweep` for each parametrisation, by its name or its place; `ns.transfer` makes it.

    Print it for the table; `save(folder)` writes the report, the figure and the tables.

    Parameters
    ----------
    request : Request
        The arguments of the sweep.
    parts : sequence of Sweep
        The curves of each parametrisation.
    random_numbers : int
        About how many random numbers were drawn.
    seconds : float
        Seconds of one core that the draws took, including those kept from an earlier run.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
    >>> found = ns.transfer(tiny, widths=[8, 64], steps=1, parametrisation="sp", lr=2.0 ** np.arange(-7, 2))
    >>> found
    <Transfer of gpt2: sp shifts like n^-0.6; print it for the table>
    >>> print(found["sp"].best(8))
    0.186 (0.13, 0.26)
    >>> found.rows()[0]["lr"]
    0.0078125
    """

    request: Request

    def __repr__(self) -> str:
        found = "; ".join(f"{sweep.name} {sweep.verdict}" for sweep in self.parts)
        return f"<Transfer of {self.request.name}: {found}; print it for the table>"

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        return document(self.request, self.parts, manifest)

    def _files(self) -> dict[str, bytes]:
        with styled():
            pdf, png = rendered(self.plot(), "pdf", "png")
        return {
            "transfer.csv": to_csv(self.rows()),
            "transfer.json": json.dumps(self.as_dict(), indent=1, allow_nan=False).encode(),
            "transfer.pdf": pdf,
            "transfer.png": png,
        }

    def plot(self) -> Any:
        """Loss against learning rate, a line for each width and a panel for each parametrisation; a figure."""
        return figure(self.request, self.parts)

    def as_dict(self) -> dict[str, Any]:
        """What `netsor transfer --json` prints."""
        r = self.request
        return {
            "model": r.name,
            "steps": r.steps,
            "optimiser": r.optimiser if isinstance(r.optimiser, str) else None,
            "ids": r.ids,
            "targets": r.targets,
            "draws": r.draws,
            "grow": None if r.own else r.grow,
            "sweeps": [sweep.as_dict() for sweep in self.parts],
            "random_numbers": self.random_numbers,
            "seconds": round(self.seconds, 3),
        }
