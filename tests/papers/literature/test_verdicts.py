"""The verdicts on three results, from numbers as published and from altered ones: each
can come out either way.
"""

import itertools
import math

import numpy as np
import pytest

from tests.internals import (
    _deepscale,
    _giorlandino,
    _unit_scaling,
    attention_formula,
    condensed,
    gradient_formula,
    perceptron_formula,
    stack_formula,
    theory,
)

OUTSIDE = "outside its stated range"
NOISE = np.array([-1.0, 1.0, -1.0, 1.0])[:, None]  # of four draws


def verdicts(result, numbers):
    return [claim.verdict for claim in result.RESULT.judge(numbers)]


def unit_scaling(factor=1.0):
    made = {}
    for part in _unit_scaling.parts(False):
        if part.label == "lognormal":
            s, d = np.array(
                list(
                    itertools.product(
                        part.arguments["tokens"], part.arguments["head_dims"]
                    )
                )
            ).T
            found = {"tokens": s, "head_dim": d, "std": factor * np.sqrt(math.e / s)}
        else:
            points = itertools.product(
                part.arguments["tokens"],
                part.arguments["head_dims"],
                part.arguments["mults"],
            )
            s, d, mult = np.array(list(points)).T
            fits = [
                _unit_scaling.fitted(*point, part.arguments["causal"])
                for point in zip(s, d, mult, strict=True)
            ]
            found = {
                "tokens": s,
                "head_dim": d,
                "mult": mult,
                "fitted": np.array(fits),
                "std": factor * np.array(fits),
            }
        made[part.label] = {**found, "error": 1e-9 * found["std"]}
    return made


def test_unit_scaling_verdicts_follow_numbers():
    assert verdicts(_unit_scaling, unit_scaling()) == ["agrees"] * 4
    assert verdicts(_unit_scaling, unit_scaling(1.2)) == ["disagrees"] * 4
    numbers = unit_scaling()
    numbers["causal"]["std"][7] *= 0.8  # one point is enough
    assert verdicts(_unit_scaling, numbers) == [
        "agrees",
        "agrees",
        "disagrees",
        "agrees",
    ]


def giorlandino(shift=0.0, factor=1.0, share=None):
    made = {}
    for part in _giorlandino.parts(False):
        given = part.arguments
        if part.work is _giorlandino.cosines:
            path = theory(0.025, given["beta"], 50)
            read = _giorlandino.READ[given["beta"]]
            if part.label.startswith("wide"):  # what they measured, where it was read
                path[list(read)] = list(read.values())
            found = {
                "cosine": path + shift * np.minimum(np.arange(51) / 5, 1) + 1e-4 * NOISE
            }
        elif part.work is _giorlandino.gradients:
            told = _giorlandino.GRADIENT[given["beta"]] * (
                80 / given["tokens"] if given["beta"] < 1 else 1.0
            )
            norm = math.sqrt(
                factor * told / _giorlandino.scaled([1.0, 1.0], given["tokens"]).value
            )
            found = {"square": (norm * (1 + 1e-3 * NOISE[:, 0])) ** 2}
        else:
            value = condensed(0.0, _giorlandino.SHARES_BETA) if share is None else share
            found = {
                "tokens": np.array([512]),
                "share": np.array([value]),
                "error": np.array([1e-9]),
            }
        made[part.label] = found
    return made


def test_giorlandino_verdicts_follow_numbers():
    """As published: theory and measurements part at β = 3, whatever the law is."""
    found = verdicts(_giorlandino, giorlandino())
    assert found == [
        "agrees",
        OUTSIDE,
        "agrees",
        "agrees",
        "agrees",
        "agrees",
        *["agrees"] * 4,
    ]
    # a theory of infinitely many tokens says nothing of 176; measurements do, with the
    # dropout that they had
    assert (
        verdicts(_giorlandino, giorlandino(shift=0.1))[:6]
        == [OUTSIDE] * 4 + ["disagrees"] * 2
    )
    assert verdicts(_giorlandino, giorlandino(share=0.6))[6] == OUTSIDE
    assert verdicts(_giorlandino, giorlandino(factor=1.5))[7:9] == [
        "disagrees",
        OUTSIDE,
    ]
    numbers = giorlandino()
    for label, arrays in numbers.items():
        if label.startswith("gradient 80 0.65"):
            arrays["square"] /= 1e3  # it no longer falls with the length
    assert verdicts(_giorlandino, numbers)[9] == "disagrees"


def test_few_draws_decide_nothing():
    numbers = giorlandino()
    for label in numbers:
        if label.startswith("wide"):
            numbers[label]["cosine"] = numbers[label]["cosine"] + 0.5 * NOISE
    assert verdicts(_giorlandino, numbers)[:2] == ["undecided"] * 2


def deepscale(factor=1.0):
    made = {}
    for part in _deepscale.parts(False):
        given = part.arguments
        if part.work is _deepscale.forward:
            told = [
                attention_formula(300, given["width"], score, given["r"])
                for score in given["scores"]
            ]
            found = {"moments": np.array(told)[:, None] * (factor + 1e-4 * NOISE)}
        elif part.work is _deepscale.backward:
            told = gradient_formula(300, given["width"], 64)
            found = {
                "moments": np.full((len(given["scores"]), 1, 2), told)
                * (factor + 1e-4 * NOISE)
            }
        elif part.work is _deepscale.limits:
            told = [
                [
                    attention_formula(s, math.inf, score, 0.0)[0]
                    for score in given["scores"]
                ]
                for s in given["tokens"]
            ]
            found = {
                "value": factor * np.array(told),
                "error": np.zeros((len(told), len(told[0]))),
            }
        elif part.work is _deepscale.perceptrons:
            found = {
                "value": np.array(
                    [factor * perceptron_formula(r) for r in given["correlations"]]
                )
            }
        else:
            told = stack_formula(48, 256, given["score"], 10)
            found = {"moments": told * (factor + 1e-4 * NOISE[..., None])}
        made[part.label] = found
    return made


def test_deepscale_verdicts_follow_numbers():
    assert verdicts(_deepscale, deepscale()) == ["agrees"] * 10
    # off by 30 %: forward on their grid that is too much, backward they publish errors
    # of 44.5 %
    found = (
        ["disagrees"] * 2
        + [OUTSIDE] * 3
        + ["agrees"] * 2
        + ["disagrees"]
        + [OUTSIDE] * 2
    )
    assert verdicts(_deepscale, deepscale(1.3)) == found
    assert verdicts(_deepscale, deepscale(2.0))[5:7] == ["disagrees", OUTSIDE]
    numbers = deepscale()
    numbers["stack 4"]["moments"][..., 1] *= 1.3  # correlations alone
    assert verdicts(_deepscale, numbers) == ["agrees"] * 9 + [OUTSIDE]


@pytest.mark.parametrize(
    ("result", "numbers"),
    [
        (_unit_scaling, unit_scaling),
        (_giorlandino, giorlandino),
        (_deepscale, deepscale),
    ],
)
def test_table_rows_have_equal_columns(result, numbers):
    for picture in result.RESULT.pictures:
        rows = list(picture.rows(numbers()))
        assert len({tuple(row) for row in rows}) == 1
        assert len(rows) > 5
