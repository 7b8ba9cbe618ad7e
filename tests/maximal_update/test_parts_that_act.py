"""Parts of a module that act in some initialisations only, as experts do."""

from __future__ import annotations

import pytest

from tests.internals import Edge, Responses, fits_of, products_of_draws

WIDTHS = [32.0, 64.0]
MOVING, WEIGHT = Edge(3, 1), Edge(3, 2)


def test_draws_without_a_change_are_left_out():
    acting = [[{"a": n}, {"a": n}, {}, {"a": n}, {"a": 0.0}] for n in WIDTHS]
    assert fits_of(acting, WIDTHS)["a"].exponent.value == pytest.approx(1.0)


def test_a_first_draw_without_a_number_does_not_hide_it():
    acting = [[{}, {"a": n}, {"a": n}, {"a": n}] for n in WIDTHS]
    assert fits_of(acting, WIDTHS)["a"].exponent.value == pytest.approx(1.0)


def test_two_draws_have_no_exponent():
    assert fits_of([[{"a": n}, {"a": n}, {}] for n in WIDTHS], WIDTHS) == {"a": None}


def test_products_are_those_of_a_draw_in_which_they_act():
    edges = MOVING, WEIGHT
    without = Responses(responses={MOVING: 0.0}, through={edges: False})
    acting = Responses(responses={MOVING: 1.0}, through={edges: True})
    assert products_of_draws([without, acting]) == {edges}
    assert products_of_draws([without]) == set()
