"""Loops: where equal blocks of a plan repeat, and that nothing but the printing and the
compiling depends on it.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import Loop, _plan, loops


def decoder(layers):
    model = ns.models.nanogpt(
        {"n_layer": layers, "n_head": 2, "n_embd": 288, "vocab_size": 100}
    )
    return model.program(tokens=17)[-1], model.widths()


def test_loops_are_found_where_they_are():
    block, other = (
        list("abcdefghijklmnop"),
        [f"{c}'" for c in "abcdefghijklmnopqrstuvwxyz"],
    )
    assert loops([*"first", *block * 3, *"last"]) == [Loop(5, 16, 3)]
    # the step before the loop is that at its end, so that it may begin a step earlier
    assert loops(["x", "p", *block * 3]) == [Loop(1, 16, 3)]
    # an encoder and a decoder
    assert loops([*other * 2, "x", *block * 4]) == [Loop(0, 26, 2), Loop(53, 16, 4)]
    assert loops([*block[:8] * 2]) == []  # saves too little
    assert loops(list(range(100))) == loops([]) == []
    # two whole ones, not three
    assert loops([*block * 2, *block[:7], "other", *block[8:]]) == [Loop(0, 16, 2)]


def test_deep_plan_prints_as_a_shallow_one():
    (six, widths), (deep, _) = decoder(6), decoder(24)
    lines = [str(net.plan(**widths)).splitlines() for net in (six, deep)]
    assert len(lines[0]) == len(lines[1])
    (found,) = deep.plan(**widths).loops
    assert found.times > 16
    assert f"  block × {found.times}, with new random numbers each time:" in "\n".join(
        lines[1]
    )


def test_blocks_that_compute_different_functions_are_no_loop():
    """The last block of seven has another function: it is not part of the loop."""
    n = ns.Width("n")

    @ns.program
    def net():
        x = ns.weight(n, n, batch=40) @ ns.gaussian(n)
        for f in [ns.tanh] * 6 + [ns.relu]:
            x = ns.rms_norm(x + f(ns.weight(n, n) @ x))
        return x

    plan = net().plan(n=512)
    same = plan.loops
    assert same
    relu = next(k for k, step in enumerate(plan.steps) if "relu" in step.label)
    assert not any(loop.start <= relu < loop.stop for loop in same)


@pytest.mark.slow
def test_blocks_are_compiled_once():
    pytest.importorskip("jax")
    from tests.internals import _jax_program as _jax_pieces

    found = []
    for layers in (6, 9):
        net, widths = decoder(layers)
        plan = net.plan(**widths)
        pieces = _jax_pieces.pieces(plan, "float64")
        assert (
            max(len(piece.steps) for piece in pieces)
            <= _jax_pieces.MAX_PIECE_STEPS
            < len(plan.steps)
        )
        found.append((len(pieces), {piece.structure for piece in pieces}))
    (few, once), (more, again) = found
    assert once == again  # programs to compile
    # the blocks between the first and the last have those of one
    assert more - few == 3 * (few - len(once)) / (6 - 3)


@pytest.mark.slow
def test_loops_unrolled_give_the_same_draws(monkeypatch):
    """Up to rounding: XLA fuses the operations of one large program in another way."""
    pytest.importorskip("jax")
    from tests.internals import _jax_program as _jax_pieces

    net, widths = decoder(4)
    looped = net.draw(draws=8, seed=3, backend="jax", **widths)
    net, _ = decoder(4)  # its plan is another object
    monkeypatch.setattr(_plan.Plan, "loops", [])
    monkeypatch.setattr(_jax_pieces, "MAX_PIECE_STEPS", 10**6)
    assert len(_jax_pieces.pieces(net.plan(**widths), "float64")) == 1
    np.testing.assert_allclose(
        net.draw(draws=8, seed=3, backend="jax", **widths),
        looped,
        rtol=1e-10,
        atol=1e-12,
    )
