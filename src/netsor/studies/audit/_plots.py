"""A figure for each quantity against depth: bands at the model's own widths, dashed
lines at infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._validate import ArgumentError
from ...report._document import Figure
from ...report._mpl_style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    new,
)
from .._study import svg_figure
from ._measurements import LengthResult
from ._quantities import BLOCKS, EVERY, FINAL, TOGETHER, Quantity
from ._rules import RULES

# of models, where colours are for kinds of weights
STYLES: Sequence[Any] = ("-", ":", "--", "-.")
FROM_EMBEDDING = ("mean_square", "cosine", "effective_rank", "grad_mean_square")
# models, or kinds of weights
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHED = (0, (4.0, 1.6))
THRESHOLDS = {rule.name: rule.threshold for rule in RULES}
# letters of a name: two names fit side by side, and one fits at all
MAX_SHORT_NAME, MAX_NAME = 24, 56


def figures(models: Sequence[LengthResult]) -> list[Figure]:
    """A figure of each quantity against depth; kinds of weights share one."""
    measured = [
        q.name
        for q in BLOCKS
        if not q.kind and any(q.name in each.best for each in models)
    ]
    groups = [
        group.name
        for group in TOGETHER
        if _kinds(models, group) and len(models) <= len(STYLES)
    ]
    return [figure(models, name) for name in (*measured, *groups)]


def figure(models: Sequence[LengthResult], name: str, prefix: str = "") -> Figure:
    """The figure of a quantity against depth."""
    title = EVERY[name].title
    caption = f"{title[0].upper()}{title[1:]}: {EVERY[name].meaning}."
    draw = _together if EVERY[name] in TOGETHER else _against_depth
    return svg_figure(prefix + name, caption, draw, models, EVERY[name])


def _kinds(models: Sequence[LengthResult], group: Quantity) -> list[Quantity]:
    """The gradients of each kind of weight, or their ratios to the weights."""
    measured = [
        q for q in BLOCKS if q.kind and any(q.name in each.best for each in models)
    ]
    return [
        q
        for q in measured
        if q.name.endswith("_ratio") == group.name.endswith("_ratio")
    ]


def swept_figures(
    models: Sequence[LengthResult], field: str, values: Sequence[float]
) -> list[Figure]:
    """A figure of each quantity, after the last block or at the output, against a field
    of the models.
    """
    found = []
    for q in (*BLOCKS, *FINAL):
        if not q.kind and all(q.name in each.best for each in models):
            place = "at the output" if q in FINAL else "after the last block"
            caption = f"{q.title[0].upper()}{q.title[1:]} {place}, against {field}."
            found.append(
                svg_figure(
                    f"{q.name}-swept", caption, _against_field, models, q, field, values
                )
            )
    return found


def _against_field(
    models: Sequence[LengthResult],
    quantity: Quantity,
    field: str,
    values: Sequence[float],
) -> Any:
    figure = new(2.2)
    axes = figure.subplots()
    order = np.argsort(values)
    # medians, low and high ends
    ends = zip(*(each[quantity.name][1:4] for each in models), strict=True)
    median, low, high = (
        np.array([np.reshape(values, -1)[-1] for values in some])[order]
        for some in ends
    )
    at = np.array(values, dtype=float)[order]
    axes.fill_between(at, low, high, color=BLUE, alpha=0.22, lw=0)
    axes.plot(at, median, marker="o", color=BLUE)
    if at[0] > 0 and at[-1] > 3 * at[0]:
        axes.set_xscale("log")
    axes.set_xticks(at, [f"{v:g}" for v in at])
    axes.minorticks_off()
    _scale(axes, quantity, [float(low.min()), float(high.max())])
    axes.set(xlabel=_label(field), ylabel=quantity.title)
    return figure


def _together(models: Sequence[LengthResult], group: Quantity) -> Any:
    """Medians of each kind of weight in one figure: a colour each, a line style for
    each model.
    """
    kinds = _kinds(models, group)
    figure = new(2.6 + 0.14 * ((len(kinds) + 3) // 4 + len(models)))
    axes = figure.subplots()
    for k, each in enumerate(models):
        for place, (quantity, colour) in enumerate(zip(kinds, CYCLE, strict=False)):
            if quantity.name in each.best:
                band = each[quantity.name]
                assert band.blocks is not None
                style = {
                    "linestyle": STYLES[k],
                    "color": colour,
                    "label": quantity.kind if k == 0 else None,
                }
                seen = np.where(band.median > 0, band.median, np.nan)
                axes.plot(
                    band.blocks,
                    seen,
                    **style,
                    **_marks(MARKS[place], place, len(band.blocks)),
                )
    axes.set_yscale("log")
    for name, style in (
        zip(_names(models), STYLES, strict=False) if len(models) > 1 else ()
    ):
        axes.plot([], [], linestyle=style, color=GREY, label=name)
    _label_axes(axes, models, group.title)
    figure.legend(loc="outside lower center", ncols=4 if len(models) == 1 else 2)
    return figure


def _against_depth(models: Sequence[LengthResult], quantity: Quantity) -> Any:
    long = max(map(len, _names(models))) > MAX_SHORT_NAME
    rows = sum(len(each.measured) for each in models) // (1 if long else 2)
    figure = new(2.5 + 0.14 * rows)
    if _draw(figure.subplots(), models, quantity):
        figure.legend(loc="outside lower center", ncols=1 if long else 2)
    return figure


def plot_quantity(models: Sequence[LengthResult], name: str, axes: Any = None) -> Any:
    """Draw a quantity of the blocks into these axes, or into pyplot's current ones."""
    known = [q.name for q in BLOCKS if any(q.name in each.best for each in models)]
    if name not in known:
        raise ArgumentError(
            "quantity", name, f"one that was measured: {', '.join(known)}"
        )
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.gca()
    if _draw(axes, models, EVERY[name]):
        axes.legend(loc="best")
    return axes


