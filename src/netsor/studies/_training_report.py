"""The common part of the reports of coordinate checks and learning-rate sweeps."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from .._validate import counted
from ..report._document import Document, Figures, Item, Items, Paragraph, Section
from ..report._html import provenance
from ..report._mpl_style import COLUMN, rendered, styled
from ._study import Several, TableResult, svg_figure
from ._training import TrainingRequest

PANELS = 3  # in a row of a figure
PANEL_HEIGHT = 2.6  # inches
TITLES = {"sp": "SP", "mup": "µP", "ntk": "NTK"}  # of panels
WORDS_OF_VECTORS = {"bias": "biases", "gain": "gains of norms"}
GROWTH = {
    "heads": "the number of heads grows with the width",
    "head-dim": "the head dimension grows with the width",
}

Part = TypeVar("Part", bound=Any)
# of axes and a part: the lines by their names
DrawPanel = Callable[[Any, Any], Mapping[str, Any]]


class ByParametrisation(TableResult, Several[Part]):
    """A result with a part for each parametrisation, by its name or its position.

    A subclass says how its report is worded and drawn; the parts do the rest.
    """

    request: TrainingRequest
    heading: ClassVar[str]  # the title of the report, before the name of the model
    data: ClassVar[str]  # the content of the CSV file
    key: ClassVar[str]  # of the parts, in JSON

    def __init__(
        self, request: Any, parts: Sequence[Part], random_numbers: int, seconds: float
    ) -> None:
        """`random_numbers` and `seconds` are the work of all parts."""
        self.request = request
        self.parts = tuple(parts)
        self._by_name = {part.name: part for part in parts}
        self.random_numbers = random_numbers
        self.seconds = seconds

    @property
    @abstractmethod
    def _verdict(self) -> str:
        """The result for each parametrisation, in a few words."""

    @property
    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The options of the study, for JSON."""

    @abstractmethod
    def _figure(self) -> Any:
        """Draw the main figure."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.request.name}: {self._verdict}; print it"
            " for the table>"
        )

    def _assembled(
        self,
        manifest: Mapping[str, Any] | None,
        items: Sequence[Item],
        own_sections: Sequence[Section],
        *,
        verdict: str,
        caption: str,
        done: str,
        rule: str,
    ) -> Document:
        """Conclusions and the main figure, the study's own sections, then how it was
        done.

        `caption` is that of the figure, `done` says what was done, with {batch}, and
        `rule` how verdicts are reached.
        """
        request = self.request
        figure = svg_figure(request.command.split()[1], caption, self._figure)
        sections = [
            Section("", [Items(items)]),
            Section("", [Figures([figure])], "html"),
            *own_sections,
            Section("How verdicts are reached", [Paragraph(rule)], "verbose"),
        ]
        if manifest is not None:
            sections.append(self._provenance(manifest))
        headline = f"{done.format(batch=self._batch_text)}, {self._drawn_text}"
        return Document(
            title=f"{self.heading} of {request.name}",
            verdict=verdict,
            subject=headline,
            sections=sections,
        )

    @property
    def _batch_text(self) -> str:
        """The number of tokens in the batch, as ", 4 tokens"; "" for a program."""
        ids = self.request.ids
        return "" if ids is None else f", {counted(len(ids), 'token')}"

    @property
    def _drawn_text(self) -> str:
        """The draws, their widths or depths, and what grows with the width."""
        request = self.request
        drawn = f"{request.draws} initialisations at {request.sizes}"
        if request.is_user_program or request.axis == "depth":
            return drawn
        return f"{drawn}; {GROWTH[request.grow]}"

    def _provenance(self, manifest: Mapping[str, Any]) -> Section:
        """How the numbers were made, and which file has which of them."""
        request = self.request
        numbers = manifest["random_numbers"]
        seconds = manifest["seconds"]["sampling"]
        text = f"About {numbers:,} random numbers, {seconds:.1f} core-seconds."
        if not request.is_user_program:
            exact = "Every draw is exact in law at its width."
            text = f"{exact} {trained(request.vectors)} {text}"
        table, json_file, pdf, png = request.files[1:]
        contents = {
            table: self.data,
            json_file: "",
            pdf: "",
            png: "the figure",
            "manifest.json": "",
        }
        return Section("How", [provenance(manifest, text, contents)], "html")

    def _files(self) -> dict[str, bytes]:
        """The files of a study and its figure, by name."""
        with styled():
            pictures = rendered(self._figure(), "pdf", "png")
        names = self.request.files[3:]
        return super()._files() | dict(zip(names, pictures, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """The object that the command prints with --json."""
        request = self.request
        return {
            "model": request.name,
            "steps": request.steps,
            **self._settings,
            "ids": request.ids,
            "targets": request.targets,
            "draws": request.draws,
            "grow": None if request.is_user_program else request.grow,
            self.key: [part.as_dict() for part in self.parts],
            "random_numbers": self.random_numbers,
            "seconds": round(self.seconds, 3),
        }

    def rows(self) -> list[dict[str, Any]]:
        """All numbers, one row each, as in the CSV file."""
        rows: list[dict[str, Any]] = []
        for part in self.parts:
            rows += part.rows()
        return rows


def trained(vectors: Sequence[str]) -> str:
    """Which parameters of a model are trained."""
    trained_vectors = []
    fixed_vectors = []
    for name, text in WORDS_OF_VECTORS.items():
        if name in vectors:
            trained_vectors.append(text)
        else:
            fixed_vectors.append(text)
    sentence = "Matrices and embeddings are trained"
    if trained_vectors:
        sentence += f", and {' and '.join(trained_vectors)}"
    if fixed_vectors:
        sentence += f"; {' and '.join(fixed_vectors)} keep their initial values"
    return f"{sentence}."


def steps_text(request: TrainingRequest) -> str:
    """The number of steps, in words."""
    return "one step" if request.steps == 1 else f"{request.steps} steps"


def panels(
    parts: Sequence[Any],
    draw: DrawPanel,
    labels: Sequence[str],
    *,
    panel_width: float,
    legend_width: float,
    share_x: bool,
    legend: str = "",
) -> Any:
    """A figure with a panel for each parametrisation, at most PANELS in a row.

    `draw` draws a part into axes and returns its lines by name, which are in one legend
    with the title `legend`; none, if it names them in the axes. `labels` are those of
    the horizontal and of the vertical axis. `panel_width` is in widths of a text column
    of a paper (COLUMN inches), and `legend_width` in inches. With `share_x` all panels
    have the same horizontal axis, and only the lowest panel of each column of panels
    has its numbers and its label.
    """
    panels_in_row = min(len(parts), PANELS)
    rows = math.ceil(len(parts) / panels_in_row)
    # a single panel is as wide as the text
    panels_width = COLUMN * max(1.0, panel_width * panels_in_row)
    x_label, y_label = labels
    with styled():
        from matplotlib.figure import Figure as Canvas  # slow to import

        canvas = Canvas(
            figsize=(panels_width + legend_width, PANEL_HEIGHT * rows),
            layout="constrained",
        )
        grid = canvas.subplots(
            rows, panels_in_row, sharex=share_x, sharey=True, squeeze=False
        )
        lines: dict[str, Any] = {}
        for axes, part in zip(grid.flat, parts, strict=False):
            # matplotlib would read $ as the beginning of a formula
            plain_name = part.name.replace("$", r"\$")
            axes.set_title(TITLES.get(part.name, plain_name))
            lines |= draw(axes, part)
        for index, axes in enumerate(grid.flat):
            # the last row may have fewer panels than the others
            axes.set_visible(index < len(parts))
            is_lowest = index + panels_in_row >= len(parts)
            if is_lowest or not share_x:
                axes.set_xlabel(x_label)
                axes.tick_params(labelbottom=True)  # hidden above the last row
        for axes in grid[:, 0]:
            axes.set_ylabel(y_label)
        if lines:
            canvas.legend(
                lines.values(),
                lines.keys(),
                title=legend or None,
                loc="outside right center",
            )
    return canvas
