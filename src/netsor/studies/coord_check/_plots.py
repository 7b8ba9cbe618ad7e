"""The figures of a coordinate check: sizes against width or depth, a panel for each parametrisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._mpl_style import BLACK, BLUE, COLUMN, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, rendered, styled
from ._measurements import Check
from ._network import CHANGE, Entry
from ._regression import size

COLOURS = {
    "embedding": SKY, "scores": ORANGE, "attention": GREEN, "mlp": PURPLE, "stream": BLUE, "hidden": BLUE,
    "final": GREY, "logits": VERMILLION, "loss": BLACK,
}  # fmt: skip
CYCLE = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK, GREY)
MARKS = "osD^vP*X<>"
TITLES = {"sp": "SP", "mup": "µP", "ntk": "NTK"}
LEFT_OUT = ("vocabulary",)


def figure_files(checks: Sequence[Check], what: str, *kinds: str) -> list[bytes]:
    """The figure of changes, or of updates, in each of these formats."""
    with styled():
        return rendered(_figure(checks, what), *kinds)


def _figure(checks: Sequence[Check], what: str) -> Any:
    from matplotlib.figure import Figure

    count = len(checks)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(COLUMN * max(1.0, 0.72 * columns) + 0.9, 2.5 * rows + 0.1), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    lines: dict[str, Any] = {}
    for axes, check in zip(panels.flat, checks, strict=False):
        lines |= _panel(axes, check, what)
    for axes in list(panels.flat)[count:]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("change of coordinates" if what == CHANGE else "size of ΔW x")
    for axes in panels[-1]:
        axes.set_xlabel("depth L" if check.request.axis == "depth" else "width n")
    figure.legend(lines.values(), lines.keys(), loc="outside right center")
    return figure


def _panel(axes: Any, check: Check, what: str) -> dict[str, Any]:
    """A line for each activation, or kind of weight, in the block that its verdict is of."""
    at = np.array(check.request.at)
    lines: dict[str, Any] = {}
    for k, entry in enumerate(_shown(check, what)):
        sizes = np.array([size(draws) for draws in check.draws[entry]])
        if not (sizes > 0).all():
            continue
        colour = COLOURS.get(entry.name, CYCLE[k % len(CYCLE)]) if what == CHANGE else CYCLE[k % len(CYCLE)]
        away = np.abs(sizes[:, 1:] - sizes[:, :1]).T
        drawn = axes.errorbar(
            at, sizes[:, 0], away, color=colour, marker=MARKS[k % len(MARKS)], ms=3.2, lw=1.2, elinewidth=0.7
        )
        if check.limit is not None and entry in check.limit:
            value, low, high = check.limit_size(entry)
            if low > 0:  # a limit that may be 0 has no place on a logarithmic axis
                axes.axhline(value, color=colour, lw=0.7, ls=(0, (4.0, 1.6)))
                axes.axhspan(low, high, color=colour, alpha=0.12, lw=0)
        lines[entry.name] = drawn
    axes.set(xscale="log", yscale="log")
    axes.set_title(TITLES.get(check.name, check.name.replace("$", r"\$")))  # which matplotlib reads as TeX
    axes.set_xticks(at, [_brief(v) for v in at])
    axes.minorticks_off()
    return lines


def _brief(value: float) -> str:
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1024:g}k" if value % 1024 == 0 else f"{value / 1000:g}k"


def _shown(check: Check, what: str) -> list[Entry]:
    """The block that each verdict is of."""
    verdicts = check.verdicts if what == CHANGE else check.updates
    return [v.entry for v in verdicts if v.entry.name not in LEFT_OUT]