def _draw(axes: Any, models: Sequence[LengthResult], quantity: Quantity) -> bool:
    """Medians as lines, bands as areas, thresholds of rules as dotted lines; whether a
    legend is needed.
    """
    from matplotlib import colormaps  # slow to import

    ends, names, colours = [], _names(models), CYCLE[: len(models)]
    if len(models) > len(CYCLE):  # in order, from dark to light
        colours = tuple(colormaps["viridis"](np.linspace(0.0, 0.95, len(models))))
    for k, (each, colour) in enumerate(zip(models, colours, strict=True)):
        for draws in each.measured:
            if quantity.name not in draws:
                continue
            blocks, median, low, high, _ = draws.band(quantity.name)
            assert blocks is not None
            several = len(models) > 1 and not draws.subject.infinite
            mark = MARKS[k % len(MARKS)] if several or len(blocks) == 1 else ""
            style = {
                "color": colour,
                "linestyle": "-",
                "label": names[k],
                **_marks(mark, k, len(blocks)),
            }
            if draws.subject.infinite:
                style |= {"linestyle": DASHED, "label": f"{names[k]}, n = ∞"}
            if draws is each.best:
                axes.fill_between(blocks, low, high, color=colour, alpha=0.22, lw=0)
            # or one would hide the other
            axes.plot(blocks, median, lw=2.2 if k == 0 and several else 1.2, **style)
            ends += [float(low.min()), float(high.max())]
    _scale(axes, quantity, ends)
    if quantity.name == "cosine":
        axes.axhline(0.0, color=GREY, lw=0.5, zorder=0)
    for threshold, side in _thresholds(models, quantity.name):
        axes.axhline(threshold, color=VERMILLION, lw=0.8, ls=":", zorder=0)
        place = {
            "transform": axes.get_yaxis_transform(),
            "ha": "right",
            "va": "top" if side == "below" else "bottom",
        }
        axes.text(
            0.99,
            threshold,
            f"flagged {side}",
            color=VERMILLION,
            fontsize="small",
            **place,
        )
    # a branch is flagged below a ninth of the share of the other
    other = {"attention_share": "mlp_share", "mlp_share": "attention_share"}.get(
        quantity.name, ""
    )
    factor, label = (
        THRESHOLDS["branches"] / (1 - THRESHOLDS["branches"]),
        "flagged below",
    )
    for each, colour in zip(models, colours, strict=True):
        # which counts as attention
        if other in each.best and "cross_share" not in each.best:
            axes.plot(
                each[other].blocks,
                factor * each[other].median,
                color=colour,
                lw=0.8,
                ls=":",
                label=label,
            )
            label = "_"  # once in the legend
    _label_axes(
        axes,
        models,
        quantity.title,
        " (0: embedding)" if quantity.name in FROM_EMBEDDING else "",
    )
    return len(axes.get_legend_handles_labels()[0]) > 1


def _thresholds(models: Sequence[LengthResult], name: str) -> list[tuple[float, str]]:
    """The thresholds of the rule on a quantity; those relative to a number of the
    model, only for one model.
    """
    if name in ("entropy", "largest_load"):
        return [
            (THRESHOLDS["entropy"], "below")
            if name == "entropy"
            else (THRESHOLDS["load"], "above")
        ]
    if name == "effective_rank" and len({each.distinct for each in models}) == 1:
        return [(1 + THRESHOLDS["rank"] * (models[0].distinct - 1), "below")]
    if (
        name == "mean_square"
        and len({each.model.name for each in models}) == len(models[0].stacks) == 1
    ):
        return [(THRESHOLDS["growth"] * float(models[0][name].median[0]), "above")]
    having = [each for each in models if name in each.best]
    if name == "grad_mean_square" and len(having) == len(models[0].stacks) == 1:
        # the rules are about the first block and about the embedding
        last = float(having[0][name].median[-1])
        return [
            (THRESHOLDS["vanishing"] * last, "below"),
            (THRESHOLDS["exploding"] * last, "above"),
        ]
    return []


def _scale(axes: Any, quantity: Quantity, ends: list[float]) -> None:
    if quantity.log and max(ends) > 5 * min(ends) > 0:
        axes.set_yscale("log")
    elif quantity.name in ("entropy", "largest_weight"):
        axes.set_ylim(-0.02, 1.02)
    elif quantity.name in ("attention_share", "mlp_share", "cross_share"):
        axes.set_ylim(0.0, 1.05 * max(ends))


def _label_axes(
    axes: Any, models: Sequence[LengthResult], title: str, first: str = ""
) -> None:
    """Labels, ticks at whole blocks, and a line where a decoder begins."""
    axes.set(xlabel=f"block{first}", ylabel=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    for start, _ in models[0].stacks[1:]:
        axes.axvline(start + 0.5, color=GREY, lw=0.5, zorder=0)


def _names(models: Sequence[LengthResult]) -> list[str]:
    """Names for the legend: of the models, or of the lengths of one model."""
    if len(models) > 1 and len({each.model.name for each in models}) == 1:
        return [f"{each.tokens:,} tokens" for each in models]
    return [_label(each.model.name) for each in models]


def _marks(mark: str, place: int, blocks: int) -> dict[str, Any]:
    """Markers that distinguish curves without colours; on long curves at some blocks
    only, different for each curve.
    """
    step = max(1, blocks // 6)
    return {
        "marker": mark,
        "markersize": 3.5,
        "markerfacecolor": "none",
        "markevery": (place % step, step),
    }


def _label(name: str) -> str:
    """A name for the legend: shortened, and without letters that have a meaning for
    matplotlib.
    """
    short = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")
