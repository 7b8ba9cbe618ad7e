"""Settings of an optimiser of the user, and what must change in them."""

from __future__ import annotations

from tests.internals import OwnOptimiser, ParameterRule, PowerOfSizes, Settings

WIDTHS = (32, 128)
RULE = ParameterRule(eps=PowerOfSizes(-1.0), weight_decay=PowerOfSizes(1.0))


def own(eps=(1e-8, 1e-8), decay=(0.1, 0.1), gradients=(1e-3, 2.5e-4)):
    """An optimiser of one matrix, by its settings at both widths."""
    settings = [
        Settings({"w": lr}, {"w": e}, {"w": d}, {"w": g})
        for lr, e, d, g in zip((0.04, 0.01), eps, decay, gradients, strict=True)
    ]
    return OwnOptimiser.of(settings, WIDTHS, default_decay=0.01)


def changes(**settings):
    powers = own(**settings).powers_to_change("w", RULE)
    return {what: power.width for what, power in powers if power.width}


def test_exponents_of_settings():
    found = own(eps=(1e-4, 2.5e-5), decay=(0.1, 0.4))
    assert (found.lr, found.eps, found.weight_decay) == (
        {"w": -1.0},
        {"w": -1.0},
        {"w": 1.0},
    )


def test_constant_decay_falls_behind():
    assert changes() == {"weight decay": 1.0}
    assert changes(decay=(0.1, 0.4)) == {}


def test_decay_that_nobody_chose_is_not_judged():
    assert changes(decay=(0.01, 0.01)) == {}
    assert changes(decay=(0.0, 0.0)) == {}
    assert changes(decay=(0.01, 0.02)) == {"weight decay": 0.5}


def test_only_an_eps_that_acts_is_judged():
    follows = {"decay": (0.1, 0.4)}
    assert changes(eps=(1e-5, 1e-5), **follows) == {"eps": -1.0}
    assert changes(eps=(1e-6, 1e-6), **follows) == {}
    assert changes(eps=(1e-5, 2.5e-6), **follows) == {}
    assert changes(eps=(1e-5, 1e-5), gradients=(0.0, 0.0), **follows) == {}
