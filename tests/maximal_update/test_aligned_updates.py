"""The part of an update that adds up in a sum, and the rows of fused matrices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.internals import (
    SHARES_OF_ROWS,
    Edge,
    Responses,
    SizeOfRows,
    aligned_updates,
    unlike_rows,
)

EDGE, OTHER = Edge(5, 1), Edge(7, 2)


def responses(update, scattered):
    return Responses(updates={EDGE: update}, scattered={EDGE: scattered})


def change_of(draws, orthogonal=()):
    found = aligned_updates([draws], orthogonal)
    return [draw[EDGE] for draw in found[0]]


def test_the_part_of_random_signs_is_taken_away():
    assert change_of([responses(5.0, 4.0)]) == [pytest.approx(3.0)]


def test_updates_that_are_not_aligned_in_a_draw_stay():
    """Those of an embedding have no sums: random signs change nothing."""
    draws = [responses(5.0, 4.0), responses(5.0, 5.0)]
    assert change_of(draws) == [5.0, 5.0]


def test_orthogonal_updates_stay():
    assert change_of([responses(5.0, 4.0)], orthogonal={EDGE}) == [5.0]


@pytest.mark.parametrize("tokens", [16, 512])
def test_exponent_does_not_depend_on_the_number_of_tokens(tokens):
    """A step of sign descent, of independent gradients: its change of the values grows
    like n, but only for n far above the number of tokens if all of it counts.
    """
    rng = np.random.default_rng(1)
    sizes, plain = [], []
    widths = (64, 256)
    for n in widths:
        inputs = rng.normal(size=(tokens, n))
        gradients = rng.normal(size=(tokens, n))
        update = np.sign(gradients.T @ inputs)
        scattered = update * rng.choice([-1, 1], size=update.shape)
        rms = [np.sqrt(np.mean((inputs @ x.T) ** 2)) for x in (update, scattered)]
        (found,) = change_of([responses(*rms)])
        sizes.append(found)
        plain.append(rms[0])

    def exponent(numbers):
        return np.log(numbers[1] / numbers[0]) / np.log(widths[1] / widths[0])

    assert exponent(sizes) == pytest.approx(1.0, abs=0.1)
    assert exponent(plain) < (0.95 if tokens == 16 else 0.75)


def sizes_of(*exponents, error=0.01):
    """Sizes of parts of the rows at widths 32 and 128, with these exponents."""
    each = SHARES_OF_ROWS // len(exponents)
    sizes = []
    for n in (32, 128):
        of_parts = [SizeOfRows(0.1 * (n / 32) ** x, error) for x in exponents]
        sizes.append({"w": [size for size in of_parts for _ in range(each)]})
    return sizes


@pytest.mark.parametrize(
    ("exponents", "expected"),
    [
        ((-0.5, -0.5, -0.5), []),
        ((-0.5, 0.0, -0.5), [("w, rows from 1/3 to 2/3 of them", -0.5)]),
        ((-0.5, 0.0), [("w, rows from 1/2 to 1 of them", -0.5)]),
        ((-1.0, -0.5, -0.5, -0.5), [("w, rows from 0 to 1/4 of them", 0.5)]),
        ((0.0, -0.5, 0.0), [("w, rows from 1/3 to 2/3 of them", 0.5)]),
    ],
)
def test_unlike_rows(exponents, expected):
    found = unlike_rows(sizes_of(*exponents), (32, 128))
    assert [(str(rows), rows.exponent) for rows in found] == expected


def test_rows_of_uncertain_sizes_are_not_judged():
    assert unlike_rows(sizes_of(-0.5, 0.0, -0.5, error=0.1), (32, 128)) == []


def test_rows_that_start_at_0_have_no_exponent():
    sizes = sizes_of(-0.5, 0.0)
    sizes[0]["w"] = [SizeOfRows(0.0, 0.0)] * SHARES_OF_ROWS
    assert unlike_rows(sizes, (32, 128)) == []
