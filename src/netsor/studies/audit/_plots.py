"""A figure for each quantity against depth: bands at the model's own widths, dashed
lines at infinity.
"""

from __future__ import annotations

import math
import textwrap
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
from ._measurements import Band, LengthResult
from ._quantities import BLOCKS, EVERY, FINAL, TOGETHER, Quantity
from ._request import swept_text
from ._rules import RULES

# of models, where colours are for kinds of weights
STYLES: Sequence[Any] = ("-", ":", "--", "-.")
FROM_EMBEDDING = ("mean_square", "cosine", "effective_rank", "grad_mean_square")
# models, or kinds of weights
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHED = (0, (4.0, 1.6))
# quantities whose figure has the finding of a rule as its title, if there is one model
RULE_OF = {
    "mean_square": "growth",
    "attention_share": "branches",
    "mlp_share": "branches",
    "effective_rank": "rank",
    "entropy": "entropy",
    "grad_mean_square": "exploding",
    "largest_load": "load",
}
TITLE_LETTERS = 42  # that fit above a figure of a column's width
WORD_LETTERS = 7  # lines of a title differ by about a word
THRESHOLDS = {rule.name: rule.threshold for rule in RULES}
# letters of a name: two names fit side by side, and one fits at all
MAX_SHORT_NAME, MAX_NAME = 24, 56


def figures(models: Sequence[LengthResult]) -> list[Figure]:
    """A figure of each measured quantity against depth. The gradients of all kinds of
    weights share one, if there are line styles enough for the models.
    """
    names = []
    for quantity in BLOCKS:
        if not quantity.kind and _is_measured(quantity, models):
            names.append(quantity.name)
    if len(models) <= len(STYLES):
        names += [group.name for group in TOGETHER if _kinds(models, group)]
    return [figure(models, name) for name in names]


def _is_measured(quantity: Quantity, models: Sequence[LengthResult]) -> bool:
    """Whether any model has this quantity."""
    return any(quantity.name in result.best for result in models)


def figure(models: Sequence[LengthResult], name: str, prefix: str = "") -> Figure:
    """The figure of a quantity against depth."""
    quantity = EVERY[name]
    meaning = quantity.meaning
    caption = f"{meaning[0].upper()}{meaning[1:]}."
    draw = _together if quantity in TOGETHER else _against_depth
    return svg_figure(prefix + name, caption, draw, models, quantity)


def _kinds(models: Sequence[LengthResult], group: Quantity) -> list[Quantity]:
    """The measured quantities of a group: the gradients of each kind of weight, or
    their ratios to the weights.
    """
    are_ratios = group.name.endswith("_ratio")
    kinds = []
    for quantity in BLOCKS:
        is_ratio = quantity.name.endswith("_ratio")
        if not quantity.kind or is_ratio != are_ratios:
            continue
        if _is_measured(quantity, models):
            kinds.append(quantity)
    return kinds


def swept_figures(
    models: Sequence[LengthResult], field: str, values: Sequence[float | str]
) -> list[Figure]:
    """A figure of each quantity, after the last block or at the output, against a field
    of the models.
    """
    pictures = []
    for quantity in (*BLOCKS, *FINAL):
        name = quantity.name
        title = quantity.title
        if quantity.kind or not all(name in result.best for result in models):
            continue
        position = "at the output" if quantity in FINAL else "after the last block"
        caption = f"{title[0].upper()}{title[1:]} {position}, against {field}."
        picture = svg_figure(
            f"{name}-swept", caption, _against_field, models, quantity, field, values
        )
        pictures.append(picture)
    return pictures


def _against_field(
    models: Sequence[LengthResult],
    quantity: Quantity,
    field: str,
    values: Sequence[float | str],
) -> Any:
    """A figure: the median of a quantity, after the last block or at the output, with
    its band, against a field of the models. `values` are those of the field, in the
    order of the models; words stand side by side.
    """
    figure = new(2.2)
    axes = figure.subplots()
    are_words = any(isinstance(value, str | bool) for value in values)
    x = np.arange(len(values), dtype=float)
    if not are_words:
        x = np.array(values, dtype=float)
    order = np.argsort(x)
    x = x[order]
    medians = []
    lows = []
    highs = []
    for k in order:
        band = models[k][quantity.name]
        # after the last block, or at the output
        medians.append(np.reshape(band.median, -1)[-1])
        lows.append(np.reshape(band.low, -1)[-1])
        highs.append(np.reshape(band.high, -1)[-1])
    if are_words:
        axes.vlines(x, lows, highs, color=BLUE, alpha=0.22, lw=12)
        axes.plot(x, medians, marker="o", color=BLUE, lw=0)
        axes.set_xlim(-0.5, len(x) - 0.5)
    else:
        axes.fill_between(x, lows, highs, color=BLUE, alpha=0.22, lw=0)
        axes.plot(x, medians, marker="o", color=BLUE)
    if not are_words and x[0] > 0 and x[-1] > 3 * x[0]:
        axes.set_xscale("log")
    axes.set_xticks(x, [swept_text(values[k]) for k in order])
    axes.minorticks_off()
    _scale(axes, quantity, [float(min(lows)), float(max(highs))])
    axes.set(xlabel=_label(field), ylabel=quantity.title)
    return figure


