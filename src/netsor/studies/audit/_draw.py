"""A figure for each quantity against depth: bands at the model's own widths, dashed lines at infinity."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ..._style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, new, rendered, styled
from ._found import Found
from ._quantities import BLOCKS, TOGETHER, Quantity

COLOURS = (BLUE, VERMILLION)  # the model, and the second one
CYCLE = (BLUE, SKY, GREEN, PURPLE, VERMILLION, BLACK, ORANGE)  # kinds of weights
DASHED = (0, (4.0, 1.6))
SHORT, LONGEST = 24, 56  # letters of a name: two names fit beside each other, and one fits at all


def drawn(audit: Found) -> dict[str, bytes]:
    """A figure for each quantity of a block, as svg; kinds of weights share one."""
    found = [q for q in BLOCKS if any(q.name in each.best for each in audit.every)]
    with styled(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name may have letters that the font has not
        made = {q.name: rendered(_figure(audit, q), "svg")[0] for q in found if not q.kind}
        for group in TOGETHER:
            ratio = group.name.endswith("_ratio")
            kinds = [q for q in found if q.kind and q.name.endswith("_ratio") == ratio]
            if kinds:
                made[group.name] = rendered(_together(audit, group, kinds), "svg")[0]
        return made


def _together(audit: Found, group: Quantity, kinds: list[Quantity]) -> Any:
    """Medians of several quantities in one figure: a colour each, the second model dotted."""
    figure = new(2.6 + 0.14 * ((len(kinds) + 3) // 4 + len(audit.every)))
    axes = figure.subplots()
    for each, style in zip(audit.every, ("-", ":"), strict=False):
        for quantity, colour in zip(kinds, CYCLE, strict=False):
            if quantity.name in each.best:
                median = each.best.band(quantity.name)[0]
                blocks = np.arange(1, len(median) + 1)
                label = quantity.kind if style == "-" else None
                mark = "." if len(blocks) == 1 else ""
                axes.plot(blocks, np.where(median > 0, median, np.nan), style, marker=mark, color=colour, label=label)
    axes.set_yscale("log")
    for start, _ in audit.stacks[1:]:
        axes.axvline(start + 0.5, color=GREY, lw=0.5, zorder=0)  # the decoder begins
    if audit.other is not None:
        axes.plot([], [], ":", color=GREY, label=_label(audit.other.model.name))
    axes.set(xlabel="block", ylabel=group.title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center", ncols=4 if audit.other is None else 2)
    return figure


def _figure(audit: Found, quantity: Quantity) -> Any:
    long = max(len(_label(each.model.name)) for each in audit.every) > SHORT
    rows = sum(len(each.measured) for each in audit.every) // (1 if long else 2)
    figure = new(2.5 + 0.14 * rows)
    axes = figure.subplots()
    ends = []
    for each, colour in zip(audit.every, COLOURS, strict=False):
        for found in each.measured:
            if quantity.name not in found:
                continue
            median, low, high = found.band(quantity.name)
            blocks = np.arange(1, len(median) + 1)
            label = _label(each.model.name) + (", n = ∞" if found.subject.infinite else "")
            mark = "." if len(blocks) == 1 else ""  # a line of one point is not seen
            if found is each.best:
                axes.fill_between(blocks, low, high, color=colour, alpha=0.22, lw=0)
            thick = 2.2 if colour == COLOURS[0] and audit.other is not None else 1.2  # so that neither hides the other
            line = DASHED if found.subject.infinite else "-"
            axes.plot(blocks, median, linestyle=line, marker=mark, color=colour, label=label, lw=thick)
            ends += [float(low.min()), float(high.max())]
    if quantity.log and max(ends) > 5 * min(ends) > 0:
        axes.set_yscale("log")
    elif quantity.name in ("entropy", "attention_share", "mlp_share", "cross_share", "largest_weight"):
        axes.set_ylim(-0.02, 1.02)
    for start, _ in audit.stacks[1:]:
        axes.axvline(start + 0.5, color=GREY, lw=0.5, zorder=0)  # the decoder begins
    if quantity.name == "cosine":
        axes.axhline(0.0, color=GREY, lw=0.5, zorder=0)
    axes.set(xlabel="block", ylabel=quantity.title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center", ncols=1 if long else 2)
    return figure


def _label(name: str) -> str:
    """A name for the legend: shortened, and with nothing that matplotlib takes for more than text."""
    short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")
