"""A thousand random networks at infinite width against a large one; and how many are
refused.
"""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

import netsor as ns

from ..limits import network
from .compare import exact_draws

NETWORKS = 1000
LEVEL = 1e-4  # of all comparisons together
WIDTHS = 2000, 4000
DRAWS = 400
# relative to the largest entry: what varies less is not random in the limit
VANISHES = 1e-6
# of the distance to a limit that is a number, at 64 times the width: n^(−1/2) falls to
# an eighth
FALL = 0.4
BLUR = (
    # times the largest entry's size, over √n: noise that both laws get, for it hides
    # what vanishes like n^(−1/2)
    4.0
)


def smallest_p(net, seed):
    """The smallest p-value of an entry, times the number of entries."""
    # a law that is refused in every replica is refused now: draws of two steps of
    # training may take minutes
    exact_draws(net, 2, seed=seed, n=np.inf)
    limit = exact_draws(net, DRAWS, seed=seed, n=np.inf)
    width = WIDTHS[seed % 2]
    wide = exact_draws(net, DRAWS, seed=seed + 1, n=width)
    assert np.isfinite(limit).all()
    random = np.ptp(limit, axis=0) > VANISHES * np.abs(wide).max()
    # what is not random in the limit is near it, or comes nearer: a loss that explodes
    # is far at all these widths
    far = ~random & (
        np.abs(wide - limit[0]).mean(axis=0)
        >= 8 * np.maximum(1.0, np.abs(limit[0])) / width**0.5
    )
    if far.any():
        wider = exact_draws(net, DRAWS // 10, seed=seed + 1, n=64 * width)
        before, after = (
            np.median(np.abs(u - limit[0]), axis=0)[far] for u in (wide, wider)
        )
        assert (after < FALL * before).all()
    size = np.sqrt((wide**2).mean(axis=0)).max()
    blur = (
        BLUR
        * size
        / width**0.5
        * np.random.default_rng(seed).standard_normal((2, *wide.shape))
    )
    limit, wide = limit + blur[0], wide + blur[1]
    found = [
        stats.ks_2samp(limit[:, i], wide[:, i]).pvalue for i in np.flatnonzero(random)
    ]
    return min(found, default=1.0) * max(len(found), 1)


def compared(seeds):
    """The smallest p-values by seed, and the reasons of refusals."""
    found, refused = {}, Counter()
    for seed in seeds:
        kind, net = network(seed)
        try:
            found[seed] = smallest_p(net, seed)
        except ValueError as error:
            refused[kind, str(error).split(" (at")[0]] += 1
    return found, refused


def test_few_networks_have_law_of_wide_ones():
    found, refused = compared(range(1))
    assert not refused
    assert min(found.values()) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_networks(part):
    count = NETWORKS // 20
    found, refused = compared(range(part * count, (part + 1) * count))
    print(
        f"\n{len(found)} compared, smallest {min(found.values()):.2g}; refused:"
        f" {dict(refused)}"
    )
    assert min(found.values()) > LEVEL / NETWORKS
    assert sum(refused.values()) <= 3


def test_comparison_sees_a_limit_that_is_off():
    _, net = network(0)
    wrong = ns.Program(tuple(1.5 * output for output in net.outputs))
    limit, wide = (
        exact_draws(wrong, 4 * DRAWS, n=np.inf),
        exact_draws(net, 4 * DRAWS, seed=12, n=500),
    )
    assert (
        min(
            stats.ks_2samp(limit[:, i], wide[:, i]).pvalue
            for i in range(limit.shape[1])
        )
        < LEVEL / NETWORKS
    )
