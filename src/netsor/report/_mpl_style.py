"""One style for every figure: column width, small type, colours that the colour-blind
can distinguish (Okabe, Ito).
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from .._validate import ArgumentError, as_number

COLUMN = 3.4  # inches
WIDTHS = {1: COLUMN, 2: 7.0}  # inches of a figure, by columns of a paper
SHORTEST, TALLEST = 0.5, 20.0  # inches
BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#e69f00",
    "#56b4e9",
    "#cc79a7",
)
GREY = "#777777"
BLACK = "#000000"
# of curves, which differ without colours too
MARKS = ("o", "s", "^", "D", "v", "P", "X")
# by colour
MARK_OF = dict(
    zip((BLUE, VERMILLION, GREEN, ORANGE, BLACK, SKY, PURPLE), MARKS, strict=True)
)

STYLE = {
    "font.size": 8.0,
    "font.family": "sans-serif",
    "mathtext.fontset": "dejavusans",
    "axes.labelsize": 8.0,
    "axes.titlesize": 8.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "svg.hashsalt": "netsor",  # the same bytes for the same figure
    "svg.fonttype": "path",
}

LIMIT = BLUE  # the limit, or what others are compared with
PALEST, DARKEST = 0.4, 0.95  # of the palette of widths

LABEL_POINTS = 7.0  # the size of names at the ends of lines
LABEL_GAP = 0.125  # inches between such names, of axes that fill three quarters

DOTTED = (0, (1.0, 1.2))  # finite widths


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style, without a window and whatever backend the environment
    names.
    """
    backend = os.environ.pop("MPLBACKEND", None)  # a bad one makes the import fail
    try:
        import matplotlib as mpl  # slow to import, and seldom needed
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        yield


@contextmanager
def paper_style(columns: int = 1, height: float = 2.5) -> Iterator[None]:
    """Draw figures for a paper: of column width, with small type.

    Every matplotlib figure that you make within it has the style of netsor's reports:
    colours that the colour-blind can distinguish, vector fonts, and no clipped labels.

    Parameters
    ----------
    columns : int
        1 or 2: a figure is 3.4 or 7 inches wide.
    height : float
        In inches.

    Returns
    -------
    manager : context manager
        The style applies within it; afterwards the former style is restored.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> with ns.paper_style():
    ...     axes = ns.paper.layer().law(n=64, draws=500).plot()
    >>> plt.gcf().get_size_inches().tolist()
    [3.4, 2.5]
    >>> plt.close()
    """
    if columns not in WIDTHS:
        raise ArgumentError("columns", columns, "1 or 2")
    inches = as_number(height)
    if inches is None or not SHORTEST <= inches <= TALLEST:
        raise ArgumentError(
            "height", height, f"inches from {SHORTEST:g} to {TALLEST:g}"
        )
    with styled():
        import matplotlib as mpl  # `styled` has loaded it

        own = {
            "figure.figsize": (WIDTHS[columns], inches),
            "figure.constrained_layout.use": True,
            "savefig.dpi": 300,
            "pdf.fonttype": 42,
        }
        with mpl.rc_context(own):  # type: ignore[arg-type]
            yield


def width_colours(count: int) -> list[Any]:
    """Colours for widths, darker as they grow."""
    from matplotlib import colormaps  # slow to import

    step = (DARKEST - PALEST) / max(1, count - 1)
    return [colormaps["Oranges"](DARKEST - step * k) for k in reversed(range(count))]


def new(height: float = 2.5) -> Any:
    """A figure of column width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(COLUMN, height), layout="constrained")


def label_ends(axes: Any, lines: Mapping[str, Any]) -> None:
    """Name lines at their right ends, in their colours, instead of in a legend.

    Names that would overlap are moved apart. Call it when the limits of the axes are
    final.
    """
    if not lines:
        return
    # heights are fractions of the axes
    to_axes = axes.transScale + axes.transLimits
    heights = {}
    for name, line in lines.items():
        end = line.get_xdata()[-1], line.get_ydata()[-1]
        _, height = to_axes.transform(end)
        heights[name] = float(height)
    height_of_axes = axes.figure.get_size_inches()[1] / axes.get_gridspec().nrows
    heights = _moved_apart(heights, gap=LABEL_GAP / height_of_axes)
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        axes.annotate(
            name,
            (1.0, height),
            xycoords="axes fraction",
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            color=lines[name].get_color(),
            fontsize=LABEL_POINTS,
            annotation_clip=False,
        )


def _moved_apart(heights: Mapping[str, float], gap: float) -> dict[str, float]:
    """The heights of labels, at least a gap apart, and none above 1.

    Each label is moved up from the one below it, and then down from the top.
    """
    moved = dict(heights)
    names = sorted(moved, key=lambda name: moved[name])
    for lower, upper in pairwise(names):
        moved[upper] = max(moved[upper], moved[lower] + gap)
    top = names[-1]
    moved[top] -= max(0.0, moved[top] - 1.0)
    for upper, lower in pairwise(reversed(names)):
        moved[lower] = min(moved[lower], moved[upper] - gap)
    return moved


# With these settings a layout of None stands for no layout engine.
NO_LAYOUT = {"figure.autolayout": False, "figure.constrained_layout.use": False}


def rendered(figure: Any, *kinds: str) -> list[bytes]:
    """The figure as files of these kinds (pdf, png, svg), the same bytes each time."""
    import matplotlib as mpl  # `styled` has loaded it

    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    dates: dict[str, dict[str, None]] = {
        "pdf": {"CreationDate": None},
        "svg": {"Date": None},
    }
    files = []
    with mpl.rc_context(NO_LAYOUT):  # type: ignore[arg-type]
        # the layout is done; with an engine, every file would draw the figure twice
        figure.set_layout_engine(None)
        for kind in kinds:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=300, metadata=dates.get(kind, {}))
            files.append(buffer.getvalue())
    return files
