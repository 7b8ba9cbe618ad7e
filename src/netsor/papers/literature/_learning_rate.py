"""Hayou: the learning rate that is best for one step under µP, by width, and the same
for attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import language as ns
from ..._validate import percent
from ...laws import Estimate
from ...programs._program import Program
from ...report._mpl_style import BLACK, BLUE, GREY, MARK_OF, VERMILLION, new
from ...studies import Arrays, derive_seed, slope_of
from .._significance import decide_below, extrapolate
from ._result import (
    EXPONENT_ATOL,
    Array,
    Claim,
    Numbers,
    Part,
    Picture,
    Result,
    mean,
    near,
    width_of,
    within,
)

LAYERS, TOKENS, TARGET = 4, 6, 1.0
WIDTHS = (96, 320, 1024, 4096, 20_000, 10**6)
CHANGE = 1024  # the width after which the published rate changes
MOST = 4.0  # rates are sought up to this multiple of the limit
# Tolerances for the rate at the largest width, and for its spread in the limit.
LIMIT_RTOL, CONSTANT_RTOL = 0.01, 0.01
NETWORKS = 3  # of a width, in the public reproduction
# Label and colour of each network in the figure.
LINES = {
    "linear": (f"linear network, depth {LAYERS}", BLACK),
    "over n": ("attention, scores over n", BLUE),
    "over root n": ("attention, scores over √n", VERMILLION),
}


def linear(rates: Array) -> Program:
    """f after one step at each rate, (rates,), for input 1 and target 1.

    Hidden matrices learn, the first and last do not.
    """
    n = ns.Width("n")
    weights = [ns.weight(n, n) for _ in range(LAYERS)]
    x = ns.weight(n, 1) @ ns.data(np.ones((1, 1)))
    for w in weights:
        x = w @ x
    return _stepped(x, weights, rates)


def attention(rates: Array, over_root: bool) -> Program:
    """f after one step at each rate, for one head on orthogonal tokens, read out as
    their mean.

    With scores over n all four matrices learn; with scores over √n those of values and
    outputs.
    """
    n = ns.Width("n")
    query = ns.weight(n, n)
    key = ns.weight(n, n)
    value = ns.weight(n, n)
    out = ns.weight(n, n)
    x = ns.weight(n, TOKENS) @ ns.data(math.sqrt(TOKENS) * np.eye(TOKENS))
    q = query @ x
    k = key @ x
    if over_root:
        scores = ns.dot(q, k)
        weights = [value, out]
    else:
        scores = ns.mean_dot(q, k)
        weights = [query, key, value, out]
    mixed = ns.softmax(scores) @ (value @ x)
    return _stepped((out @ mixed).mean(0).reshape(1), weights, rates)


def _stepped(x: ns.Vector, weights: list[Any], rates: Array) -> Program:
    """f = ⟨r, x⟩/n with a random r, after one step at each rate."""
    f = ns.mean_dot(ns.gaussian(x.width).reshape(1), x)[0, 0]
    loss = 0.5 * (f - TARGET) ** 2
    steps = [ns.step(f, loss, float(rate), weights=weights) for rate in rates]
    return Program(ns.stack(steps))


def best(nodes: Array, outputs: Array) -> Array:
    """The rate of the least loss for each draw, (draws,).

    The output f is a polynomial in the rate, known at the rates `nodes` by `outputs`,
    an array (draws, nodes). The rate is where it first reaches the target on a grid, or
    where it is nearest to the target if it never does.
    """
    grid = np.linspace(0.0, MOST, 401)
    # the values of the polynomial on the grid, from those at the nodes: (grid, nodes)
    coefficients_of_values = np.linalg.inv(np.vander(nodes, increasing=True))
    powers = np.vander(grid, len(nodes), increasing=True)
    interpolation = powers @ coefficients_of_values
    distance = outputs @ interpolation.T - TARGET  # (draws, grid), with its sign

    reached = distance >= 0
    is_reached = reached.any(axis=1)
    nearest = np.abs(distance).argmin(axis=1)
    index = np.where(is_reached, reached.argmax(axis=1), nearest)
    # linear interpolation between that point of the grid and the one before; the point
    # itself where the target is not reached
    before = np.maximum(index - 1, 0)
    draws = np.arange(len(distance))
    rise = distance[draws, index] - distance[draws, before]
    share = np.divide(
        -distance[draws, before],
        rise,
        out=np.ones(len(distance)),
        where=is_reached & (rise > 0),
    )
    rates: Array = grid[before] + share * (grid[index] - grid[before])
    return rates


def optima(network: str, width: int | None, draws: int, seed: int) -> Arrays:
    """Best rates of draws, (draws,), in units of the published limit.

    That is 1/(number of matrices that learn in the limit · |x|²). `network` is a key of
    LINES, `width` None is infinite. The rates at which f is computed, `nodes`, are as
    many as its polynomial in the rate has coefficients, or enough to be near it.
    """
    if network == "linear":
        unit = 1 / LAYERS
        nodes = np.linspace(0.0, 1.5, LAYERS + 1)  # a polynomial of degree LAYERS
        net = linear(nodes * unit)
    else:
        unit = TOKENS / 2  # values and outputs, on the mean of orthogonal tokens
        over_root = network == "over root n"
        nodes = np.linspace(0.0, 2.0, 3 if over_root else 7)
        net = attention(nodes * unit, over_root)
    outputs = net.draw(
        n=width_of(width),
        draws=draws,
        # widths are independent: their differences have known errors
        seed=derive_seed(seed, width or 0),
        workers=1,
        progress=False,
    )
    return {"rate": best(nodes, np.asarray(outputs, dtype=np.float64))}


def parts(quick: bool) -> list[Part]:
    """Every network at every width, and in the limit."""
    parts = []
    for network in LINES:
        for width in (*WIDTHS, None):
            draws = _draws(network, width, quick)
            seconds = 0.2 + draws * (5e-4 if network == "over n" else 1e-4)
            arguments = {"network": network, "width": width, "draws": draws}
            parts.append(
                Part(
                    label=f"{network} {width}",
                    work=optima,
                    arguments=arguments,
                    seconds=seconds,
                )
            )
    return parts


def _draws(network: str, width: int | None, quick: bool) -> int:
    """How many draws a part has."""
    if width is None and network != "over root n":
        return 2  # these limits are not random
    if quick:
        return 2000
    return 40_000 if network == "linear" else 10_000


def distance(numbers: Numbers, network: str, width: int) -> Estimate:
    """The mean of |η/η_∞ − 1|."""
    return mean(np.abs(numbers[f"{network} {width}"]["rate"] - 1))


def slope(numbers: Numbers, network: str, first: int, last: int) -> Estimate:
    """The exponent of the width in the mean distance, between two widths."""
    distances = [distance(numbers, network, width) for width in (first, last)]
    return slope_of([first, last], distances)


def _limit(numbers: Numbers, network: str, words: str, stated: bool) -> Claim:
    """The claim that the best rate at the largest width is near its limit.

    `stated` says whether the author states it for this network.
    """
    rate = mean(numbers[f"{network} {WIDTHS[-1]}"]["rate"])
    exact = float(numbers[f"{network} None"]["rate"][0])
    verdict = within(1.0, rate, LIMIT_RTOL)
    return Claim(
        published="The best rate of one step converges to a constant, m yᵀKy/(L |Ky|²),"
        f" {words}.",
        rule=f"Its mean at width 10⁶ is within {percent(LIMIT_RTOL)} of that.",
        ours=f"Over the constant: {rate} at 10⁶, {exact:.12g} at infinite width.",
        verdict=extrapolate(verdict, stated=stated),
    )


def _convergence(
    numbers: Numbers, network: str, first: int, last: int, words: str, *, stated: bool
) -> Claim:
    """The claim on the power of the width with which the best rate converges, between
    two widths.
    """
    exponent = slope(numbers, network, first, last)
    verdict = near(exponent, -0.5)
    return Claim(
        published=f"It does so like n^(−1/2), {words}.",
        rule=(
            f"The exponent of n in the mean distance, from {first:,} to {last:,}, is"
            f" within {EXPONENT_ATOL:g} of −1/2."
        ),
        ours=f"{exponent}.",
        verdict=extrapolate(verdict, stated=stated),
    )


def groups(numbers: Numbers, width: int) -> Array:
    """The distance of the mean of three linear networks from the limit, |mean − 1|, for
    as many groups of three as there are.
    """
    rate = numbers[f"linear {width}"]["rate"]
    count = len(rate) // NETWORKS
    by_group = rate[: count * NETWORKS].reshape(count, NETWORKS)
    distances: Array = np.abs(by_group.mean(axis=1) - 1)
    return distances


def _change(numbers: Numbers) -> Claim:
    """The claim that the best rate converges faster from some width on."""
    exponent = slope(numbers, network="linear", first=CHANGE, last=WIDTHS[-1])
    # √n times the mean distance, by width
    scaled = {n: distance(numbers, "linear", n) * math.sqrt(n) for n in WIDTHS}
    listed = ", ".join(f"{e.value:.3f} ({n:,})" for n, e in scaled.items())
    error = max(e.error for e in scaled.values())
    is_below = groups(numbers, 4 * CHANGE) < groups(numbers, CHANGE) / 4
    share_below = float(np.mean(is_below))
    return Claim(
        published=(
            f"The bound n^(−1/2) is likely not tight: beyond n = {CHANGE} convergence"
            " is seen to be much faster, without an explanation."
        ),
        rule=(
            f"The exponent of n in the mean distance, from {CHANGE:,} to 10⁶, is more"
            f" than {EXPONENT_ATOL:g} below −1/2."
        ),
        ours=(
            f"{exponent}. √n times the mean distance: {listed}; the error is"
            f" {error:.1g}. The mean over {NETWORKS} networks fluctuates: in"
            f" {percent(share_below)} of cases its distance at {4 * CHANGE:,} is below"
            f" a quarter of that at {CHANGE:,}, where a half is expected."
        ),
        verdict=decide_below(exponent, -0.5 - EXPONENT_ATOL),
    )


def _random(numbers: Numbers) -> Claim:
    """The claim that the best rate converges to a constant with scores over √n: the
    spread of its limit.
    """
    rate = numbers["over root n None"]["rate"]
    low, high = np.quantile(rate, (0.05, 0.95))
    share = float(rate.std(ddof=1)) / mean(rate).value
    relative = Estimate(share, share / math.sqrt(2 * len(rate)))
    return Claim(
        published=(
            "For attention with scores over √n it is not proved that the best rate"
            " converges to a constant."
        ),
        rule=(
            f"Its standard deviation at infinite width is below"
            f" {percent(CONSTANT_RTOL)} of its mean."
        ),
        ours=f"The limit is random: standard deviation {100 * relative.value:.1f} ±"
        f" {percent(relative.error, 1)} of the mean, 5 % of networks below {low:.3f}"
        f" and 5 % above {high:.3f} of the rate for uniform attention.",
        verdict=extrapolate(decide_below(relative, CONSTANT_RTOL)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The limit, the rate, its change; and attention."""
    words = "for attention with scores over n, which has no proof"
    narrowest = WIDTHS[0]
    last = WIDTHS[-1]
    up_to = f"up to n = {CHANGE}"
    return [
        _limit(numbers, network="linear", words="for a linear network", stated=True),
        _convergence(
            numbers,
            network="linear",
            first=narrowest,
            last=CHANGE,
            words=up_to,
            stated=True,
        ),
        _change(numbers),
        _limit(numbers, network="over n", words=words, stated=False),
        _convergence(
            numbers,
            network="over n",
            first=CHANGE,
            last=last,
            words=words,
            stated=False,
        ),
        _random(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean, spread and distance of the best rate over its constant, at each width."""
    for network in LINES:
        for width in (*WIDTHS, None):
            rate = numbers[f"{network} {width}"]["rate"]
            yield {
                "network": network,
                "width": width_of(width),
                "mean": rate.mean(),
                "std": rate.std(ddof=1),
                "distance": np.abs(rate - 1).mean(),
                "draws": len(rate),
            }


def draw(numbers: Numbers) -> Any:
    """The standard deviation by width, and what means of three networks show."""
    figure = new(2.6)
    left, right = figure.subplots(1, 2)
    for network, (label, colour) in LINES.items():
        stds = [numbers[f"{network} {n}"]["rate"].std(ddof=1) for n in WIDTHS]
        left.plot(WIDTHS, stds, marker=MARK_OF[colour], ms=3, color=colour, label=label)
    left.set(xscale="log", xlabel="width n")
    left.set(yscale="log", ylabel="standard deviation of η/η$_∞$")
    quantiles = [np.quantile(groups(numbers, n), (0.05, 0.95)) for n in WIDTHS]
    low, high = np.array(quantiles).T
    right.fill_between(WIDTHS, low, high, color=GREY, alpha=0.3, lw=0)
    means = [distance(numbers, "linear", n).value for n in WIDTHS]
    right.plot(WIDTHS, means, color=BLACK)
    right.axvline(CHANGE, color=GREY, lw=0.6, ls=":")
    right.set(xscale="log", xlabel="width n")
    right.set(yscale="log", ylabel="distance to η$_∞$, linear")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


RESULT = Result(
    name="learning-rate",
    title="Hayou: the best learning rate of one step under µP",
    source="Hayou, A proof of learning rate transfer under µP (AISTATS 2026).",
    links=(
        "https://arxiv.org/abs/2511.01734",
        "https://www.emergentmind.com/open-problems/explain-sudden-convergence-rate-change-lr-transfer-mup",
    ),
    setting=(
        f"A linear network of depth L = {LAYERS} in µP, one step of gradient descent on"
        " its hidden matrices, quadratic loss. With inputs in one dimension, as in the"
        " public reproduction, any data set is one point: input 1 and target 1. Ours:"
        " ns.step, exact at every width; the output is a polynomial in the rate, which"
        " gives the best rate of each network. Attention: one head on six orthogonal"
        " tokens, read out as their mean, with scores over n (all matrices learn) and"
        " over √n (values and outputs do). All rates are over the published constant."
    ),
    quick="2,000 networks at every width.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="learning-rate",
            caption=(
                "Left: how much the best rate varies between networks. Right: its mean"
                " distance to the limit (line), and the distance of means over three"
                " networks (band: 90 % of them); dotted: n = 1024."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread=(
        "the paper beyond its abstract. The limit and the rate are from a public"
        " reproduction of it, the change of the rate from a public list of open"
        " problems that quotes the paper; its figures, widths and numbers of networks"
        " are not known here."
    ),
)
