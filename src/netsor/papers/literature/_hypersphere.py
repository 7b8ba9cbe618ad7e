"""Ren et al.: weight decay under a constraint on the norm of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..._validate import percent
from ...laws import Estimate
from ...report._mpl_style import BLUE, GREEN, GREY, MARK_OF, VERMILLION, new
from ...studies import Arrays, slope_of
from .._significance import combine, decide_below, extrapolate
from ._result import (
    EXPONENT_ATOL,
    Array,
    Claim,
    Numbers,
    Part,
    Picture,
    Result,
    estimates,
    near,
)

WIDTH = 32  # of square matrices
RATES = (1e-4, 1e-3, 1e-2, 1e-1)  # learning rates, relative to the norm of the weights
DECAY = 0.1  # of decoupled weight decay
STEPS = 20
NORMS = {"Frobenius": "fro", "spectral": 2, "nuclear": "nuc"}
# Rules, fixed before the run of the default seed.
IDENTITY_ATOL = 1e-12  # of matrices of norm 1, for one step
LARGE_RATE, LARGE_DECAY, CHANGE_MAX = 0.1, 1.0, 0.01


def size_of(matrix: Array, norm: str) -> float:
    """The norm of this name."""
    order: Any = NORMS[norm]
    return float(np.linalg.norm(matrix, order))


def polar(matrix: Array) -> Array:
    """The orthogonal factor U Vᵀ of U S Vᵀ: the direction of an exact step of Muon."""
    u, _, v_transposed = np.linalg.svd(matrix)
    return np.asarray(u @ v_transposed)


def after(
    weights: Array, gradients: Sequence[Array], rate: float, decay: float, norm: str
) -> Array:
    """The weights after Muon's steps on these gradients, each followed by rescaling.

    W ← R (W − η U − η λ W)/‖…‖, where R is the norm at the start and updates have the
    norm R, as weights do.
    """
    radius = size_of(weights, norm)
    for gradient in gradients:
        update = polar(gradient)
        update = update * radius / size_of(update, norm)
        weights = weights - rate * update - rate * decay * weights
        weights = weights * radius / size_of(weights, norm)
    return weights


def decays(steps: int, draws: int, seed: int) -> Arrays:
    """What weight decay changes in the weights, relative to their norm.

    For random weights and gradients: "Frobenius", … are (draws, rates), "identity" the
    largest difference of one step with decay from one step with the rate η/(1 − ηλ) and
    none; "large" is the change for LARGE_RATE and LARGE_DECAY, (draws,), in the
    Frobenius norm, over that of the step itself.
    """
    rng = np.random.default_rng(seed)
    changes: dict[str, list[Any]] = {norm: [] for norm in NORMS}
    differences = []
    large = []
    for _ in range(draws):
        weights = rng.standard_normal((WIDTH, WIDTH))
        gradients = list(rng.standard_normal((steps, WIDTH, WIDTH)))
        for norm in NORMS:
            weights = weights / size_of(weights, norm)
            changes[norm].append(
                [_change_by_decay(weights, gradients, rate, norm) for rate in RATES]
            )
            differences += [
                _difference_from_faster_step(weights, gradients[0], rate, norm)
                for rate in RATES
            ]
        weights = weights / size_of(weights, "Frobenius")
        large.append(_change_by_large_decay(weights, gradients[0]))
    arrays: dict[str, Any] = {norm: np.array(rows) for norm, rows in changes.items()}
    return {
        **arrays,
        "identity": np.array([max(differences)]),
        "large": np.array(large),
    }


def _change_by_decay(
    weights: Array, gradients: Sequence[Array], rate: float, norm: str
) -> float:
    """The norm of what decay changes in the weights after all steps."""
    with_decay = after(weights, gradients, rate, DECAY, norm)
    without_decay = after(weights, gradients, rate, 0.0, norm)
    return size_of(with_decay - without_decay, norm)


def _difference_from_faster_step(
    weights: Array, gradient: Array, rate: float, norm: str
) -> float:
    """How far a step with decay is from one with the rate η/(1 − ηλ) and none."""
    with_decay = after(weights, [gradient], rate, DECAY, norm)
    faster_rate = rate / (1 - rate * DECAY)
    faster = after(weights, [gradient], faster_rate, 0.0, norm)
    return size_of(with_decay - faster, norm)


def _change_by_large_decay(weights: Array, gradient: Array) -> float:
    """What a large decay changes in a large step, over the step."""
    with_decay = after(weights, [gradient], LARGE_RATE, LARGE_DECAY, "Frobenius")
    without_decay = after(weights, [gradient], LARGE_RATE, 0.0, "Frobenius")
    change = size_of(with_decay - without_decay, "Frobenius")
    return change / size_of(without_decay - weights, "Frobenius")


def parts(quick: bool) -> list[Part]:
    """One step and several."""
    draws = 4 if quick else 20
    parts = []
    for steps in (1, STEPS):
        arguments = {"steps": steps, "draws": draws}
        seconds = 0.01 * draws * steps
        parts.append(
            Part(
                label=f"{steps} steps",
                work=decays,
                arguments=arguments,
                seconds=seconds,
            )
        )
    return parts


def _changes(numbers: Numbers, steps: int, norm: str) -> list[Estimate]:
    """The mean change by rate."""
    draws = numbers[f"{steps} steps"][norm]  # (draws, rates)
    errors = draws.std(axis=0, ddof=1) / math.sqrt(len(draws))
    return estimates(draws.mean(axis=0), errors)


def _exponents(numbers: Numbers, norms: Sequence[str]) -> tuple[str, str]:
    """The exponents of η in what decay changes, and the verdict on order two."""
    verdicts = []
    lines = []
    for norm in norms:
        for steps in (1, STEPS):
            # from the rates at which rounding and higher orders are far
            changes = _changes(numbers, steps, norm)[:-1]
            power = Estimate(slope_of(RATES[:-1], changes).value, 0.0)  # type: ignore[arg-type]
            verdicts.append(near(power, 2.0))
            lines.append(f"{power.value:.4f} ({norm}, steps: {steps})")
    return ", ".join(lines), combine(*verdicts)


def _no_op(numbers: Numbers) -> Claim:
    """The claim as it is stated."""
    listed, verdict = _exponents(numbers, ("Frobenius",))
    return Claim(
        published="Weight decay is a first-order no-op on the Frobenius sphere.",
        rule=(
            "What decay changes in the weights is of order η²: its exponent from"
            f" η = {RATES[0]:g} to {RATES[-2]:g} is within {EXPONENT_ATOL:g} of 2,"
            f" after one step of Muon and after {STEPS}."
        ),
        ours=f"{listed}.",
        verdict=verdict,
    )


def _other_norms(numbers: Numbers) -> Claim:
    """Whether the Frobenius norm is special."""
    listed, verdict = _exponents(numbers, ("spectral", "nuclear"))
    return Claim(
        published=(
            "The same on the spheres of other norms; the statement is on one norm."
        ),
        rule="The same rule, with rescaling onto the sphere of the norm.",
        ours=f"{listed}.",
        verdict=extrapolate(verdict),
    )


def _identity(numbers: Numbers) -> Claim:
    """The exact statement behind it."""
    worst = max(numbers[f"{steps} steps"]["identity"][0] for steps in (1, STEPS))
    return Claim(
        published=(
            "Ours: at every order and for every norm, a step with decay λ and rate η is"
            " the step without decay and rate η/(1 − ηλ)."
        ),
        rule=(
            "The largest difference of the weights, of norm 1, is below"
            f" {IDENTITY_ATOL:g}, for all rates and norms."
        ),
        ours=f"{worst:.1e}.",
        verdict=decide_below(Estimate(float(worst), 0.0), IDENTITY_ATOL),
    )


def _large(numbers: Numbers) -> Claim:
    """Beyond the first order."""
    draws = numbers["1 steps"]["large"]
    change = Estimate(
        float(draws.mean()), float(draws.std(ddof=1) / math.sqrt(len(draws)))
    )
    return Claim(
        published="Weight decay can be dropped: at any rate.",
        rule=(
            f"At η = {LARGE_RATE:g} and λ = {LARGE_DECAY:g} it changes a step by less"
            f" than {percent(CHANGE_MAX)} of the step. The statement is of first order."
        ),
        ours=f"{change} of the step, as if the rate were"
        f" {1 / (1 - LARGE_RATE * LARGE_DECAY):.3f} times as large.",
        verdict=extrapolate(decide_below(change, CHANGE_MAX)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The statement, other norms, the identity, and large rates."""
    return [
        _no_op(numbers),
        _other_norms(numbers),
        _identity(numbers),
        _large(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean changes by norm, steps and rate."""
    for norm in NORMS:
        for steps in (1, STEPS):
            changes = _changes(numbers, steps, norm)
            for rate, change in zip(RATES, changes, strict=True):
                yield {
                    "norm": norm,
                    "steps": steps,
                    "rate": rate,
                    "change": change.value,
                    "error": change.error,
                }


def draw(numbers: Numbers) -> Any:
    """What decay changes, by rate."""
    figure = new(2.4)
    axes = figure.subplots()
    for norm, colour in zip(NORMS, (BLUE, VERMILLION, GREEN), strict=True):
        for steps, line in ((1, "-"), (STEPS, "--")):
            changes = [change.value for change in _changes(numbers, steps, norm)]
            axes.plot(
                RATES,
                changes,
                ls=line,
                color=colour,
                marker=MARK_OF[colour],
                ms=3,
                mfc="none",
                label=f"{norm}, {steps} step{'s' * (steps > 1)}",
            )
    guide = 10 * np.array(RATES) ** 2
    axes.plot(RATES, guide, color=GREY, lw=0.8, ls=":", label="η²")
    axes.set(xscale="log", yscale="log", xlabel="learning rate η")
    axes.set(ylabel="change by decay / norm")
    axes.legend(fontsize=6)
    return figure


RESULT = Result(
    name="hypersphere",
    title="Ren et al.: weight decay on a sphere",
    source=(
        "Ren, Liu, Shen and Chen, Rethinking language model scaling under transferable"
        " hypersphere optimization (2026)."
    ),
    links=("https://arxiv.org/abs/2603.28743",),
    setting=(
        f"Random {WIDTH} × {WIDTH} weights and gradients, exact steps of Muon of the"
        f" relative size η, decay λ = {DECAY:g}, then rescaling to the norm of the"
        " start. Decay multiplies the weights by 1 − ηλ, and a rescaling forgets the"
        " factor: only the relative size of the update is left."
    ),
    quick="fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="hypersphere",
            caption="What weight decay changes in the weights, by learning rate.",
            draw=draw,
            rows=rows,
        ),
    ),
    unread="the paper beyond its abstract.",
)
