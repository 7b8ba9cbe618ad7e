"""How fast a network comes near its limit: KL at growing widths, and its slope on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._html import note, table, title
from .._program import Program
from .._validate import ArgumentError, Rng, as_whole, chosen_seed
from ..language._width import RESERVED, inf
from ..laws import Estimate, Joint, Law, kl
from ._output_dir import to_dataframe


@dataclass(frozen=True)
class Rate:
    """KL(width n ‖ limit) at each width, and what power of n it falls like; `ns.rate` makes it.

    Parameters
    ----------
    name, width : str
        The name of the program, and that of the width that grows.
    widths : tuple of int
        Its values.
    kl, laws : tuple
        KL to the limit as an `Estimate`, and the law, for each of them.
    limit : Law
        At infinite width.

    Examples
    --------
    >>> found = ns.rate(ns.paper.layer(), [16, 64], draws=500)
    >>> found.widths, len(found.kl)
    ((16, 64), 2)
    >>> bool(-3 < found.slope < -1), len(found.slopes)
    (True, 1)
    >>> found.plot().get_yscale()
    'log'
    """

    name: str
    width: str
    widths: tuple[int, ...]
    kl: tuple[Estimate, ...]
    laws: tuple[Law, ...]
    limit: Law

    @property
    def slope(self) -> Estimate:
        """The slope of log KL against log n, by least squares over all widths."""
        return slope_of(self.widths, self.kl)

    @property
    def slopes(self) -> tuple[Estimate, ...]:
        """The slopes between neighbouring widths. A power law has one slope, so these show where it begins."""
        return tuple(slope_of(self.widths[k : k + 2], self.kl[k : k + 2]) for k in range(len(self.widths) - 1))

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with a row for each width: `width`, `kl` and `error`."""
        pairs = zip(self.widths, self.kl, strict=True)
        return to_dataframe({"width": n, "kl": kl.value, "error": kl.error} for n, kl in pairs)

    def plot(self, ax: Any = None, label: str | None = None) -> Any:
        """Plot KL against the width with errors, the fitted slope, and a guide that falls like n⁻².

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to plot; pyplot's current axes by default.
        label : str, optional
            Its name in the legend.
        """
        if ax is None:
            import matplotlib.pyplot as plt  # slow to import

            ax = plt.gca()
        widths = np.array(self.widths, dtype=float)
        value, error = (np.array([pair[k] for pair in self.kl], dtype=float) for k in (0, 1))
        points = ax.errorbar(widths, value, np.minimum(error, 0.999 * value), fmt="o", capsize=3, label=label)
        if math.isfinite(self.slope.value):
            middle = np.exp(np.mean(np.log(value)) + self.slope.value * (np.log(widths) - np.mean(np.log(widths))))
            colour = points.lines[0].get_color()
            ax.plot(widths, middle, "-", color=colour, label=f"slope {self.slope.value:.2f} ± {self.slope.error:.2f}")
        ax.plot(widths, value[0] * (widths / widths[0]) ** -2, ":", color="0.5", label=f"{self.width}$^{{-2}}$")
        ax.set(xscale="log", yscale="log", xlabel=f"width {self.width}", ylabel="KL to the limit")
        ax.legend(loc="best")
        return ax

    def __str__(self) -> str:
        lines = [f"{self.width} = {n:>6,}: KL {value}" for n, value in zip(self.widths, self.kl, strict=True)]
        return "\n".join([*lines, f"slope {self.slope}; between neighbours {', '.join(map(str, self.slopes))}"])

    def __repr__(self) -> str:
        return (
            f"<Rate of {self.name}: KL falls like {self.width}^{self.slope.value:.3g} over {len(self.widths)} widths>"
        )

    def _repr_html_(self) -> str:
        rows = [[f"{n:,}", str(value)] for n, value in zip(self.widths, self.kl, strict=True)]
        said = f"slope {self.slope}; between neighbours {', '.join(map(str, self.slopes))}"
        return title(f"KL of {self.name} to its limit") + table(rows, [self.width, "KL ± error"]) + note(said)


def rate(
    net: Program,
    widths: Sequence[int],
    *,
    width: str | None = None,
    draws: int = 50_000,
    seed: int = 0,
    rng: Rng = None,
    **others: float,
) -> Rate:
    """How fast the law of an output comes near its limit as a width grows.

    Parameters
    ----------
    net
        A program with one output entry, such as `net[0]`.
    widths
        Two or more growing widths.
    width
        The name of the width that grows; it need not be given if the program has one width.
    draws
        As in `Program.law`.
    seed
        That of all laws, so that they are coupled.
    rng
        A generator, from which a seed is drawn, or an integer, instead of `seed`.
    others
        The other widths by their names, `d=64`; they stay as they are in the limit.

    Returns
    -------
    Rate
        With `kl`, `slope`, `slopes` and `plot()`.

    Examples
    --------
    >>> print(ns.rate(ns.paper.layer(), [64, 256], draws=20_000))
    n =     64: KL 0.002158 ± 8.7e-05
    n =    256: KL 0.0001655 ± 7e-06
    slope -1.852 ± 0.06; between neighbours -1.852 ± 0.06
    """
    if not isinstance(net, Program):
        raise ArgumentError("net", net, "a program, such as layer()[0]")
    name = growing_width(net, width, others)
    sizes = [as_whole(n) for n in widths] if isinstance(widths, Sequence) or np.ndim(widths) == 1 else []
    whole = [n for n in sizes if n is not None and n > 0]
    if len(whole) < max(2, len(sizes)) or whole != sorted(set(whole)):
        raise ArgumentError("widths", widths, "two or more growing positive integers")
    every: list[dict[str, Any]] = [{**others, name: n} for n in (*whole, inf)]
    seed = chosen_seed(seed, rng)
    laws = [net.law(draws=draws, seed=seed, progress=False, **bound) for bound in every]
    if any(isinstance(law, Joint) for law in laws):
        raise ArgumentError("net", net, "a program with one entry; take one of them, such as net[0]")
    *finite, limit = (law for law in laws if isinstance(law, Law))
    return Rate(net.name, name, tuple(whole), tuple(kl(law, limit) for law in finite), tuple(finite), limit)


def growing_width(net: Program, width: str | None, others: Mapping[str, float]) -> str:
    """The name of the one width that is not given."""
    for name in RESERVED & others.keys():
        raise ArgumentError(name, others[name], "left out: other arguments are widths")
    free = [name for name in net.widths if name not in others]
    if width is None and len(free) == 1:
        return free[0]
    if width is None or width not in free:
        raise ArgumentError("width", width, f"one of the widths that are not given, {', '.join(free) or 'none'}")
    return width


def slope_of(widths: Sequence[int], values: Sequence[Estimate]) -> Estimate:
    """By least squares; NaN if a KL has no logarithm: it is infinite or 0, or not above 0 because of its error."""
    without = [value for value in values if not 0 < value.value < math.inf]
    if without:
        return Estimate(math.nan, math.inf if any(value.error > 0 for value in without) else math.nan)
    x = np.log(widths)
    part = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    total = Estimate(0.0, 0.0)
    for share, value in zip(part, values, strict=True):
        total = total + float(share) * value.log()
    return total
