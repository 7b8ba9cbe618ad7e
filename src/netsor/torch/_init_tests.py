"""Tests of drawn parameters against their laws, and of a pass against draws of its law."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._parameters import GAUSSIAN, Parameter

Floats = npt.NDArray[np.float64]
MOST = 2**20  # entries of a parameter that are tested for their shape
PREFIX = 4096  # entries of a parameter that are compared with those of others
KURTOSIS = {"normal": 3.0, "uniform": 1.8, "truncated normal": 3.0}  # for errors; of the last an upper bound


class Test(NamedTuple):
    """One test: where, of what, the p-value, and what was found in words."""

    where: str
    what: str
    p: float
    text: str


def holm(p: Sequence[float]) -> Floats:
    """p-values adjusted for their number by Holm's method."""
    order = np.argsort(p)
    steps = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    made = np.empty(len(p))
    made[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return made


def parameter_tests(name: str, p: Any, law: Parameter, samples: int) -> Iterator[Test]:
    """Mean, standard deviation, shape and rows of one parameter; `samples` initialisations gave its law."""
    from scipy import stats

    if not law.random:
        want = p.new_tensor(law.value).expand(p.shape) if law.law == "constant" else law.value.to(p)
        same = bool((p.detach() == want).all())
        numbers = p.detach().double()
        found = f"{float(numbers.mean()):.4g} ± {float(numbers.std(correction=0)):.2g}"
        said = f"{law.value:g}" if law.law == "constant" else "given numbers"
        yield Test(name, "value", 1.0 if same else 0.0, f"entries are {found}, and {said} is declared")
        return
    if law.law not in GAUSSIAN:
        return
    x = p.detach().double().cpu().numpy()
    x = np.delete(x, law.zero_rows, axis=0) if law.zero_rows else x
    n, drawn = x.size, max(samples, 1) * x.size
    mean, std = float(x.mean()), float(np.sqrt(np.mean((x - x.mean()) ** 2)))
    if not math.isfinite(std):
        yield Test(name, "value", 0.0, "entries are not finite")
        return
    known = 1 / n + (1 / drawn if law.std_error else 0.0)  # a law that was measured has an error too
    error = law.std * math.sqrt((KURTOSIS[law.law] - 1) / 4 * known)
    # the cube root of a χ² is nearly normal (Wilson and Hilferty)
    k = 4 * n / (2 * (KURTOSIS[law.law] - 1))
    z = ((max(std, 0.0) / law.std) ** (2 / 3) - 1 + 2 / (9 * k)) / (math.sqrt(2 / (9 * k)) * math.sqrt(known * n))
    ratio = std / law.std
    yield Test(name, "std", 2 * float(stats.norm.sf(abs(z))),
               f"standard deviation {std:.4g}, and {law.std:.4g} is declared: {ratio:.3g} times")  # fmt: skip
    yield Test(name, "mean", 2 * float(stats.norm.sf(abs(mean - law.mean) / (law.std * math.sqrt(known)))),
               f"mean {mean:.3g}, and {law.mean:.3g} is declared")  # fmt: skip
    if error == 0 or std == 0:
        return
    standard = (x - mean) / std
    if law.note != "declared" and n >= 64:
        some = standard.ravel()[:: max(1, n // MOST)]
        fourth = float(np.mean(some**4))
        text = f"entries are not {law.law}: kurtosis {fourth:.3g}, and {law.kurtosis:.3g} is declared"
        yield Test(name, "shape", float(stats.kstest(some, _distribution(law), method="asymp").pvalue), text)
        if law.law == "normal":
            tails = float(stats.kurtosistest(some).pvalue)
        else:  # of bounded entries 24/n is more than the variance
            tails = 2 * float(stats.norm.sf(abs(fourth - law.kurtosis) / math.sqrt(24 / some.size * (1 + 1 / samples))))
        yield Test(name, "tails", tails, text)
    if x.ndim == 2 and min(x.shape) >= 16:
        for axis, of in ((1, "rows"), (0, "columns")):
            each = 2 * x.shape[axis] / (KURTOSIS[law.law] - 1)
            w = (np.mean(standard**2, axis=axis) ** (1 / 3) - 1 + 2 / (9 * each)) / math.sqrt(2 / (9 * each))
            spread = float(np.sum((w - w.mean()) ** 2))
            yield Test(name, of, float(stats.chi2.sf(spread, w.size - 1)),
                       f"{of} have different standard deviations, by {float(np.std(w)) * math.sqrt(2 / each) / 2:.2g} "
                       "of their size")  # fmt: skip


def _distribution(law: Parameter) -> Any:
    """The distribution function of standardised entries; the kurtosis of a truncated normal determines its cut."""
    from scipy import optimize, stats

    if law.law == "uniform":
        return stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)).cdf
    if law.law == "normal" or not 1.85 < law.kurtosis < 2.99:
        return stats.norm.cdf

    def excess(c: float) -> float:
        return float(stats.truncnorm(-c, c).stats(moments="k")) + 3 - law.kurtosis

    cut = optimize.brentq(excess, 0.3, 5.0)
    return stats.truncnorm(-cut, cut, scale=1 / stats.truncnorm.std(-cut, cut)).cdf


def correlation_tests(numbers: Mapping[str, Any], expected: Mapping[str, Parameter]) -> Iterator[Test]:
    """Correlations of parameters that are independent by their laws: one test of all pairs for each parameter."""
    from scipy import stats

    names = [name for name in numbers if name in expected and expected[name].law in GAUSSIAN]
    if len(names) < 2:
        return
    rows, counts = np.zeros((len(names), PREFIX)), np.zeros(len(names))
    for k, name in enumerate(names):
        x = numbers[name].detach().reshape(-1)[:PREFIX].double().cpu().numpy()
        x = x - expected[name].mean
        rows[k, : x.size], counts[k] = x / max(math.sqrt(float(np.mean(x**2))), 1e-300), x.size
    products = rows @ rows.T
    z = products / np.sqrt(np.minimum.outer(counts, counts))
    z[counts[:, None] * counts < 64 * 64] = 0.0  # too few entries for a normal law of the product
    for k in range(1, len(names)):
        other = int(np.argmax(np.abs(z[k, :k])))
        r = float(products[k, other] / min(counts[k], counts[other]))
        p = min(1.0, k * 2 * float(stats.norm.sf(abs(z[k, other]))))  # of k pairs
        same = "the same numbers as" if abs(r) > 0.999 else f"correlation {r:.2f} with"
        yield Test(names[k], "independence", p, f"{same} {names[other]}, and independent draws are declared")


def pass_tests(found: Mapping[tuple[str, int], float], law: Mapping[tuple[str, int], Floats]) -> list[float]:
    """Adjusted p-values of quantities of one pass among draws of their joint law, in the order of `found`.

    All quantities are standardised by mean and standard deviation of draws and pass together, those above 0 by
    logarithms. The largest deviation of a draw then has a law that knows how quantities depend on each other, and the
    p-value of a quantity is how often that exceeds its deviation (Westfall and Young 1993): its rank among the draws,
    and beyond their largest tenth an exponential tail.
    """
    columns, own = [], []
    for key, value in found.items():
        x = np.append(law[key], value)
        x = np.log(x) if (x > 0).all() else x
        finite = np.isfinite(x)
        centre, spread = x[:-1].mean(), x[:-1].std()
        spread = math.hypot(spread, 1e-3 * (1.0 if (law[key] > 0).all() else abs(centre) or 1.0))  # rounding
        z = np.where(finite, np.abs(x - centre) / spread, np.inf)
        columns.append(z[:-1])
        own.append(float(z[-1]))
    largest = np.sort(np.max(columns, axis=0))
    start = float(np.quantile(largest, 0.9))
    slope = float(np.mean(largest[largest > start] - start)) if (largest > start).any() else 1e-3
    made = []
    for each in own:
        above = int(np.sum(largest >= each))
        rank = (above + 1) / (len(largest) + 1)
        made.append(rank if each <= start else min(rank, 0.1 * math.exp(-(each - start) / max(slope, 1e-3))))
    return made