def _together(models: Sequence[LengthResult], group: Quantity) -> Any:
    """A figure: medians of the gradients of each kind of weight against depth, with a
    colour for each kind and a line style for each model.
    """
    kinds = _kinds(models, group)
    legend_rows = (len(kinds) + 3) // 4 + len(models)
    figure = new(2.6 + 0.14 * legend_rows)
    axes = figure.subplots()
    for k, result in enumerate(models):
        for i, (quantity, colour) in enumerate(zip(kinds, CYCLE, strict=False)):
            if quantity.name not in result.best:
                continue
            band = result[quantity.name]
            assert band.blocks is not None
            positive_medians = np.where(band.median > 0, band.median, np.nan)
            axes.plot(
                band.blocks,
                positive_medians,
                linestyle=STYLES[k],
                color=colour,
                label=quantity.kind if k == 0 else None,
                **_marks(MARKS[i], i, len(band.blocks)),
            )
    axes.set_yscale("log")
    if len(models) > 1:  # a line for each model in the legend
        for name, style in zip(_names(models), STYLES, strict=False):
            axes.plot([], [], linestyle=style, color=GREY, label=name)
    _label_axes(axes, models, group.title)
    figure.legend(loc="outside lower center", ncols=4 if len(models) == 1 else 2)
    return figure


