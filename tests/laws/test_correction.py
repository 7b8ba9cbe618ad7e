"""The first correction in 1/n of an attention layer: numbers of other quadratures, and
exact laws at finite widths.
"""

import pickle
from functools import cache

import numpy as np
import pytest

import netsor as ns
from netsor import inf
from tests.internals import _correction, difference

from ..keep import keep

n = ns.Width("n")


def layer(x, heads=2):
    return ns.Program(ns.nn.attention(x, heads)[0])


@cache
def of_paper(**options):
    """The paper's limit and its correction."""
    law = ns.paper.layer(**options).law(n=inf)
    return law, law.correction()


PAPER = ns.paper.layer()
LAYERS = {
    "correlated tokens of one matrix": layer(
        ns.weight(n, n) @ ns.gaussian(n, 3, cov=0.5 + 0.5 * np.eye(3))
    ),
    "data": layer(
        ns.weight(n, 2) @ ns.data([[1.0, 0.0], [0.6, 0.8], [-0.2, 1.0]]), heads=1
    ),
    "scales and a mask": ns.paper.layer(
        tokens=3, sigma_q=1.5, sigma_v=0.7, sigma_o=2.0, token=1, mask="causal"
    ),
}


@pytest.mark.parametrize(
    ("made", "right"),
    [
        (lambda: of_paper()[1], (0.7574, 26.850, 1.0997, 11.058)),
        (
            lambda: of_paper()[0].with_heads(1).correction(),
            (0.7574, 34.811, 1.328, 13.115),
        ),
        pytest.param(
            lambda: layer(ns.gaussian(n, 4)).law(n=inf).correction(),
            (0.3424, 11.331, 0.468, 1.999),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_correction_of_four_tokens_with_identity_kernel(made, right):
    """By another quadrature, with the symmetry of the tokens, a grid of its own and
    wider steps.
    """
    first = made()
    found = first.variance, first.kurtosis, first.total_variation, first.kl
    for (value, error), other in zip(found, right, strict=True):
        # those have three or four digits
        assert value == pytest.approx(other, rel=1e-3)
        assert 0 < error < 1e-3 * value


def test_density_moves_by_its_correction():
    (law, found), width = of_paper(), 4096
    y = np.array([0.0, 0.5, 1.0, 2.0])
    wide, limit = PAPER.law(n=width, draws=100_000), law.mixture
    each = [
        ns.Mixture(
            wide.component_mean[k::16], wide.component_var[k::16], wide.origin
        ).pdf(y)
        for k in range(16)
    ]
    base = [
        ns.Mixture(
            limit.component_mean[k::16], limit.component_var[k::16], wide.origin
        ).pdf(y)
        for k in range(16)
    ]
    moved = width * (np.array(each) - base)  # coupled
    error = moved.std(axis=0, ddof=1) / 4
    first = found.pdf(y)
    assert (
        np.abs(moved.mean(axis=0) - first) < 4.5 * error + 0.03 * np.abs(first)
    ).all()
    assert y.shape == first.shape
    grid = np.linspace(-6, 6, 2001)
    assert np.sum(found.pdf(grid)) * 0.006 == pytest.approx(0, abs=1e-6)  # mass stays 1


@pytest.mark.parametrize("name", keep(LAYERS, "correlated tokens of one matrix"))
def test_variance_and_kurtosis_at_a_finite_width(name):
    net, width = LAYERS[name], 128
    limit = net.law(n=inf, draws=50_000)
    first = limit.correction()
    law = net.law(n=width, draws=50_000)
    for of, term, own in (
        ("variance", first.variance, limit.var()),
        ("kurtosis", first.kurtosis, limit.kurtosis()),
    ):
        value, error = difference(law, limit, of)
        right = abs(term.value) / width / abs(own)
        assert abs(value - right) < 4.5 * error + 0.06 * right  # the next order
        assert error < (0.7 if of == "variance" else 0.05) * right


def test_correction_without_token_fluctuations_differs(monkeypatch):
    whole = of_paper()[1].variance.value
    monkeypatch.setattr(
        "netsor.engine.closed_form._match_attention._merged",
        lambda directions: directions[:0],
    )
    assert abs(PAPER.law(n=inf).correction().variance.value - whole) > 0.3


def test_correction_survives_copies(monkeypatch, tmp_path):
    # any nodes show whether a copy is the same
    monkeypatch.setattr(_correction, "POINTS", 2**13)
    law = PAPER.law(n=inf, draws=100)
    law.save(tmp_path / "law.npz")
    for copy in (ns.load(tmp_path / "law.npz"), pickle.loads(pickle.dumps(law))):
        assert str(copy.correction()) == str(law.correction())
    assert str(law.with_heads(1).correction()) == str(
        ns.paper.layer(heads=1).law(n=inf).correction()
    )


@pytest.mark.parametrize(
    "tokens", [ns.gaussian(n, 1), ns.gaussian(n, 2, cov=np.ones((2, 2)))]
)
def test_correction_of_one_token_or_equal_tokens(tokens):
    first = layer(tokens).law(n=inf).correction()
    # w = |x|²: E[u |x|²] = 1 at every width
    assert first.variance.value == pytest.approx(0, abs=1e-6)
    # 3 Var(|x|² (u_1 + u_2)/2) n
    assert first.kurtosis.value == pytest.approx(3 * (2 / 2 + 2), rel=1e-4)


def wishart_variance(sigma, width, draws=2**17):
    """n times how far E[w] is from its limit: two tokens of identity kernel, their Gram
    matrix drawn at a width.

    What is linear in the Gram matrix and τ less their limits has mean 0, and is
    regressed out.
    """
    rng = np.random.default_rng(0)
    z = rng.standard_normal(draws)

    def weighted(k11, k12, k22, tau):
        a = 1 / (1 + np.exp(sigma * np.sqrt(k11 * tau * (k11 + k22 - 2 * k12)) * z))
        return a**2 * k11 + 2 * a * (1 - a) * k12 + (1 - a) ** 2 * k22

    first, cross, second = (
        rng.chisquare(width, draws),
        rng.standard_normal(draws),
        rng.chisquare(width - 1, draws),
    )
    drawn = (
        first / width,
        np.sqrt(first) * cross / width,
        (cross**2 + second) / width,
        rng.chisquare(width, draws) / width,
    )
    found = width * (weighted(*drawn) - weighted(1.0, 0.0, 1.0, 1.0))
    small = np.array(drawn) - [[1.0], [0.0], [1.0], [1.0]]
    table = np.vstack(
        [np.ones(draws), small, small * np.sign(z), small * np.tanh(sigma * z) ** 2]
    ).T
    rest = found - table[:, 1:] @ np.linalg.lstsq(table, found, rcond=None)[0][1:]
    return rest.mean(), rest.std() / draws**0.5


@pytest.mark.parametrize("sigma", [1.0, 5.0, 30.0])
def test_correction_of_large_scores(sigma):
    """With fixed nodes the larger two were 0.44 ± 0.10 and 24 ± 2."""
    value, error = (
        ns.Program(ns.nn.attention(ns.gaussian(n, 2), 1, sigma_q=sigma)[0])
        .law(n=inf)
        .correction()
        .variance
    )
    right, noise = wishart_variance(sigma, 500)
    # level 1e-5 each; terms of order 1/n are smaller than the noise
    assert abs(value - right) < 4.5 * noise + error
    assert noise < 0.02


def test_scores_that_are_too_large_are_refused():
    law = ns.Program(ns.nn.attention(ns.gaussian(n, 4), 1, sigma_q=30.0)[0]).law(n=inf)
    with pytest.raises(
        ns.LawError, match="scores of standard deviation 30 are too large"
    ):
        law.correction()


def test_quasi_random_points_have_honest_errors(monkeypatch):
    """Two sets gave errors of one degree of freedom: 3 of 16 numbers were wrong by more
    than two, one by nine.
    """
    rng = np.random.default_rng(3)
    roots = [rng.standard_normal((tokens, tokens)) / 2 for tokens in (3, 4)]
    laws = [
        of_paper()[0],
        *(
            layer(ns.gaussian(n, len(root), cov=root @ root.T)).law(n=inf)
            for root in roots
        ),
    ]
    monkeypatch.setattr(_correction, "POINTS", 2**16)
    right = [law.correction() for law in laws]  # by grids, to 5 digits
    monkeypatch.setattr(_correction, "MAX_SPACING", 0.0)
    monkeypatch.setattr(_correction, "MAX_SPREAD", inf)
    monkeypatch.setattr(_correction, "POINTS", 2**14)
    found = [law.correction() for law in laws]
    pairs = [
        (getattr(a, of), getattr(b, of))
        for a, b in zip(found, right, strict=True)
        for of in ("variance", "kurtosis", "total_variation", "kl")
    ]
    wrong = np.array(
        [abs(value - exact.value) / error for (value, error), exact in pairs]
    )
    assert (wrong < 5).all()
    assert np.sum(wrong > 2) <= 2  # of 12
    assert all(error < 0.05 * abs(value) for (value, error), _ in pairs)


OTHER = [{"scaling": 0.5}, {"bias": np.zeros((2, 2))}, {"groups": 1}]


def test_correction_of_unsupported_programs_raises():
    unknown = [
        layer(ns.relu(ns.weight(n, n) @ ns.gaussian(n, 3))).law(n=inf),
        layer(ns.gaussian(n, 9)).law(n=inf),
        ns.paper.layer(low_rank=True).law(n=inf, d=inf),
        ns.Attention(np.eye(4)).law(heads=2),
        *(
            ns.Program(ns.nn.attention(ns.gaussian(n, 2), 2, **more)[0]).law(
                n=inf, draws=100
            )
            for more in OTHER
        ),
        ns.Program(ns.nn.attention(ns.gaussian(n, 2), 2)).law(n=inf, draws=100),
    ]
    for law in unknown:
        with pytest.raises(
            ns.LawError,
            match=r"correction: needs the limit of one plain .* ns\.width_needed",
        ):
            law.correction()


def test_correction_prints_its_terms():
    _, first = of_paper()
    assert str(first).splitlines()[0].startswith("variance         + (0.757")
    assert str(first.kl) in first._repr_html_()


def kl_of_one_large_token(equal, small, large, sigma):
    """n² KL by densities on a grid, for `equal` equal tokens and one of another norm: ½
    ∫ g²/f, g = Σ κ ∂²f.

    The sum is over both norms, their product, and the scales of scores and values.
    """
    z, dz = np.linspace(-10, 10, 401, retstep=True)
    weight = np.exp(-(z**2) / 2) * dz / np.sqrt(2 * np.pi)
    y, dy = np.linspace(-9 * large**0.5, 9 * large**0.5, 1501, retstep=True)

    def density(a, b, both, tau, u):
        ratio = np.exp(sigma * np.sqrt(tau * a * (a + b - 2 * both)) * z)
        one = ratio / (equal + ratio)  # attention to the large token
        w = u * ((1 - one) ** 2 * a + one**2 * b + 2 * one * (1 - one) * both)
        return (np.exp(-(y[:, None] ** 2) / (2 * w)) / np.sqrt(2 * np.pi * w)) @ weight

    centre, sizes = (
        np.array([small, large, 0.0, 1.0, 1.0]),
        np.array([small, large, (small * large) ** 0.5, 1.0, 1.0]),
    )
    f, g, h = density(*centre), np.zeros_like(y), 0.03
    for kappa, step in zip((1.0, 1.0, 0.5, 1.0, 1.0), h * np.diag(sizes), strict=True):
        near, far = (
            density(*(centre + k * step)) + density(*(centre - k * step))
            for k in (1, 2)
        )
        g += kappa * (16 * near - far - 30 * f) / (12 * h**2)
    return 0.5 * np.sum(g**2 / f) * dy


def test_rare_large_outputs_count_in_kl():
    """The integral ended at 10 standard deviations, and missed 3.6 % of this one."""
    equal, small, large, sigma = 7, 1.0, 100.0, 0.2
    which = np.r_[np.zeros(equal, int), 1]
    x = ns.gaussian(n, equal + 1, cov=np.diag([small, large])[np.ix_(which, which)])
    found = (
        ns.Program(ns.nn.attention(x, heads=1, sigma_q=sigma)[0])
        .law(n=inf)
        .correction()
        .kl
    )
    assert (
        abs(found.value - kl_of_one_large_token(equal, small, large, sigma))
        < 4 * found.error
    )


def by_differences(tokens, sigma, query=0, shares=(1.0, 1.0, 1.0), least=1e-5):
    """The four numbers for one head over two tokens B ε, by densities on a grid and
    finite differences.

    `shares` are n over the widths of tokens, queries and values; below `least`,
    densities count as constant.
    """
    tokens = np.asarray(tokens, dtype=float)
    # 500 give ten digits, unless w has a zero
    nodes = 500 if tokens.shape[1] > 1 else 3000
    z = (np.arange(-nodes, nodes) + 0.5) * (8 / nodes)
    weight = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    y = np.geomspace(least, 9, 700)
    h, rank = 0.02, tokens.shape[1]

    def functions(m, tau, u):
        """E[w], E[w²] and the density, given the Gram matrix B m Bᵀ."""
        (a, both), (_, b) = k = tokens @ m @ tokens.T
        one = 1 / (
            1 + np.exp(sigma * np.sqrt(tau * k[query, query] * (a + b - 2 * both)) * z)
        )
        x = np.array([one, 1 - one])
        w = u * ((np.linalg.cholesky(m).T @ tokens.T @ x) ** 2).sum(axis=0)
        parts = np.array_split(y[:, None], 20)
        density = [
            np.exp(-(some**2) / (2 * w)) @ (weight / np.sqrt(2 * np.pi * w))
            for some in parts
        ]
        return np.concatenate([[weight @ w, weight @ w**2], *density])

    unit, none = np.eye(rank), np.zeros((rank, rank))
    wishart = [(unit[[i]].T @ unit[[i]], 1.0) for i in range(rank)] + [
        (unit[::-1], 0.5)
    ] * (rank == 2)
    ways = [(kappa * shares[0], v, 0, 0) for v, kappa in wishart] + [
        (shares[1], none, 1, 0),
        (shares[2], none, 0, 1),
    ]
    limit, moved = functions(unit, 1, 1), 0.0
    for kappa, v, tau, u in ways:
        one, less, two, least = (
            functions(unit + s * v, 1 + s * tau, 1 + s * u)
            for s in (h, -h, 2 * h, -2 * h)
        )
        moved = moved + kappa * (16 * (one + less) - two - least - 30 * limit) / (
            12 * h**2
        )
    (a, b), (a_1, b_1) = limit[:2], moved[:2]
    y, f, g = np.append(0, y), limit[np.r_[2, 2:702]], moved[np.r_[2, 2:702]]
    return (
        a_1,
        3 * (b_1 / a**2 - 2 * b * a_1 / a**3),
        np.trapezoid(np.abs(g), y),
        np.trapezoid(g**2 / f, y),
    )


COSINE = [[1.0, 0.0], [-0.95, np.sqrt(1 - 0.95**2)]]
LARGE = np.diag([1.0, 1.0, 1e14])
LAST_WITHOUT_ITSELF = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]], dtype=bool)
TWO_TOKENS = {  # tokens, B, query, σ_q, shares of widths, and options
    "norms 1 and 0.1": (
        ns.gaussian(n, 2, cov=np.diag([1, 0.01])),
        np.diag([1, 0.1]),
        0,
        2.0,
        (1, 1, 1),
        {},
    ),
    "norms 1 and 0.001": (
        ns.gaussian(n, 2, cov=np.diag([1, 1e-6])),
        np.diag([1, 1e-3]),
        0,
        5.0,
        (1, 1, 1),
        {},
    ),
    "cosine −0.95": (
        ns.gaussian(n, 2, cov=COSINE @ np.transpose(COSINE)),
        COSINE,
        0,
        1.0,
        (1, 1, 1),
        {},
    ),
    "x and −x": (
        [[1.0], [-1.0]] @ ns.gaussian(n, 1),
        [[1.0], [-1.0]],
        0,
        1.0,
        (1, 1, 1),
        {},
    ),
    "wide tokens": (ns.gaussian(4 * n, 2), np.eye(2), 0, 1.5, (0.25, 0.25, 0.25), {}),
    "wide heads": (
        ns.gaussian(n, 2),
        np.eye(2),
        0,
        1.5,
        (1, 0.5, 0.5),
        {"head_dim": 2 * n},
    ),
    "a large token later": (
        ns.gaussian(n, 3, cov=LARGE),
        np.eye(2),
        1,
        1.0,
        (1, 1, 1),
        {"mask": "causal"},
    ),
    "data of all sizes": (
        ns.weight(n, 2) @ ns.data([[1, 0], [0.6, 0.8], [3e5, 1e6]] * np.sqrt([2.0])),
        [[1, 0], [0.6, 0.8]],
        1,
        1.0,
        (1, 1, 1),
        {"mask": "causal"},
    ),
    "equal ones": (
        ns.gaussian(n, 2)[[0, 0, 0, 1, 1, 1]],
        np.eye(2),
        0,
        3.0,
        (1, 1, 1),
        {},
    ),
}


