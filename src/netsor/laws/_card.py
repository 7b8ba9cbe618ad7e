"""What a notebook shows of a law: where it comes from, its density, and its first numbers with their errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._html import density, note, table, title
from ._plot import curve_of, range_of

POINTS = 121  # of the density: the picture takes a third of a second for 50,000 replicas
SHOWN = 8  # entries of a joint law


def law_card(law: Any) -> str:
    """One variable."""
    y = np.linspace(*range_of(law), POINTS)
    value, error = curve_of(law, y)
    largest = max((mass.value for _, mass in law.atoms), default=1.0)
    atoms = [(at, min(mass.value, 1.0) / largest) for at, mass in law.atoms[:10] if y[0] <= at <= y[-1]]
    finite = np.nan_to_num(error, nan=0.0, posinf=0.0)  # a band without end is not drawn
    number = law.with_error
    rows = [
        ["mean", number.mean().brief()],
        ["standard deviation", number.std().brief()],
        ["excess kurtosis", number.kurtosis().brief()],
        ["5 %, 50 %, 95 %", ", ".join(f"{q:.4g}" for q in law.ppf([0.05, 0.5, 0.95]))],
        *([f"P(Y = {at:g})", mass.brief()] for at, mass in law.atoms[:3]),
    ]
    picture = density(y, value, finite, atoms, f"density of {law.method}")
    return title(type(law).__name__, *_words(law)) + picture + table(rows) + "".join(map(note, law.notes))


def joint_card(law: Any) -> str:
    """Several: a row an entry, with its correlations."""
    some = range(min(law.dim, SHOWN))
    mean, std = law.mean(), law.std()
    with np.errstate(invalid="ignore"):
        corr = law.marginal(list(some)).cov() / np.outer(std[: len(some)], std[: len(some)])
    rows = [
        [str(i), f"{mean[i]:.4g}", f"{std[i]:.4g}", *("–" if math.isnan(r) else f"{r:.3f}" for r in corr[i])]
        for i in some
    ]
    head = ["entry", "mean", "standard deviation", *(f"corr. with {i}" for i in some)]
    rest = note(f"and {law.dim - SHOWN} more entries") if law.dim > SHOWN else ""
    given = []
    if law.log_evidence is not None:
        given = [f"given data, log evidence {law.log_evidence}, effective sample size {law.effective:.0f}"]
    top = title(f"Joint law of {law.dim} entries", *_words(law), *given)
    return top + table(rows, head) + rest + "".join(map(note, law.notes))


def _words(law: Any) -> list[str]:
    numbers = [f"{law.random_numbers:,} random numbers a replica"] if law.random_numbers else []
    return [law.method, law.status, *numbers]
