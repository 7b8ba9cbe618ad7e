"""What a learning-rate sweep gives back: a sweep for each parametrisation, as text, tables, a figure and files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..._document import Document
from ..._mpl_style import rendered, styled
from .._output_dir import to_csv, to_dataframe
from .._study import Result
from ._document import document, figure
from ._request import Request
from ._sweep import Sweep


class Transfer(Result):
    """A learning-rate sweep: one `Sweep` for each parametrisation, by its name or its place; `ns.transfer` makes it.

    Print it for the table; `save(folder)` writes the report, the figure and the tables.

    Parameters
    ----------
    request : Request
        The arguments of the sweep.
    sweeps : sequence of Sweep
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

    def __init__(self, request: Request, sweeps: Sequence[Sweep], random_numbers: int, seconds: float) -> None:
        self.request, self.sweeps = request, tuple(sweeps)
        self.random_numbers, self.seconds = random_numbers, seconds

    def __repr__(self) -> str:
        found = "; ".join(f"{sweep.name} {sweep.verdict}" for sweep in self.sweeps)
        return f"<Transfer of {self.request.name}: {found}; print it for the table>"

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        return document(self.request, self.sweeps, manifest)

    def _files(self) -> dict[str, bytes]:
        with styled():
            pdf, png = rendered(self.plot(), "pdf", "png")
        return {
            "transfer.csv": to_csv(self.rows()),
            "transfer.json": json.dumps(self.as_dict(), indent=1, allow_nan=False).encode(),
            "transfer.pdf": pdf,
            "transfer.png": png,
        }

    def _spent(self) -> dict[str, Any]:
        return {"random_numbers": self.random_numbers, "seconds": {"sampling": round(self.seconds, 3)}}

    def __len__(self) -> int:
        return len(self.sweeps)

    def __iter__(self) -> Iterator[Sweep]:
        return iter(self.sweeps)

    def __getitem__(self, key: str | int) -> Sweep:
        if isinstance(key, int):
            return self.sweeps[key]
        for sweep in self.sweeps:
            if sweep.name == key:
                return sweep
        raise KeyError(f"{key!r} was not swept; {', '.join(sweep.name for sweep in self.sweeps)} were")

    def plot(self) -> Any:
        """Loss against learning rate, a line for each width and a panel for each parametrisation; a figure."""
        return figure(self.request, self.sweeps)

    def rows(self) -> list[dict[str, Any]]:
        """All losses, one row each, as in the CSV file."""
        return [row for sweep in self.sweeps for row in sweep.rows()]

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
            "sweeps": [sweep.as_dict() for sweep in self.sweeps],
            "random_numbers": self.random_numbers,
            "seconds": round(self.seconds, 3),
        }

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame."""
        return to_dataframe(self.rows())