def _against_depth(models: Sequence[LengthResult], quantity: Quantity) -> Any:
    """A figure of one quantity against depth; below it the legend, in two columns if
    the names are short.
    """
    longest = max(len(name) for name in _names(models))
    columns = 1 if longest > MAX_SHORT_NAME else 2
    curves = sum(len(result.measured) for result in models)
    figure = new(2.5 + 0.14 * (curves // columns))
    if _draw(figure.subplots(), models, quantity):
        figure.legend(loc="outside lower center", ncols=columns)
    return figure


def plot_quantity(models: Sequence[LengthResult], name: str, axes: Any = None) -> Any:
    """Draw a quantity of the blocks into these axes, or into pyplot's current ones."""
    measured = [q.name for q in BLOCKS if _is_measured(q, models)]
    if name not in measured:
        raise ArgumentError(
            "quantity", name, f"one that was measured: {', '.join(measured)}"
        )
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.gca()
    if _draw(axes, models, EVERY[name]):
        axes.legend(loc="best")
    return axes


def _draw(axes: Any, models: Sequence[LengthResult], quantity: Quantity) -> bool:
    """Draw a quantity against depth: medians as lines, bands as areas, thresholds of
    rules as dotted lines. Return whether a legend is needed: it has several lines.
    """
    names = _names(models)
    colours = _colours(len(models))
    ends: list[float] = []  # of all bands
    for k, result in enumerate(models):
        colour = colours[k]
        for draws in result.measured:
            if quantity.name not in draws:
                continue
            band = draws.band(quantity.name)
            ends += [float(band.low.min()), float(band.high.max())]
            style = _line_style(band, draws.subject.infinite, k, models=len(models))
            name = f"{names[k]}, n = ∞" if draws.subject.infinite else names[k]
            axes.plot(band.blocks, band.median, color=colour, label=name, **style)
            if draws is result.best:
                axes.fill_between(
                    band.blocks, band.low, band.high, color=colour, alpha=0.22, lw=0
                )
    _scale(axes, quantity, ends)
    if quantity.name == "cosine":
        axes.axhline(0.0, color=GREY, lw=0.5, zorder=0)
    _draw_thresholds(axes, models, quantity.name)
    _draw_branch_threshold(axes, models, colours, quantity.name)
    axis_note = " (0: embedding)" if quantity.name in FROM_EMBEDDING else ""
    _label_axes(axes, models, quantity.title, axis_note)
    axes.set_title(_finding_text(models, quantity), loc="left")
    return len(axes.get_legend_handles_labels()[0]) > 1


def _finding_text(models: Sequence[LengthResult], quantity: Quantity) -> str:
    """What a rule found in a quantity of the only model, in lines; else nothing."""
    rule = RULE_OF.get(quantity.name)
    if rule is None or len(models) > 1:
        return ""
    brief = models[0].finding(rule).brief.replace("$", r"\$")
    title = f"{brief[:1].upper()}{brief[1:]}"
    lines = math.ceil(len(title) / TITLE_LETTERS)
    if lines < 2:
        return title
    return "\n".join(textwrap.wrap(title, len(title) // lines + WORD_LETTERS))


def _colours(count: int) -> Sequence[Any]:
    """A colour for each model; of many, in order from dark to light."""
    if count <= len(CYCLE):
        return CYCLE[:count]
    from matplotlib import colormaps  # slow to import

    return tuple(colormaps["viridis"](np.linspace(0.0, 0.95, count)))


def _line_style(band: Band, infinite: bool, k: int, models: int) -> dict[str, Any]:
    """Arguments for the line of the k-th of several models: dashed at infinite width,
    with markers if colours distinguish the models or there is a single block.
    """
    assert band.blocks is not None
    has_colour = models > 1 and not infinite
    mark = ""
    if has_colour or len(band.blocks) == 1:
        mark = MARKS[k % len(MARKS)]
    return {
        "linestyle": DASHED if infinite else "-",
        # the first model is thicker: where two lines are equal, one shows behind
        # another
        "lw": 2.2 if k == 0 and has_colour else 1.2,
        **_marks(mark, k, len(band.blocks)),
    }


def _draw_thresholds(axes: Any, models: Sequence[LengthResult], name: str) -> None:
    """Dotted lines with the side that is flagged."""
    for threshold, side in _thresholds(models, name):
        axes.axhline(threshold, color=VERMILLION, lw=0.8, ls=":", zorder=0)
        axes.text(
            0.99,
            threshold,
            f"flagged {side}",
            color=VERMILLION,
            fontsize="small",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="top" if side == "below" else "bottom",
        )


def _draw_branch_threshold(
    axes: Any, models: Sequence[LengthResult], colours: Sequence[Any], name: str
) -> None:
    """Draw the share below which a branch is flagged, which depends on the share of the
    other branch. Nothing for other quantities.
    """
    if name == "attention_share":
        other = "mlp_share"
    elif name == "mlp_share":
        other = "attention_share"
    else:
        return
    # a branch is flagged below a ninth of the share of the other
    factor = THRESHOLDS["branches"] / (1 - THRESHOLDS["branches"])
    label = "flagged below"
    for result, colour in zip(models, colours, strict=True):
        # cross-attention counts as attention
        if other not in result.best or "cross_share" in result.best:
            continue
        band = result[other]
        threshold = factor * band.median
        axes.plot(band.blocks, threshold, color=colour, lw=0.8, ls=":", label=label)
        label = "_"  # once in the legend


def _thresholds(models: Sequence[LengthResult], name: str) -> list[tuple[float, str]]:
    """The thresholds on a quantity, (threshold, flagged side), where a rule has one.

    A threshold relative to a number of the model, such as its gradient after the last
    block, is known only if there is one model (or all agree in that number).
    """
    if name == "entropy":
        return [(THRESHOLDS["entropy"], "below")]
    if name == "largest_load":
        return [(THRESHOLDS["load"], "above")]
    if name == "effective_rank" and len({result.distinct for result in models}) == 1:
        return [(1 + THRESHOLDS["rank"] * (models[0].distinct - 1), "below")]
    if len(models[0].stacks) > 1:
        return []
    if name == "mean_square" and len({result.model.name for result in models}) == 1:
        embedding = float(models[0][name].median[0])
        return [(THRESHOLDS["growth"] * embedding, "above")]
    measured = [result for result in models if name in result.best]
    if name == "grad_mean_square" and len(measured) == 1:
        # the rules are about the first block and about the embedding
        last = float(measured[0][name].median[-1])
        return [
            (THRESHOLDS["vanishing"] * last, "below"),
            (THRESHOLDS["exploding"] * last, "above"),
        ]
    return []


def _scale(axes: Any, quantity: Quantity, ends: list[float]) -> None:
    """Choose the scale of the vertical axis: logarithmic if the quantity allows it and
    the bands, with these ends, vary by more than a factor of 5; shares from 0 on.
    """
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
    if len(models) > 1 and len({result.model.name for result in models}) == 1:
        return [f"{result.tokens:,} tokens" for result in models]
    return [_label(result.model.name) for result in models]


def _marks(mark: str, curve: int, blocks: int) -> dict[str, Any]:
    """Arguments for the markers of a curve, which distinguish curves without colours.
    On curves of many blocks about six blocks have one, not the same for each curve.
    """
    step = max(1, blocks // 6)
    return {
        "marker": mark,
        "markersize": 3.5,
        "markerfacecolor": "none",
        "markevery": (curve % step, step),
    }


def _label(name: str) -> str:
    """A name for the legend: shortened, and without letters that have a meaning for
    matplotlib.
    """
    short = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    if short.startswith("_"):  # matplotlib leaves such names out of a legend
        short = f" {short}"
    return short.replace("$", r"\$")  # which would begin a formula
