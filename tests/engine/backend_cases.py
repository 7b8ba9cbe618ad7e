"""Programs on which backends are held against numpy, and the test that does it."""

import numpy as np

import netsor as ns
from tests.internals import Streams, choose, in_numpy, make_plan
from tests.internals import run_plan as run

from ..builder import Builder
from ..programs import LIMIT_STEPS, STEPS, WIDTHS, LimitBuilder, grown
from .compare import conditional, smallest_ks

n = ns.Width("n")
LEVEL = 1e-4 / 12  # of one comparison: a dozen of them are made
DRAWS = 8000


@ns.program
def layer(tokens=4, heads=2):
    x = ns.clip(ns.weight(n, n, batch=tokens) @ ns.gaussian(n), 100)
    return ns.nn.attention(x, heads)


@ns.program
def transformer(tokens=2, activation=ns.gelu):
    """Norms, residuals, a causal mask, and two equal tokens at the end: a Gram matrix
    without full rank.
    """
    x = ns.gaussian(n, tokens)
    x = ns.join([x, x[:1]])
    x = x + ns.nn.attention(ns.rms_norm(x), 2, mask="causal")
    return (x + ns.nn.mlp(ns.layer_norm(x, eps=0.01), 2 * n, activation=activation))[-1]


def squashed(x):
    """A user's function that only numpy can compute."""
    return np.asarray(np.arctan(np.asarray(x)))


@ns.program
def own_function():
    x = ns.nonlin(squashed, ns.weight(n, n, batch=3) @ ns.gaussian(n))
    return (
        ns.weight(n, n)
        @ (ns.apply(squashed, ns.dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x)) @ x)[0]
    )


CASES = {
    "layer": (layer()[0], {"n": 64}),
    "few degrees of freedom": (layer()[0], {"n": 5}),
    "frame that fills up": (layer(tokens=6)[:2], {"n": 3}),
    "transformer": (transformer(), {"n": 24}),
    "limit, in closed form": (transformer(activation=ns.relu), {"n": ns.inf}),
    "limit, by the host": (transformer(activation=ns.tanh), {"n": ns.inf}),
    "own function": (own_function(), {"n": 8}),
}


def replicas(net, widths, seed=1, draws=DRAWS, **where):
    """One draw of each entry from every replica."""
    found = conditional(
        net.outputs, widths, draws, seed, progress=False, backend=choose(**where)
    )
    std = np.sqrt(np.diagonal(found.cov, axis1=1, axis2=2))
    return found.mean + std * np.random.default_rng([seed, 3]).standard_normal(
        std.shape
    ), std


def smallest_p(case, **where):
    """The smallest p-value between numpy and another backend: outputs, and their
    conditional deviations.
    """
    net, widths = CASES[case]
    ours, theirs = replicas(net, widths, seed=1), replicas(net, widths, seed=2, **where)
    return smallest_ks((a[:, 0], b[:, 0]) for a, b in zip(ours, theirs, strict=True))


def random_plans(seeds, replicas=16):
    """Plans of random programs, at finite widths and at infinite ones, with numpy's
    draws and what it made of them.
    """
    for seed in seeds:
        for limit in (False, True):
            builder = LimitBuilder(seed, WIDTHS[:2]) if limit else Builder(seed, WIDTHS)
            built = grown(
                builder, LIMIT_STEPS if limit else STEPS, 7 if limit else 9, 12
            )
            try:
                plan = make_plan(
                    built.net.outputs,
                    dict.fromkeys(built.widths, ns.inf) if limit else built.widths,
                )
            except ValueError:
                continue  # it has no limit, or none that is known
            streams, drawn = Streams(3, 0), {}

            def draw(step, streams=streams, drawn=drawn):
                drawn[step] = np.array(streams.draw(step, replicas))
                return drawn[step].copy()

            with np.errstate(all="ignore"):
                found = run(plan, draw, lambda register: register.value, in_numpy)
            if not plan.constant and all(np.isfinite(a).all() for a in found):
                yield plan, drawn, found


def products(rows, directions=None):
    """Those of rows with each other, as far as they lie along orthonormal
    directions.
    """
    along = rows if directions is None else rows @ np.swapaxes(directions, -1, -2)
    return along @ np.swapaxes(along, -1, -2)


# What a law depends on, of steps that choose a basis: a vector that is 0 but for
# rounding turns it by any angle
INVARIANT = {
    "factor": lambda made, *_: products(made),
    "reduced": lambda made, *_: products(made),
    "oriented": lambda made, lower, *_: made @ np.swapaxes(lower, -1, -2),
    "residual": lambda made, *_: products(made),
    "basis": lambda made, rows: products(rows, made),
    "span": lambda made, rows, *known: (
        products(rows, made) + sum(products(rows, old) for old in known)
    ),
}


def assert_same_steps(plan, drawn, compute):
    """Each step of a plan, by `compute(step, arrays)`, agrees with numpy on the same
    arrays.
    """

    def both(step, given, _):
        ours = in_numpy(step, given, None)
        pair = ours, compute(step, given)
        if step.kind in INVARIANT:
            pair = [INVARIANT[step.kind](made, *given) for made in pair]
        one, two = np.broadcast_arrays(*pair)
        unit = np.abs(one).max(initial=0.0) or 1.0
        np.testing.assert_allclose(
            two / unit, one / unit, rtol=0, atol=1e-11, err_msg=str(step)
        )
        return ours

    with np.errstate(all="ignore"):
        run(plan, drawn.get, lambda register: register.value, both)


def assert_same(found, other, atol=1e-7):
    """Means and covariances agree; the coefficients themselves may be turned."""
    for a, b in zip(
        *(
            [mean, columns @ np.swapaxes(columns, -1, -2)]
            for mean, columns in (found, other)
        ),
        strict=True,
    ):
        a, b = np.broadcast_arrays(a, b)
        np.testing.assert_allclose(b, a, rtol=0, atol=atol * (np.abs(a).max() or 1.0))
