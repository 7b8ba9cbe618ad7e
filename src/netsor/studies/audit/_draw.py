"""A figure for each quantity against depth: bands at the model's own widths, dashed lines at infinity."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._style import BLUE, GREY, VERMILLION, new, rendered, styled
from ._found import Found
from ._quantities import BLOCKS, Quantity

COLOURS = (BLUE, VERMILLION)  # the model, and the second one
DASHED = (0, (4.0, 1.6))


def drawn(audit: Found) -> dict[str, bytes]:
    """A figure for each quantity of a block, as svg."""
    names = [q for q in BLOCKS if any(q.name in each.best for each in audit.every)]
    with styled():
        return {quantity.name: rendered(_figure(audit, quantity), "svg")[0] for quantity in names}


def _figure(audit: Found, quantity: Quantity) -> Any:
    figure = new(2.6)
    axes = figure.subplots()
    ends = []
    for each, colour in zip(audit.every, COLOURS, strict=False):
        for found in each.measured:
            if quantity.name not in found:
                continue
            median, low, high = found.band(quantity.name)
            blocks = np.arange(1, len(median) + 1)
            label = each.model.name + (", n = ∞" if found.subject.infinite else "")
            mark = "." if len(blocks) == 1 else ""  # a line of one point is not seen
            if found is each.best:
                axes.fill_between(blocks, low, high, color=colour, alpha=0.22, lw=0)
            line = DASHED if found.subject.infinite else "-"
            axes.plot(blocks, median, linestyle=line, marker=mark, color=colour, label=label, lw=1.2)
            ends += [float(low.min()), float(high.max())]
    if quantity.log and max(ends) > 5 * min(ends) > 0:
        axes.set_yscale("log")
    elif quantity.name in ("entropy", "attention_share", "mlp_share", "cross_share", "largest_weight"):
        axes.set_ylim(-0.02, 1.02)
    if quantity.name == "cosine":
        axes.axhline(0.0, color=GREY, lw=0.5, zorder=0)
    axes.set(xlabel="block", ylabel=quantity.title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center", ncols=2)
    return figure
