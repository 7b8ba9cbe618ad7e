"""What a coordinate check gives back: what was found for each parametrisation, as text, tables and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._document import to_text
from .._html_report import to_cell
from .._output_dir import Folder, to_dataframe
from ._config import COMMAND, Request
from ._document import document
from ._measurements import Check

FILES = ("report.html", "coord-check.csv", "coord-check.json", "coord-check.pdf", "coord-check.png")


class CoordCheck:
    """A coordinate check: one `Check` for each parametrisation, by its name or its place; `ns.coord_check` makes it.

    Print it for the table; `save(folder)` writes the report, the figures and the tables.

    Parameters
    ----------
    request : Request
        The arguments of the check.
    checks : sequence of Check
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

    def __init__(self, request: Request, checks: Sequence[Check], random_numbers: int, seconds: float):
        self.request, self.checks = request, tuple(checks)
        self.random_numbers, self.seconds = random_numbers, seconds

    def __repr__(self) -> str:
        found = "; ".join(f"{c.name} {'nothing unexpected' if c.kept else 'not as expected'}" for c in self.checks)
        return f"<CoordCheck of {self.request.name}: {found}; print it for the table>"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return to_cell(document(self.checks))

    def __len__(self) -> int:
        return len(self.checks)

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __getitem__(self, key: str | int) -> Check:
        if isinstance(key, int):
            return self.checks[key]
        for check in self.checks:
            if check.name == key:
                return check
        raise KeyError(f"{key!r} was not checked; {', '.join(c.name for c in self.checks)} were")

    def table(self, verbose: bool = False) -> str:
        """The result as text of 80 columns, the verdict first; `verbose` adds sizes at every width."""
        return to_text(document(self.checks), verbose)

    def rows(self) -> list[dict[str, Any]]:
        """All measurements, one row each, as in the CSV file."""
        return [row for check in self.checks for row in check.rows()]

    def as_dict(self) -> dict[str, Any]:
        """What `netsor coord-check --json` prints."""
        r = self.request
        return {
            "model": r.name,
            "axis": r.axis,
            "at": list(r.at),
            "optimiser": r.optimiser,
            "lr": r.lr if isinstance(r.lr, int | float) or (isinstance(r.lr, dict) and not r.own) else None,
            "ids": r.ids,
            "targets": r.targets,
            "draws": r.draws,
            "grow": None if r.own else r.grow,
            "tolerance": r.tolerance,
            "checks": [check.as_dict() for check in self.checks],
            "random_numbers": self.random_numbers,
            "seconds": round(self.seconds, 3),
        }

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame."""
        return to_dataframe(self.rows())

    def save(self, out: str | Path) -> Path:
        """Write report.html, the figure, the tables and manifest.json into a folder and return the report's path.

        Files in the folder that no earlier check wrote are never overwritten.
        """
        from ._report import files  # matplotlib is slow to import

        path = Path(out)
        folder = folder_of(path)
        folder.prepare(FILES)
        folder.put(*files(self.checks, self.as_dict(), path))
        return path / "report.html"


def folder_of(path: Path) -> Folder:
    """The folder of a coordinate check."""
    return Folder(path, COMMAND)
