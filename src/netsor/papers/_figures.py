"""Figures of a reproduction: each is in the report, and in the folder with its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from ..report._mpl_style import COLUMN, rendered, styled
from ..studies import Request, Result

KINDS = ("pdf", "png", "svg")
# What the report says about the files in its folder.
FILES = {"*.pdf, *.png": "each figure", "*.csv": "its data", "manifest.json": ""}
FIGURE_SECONDS = 1.5  # time to draw one figure, for the estimate of a run


def file_names(figures: Iterable[str]) -> list[str]:
    """Names of the report and of the files of these figures."""
    names = ["report.html"]
    for figure in figures:
        names += [f"{figure}.{kind}" for kind in ("csv", "pdf", "png")]
    return names


def drawn(draw: Callable[..., Any], *args: Any) -> dict[str, bytes]:
    """The figure that `draw(*args)` returns, as pdf, png and svg."""
    with styled():
        files = rendered(draw(*args), *KINDS)
    return dict(zip(KINDS, files, strict=True))


def new_wide(height: float) -> Any:
    """A figure of the width of two columns."""
    from matplotlib.figure import Figure

    return Figure(figsize=(2 * COLUMN, height), layout="constrained")


class FigureResult(Result):
    """A result with figures; `report` is the path of its page.

    `tables` are the CSV files of the figures, by name, and `figures` the pictures that
    workers are drawing.
    """

    def __init__(
        self,
        request: Request,
        tables: Mapping[str, bytes],
        figures: Mapping[str, Future[dict[str, bytes]]],
    ) -> None:
        """Wait for the pictures; each is a dict of its files by kind (pdf, png,
        svg).
        """
        assert request.out is not None
        self.request = request
        self.report = request.out / "report.html"
        self._tables = tables
        self._figures = {name: future.result() for name, future in figures.items()}

    @property
    def _svg(self) -> dict[str, bytes]:
        """The figures as the report embeds them, by name."""
        svg = {}
        for name, files in self._figures.items():
            if "svg" in files:
                svg[name] = files["svg"]
        return svg

    def _files(self) -> dict[str, bytes]:
        """The tables and the pictures by the names of their files; svg is in the
        report.
        """
        files = {f"{name}.csv": table for name, table in self._tables.items()}
        for name, kinds in self._figures.items():
            for kind, content in kinds.items():
                if kind != "svg":
                    files[f"{name}.{kind}"] = content
        return files
