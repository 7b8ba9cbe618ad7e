"""Figures of a reproduction: each is in the report, and in the folder with its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from .._mpl_style import rendered, styled
from ..studies import Request, Result

KINDS = ("pdf", "png", "svg")
# as a report lists them
FILES = {"*.pdf, *.png": "each figure", "*.csv": "its data", "manifest.json": ""}
FIGURE_SECONDS = 1.5  # to draw one


def file_names(figures: Iterable[str]) -> list[str]:
    """The files of these figures, and the report."""
    return [
        "report.html",
        *(f"{name}.{kind}" for name in figures for kind in ("csv", "pdf", "png")),
    ]


def drawn(draw: Callable[..., Any], *args: Any) -> dict[str, bytes]:
    """A figure as pdf, png and svg."""
    with styled():
        return dict(zip(KINDS, rendered(draw(*args), *KINDS), strict=True))


class FigureResult(Result):
    """A result with figures; `report` is the path of its page."""

    def __init__(
        self,
        request: Request,
        tables: Mapping[str, bytes],
        figures: Mapping[str, Future[dict[str, bytes]]],
    ) -> None:
        assert request.out is not None
        self.request, self.report = request, request.out / "report.html"
        self._tables, self._figures = (
            tables,
            {name: figure.result() for name, figure in figures.items()},
        )

    @property
    def _svg(self) -> dict[str, bytes]:
        return {
            name: files["svg"]
            for name, files in self._figures.items()
            if "svg" in files
        }

    def _files(self) -> dict[str, bytes]:
        tables = {f"{name}.csv": content for name, content in self._tables.items()}
        pairs = (
            (name, kind)
            for name, files in self._figures.items()
            for kind in files
            if kind != "svg"
        )
        return tables | {
            f"{name}.{kind}": self._figures[name][kind] for name, kind in pairs
        }