@pytest.mark.parametrize(
    "name",
    keep(
        TWO_TOKENS, "x and −x", "norms 1 and 0.001", "data of all sizes", "wide heads"
    ),
)
def test_correction_of_two_tokens_matches_a_grid(name):
    """Rules of 16 and 24 nodes agreed on wrong numbers: total variations of 260 and
    1.35 instead of 0.72 and 1.02.
    """
    x, root, query, sigma, shares, more = TWO_TOKENS[name]
    first = (
        ns.Program(ns.nn.attention(x, 1, sigma_q=sigma, **more)[query])
        .law(n=inf)
        .correction()
    )
    found = first.variance, first.kurtosis, first.total_variation, first.kl
    accuracy = 1e-6, 1e-6, 1e-3, 1e-3  # of the grid
    for (value, error), right, rel in zip(
        found, by_differences(root, sigma, query, shares), accuracy, strict=True
    ):
        assert abs(value - right) < 2 * error + rel * abs(right)
        assert error < 1e-3 * abs(value)


def test_correction_keeps_keys_beside_larger_query():
    """Next to it, the keys counted as rounding errors."""
    small, large = (
        ns.Program(
            ns.nn.attention(x, 1, mask=LAST_WITHOUT_ITSELF, sigma_q=1 / scale)[2]
        )
        .law(n=inf)
        .correction()
        for scale in (1.0, 1e7)
        for x in [ns.gaussian(n, 3, cov=np.diag([1.0, 1.0, scale**2]))]
    )
    # by another quadrature
    assert small.variance.value == pytest.approx(-0.015026, abs=1e-6)
    assert large.kl.value == pytest.approx(small.kl.value, rel=1e-8)


