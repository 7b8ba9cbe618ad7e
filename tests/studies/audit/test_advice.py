"""Advice that no threshold decides: AdamW's first update, formulas of recipes,
drawbacks of what is preferred.
"""

import math

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    GRADIENT_NOTE,
    adam_note,
    adam_updates,
    differences,
    document,
    drawbacks,
    recipe_notes,
    to_text,
)

from .test_comparison import GROWN, MODEL, made


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_adams_first_update_does_not_depend_on_the_gradient(size):
    """Adam's first step on a drawn matrix and gradient, by its definition."""
    rng = np.random.default_rng(0)
    weights, gradient = (
        0.02 * rng.standard_normal((200, 200)),
        size * rng.standard_normal((200, 200)),
    )
    # moments, before the correction of their bias
    first, second = 0.1 * gradient, 0.001 * gradient**2
    update = 3e-4 * (first / 0.1) / (np.sqrt(second / 0.001) + 1e-15)
    model = ns.models.read("gpt2")
    ratio = np.sqrt(np.mean(update**2)) / weights.std()
    # 1/√(2 · 40,000) is 0.004
    assert adam_updates(model)["query"] == pytest.approx(ratio, rel=0.02)
    assert adam_updates(model)["MLP out"] == pytest.approx(math.sqrt(24) * 0.015)


def test_matrices_that_a_model_has():
    model = ns.models.read("gpt2")
    assert "logits" not in adam_updates(model)  # tied
    assert "MLP gate" not in adam_updates(model)
    zero = ns.models.recipe(model, "zero")
    assert "MLP out" not in adam_updates(zero)
    text = adam_note(model)
    assert "1.5 % of the std of query, key, value, MLP in, embedding, position" in text
    assert "7.3 % of the std of attention output, MLP out" in text
    assert adam_note(model.replace(std=0.0, std_embedding=0.0)) == ""


def test_recipes_have_their_formula():
    models = [
        MODEL,
        ns.models.recipe(MODEL, "ntk"),
        ns.models.recipe(MODEL, "ntk").replace(eps=1e-6),
    ]
    (note,) = recipe_notes(models)
    assert note.startswith("ntk: std 1/√fan-in, embeddings of std 1")
    assert recipe_notes([MODEL.replace(name="a, recipe=none of ours")]) == []


def test_drawbacks_are_quantities_worse_than_in_all_other_models():
    """Only where it is worse than all others, by a factor, with bands that part."""
    models = made(
        GROWN, {"effective_rank": [2.0] * 4}, {**GROWN, "effective_rank": [6.0] * 4}
    )
    found = differences(models)
    assert found.preferred == "b"
    assert drawbacks(models, "b") == ["effective rank 2 (5 to 6 in the others)"]
    assert drawbacks(models, "a") == drawbacks(models, None) == []
    assert "Against “b”: effective rank 2 (5 to 6 in the others)." in to_text(
        document(models, found)
    )
    assert GRADIENT_NOTE not in to_text(document(models, found))


def test_preference_by_gradients_is_about_sgd():
    models = made({"grad_query": [1e-6] * 4, "grad_key": [1e-6] * 4}, {})
    found = differences(models)
    assert found.verdict == "prefer “b” (better scores)"
    assert GRADIENT_NOTE in " ".join(to_text(document(models, found)).split())
