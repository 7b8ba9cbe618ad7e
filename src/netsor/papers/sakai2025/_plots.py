"""The figures: finite widths dotted and darker as they grow, limits solid and blue, the
Gaussian of infinitely many heads black.

Titles say what a figure shows, with numbers that are computed from its data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...laws import Estimate
from ...report._mpl_style import (
    BLACK,
    DOTTED,
    GREEN,
    GREY,
    LABEL_POINTS,
    LIMIT,
    PURPLE,
    STYLE,
    new,
    width_colours,
)
from .. import _figures
from ._densities import Array
from ._estimators import (
    HEADS,
    WELL_ABOVE,
    Curve,
    Densities,
    Divergences,
    Heads,
    Scores,
)
from ._experiments import WIDTHS, Case

OURS, PAPERS = GREEN, PURPLE  # the two estimators

FINITE, LIMITING, GAUSSIAN = "width n", "limit", "infinitely many heads"
DRAWING_ORDER = (LIMITING, GAUSSIAN, FINITE)  # of densities; later ones are on top
DASHED = (0, (4, 2))
SHORT_DASHES = (0, (2, 2))

# Where the names of densities begin, and where the lines from them end, in units of the
# output; and the distance between names, as a share of the axes.
NAME_X, LEADER_X = 1.0, 0.08
NAME_GAP = 0.11


def drawn(data: Densities | Divergences | Scores | Heads) -> dict[str, bytes]:
    """A figure of the data, as pdf, png and svg."""
    match data:
        case Densities():
            return _figures.drawn(_densities, data)
        case Divergences():
            return _figures.drawn(_divergences, data)
        case Scores():
            return _figures.drawn(_scores, data)
        case Heads():
            return _figures.drawn(_heads, data)


def _set_title(figure: Any, *lines: str) -> None:
    """A title in the middle of the figure, not of the axes, which are narrower."""
    figure.suptitle("\n".join(lines), fontsize=STYLE["axes.titlesize"])


def _width_colour(width: float) -> Any:
    """The colour of a width, the same in all figures."""
    colours = dict(zip(WIDTHS, width_colours(len(WIDTHS)), strict=True))
    return colours[round(width)]


def _colour(curve: Curve) -> Any:
    """The colour of a density: that of its width, of limits, or of the Gaussian."""
    if curve.role == LIMITING:
        return LIMIT
    if curve.role == GAUSSIAN:
        return BLACK
    return _width_colour(curve.case.width)


def _name(curve: Curve) -> str:
    """The name of a density, as "n = 256"."""
    if curve.role == LIMITING:
        return "limit"
    if curve.role == GAUSSIAN:
        return "H = ∞"
    return f"n = {curve.case.width:.0f}"


def _heads_in_words(count: float) -> str:
    """A number of heads in words."""
    return "one head" if count == 1 else f"{count:.0f} heads"


def _setting(case: Case) -> str:
    """What the cases of a figure over widths share, as "H = 2, 4 tokens"."""
    text = f"H = {case.heads}, {case.tokens} tokens"
    return f"{text}, ReLU" if case.activation == "relu" else text


def _percent(share: float) -> str:
    """A share in percent, to two digits."""
    return f"{100 * share:.2g} %"


def _densities(data: Densities) -> Any:
    """Densities above; below, their differences from the limits on a larger scale.

    Where the number of heads varies, each case has a column, because its limit is
    another one.
    """
    cases = list(data.figure.cases)
    columns = [cases] if data.figure.parameter == "n" else [[case] for case in cases]
    estimators = {curve.estimator for curve in data.curves if curve.role == FINITE}
    main_estimator = "exact" if "exact" in estimators else "paper"
    both = estimators == {"paper", "exact"}

    figure = new(3.3)
    rows = figure.subplots(
        2,
        len(columns),
        sharex=True,
        sharey="row",
        height_ratios=(2.2, 1.0),
        squeeze=False,
    )
    for column, (top, bottom) in zip(columns, rows.T, strict=True):
        curves = _curves_of(data, column)
        main = [curve for curve in curves if _is_main(curve, main_estimator)]
        _plot_densities(top, main)
        top.set_ylim(0, None)
        _plot_differences(bottom, curves, main_estimator)
        if len(columns) == 1:
            _name_peaks(top, main)
        else:
            (case,) = column
            top.set_title(f"H = {case.heads}\nn = {case.width:.0f}")
            bottom.set_xlabel("output y")

    top, bottom = rows[:, 0]
    top.set_ylabel("density")
    span = max(abs(v) for v in bottom.get_ylim())
    bottom.set(ylabel="minus limit", xlim=(-2.4, 2.4), ylim=(-span, span))
    if len(columns) == 1:
        bottom.set_xlabel(f"output coordinate y ({_setting(cases[0])})")
        if both:
            _explain_thin_lines(bottom)
    else:
        _add_key(figure, data, both)
    _set_title(figure, *_distances_from_limits(data, main_estimator))
    return figure


def _curves_of(data: Densities, cases: Sequence[Case]) -> list[Curve]:
    """The densities of these cases, of their limits, and the Gaussian."""
    limits = [case.limit for case in cases]
    chosen = []
    for curve in data.curves:
        if (
            curve.role == GAUSSIAN
            or (curve.role == LIMITING and curve.case in limits)
            or (curve.role == FINITE and curve.case in cases)
        ):
            chosen.append(curve)
    return chosen


def _is_main(curve: Curve, main_estimator: str) -> bool:
    """Whether the upper panel shows a density."""
    return curve.role == GAUSSIAN or curve.estimator == main_estimator


def _distances_from_limits(data: Densities, main_estimator: str) -> tuple[str, str]:
    """A title: how far the first and the last case are from their limits, or how far
    these limits are from the Gaussian.
    """
    curves = {}
    gaussian = None
    for curve in data.curves:
        if curve.role == GAUSSIAN:
            gaussian = curve
        elif curve.estimator == main_estimator:
            curves[curve.role, curve.case] = curve
    first = data.figure.cases[0]
    last = data.figure.cases[-1]
    first_limit = curves[LIMITING, first.limit]
    last_limit = curves[LIMITING, last.limit]
    if gaussian is not None:
        first_share = _percent(_distance(first_limit, gaussian))
        last_share = _percent(_distance(last_limit, gaussian))
        few = _heads_in_words(first.heads)
        many = _heads_in_words(last.heads)
        return (
            f"The limit of {few} differs from a Gaussian by up to",
            f"{first_share} of the peak, that of {many} by {last_share}",
        )
    first_share = _percent(_distance(curves[FINITE, first], first_limit))
    last_share = _percent(_distance(curves[FINITE, last], last_limit))
    names = [f"at width {case.width:.0f}" for case in (first, last)]
    if data.figure.parameter == "H":
        names = [f"with {_heads_in_words(case.heads)}" for case in (first, last)]
    return (
        f"{names[0].capitalize()} the density differs from the limit by up to",
        f"{first_share} of the peak, {names[1]} by {last_share}",
    )


def _distance(curve: Curve, other: Curve) -> float:
    """The largest difference of two densities, as a share of the peak of the other."""
    return float(np.abs(curve.density - other.density).max() / other.density.max())


def _plot_densities(axes: Any, curves: Sequence[Curve]) -> None:
    """Plot densities, finite widths on top."""
    for order, role in enumerate(DRAWING_ORDER):
        style: dict[str, Any] = {"linestyle": "-", "lw": 1.0}
        if role == FINITE:
            style = {"linestyle": DOTTED, "lw": 1.8}
        for curve in curves:
            if curve.role == role:
                axes.plot(
                    curve.y,
                    curve.density,
                    color=_colour(curve),
                    zorder=2 + order,
                    **style,
                )


def _name_peaks(axes: Any, curves: Sequence[Curve]) -> None:
    """Name densities to the right of their peaks, the highest above, with lines."""
    by_peak = sorted(curves, key=lambda curve: -curve.density.max())
    for position, curve in enumerate(by_peak):
        colour = _colour(curve)
        axes.annotate(
            _name(curve),
            xy=(LEADER_X, curve.density.max()),
            xytext=(NAME_X, 0.98 - NAME_GAP * position),
            textcoords=("data", "axes fraction"),
            va="center",
            fontsize=LABEL_POINTS,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 1.0, "shrinkB": 0},
        )


def _add_key(figure: Any, data: Densities, both: bool) -> None:
    """Name the lines that all columns share, below the figure; with both estimators
    there are thin ones too.
    """
    from matplotlib.lines import Line2D  # slow to import

    cases = data.figure.cases
    colour = _width_colour(cases[len(cases) // 2].width)
    lines = [
        Line2D([], [], color=colour, linestyle=DOTTED, lw=1.8, label="width n"),
        Line2D([], [], color=LIMIT, lw=1.0, label="limit"),
    ]
    if any(curve.role == GAUSSIAN for curve in data.curves):
        lines.append(Line2D([], [], color=BLACK, lw=1.0, label="H = ∞, a Gaussian"))
    if both:
        lines.append(Line2D([], [], color=colour, lw=0.5, label="kernel estimate"))
    columns = 3 if len(lines) == 3 else 2
    figure.legend(handles=lines, loc="outside lower center", ncols=columns)


def _explain_thin_lines(axes: Any) -> None:
    """Say what the thin lines are, in the upper left corner."""
    text = "thin: kernel estimates"
    at = (0.01, 1.0)
    _annotate(axes, text, at, (0, 0), xycoords="axes fraction", color=GREY, va="top")


def _plot_differences(axes: Any, curves: Sequence[Curve], main_estimator: str) -> None:
    """Plot differences from the exact limit, or from the paper's estimate without it.

    Estimates at finite width that are not by the main estimator are thin. The Gaussian
    is compared with every limit.
    """
    limits: dict[tuple[Case, str], Curve] = {}  # by case and estimator
    for curve in curves:
        if curve.role == LIMITING:
            limits[curve.case, curve.estimator] = curve
    exact_limits = [curve for curve in limits.values() if curve.estimator == "exact"]
    for curve in curves:
        if curve.role == GAUSSIAN:
            for limit in exact_limits or limits.values():
                difference = curve.density - limit.density
                axes.plot(curve.y, difference, color=BLACK, lw=1.0, zorder=1)
            continue
        case = curve.case.limit
        reference = limits.get((case, "exact")) or limits[case, "paper"]
        difference = curve.density - reference.density
        if curve.role == LIMITING:
            continue
        style: dict[str, Any] = {"lw": 0.5, "alpha": 0.55, "zorder": 2}
        if curve.estimator == main_estimator:
            style = {"linestyle": DOTTED, "lw": 1.8, "zorder": 3}
        axes.plot(curve.y, difference, color=_colour(curve), **style)
    axes.axhline(0.0, color=LIMIT, lw=0.7, zorder=0)


def _plot_trials(
    axes: Any, x: list[float], trials: list[list[float]], *, marker: str = "s"
) -> None:
    """Plot the paper's estimator: `trials` has the values of each trial, for each x.

    A faint point for each trial, and their mean with the standard deviation.
    """
    for position, values in zip(x, trials, strict=True):
        positions = [position] * len(values)
        axes.plot(positions, values, ".", color=PAPERS, ms=2.0, alpha=0.4, zorder=1)
    mean = np.array([np.mean(values) for values in trials])
    spread = np.zeros(len(trials))
    for position, values in enumerate(trials):
        if len(values) > 1:
            spread[position] = np.std(values, ddof=1)
    style = {"fmt": marker, "mfc": "white", "color": PAPERS, "zorder": 2}
    _plot_error_bars(axes, x, value=mean, error=spread, **style)
    axes.plot(x, mean, linestyle=DASHED, color=PAPERS, lw=0.8, zorder=1)


def _plot_estimates(axes: Any, x: list[float], estimates: list[Estimate]) -> None:
    """Plot our estimator: a point with its standard error, where it is above 0."""
    positions = np.array(x)
    value = np.array([estimate.value for estimate in estimates])
    error = np.array([estimate.error for estimate in estimates])
    positive = value > 0
    if not positive.any():
        return
    _plot_error_bars(
        axes,
        x=positions[positive],
        value=value[positive],
        error=error[positive],
        fmt="o",
        color=OURS,
        zorder=3,
    )


def _plot_error_bars(
    axes: Any, x: Any, value: Array, error: Array, **style: Any
) -> None:
    """Points with error bars, which on a logarithmic axis must end above 0."""
    bars = np.minimum(error, 0.9 * value)
    axes.errorbar(x, value, yerr=bars, capsize=2, lw=0.8, **style)


def _set_kl_axes(axes: Any, ticks: list[float]) -> None:
    """Logarithmic axes for KL against the number of heads, or another parameter."""
    axes.set(xscale="log", yscale="log", ylabel="KL divergence (nats)")
    axes.set_xlabel("heads H")
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.minorticks_off()


def _annotate(
    axes: Any,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    **style: Any,
) -> None:
    """Name a point or a line, at this offset in points."""
    axes.annotate(
        text,
        xy=at,
        xytext=offset,
        textcoords="offset points",
        fontsize=LABEL_POINTS,
        annotation_clip=False,
        **style,
    )


def _divergences(data: Divergences) -> Any:
    """KL of each case from the limit, by both estimators."""
    figure = new(2.7)
    axes = figure.subplots()
    x = data.parameters
    _set_kl_axes(axes, x)
    if data.figure.parameter == "n":
        axes.set_xlabel(f"width n ({_setting(data.figure.cases[0])})")
    if data.figure.cases[0].head_dim is not None:
        labels = [f"{case.heads}\nn = {case.width:.0f}" for case in data.figure.cases]
        axes.set_xticks(x, labels)
    if data.floor:
        floor = float(np.mean([np.mean(trials) for trials in data.floor]))
        axes.axhline(floor, color=PAPERS, lw=0.8, ls=SHORT_DASHES, zorder=0)
        text = "limit against itself,\npaper's estimator"
        _annotate(axes, text, (x[0], floor), (-3, -3), color=PAPERS, va="top")
    if data.paper:
        _plot_trials(axes, x, trials=data.paper)
        highest = max(max(trials) for trials in data.paper[-2:])
        text = "paper's estimator"
        _annotate(
            axes, text, (x[-1], highest), (4, 3), color=PAPERS, ha="right", va="bottom"
        )
    if data.exact:
        text = "ours (exact, coupled)"
        if data.figure.parameter == "n" and data.slope is not None:
            text = _slope_label(data.slope, data.last_slope)
            _plot_power_law(axes, data, data.slope.value)
        _plot_estimates(axes, x, estimates=data.exact)
        at = (0.02, 0.03)
        style = {"xycoords": "axes fraction", "color": OURS, "va": "bottom"}
        _annotate(axes, text, at, (0, 0), **style)
    _set_title(figure, *_falls(data))
    return figure


def _slope_label(slope: Estimate, last_slope: Estimate | None) -> str:
    """The label of our line, with its slope over all widths, and between the last ones
    if there are several.
    """
    label = f"ours: slope {slope.value:.2f}"
    if last_slope is not None:
        label += f",\n{last_slope.value:.2f} at the end"
    return label.replace("-", "−")


def _falls(data: Divergences) -> list[str]:
    """A title: how far KL falls from the first case to the last, by each estimator."""
    first = data.figure.cases[0]
    last = data.figure.cases[-1]
    span = f"From width {first.width:.0f} to {last.width:.0f}"
    if data.figure.parameter == "H":
        span = f"From {_heads_in_words(first.heads)} to {last.heads}"
    lines = []
    if data.exact:
        change = _change(data.exact[0].value, data.exact[-1].value)
        lines.append(f"{span}, KL from the limit {change}")
    if data.paper:
        change = _change(np.mean(data.paper[0]), np.mean(data.paper[-1]))
        subject = "by the paper's estimator it" if lines else f"{span}, KL"
        lines.append(f"{subject} {change}")
    if len(lines) == 2:
        lines[0] += ";"
    return lines


def _change(first: Any, last: Any) -> str:
    """How many times smaller the last KL is than the first."""
    if not 0 < last < first:
        return "does not fall" if last > 0 else "falls to 0"
    times = float(f"{first / last:.2g}")  # two digits
    return f"falls {times:,.3g} times" if times < 1e3 else f"falls {times:,.0f} times"


def _plot_power_law(axes: Any, data: Divergences, slope: float) -> None:
    """Plot the line of this slope through the points that are well above their errors:
    its height is their geometric mean.
    """
    x = data.parameters
    middle = np.exp(np.mean(np.log(x)))
    log_heights = []
    for n, estimate in zip(x, data.exact, strict=True):
        if estimate.value > WELL_ABOVE * estimate.error:
            log_height = np.log(estimate.value) - slope * np.log(n / middle)
            log_heights.append(log_height)
    height = np.exp(np.mean(log_heights))
    line = height * (np.array(x) / middle) ** slope
    axes.plot(x, line, color=OURS, lw=0.8, zorder=1)


def _scores(data: Scores) -> Any:
    """Histograms of one score under both scalings, with their limits."""
    figure = new(2.7)
    axes = figure.subplots()
    y = np.linspace(-4.5, 4.5, 401)
    normal = np.exp(-(y**2) / 2) / math.sqrt(2 * np.pi)
    axes.plot(y, normal, color=LIMIT)
    for h in data.histograms:
        density = h.counts / (h.counts.sum() * np.diff(h.edges))
        colour = _width_colour(h.case.width)
        axes.stairs(density, h.edges, color=colour, fill=True, alpha=0.35, lw=0)
        axes.stairs(density, h.edges, color=colour, lw=0.8)
    arrow = {"arrowstyle": "-|>", "color": LIMIT, "lw": 1.2}
    axes.annotate("", xy=(0.0, 30.0), xytext=(0.0, 9.0), arrowprops=arrow)

    by_root, by_width = data.histograms
    colour = _width_colour(by_root.case.width)
    _annotate(axes, "over n, in the limit: 0", (0.0, 22.0), (8, 0), color=LIMIT)
    _annotate(axes, "over n", (0.3, 1.0), (4, 0), color=colour)
    _annotate(axes, "over √n, in the limit: N(0, 1)", (1.0, 0.25), (4, 4), color=LIMIT)
    _annotate(axes, "over √n", (-2.0, 0.06), (-4, 4), color=colour, ha="right")
    axes.set(xlabel=f"similarity score at width {by_root.case.width:.0f}")
    axes.set(xlim=(-4.5, 4.5), ylabel="density", yscale="log", ylim=(1e-4, 40))
    _set_title(
        figure,
        f"A score over √n stays random, with variance {by_root.variance.value:.3g};",
        f"over n its variance is {by_width.variance.value:.2g}",
    )
    return figure


def _heads(data: Heads) -> Any:
    """KL against the number of heads, to the limit and to the Gaussian."""
    figure = new(2.9)
    axes = figure.subplots()
    finite = data.finite
    x = finite.parameters
    width = f"width {finite.figure.cases[0].width:.0f}"
    _set_kl_axes(axes, [1, 4, 16, 64, 256])
    if finite.paper:
        _plot_trials(axes, x, trials=finite.paper)
        _plot_trials(axes, x, trials=data.gaussian.paper, marker="D")
        highest = max(max(trials) for trials in data.gaussian.paper[-1:] + finite.paper)
        text = f"paper's estimator: □ {width}, ◇ limit"
        above = {"color": PAPERS, "ha": "right", "va": "bottom"}
        _annotate(axes, text, (x[-1], highest), (4, 6), **above)
    if finite.exact:
        _plot_estimates(axes, x, estimates=finite.exact)
        values = [estimate.value for estimate in data.many]
        axes.plot(HEADS, values, color=BLACK, lw=1.0, marker=".", ms=4)
        middle = len(values) // 2
        below = {"ha": "right", "va": "top"}
        at = (float(HEADS[middle]), values[middle])
        _annotate(axes, "ours: limit and H = ∞", at, (-4, 0), color=BLACK, **below)
        at = (x[-1], finite.exact[-1].value)
        _annotate(axes, f"ours: {width} and limit", at, (4, -6), color=OURS, **below)
    _set_title(figure, *_both_fall(data))
    return figure


def _both_fall(data: Heads) -> tuple[str, str, str]:
    """A title: how far both divergences fall from few heads to many."""
    gaussian = [estimate.value for estimate in data.many]
    finite = [estimate.value for estimate in data.finite.exact]
    if not finite:
        gaussian = [float(np.mean(trials)) for trials in data.gaussian.paper]
        finite = [float(np.mean(trials)) for trials in data.finite.paper]
    cases = data.finite.figure.cases
    first = _heads_in_words(cases[0].heads)
    return (
        f"From {first} to {cases[-1].heads}, KL between limit and Gaussian",
        f"{_change(gaussian[0], gaussian[-1])}; between width {cases[0].width:.0f} and"
        " limit",
        f"it {_change(finite[0], finite[-1])}",
    )