def test_matrices_of_several_multiples_of_a_width():
    """The lengths of one token fluctuate by 2/(3n) and 2/n, and queries and values of
    one head by 2/n.
    """
    first = (
        layer(ns.weight(n, 3 * n) @ ns.gaussian(3 * n, 1), heads=1)
        .law(n=inf)
        .correction()
    )
    assert first.kurtosis.value == pytest.approx(3 * (2 / 3 + 2 + 2), rel=1e-6)


def test_outputs_of_too_many_scales_are_refused():
    law = ns.Program(
        ns.nn.attention(ns.gaussian(n, 2, cov=np.diag([1.0, 0.0])), 1, sigma_q=20.0)[0]
    ).law(n=inf)
    with pytest.raises(
        ns.LawError, match=r"outputs smaller than others by more than e\^-30"
    ):
        law.correction()


def test_total_variation_where_the_density_is_not_resolved():
    """A node close to the zero of w made it 10,000."""
    x, sigma = [[1.0], [-0.5]], 2.0
    first = (
        ns.Program(ns.nn.attention(x @ ns.gaussian(n, 1), 1, sigma_q=sigma)[0])
        .law(n=inf)
        .correction()
    )
    right = by_differences(x, sigma, least=0.01)[2:]
    for (value, error), other in zip(
        (first.total_variation, first.kl), right, strict=True
    ):
        assert abs(value - other) < error
        assert 0.01 * value < error < 0.1 * value
    with pytest.raises(ns.LawError, match="does not resolve its density"):
        first.pdf(0.001)


