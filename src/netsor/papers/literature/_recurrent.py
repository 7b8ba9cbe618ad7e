"""Vankadara et al.: whether state-space layers are tensor programs, and their limits.

Linear attention, retention, Mamba-2 and the gated delta rule, as programs with dots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import language as ns
from ..._validate import percent
from ...laws import Estimate
from ...laws._compare import kl
from ...nn import gated_delta, linear_attention, mamba2, retention
from ...programs._decorator import program
from ...programs._program import Program
from ...report._mpl_style import (
    BLUE,
    DOTTED,
    GREEN,
    GREY,
    LIMIT,
    MARK_OF,
    ORANGE,
    VERMILLION,
    new,
    width_colours,
)
from ...studies import Arrays, slope_of
from ...studies.coord_check import coord_check
from .._figures import new_wide
from .._significance import (
    AGREES,
    DISAGREES,
    OUTSIDE,
    UNDECIDED,
    combine,
    decide_below,
)
from ._result import Array, Claim, Numbers, Part, Picture, Result, estimates, near

# As in figure 1 of Sakai et al.: tokens x^i = clip(W^i h, ±100), two heads, the last
# token's output.
TOKENS, HEADS, CLIP = 4, 2, 100.0
# The dimension of keys, queries and states where it stays fixed, as in the models.
STATE = 16
WIDTHS = (16, 64, 256, 1024)
# Decays of retention by head, those of RetNet.
GAMMAS = tuple(1.0 - 2.0 ** (-5.0 - head) for head in range(HEADS))
# Rates of Mamba-2 by head, those of its code.
RATES = tuple(range(1, HEADS + 1))
TITLES = {
    "linear": "linear attention",
    "retention": "retention",
    "mamba2": "Mamba-2",
    "delta": "gated delta rule",
}
# Tolerances, fixed before the run of the default seed.
RATE_ATOL = 0.2  # of the exponent of KL, from the third width to the last
VARIANCE_RTOL = 0.03  # of variances, between draws and closed forms
DENSITY_RTOL = 0.01  # of densities, relative to the peak
LIMIT_KL = 1e-3  # below it the last width has the limit's law, for all practical ends
CV_MIN = 0.1  # coefficient of variation of a variance that is random in the limit
RULE_ATOL = 0.2  # of exponents of a step of Adam
# Of the steps: widths, the learning rate, states, and inputs, each of two numbers.
RULE_WIDTHS, ADAM_RATE, SMALL_STATE = (64, 512), 0.01, 4
INPUTS = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
# The matrices whose updates are judged: all that act on tokens.
MATRICES = {
    "linear": ("W^Q", "W^K", "W^V"),
    "retention": ("W^Q", "W^K", "W^V"),
    "mamba2": ("W^C", "W^B", "W^V", "w^Δ"),
    "delta": ("W^Q", "W^K", "W^V", "w^Δ", "w^β"),
}
GRID_STDS, GRID_POINTS = 4.0, 81  # of the densities


def mixer(kind: str) -> Program:
    """The last token's output of one layer, for tokens as in the paper's figure 1.

    Heads of linear attention and retention have the width n; Mamba-2 and the gated
    delta rule have states of dimension STATE and values of width n.
    """
    n = ns.Width("n")
    x = ns.clip(ns.weight(n, n, batch=TOKENS) @ ns.gaussian(n), CLIP)
    if kind == "linear":
        y = linear_attention(x, HEADS)
    elif kind == "retention":
        y = retention(x, HEADS, decay=GAMMAS)
    elif kind == "mamba2":
        y = mamba2(x, HEADS, head_dim=n, state_dim=STATE, rates=RATES)
    else:
        y = gated_delta(x, HEADS, head_dim=STATE, value_dim=n)
    return Program(y[-1])


def laws(kind: str, draws: int, seed: int) -> Arrays:
    """The law at each of WIDTHS and at infinity: densities, variances, distances.

    "y" is the grid of "density" (widths + 1, points) and its "density_error";
    "variance" has (widths + 1, 2) numbers with errors, "kl" (widths, 2), the divergence
    from the limit; "cv" is the coefficient of variation of the limit's conditional
    variance, with its error.
    """
    net = mixer(kind)
    limit = net.law(n=math.inf, draws=draws, seed=seed, workers=1, progress=False)
    y = np.linspace(0, GRID_STDS * math.sqrt(limit.var()), GRID_POINTS)
    by_width: dict[str, list[Any]] = {
        "density": [],
        "density_error": [],
        "variance": [],
    }
    distances = []
    for width in (*WIDTHS, math.inf):
        law = limit
        if width < math.inf:
            law = net.law(n=width, draws=draws, seed=seed, workers=1, progress=False)
            distance = kl(law, limit)
            distances.append((distance.value, distance.error))
        density = law.with_error.pdf(y)
        variance = law.with_error.var()
        by_width["density"].append(density.value)
        by_width["density_error"].append(density.error)
        by_width["variance"].append((variance.value, variance.error))
    # excess kurtosis of a mixture of Gaussians is 3 Var(v)/E(v)²
    with_error: Any = limit.with_error
    kurtosis = with_error.kurtosis()
    cv = math.sqrt(kurtosis.value / 3)
    return {
        **{name: np.array(values) for name, values in by_width.items()},
        "y": y,
        "kl": np.array(distances),
        "cv": np.array([cv, kurtosis.error / (6 * cv)]),
    }


def token_weights(kind: str) -> Array:
    """The factor γ^(T−s) of token s for the last output, (heads, tokens)."""
    distance = np.arange(TOKENS)[::-1]
    if kind == "linear":
        return np.ones((HEADS, TOKENS))
    return np.array(GAMMAS)[:, None] ** distance


def closed_variance(kind: str, width: float) -> float:
    """The variance at a width, of linear attention and retention.

    In each head it is E[K_TT Σ_ss' g_s g_s' K_ss'²], where K is the Gram matrix of the
    tokens: ρ times a Wishart matrix over n, ρ = χ²_n/n. The moments of order three of
    both are polynomials in e = 1/n.
    """
    g = token_weights(kind)
    e = 0.0 if width == math.inf else 1.0 / width
    last = g[:, -1]
    before = g[:, :-1]
    # E[K_TT K_ss'²] of the Wishart part
    both_last = (1 + 2 * e) * (1 + 4 * e)  # s = s' = T
    both_equal = 1 + 2 * e  # s = s' < T
    different = e  # s < s' < T
    one_last = (1 + 2 * e) * e  # s < s' = T
    # Σ g_s g_s' over these pairs, in each head
    squares = (before**2).sum(axis=1)
    sums = before.sum(axis=1)
    products_before = sums**2 - squares
    products_with_last = 2 * last * sums
    total = (
        both_last * last**2
        + both_equal * squares
        + different * products_before
        + one_last * products_with_last
    )
    third_moment = (1 + 2 * e) * (1 + 4 * e)  # E[ρ³]
    return float(third_moment * total.mean())


def closed_density(kind: str, y: Array) -> Array:
    """The limit's density, of linear attention and retention.

    A head's variance is Σ_s g_s² z_s² with normal z, so the characteristic function is
    Π_a Π_s (1 + g_as² t²/H)^(−1/2); with g = 1 this is the variance-gamma law of shape
    TH/2. It falls like t^(−TH), and the integral ends where it is below 1e-15.
    """
    g = token_weights(kind).ravel()
    t = np.linspace(0, 150.0, 60_001)
    logarithms = np.log1p(np.outer(t**2, g**2) / HEADS)  # (t, heads · tokens)
    characteristic = np.exp(-0.5 * logarithms.sum(axis=1))
    waves = np.cos(np.outer(y, t))
    density = np.trapezoid(waves * characteristic, t, axis=1) / math.pi
    return np.asarray(density)


def mamba2_variance() -> float:
    """The limit's variance of Mamba-2, a product of integrals over one normal number.

    The tokens have K = I, so that steps Δ = softplus(z) are independent: a head has
    N Σ_s E[Δ²] E[e^(−2aΔ)]^(T−s).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    steps = np.logaddexp(0, nodes)
    square = weights @ steps**2
    per_head = []
    for rate in RATES:
        decay = weights @ np.exp(-2 * rate * steps)
        per_head.append(STATE * square * (decay ** np.arange(TOKENS)).sum())
    return float(np.mean(per_head))


def trained(kind: str, width: Any) -> ns.Scalar:
    """The loss of one layer of this width for three inputs, with a probe of its output.

    States have a fixed dimension; the readout is a mean, as in µP.
    """
    x = ns.tanh(ns.weight(width, 2, name="in") @ ns.data(INPUTS))
    if kind == "linear":
        y = linear_attention(x, 1, head_dim=SMALL_STATE, value_dim=width)
    elif kind == "retention":
        y = retention(x, 1, head_dim=SMALL_STATE, value_dim=width)
    elif kind == "mamba2":
        y = mamba2(x, 1, head_dim=width, state_dim=SMALL_STATE)
    else:
        y = gated_delta(x, 1, head_dim=SMALL_STATE, value_dim=width)
    y = ns.probe("attention", y)
    head = ns.weight(width, 1, name="head") @ ns.data([1.0])
    f = ns.mean_dot(y[-1:], head)
    return ((f - 1.0) ** 2).mean()


def rule(kind: str, draws: int, seed: int) -> Arrays:
    """How one step of Adam changes the output of each matrix, as a power of the width.

    "exponent" is (matrices, 2), with errors, in the order of MATRICES, for one learning
    rate at all widths. The first step is proportional to the rate, so that a rate
    proportional to n^(−e) removes an exponent e.
    """

    @program
    def net(width: Any) -> ns.Scalar:
        """The layer at this width."""
        return trained(kind, width)

    check = coord_check(
        net,
        widths=RULE_WIDTHS,
        lr=ADAM_RATE,
        optimiser="adam",
        draws=draws,
        seed=seed,
        workers=1,
        progress=False,
    )[0]
    exponents: list[Any] = [check.update(name).exponent for name in MATRICES[kind]]
    return {"exponent": np.array([(e.value, e.error) for e in exponents])}


def parts(quick: bool) -> list[Part]:
    """One part for each layer, and one for its learning rates."""
    draws = 20_000 if quick else 400_000
    parts = []
    for kind in TITLES:
        arguments = {"kind": kind, "draws": draws}
        seconds = 5 + draws * 2e-4
        parts.append(Part(label=kind, work=laws, arguments=arguments, seconds=seconds))
        arguments = {"kind": kind, "draws": 12 if quick else 60}
        parts.append(
            Part(label=f"rule {kind}", work=rule, arguments=arguments, seconds=6)
        )
    return parts


def _dotless(numbers: Numbers) -> Claim:
    """The claim as it is meant: for tensor programs without scores."""
    cv = {kind: Estimate(*numbers[kind]["cv"]) for kind in TITLES}
    verdicts = [decide_below(-e, -CV_MIN) for e in cv.values()]
    listed = ", ".join(f"{TITLES[kind]} {e}" for kind, e in cv.items())
    return Claim(
        published=(
            "State-space models cannot be represented as tensor programs: read as"
            " programs without scores."
        ),
        rule=(
            "Given all earlier values, the variance of an output is a number in the"
            " limit of every such program. It is random here if its coefficient of"
            f" variation at infinite width is above {CV_MIN:g}, for all four layers."
        ),
        ours=f"{listed}.",
        verdict=combine(*verdicts),
    )


CONVERGENCE = {AGREES: OUTSIDE, DISAGREES: AGREES, UNDECIDED: UNDECIDED}


def _with_dots(numbers: Numbers) -> Claim:
    """The claim for tensor programs with scores: the programs have limits."""
    distances = {kind: Estimate(*numbers[kind]["kl"][-1]) for kind in TITLES}
    converges = combine(*(decide_below(e, LIMIT_KL) for e in distances.values()))
    listed = ", ".join(f"{TITLES[kind]} {e}" for kind, e in distances.items())
    return Claim(
        published="The same, for tensor programs with scores (Sakai et al. 2025).",
        rule=(
            "The unrolled recurrences are such programs. They have a limit if the"
            f" divergence of the law at width {WIDTHS[-1]} from that at infinity is"
            f" below {LIMIT_KL:g}, for all four layers; the statement then does not"
            " extend to them."
        ),
        ours=f"{listed}.",
        verdict=CONVERGENCE[converges],
    )


def _rate(numbers: Numbers) -> Claim:
    """The rate of convergence."""
    powers = {}
    for kind in TITLES:
        distances = [Estimate(*pair) for pair in numbers[kind]["kl"][2:]]
        powers[kind] = slope_of(WIDTHS[2:], distances)
    listed = ", ".join(f"{TITLES[kind]} {e}" for kind, e in powers.items())
    return Claim(
        published=(
            "Ours: the divergence of the law at width n from its limit falls like"
            " 1/n², as for attention."
        ),
        rule=(
            f"The exponent of n from {WIDTHS[2]} to {WIDTHS[-1]} is within"
            f" {RATE_ATOL:g} of −2, for all four layers."
        ),
        ours=f"{listed}.",
        verdict=combine(*(near(e, -2.0, RATE_ATOL) for e in powers.values())),
    )


def _densities(numbers: Numbers) -> Claim:
    """The closed density of linear attention and retention at infinite width."""
    verdicts = []
    lines = []
    for kind in ("linear", "retention"):
        arrays = numbers[kind]
        exact = closed_density(kind, arrays["y"])
        errors = np.abs(arrays["density"][-1] - exact) / exact[0]
        worst = int(np.argmax(errors))
        error = float(arrays["density_error"][-1][worst] / exact[0])
        distance = Estimate(float(errors[worst]), error)
        verdicts.append(decide_below(distance, DENSITY_RTOL))
        lines.append(f"{TITLES[kind]} {distance}")
    return Claim(
        published=(
            "Ours: in the limit linear attention is variance-gamma of shape TH/2, and"
            " retention has the characteristic function Π (1 + γ²ˢt²/H)^(−1/2)."
        ),
        rule=(
            "The largest distance of the densities of draws from the closed form is"
            f" below {percent(DENSITY_RTOL)} of the peak."
        ),
        ours=f"{'; '.join(lines)} of the peak.",
        verdict=combine(*verdicts),
    )


def _variances(numbers: Numbers) -> Claim:
    """Closed variances: at every width, and of Mamba-2 in the limit."""
    ratios = {}
    for kind in ("linear", "retention"):
        variances = estimates(*numbers[kind]["variance"].T)
        for width, estimate in zip((*WIDTHS, math.inf), variances, strict=True):
            ratios[kind, width] = estimate / closed_variance(kind, width)
    mamba2 = Estimate(*numbers["mamba2"]["variance"][-1])
    ratios["mamba2", math.inf] = mamba2 / mamba2_variance()
    kind, width = max(ratios, key=lambda case: abs(ratios[case].value - 1))
    verdicts = [near(ratio, 1.0, VARIANCE_RTOL) for ratio in ratios.values()]
    return Claim(
        published=(
            "Ours: the variance of linear attention and of retention at width n is a"
            " polynomial in 1/n, and that of Mamba-2 in the limit a product of"
            " integrals."
        ),
        rule=f"Draws are within {percent(VARIANCE_RTOL)} of them at every width.",
        ours=(
            f"Farthest off: {ratios[kind, width]} ({TITLES[kind]}, n = {width});"
            f" linear attention has {closed_variance('linear', WIDTHS[0]):.4f} at"
            f" n = {WIDTHS[0]} and {closed_variance('linear', math.inf):.4f} in the"
            f" limit, Mamba-2 {mamba2_variance():.4f}."
        ),
        verdict=combine(*verdicts),
    )


def _learning_rates(numbers: Numbers) -> Claim:
    """The rule of µP for Adam that the exponents give."""
    verdicts = []
    lines = []
    for kind, names in MATRICES.items():
        exponents = estimates(*numbers[f"rule {kind}"]["exponent"].T)
        verdicts += [near(exponent, 1.0, RULE_ATOL) for exponent in exponents]
        pairs = zip(names, exponents, strict=True)
        listed = ", ".join(f"{name} {exponent}" for name, exponent in pairs)
        lines.append(f"{TITLES[kind]}: {listed}")
    return Claim(
        published=(
            "Ours: under µP with Adam every matrix that acts on tokens has a learning"
            " rate proportional to 1/n, also those of keys, B, C, steps and gates,"
            " whose number of rows does not grow."
        ),
        rule=(
            "With one rate at all widths, the first step changes the output of each"
            f" such matrix like n: exponents from {RULE_WIDTHS[0]} to {RULE_WIDTHS[1]}"
            f" are within {RULE_ATOL:g} of 1."
        ),
        ours=f"{'; '.join(lines)}.",
        verdict=combine(*verdicts),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Representability, convergence and its rate, closed forms, learning rates."""
    return [
        _dotless(numbers),
        _with_dots(numbers),
        _rate(numbers),
        _densities(numbers),
        _variances(numbers),
        _learning_rates(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Densities by layer and width."""
    for kind in TITLES:
        arrays = numbers[kind]
        for index, width in enumerate((*WIDTHS, math.inf)):
            columns = zip(
                arrays["y"],
                arrays["density"][index],
                arrays["density_error"][index],
                strict=True,
            )
            for y, density, error in columns:
                yield {
                    "layer": TITLES[kind],
                    "width": width,
                    "y": y,
                    "density": density,
                    "error": error,
                }


def distance_rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Divergences from the limit and variances, by layer and width."""
    for kind in TITLES:
        for index, width in enumerate(WIDTHS):
            divergence, error = numbers[kind]["kl"][index]
            variance, variance_error = numbers[kind]["variance"][index]
            yield {
                "layer": TITLES[kind],
                "width": width,
                "kl": divergence,
                "kl_error": error,
                "variance": variance,
                "variance_error": variance_error,
            }


def draw(numbers: Numbers) -> Any:
    """Densities of the four layers at finite widths and in the limit."""
    figure = new_wide(3.8)
    figure.suptitle(
        "Wide recurrent mixers reach a limit, which is not Gaussian", size=8
    )
    colours = width_colours(len(WIDTHS))
    for axes, kind in zip(figure.subplots(2, 2).flat, TITLES, strict=True):
        arrays = numbers[kind]
        for width, colour, density in zip(
            WIDTHS, colours, arrays["density"], strict=False
        ):
            style = {"color": colour, "ls": DOTTED, "label": f"n = {width:,}"}
            axes.plot(arrays["y"], density, zorder=3, **style)
        limit = arrays["density"][-1]
        axes.plot(arrays["y"], limit, color=LIMIT, lw=1.0, label="limit")
        axes.set(title=TITLES[kind], yscale="log", xlabel="output y", ylabel="density")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def draw_distances(numbers: Numbers) -> Any:
    """The divergence from the limit against the width."""
    figure = new(2.6)
    axes = figure.subplots()
    colours = (BLUE, VERMILLION, GREEN, ORANGE)
    for kind, colour in zip(TITLES, colours, strict=True):
        divergence, error = numbers[kind]["kl"].T
        axes.errorbar(
            WIDTHS,
            divergence,
            4 * error,
            fmt=f"{MARK_OF[colour]}-",
            ms=6 if kind == "linear" else 3,  # retention lies on it
            mfc="none",
            color=colour,
            label=TITLES[kind],
        )
    guide = numbers["linear"]["kl"][-1, 0] * (WIDTHS[-1] / np.array(WIDTHS)) ** 2
    axes.plot(WIDTHS, 3 * guide, color=GREY, lw=0.8, ls=":", label="1/n²")
    axes.set(
        title="The distance to the limit falls about like 1/n²",
        xscale="log",
        yscale="log",
        xlabel="width n",
        ylabel="KL from the limit",
    )
    axes.set_xticks(WIDTHS, [f"{width:,}" for width in WIDTHS])
    axes.minorticks_off()
    axes.legend()
    return figure


RESULT = Result(
    name="recurrent",
    title="Vankadara et al.: recurrent mixers and tensor programs",
    source=(
        "Vankadara, Xu, Haas and Cevher, On feature learning in structured state space"
        " models (NeurIPS 2024)."
    ),
    links=("https://openreview.net/forum?id=aQv5AbN1wF",),
    setting=(
        f"One layer with {HEADS} heads, {TOKENS} tokens x = clip(W h, ±{CLIP:g}) as in"
        " figure 1 of Sakai et al. (2025), the last token's output. Linear attention"
        " and retention have heads of width n; Mamba-2 and the gated delta rule have"
        f" states of dimension {STATE} and values of width n. Laws at width n are"
        " exact. The published statement is on Mamba with its own scaling of the"
        " state; ours is on one layer of the four mixers with a fixed state, and says"
        " nothing about training."
    ),
    quick="20,000 draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="recurrent",
            caption=(
                "The law of one output of each layer by width (dotted), and its limit."
            ),
            draw=draw,
            rows=rows,
        ),
        Picture(
            name="recurrent-rate",
            caption=(
                "The divergence of the law at width n from its limit, with four"
                " standard errors."
            ),
            draw=draw_distances,
            rows=distance_rows,
        ),
    ),
    unread="the paper beyond its abstract.",
)
