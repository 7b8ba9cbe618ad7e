"""A picture of several laws: densities, and differences below, as in the figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._mpl_style import DOTTED, GREY
from ..language._given import shown
from ._coerce import as_law
from ._joint import Joint
from ._law_base import LawError
from ._plot import COLOURS, DENSITY_POINTS, add_arrows, add_line, curve_of, is_axes, range_of


def plot(*laws: Any, labels: Any = None, ax: Any = None) -> Any:
    """Densities above; below, what each differs by from the last, where the eye can see it.

    An arrow is an atom. The figure is shown as any plot is: at the end of a notebook's cell, or by `plt.show()`;
    `plt.savefig("laws.pdf")` writes it.

    Parameters
    ----------
    *laws : Law, frozen distribution of scipy.stats, or array_like
        One or more; an array is a sample.
    labels : sequence of str, optional
        Names for the laws.
    ax : matplotlib axes, or a pair of them, optional
        Where to draw: two, or one for the densities alone. Unless given, those of a new figure of pyplot's.

    Returns
    -------
    matplotlib axes, or an array of two
        What was drawn on.

    Examples
    --------
    >>> net = ns.paper.layer()
    >>> axes = ns.plot(net.law(n=64, draws=500), net.law(n=ns.inf), labels=["64", "∞"])
    >>> len(axes)
    2
    """
    if not laws or any(isinstance(law, Joint) for law in laws):
        raise LawError("plot", "needs one law of one variable or more; a joint law has joint.plot()")
    laws = tuple(as_law(law) for law in laws)
    names = [law.method for law in laws] if labels is None else labels
    listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not listed or len(names) != len(laws):
        raise LawError("plot", f"labels={shown(labels)} must be {len(laws)} names, one for each law")
    top, bottom = _pair(ax)
    low, high = zip(*(range_of(law) for law in laws), strict=True)
    y = np.linspace(min(low), max(high), DENSITY_POINTS)
    curves = [curve_of(law, y) for law in laws]
    last, last_error = curves[-1]
    for k, (name, (density, error)) in enumerate(zip(names, curves, strict=True)):
        colour = COLOURS[k % len(COLOURS)]
        line = "-" if k == len(laws) - 1 else DOTTED
        add_line(top, y, density, error, colour, line, name)
        add_arrows(top, laws[k], max(float(curve.max()) for curve, _ in curves), colour)
        if k < len(laws) - 1 and bottom is not None:
            add_line(bottom, y, density - last, np.hypot(error, last_error), colour, line, None)
    top.set(ylabel="density", ylim=(0, None))
    if bottom is not None:
        bottom.axhline(0.0, color=GREY, lw=0.5, zorder=0)
        bottom.set(ylabel="difference")
    (bottom or top).set(xlabel="y", xlim=(y[0], y[-1]))
    top.legend(loc="best")
    return top if bottom is None else np.array([top, bottom])


def _pair(ax: Any) -> tuple[Any, Any]:
    """The axes for densities and for differences, None if these are not wanted."""
    if ax is None:
        import matplotlib.pyplot as plt  # slow to import

        figure = plt.figure(layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.0))
        return top, bottom
    if is_axes(ax):
        return ax, None
    listed = isinstance(ax, list | tuple | np.ndarray) and len(ax) == 2
    if not listed or not all(map(is_axes, ax)):
        raise LawError("plot", f"ax={shown(ax)} must be one of matplotlib's axes, or two of them")
    return ax[0], ax[1]