def test_infinite_density_is_refused():
    first = layer([[1.0], [-1.0]] @ ns.gaussian(n, 1), heads=1).law(n=inf).correction()
    assert np.isfinite(first.pdf([0.1, 1.0])).all()
    with pytest.raises(ns.LawError, match="does not resolve its density"):
        first.pdf(0.0)  # w ≈ z² is small with probability √w


@pytest.mark.parametrize(
    "spread", [[1.0], [900.0], [10.0, 10.0], [8.0, 0.1, 0.1], [1.0] * 7]
)
def test_number_of_nodes_is_bounded(spread):
    """Nodes of all variables followed the largest spread: 26 seconds for five tokens
    with one large one.
    """
    count, moment = 0, 0.0
    for z, weight in _correction._node_sets(np.array(spread)):
        count += len(weight)
        moment += z[:, 0] ** 2 @ weight / _correction.SETS
    assert count < 1.5 * _correction.POINTS
    assert moment == pytest.approx(1, abs=1e-4)


def test_correction_of_tokens_with_a_mean(tmp_path):
    """(1, …, 1) adds no random direction, and a saved law keeps its correction."""
    net = ns.Program(ns.nn.attention(ns.gaussian(n, 2) + 2 * ns.ones(n), 2)[0])
    limit = net.law(n=inf)
    limit.save(tmp_path / "law.npz")
    term = ns.load(tmp_path / "law.npz").correction().variance
    value, error = net.law(n=64, draws=400_000, seed=1, progress=False).with_error.var()
    assert abs(64 * (value - limit.var()) - term.value) < 5 * 64 * error
