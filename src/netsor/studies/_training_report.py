"""The common part of the reports of coordinate checks and learning-rate sweeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from .._document import Document, Figures, Item, Items, Paragraph, Section
from .._html import provenance
from .._mpl_style import COLUMN, rendered, styled
from ._study import Several, TableResult, svg_figure
from ._training import TrainingRequest

PANELS = 3  # in a row of a figure
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
    """A result with a part for each parametrisation, by its name or its place."""

    request: TrainingRequest
    heading: ClassVar[str]  # the title of the report, before the name of the model
    data: ClassVar[str]  # the content of the CSV file
    key: ClassVar[str]  # of the parts, in JSON
    _verdict: ClassVar[Any]  # the result for each parametrisation, in a few words
    _figure: ClassVar[Any]  # draws the main figure
    _settings: ClassVar[Any]  # the options, for JSON: a property

    def __init__(
        self, request: Any, parts: Sequence[Part], random_numbers: int, seconds: float
    ) -> None:
        self.request, self.parts, self._by_name = (
            request,
            tuple(parts),
            {part.name: part for part in parts},
        )
        self.random_numbers, self.seconds = random_numbers, seconds

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.request.name}: {self._verdict}; print it"
            " for the table>"
        )

    def _assembled(
        self, manifest: Any, items: Sequence[Item], own: Sequence[Section], **words: str
    ) -> Document:
        """Conclusions and the main figure, the study's own sections, then how it was
        done.

        The words are the `verdict`, the `caption` of the figure, what was `done`, and
        the `rule` of the verdicts.
        """
        request = self.request
        every = [
            Section("", [Items(items)]),
            Section(
                "",
                [
                    Figures(
                        [
                            svg_figure(
                                request.command.split()[1],
                                words["caption"],
                                self._figure,
                            )
                        ]
                    )
                ],
                "html",
            ),
            *own,
            Section("How verdicts are reached", [Paragraph(words["rule"])], "verbose"),
        ]
        if manifest is not None:
            said = (
                ""
                if request.own
                else (
                    "Every draw is exact in law at its width."
                    f" {trained(request.vectors)} "
                )
            )
            numbers, seconds = (
                manifest["random_numbers"],
                manifest["seconds"]["sampling"],
            )
            said += f"About {numbers:,} random numbers, {seconds:.1f} core-seconds."
            names = dict(
                zip(request.files[1:], (self.data, "", "", "the figure"), strict=True)
            )
            every.append(
                Section(
                    "How",
                    [provenance(manifest, said, {**names, "manifest.json": ""})],
                    "html",
                )
            )
        batch = (
            ""
            if request.ids is None
            else f", {len(request.ids)} token{'s' * (len(request.ids) > 1)}"
        )
        drawn = f"{request.draws} initialisations at {request.sizes}"
        scale = (
            ""
            if request.own or request.axis == "depth"
            else f"; {GROWTH[request.grow]}"
        )
        headline = f"{words['done'].format(batch=batch)}, {drawn}{scale}"
        return Document(
            f"{self.heading} of {request.name}", words["verdict"], headline, every
        )

    def _files(self) -> dict[str, bytes]:
        with styled():
            pictures = rendered(self._figure(), "pdf", "png")
        return super()._files() | dict(
            zip(self.request.files[3:], pictures, strict=True)
        )

    def as_dict(self) -> dict[str, Any]:
        """What the command prints with --json."""
        r = self.request
        batch = {
            "ids": r.ids,
            "targets": r.targets,
            "draws": r.draws,
            "grow": None if r.own else r.grow,
        }
        parts = {
            self.key: [part.as_dict() for part in self.parts],
            "random_numbers": self.random_numbers,
        }
        settings = {"model": r.name, "steps": r.steps, **self._settings}
        return {**settings, **batch, **parts, "seconds": round(self.seconds, 3)}

    def rows(self) -> list[dict[str, Any]]:
        """All numbers, one row each, as in the CSV file."""
        return [row for part in self.parts for row in part.rows()]


def trained(vectors: Sequence[str]) -> str:
    """Which parameters of a model are trained."""
    moved, kept = (
        " and ".join(
            words
            for name, words in WORDS_OF_VECTORS.items()
            if (name in vectors) is there
        )
        for there in (True, False)
    )
    said = "Matrices and embeddings are trained" + (f", and {moved}" if moved else "")
    return said + (f"; {kept} keep their initial values." if kept else ".")


def steps_text(request: TrainingRequest) -> str:
    """The number of steps, in words."""
    return "one step" if request.steps == 1 else f"{request.steps} steps"


def panels(
    parts: Sequence[Any],
    draw: DrawPanel,
    labels: Sequence[str],
    size: Sequence[float],
    share_x: bool,
    legend: str = "",
) -> Any:
    """A figure with a panel for each parametrisation.

    `size` is the width of a panel in columns of text, and that of the legend in inches.
    """
    columns = min(len(parts), PANELS)
    rows = -(-len(parts) // columns)
    with styled():
        from matplotlib.figure import Figure as Canvas  # slow to import

        canvas = Canvas(
            figsize=(COLUMN * max(1.0, size[0] * columns) + size[1], 2.6 * rows),
            layout="constrained",
        )
        grid = canvas.subplots(
            rows, columns, sharex=share_x, sharey=True, squeeze=False
        )
        lines: dict[str, Any] = {}
        for axes, part in zip(grid.flat, parts, strict=False):
            # which matplotlib reads as TeX
            axes.set_title(TITLES.get(part.name, part.name.replace("$", r"\$")))
            lines |= draw(axes, part)
        for axes in list(grid.flat)[len(parts) :]:
            axes.set_visible(False)
        for axes in grid[-1] if share_x else grid.flat:
            axes.set_xlabel(labels[0])
        for axes in grid[:, 0]:
            axes.set_ylabel(labels[1])
        canvas.legend(
            lines.values(),
            lines.keys(),
            title=legend or None,
            loc="outside right center",
        )
    return canvas
