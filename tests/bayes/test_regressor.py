"""The scikit-learn estimator: its conventions, its numbers against `Program.posterior`,
and bad input.
"""

import itertools
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
from scipy import stats
from scipy.special import erf

import netsor as ns
from tests.internals import _memory

from ..keep import keep
from ..test_fuzz_api import check, wrong_for
from .priors import perceptron, prior, shifted, tokens

# not imported here: every process of the suite reads this file
pytestmark = pytest.mark.skipif(
    find_spec("sklearn") is None, reason="needs scikit-learn"
)
n = ns.Width("n")
SHORT = {"draws": 16, "chains": 4, "particles": 8, "moves": 1, "thin": 1, "workers": 1}
X = np.random.default_rng(0).standard_normal((24, 3))
Y = np.tanh(X[:, 0]) + 0.5 * X[:, 1] + 5.0


@ns.program
def flat(given):
    """All features of an example as one vector: a Gaussian process at infinite
    width.
    """
    x = given.reshape(len(given), -1)
    return ns.weight(1, n) @ ns.erf(ns.weight(n, x.shape[1]) @ ns.data(x))


def checked(model):
    # here and below: slow to import
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        # such short chains say so; and checks are skipped without pandas
        warnings.simplefilter("ignore")
        found = check_estimator(model, on_fail=None)
    assert len(found) > 40
    assert [f["check_name"] for f in found if f["status"] == "failed"] == []


def test_conventions_of_scikit_learn():
    checked(ns.AttentionRegressor(flat, **SHORT))


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"width": 2}, {"heads": 2}, {"heads": ns.inf, "kernel_draws": 20}]
)
def test_conventions_of_scikit_learn_with_attention(how):
    checked(ns.AttentionRegressor(**how, **SHORT))


@pytest.mark.slow
def test_regressor_matches_the_posterior_of_its_program():
    """At new examples, against the same prior given the same data by weights: 5
    standard errors, level 1e-5.
    """
    model = ns.AttentionRegressor(prior, noise=0.5, arguments={"sharp": 3.0}, draws=800)
    x = tokens(14, seed=5)
    y = np.sin(3 * x[:, 0, -1])
    model.fit(x[:10], y[:10])
    law = model.law(x[10:])
    seen = dict(enumerate(y[:10] - y[:10].mean()))
    weighted = (
        prior(x, sharp=3.0)
        .law(n=ns.inf, draws=20_000)
        .condition(seen, noise=0.5)
        .marginal([10, 11, 12, 13])
    )
    for of, shift in (("mean", y[:10].mean()), ("var", 0.0)):
        a, b = (getattr(of_law.with_error, of)() for of_law in (law, weighted))
        assert np.all(
            np.abs(a.value - shift - b.value) < 5 * np.hypot(a.error, b.error)
        )
    mean, std = model.predict(x[10:], return_std=True)
    np.testing.assert_allclose(mean, law.mean())
    np.testing.assert_allclose(std, law.std())
    assert model.sample_y(x[10:], 7).shape == (4, 7)


@pytest.mark.parametrize(
    "how", [{}, {"width": 3}, {"heads": ns.inf, "kernel_draws": 50}], ids=str
)
def test_example_has_one_value_however_often_it_is_asked_for(how):
    """Examples of the data are not planned again; each result stands where its example
    was.
    """
    x = tokens(8, seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such short chains say so
        model = ns.AttentionRegressor(noise=0.01, **how, **SHORT).fit(
            x[:6], np.linspace(-1, 1, 6)
        )
        planned = []
        latent = model._latent
        model._latent = lambda tokens, arguments: (
            planned.append(len(tokens)) or latent(tokens, arguments)
        )
        law = model.law(x[[7, 0, 6, 0, 5]])
        again = model.predict(x[[5, 2, 2, 0]])
    assert planned == ([8, 6] if "heads" in how else [8])
    np.testing.assert_allclose(law.mean()[[1, 3, 4]], [-1, -1, 1], atol=0.1)
    np.testing.assert_allclose(again, [1, -0.2, -0.2, -1], atol=0.1)
    cov = law.cov()
    np.testing.assert_allclose(cov[1], cov[3], atol=1e-12)
    assert min(cov[0, 0], cov[2, 2]) > cov[1, 1]


@pytest.mark.slow
def test_predictions_agree_where_more_examples_change_the_draws():
    """At width 16 the engine draws other numbers for 27 tokens than for 15: chains run
    again, for the same law.
    """
    x = tokens(9)
    y = np.sin(3 * x[:, 0, -1])
    model = ns.AttentionRegressor(
        prior, noise=0.5, width=16, draws=320, particles=128
    ).fit(x[:5], y[:5])
    seen = dict(enumerate(y[:5] - y[:5].mean()))
    weighted = (
        prior(x).law(n=16, draws=10_000).condition(seen, noise=0.5).with_error.mean()
    )
    ours = model.law(x[5:]).with_error.mean()
    off = ours.value - y[:5].mean() - weighted.value[5:]
    assert np.all(np.abs(off) < 5 * np.hypot(ours.error, weighted.error[5:]))


@pytest.mark.slow
def test_infinitely_many_heads_are_the_gaussian_of_the_prior():
    """The same kernel as the law's covariance, within its noise; and the evidence of
    that process.
    """
    x = tokens(10, seed=6)
    y = np.sin(3 * x[:, 0, -1])
    model = ns.AttentionRegressor(
        noise=0.3, heads=ns.inf, evidence=True, kernel_draws=4_000
    ).fit(x, y)
    from netsor.sklearn import attention_prior

    law = attention_prior(x).law(n=ns.inf, draws=4_000).gaussian()
    evidence = law.condition(dict(enumerate(y - y.mean())), noise=0.3).log_evidence
    assert abs(model.log_marginal_likelihood_ - evidence.value) < 4 * evidence.error
    again = ns.AttentionRegressor(
        noise=0.3, heads=ns.inf, evidence=True, kernel_draws=400, random_state=1
    ).fit(x, y)
    assert (
        again.log_marginal_likelihood_error_
        > 2 * model.log_marginal_likelihood_error_
        > 0
    )
    off = again.log_marginal_likelihood_ - model.log_marginal_likelihood_
    assert abs(off) < 4.4 * np.hypot(
        again.log_marginal_likelihood_error_, model.log_marginal_likelihood_error_
    )
    kernel, *_ = model._infinite(x, {})[0].updated(model._data(0.3))
    np.testing.assert_allclose(np.diag(kernel), law.var(), rtol=0.05)
    fitted = law.condition(dict(enumerate(y - y.mean())), noise=0.3).mean() + y.mean()
    np.testing.assert_allclose(model.predict(x), fitted, atol=0.05)


def test_grid_search_takes_the_largest_evidence():
    model = ns.AttentionRegressor(flat, grid={"noise": [0.05, 0.5, 5.0]}).fit(X, Y)
    assert len(model.evidence_) == 3
    for given, found in model.evidence_:
        alone = ns.AttentionRegressor(flat, evidence=True, **given).fit(X, Y)
        assert found.value == alone.log_marginal_likelihood_
    best = max(model.evidence_, key=lambda found: found[1].value)
    assert model.noise_ == best[0]["noise"]
    assert model.log_marginal_likelihood_ == best[1].value
    assert model.score(X, Y) > 0.5
    # a Gaussian process in closed form
    assert model.log_marginal_likelihood_error_ == 0


def test_cost_estimates_without_a_fit(monkeypatch):
    model = ns.AttentionRegressor(grid={"noise": [0.1, 0.3]}, **SHORT)
    found = model.cost(X, Y)
    assert found.likelihoods > 2 * 32
    assert found.seconds > 0
    assert not hasattr(model, "states_")
    assert ns.AttentionRegressor(heads=ns.inf).cost(X, Y).likelihoods == 1
    # by a clock that shows a second more at each look: a plan, and nothing to draw
    monkeypatch.setattr("time.perf_counter", itertools.count().__next__)
    assert ns.AttentionRegressor(flat).cost(X, Y).seconds == 1


def scaled_score(model):
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return cross_val_score(make_pipeline(StandardScaler(), model), X, Y, cv=3).mean()


@pytest.mark.slow
def test_attention_in_pipelines_and_cross_validation():
    model = ns.AttentionRegressor(noise=0.1, draws=160, particles=128)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains of 160 draws say that they are short
        assert scaled_score(model) > 0.3


def test_pipelines_and_cross_validation():
    assert scaled_score(ns.AttentionRegressor(flat, noise=0.1)) > 0.3


@pytest.mark.slow
def test_steps_of_the_example_in_the_docs():
    """What makes the table of the docs, with few patients and short chains."""
    from examples import bayes

    x, y, new, _ = bayes.patients(16)
    short = {**SHORT, "kernel_draws": 20, "runs": 2, "grid": {"sharpness": (1.0, 2.0)}}
    found = [
        *bayes.by_attention(x, y, new[:4], **short),
        bayes.by_process(x, y, new[:4]),
        bayes.by_network(
            x, y, new[:4], {"alpha": [1.0, 10.0], "hidden_layer_sizes": [(4,)]}
        ),
    ]
    assert [name for name, *_ in found][1:3] == ["four heads", "one head"]
    for _, mean, std, *_ in found:
        assert mean.shape == std.shape == (4,)
        assert np.all(np.abs(mean) < 5)
        assert np.all(std > 0.3)


@pytest.mark.parametrize("y", [0.0, 1e6])
@pytest.mark.parametrize("how", [{"prior": flat}, SHORT], ids=["process", "attention"])
def test_constant_targets_are_predicted(how, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such short chains say so
        model = ns.AttentionRegressor(noise=0.1, **how).fit(X, np.full(24, y))
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y, atol=1e-6)
    assert np.all(std > 0)


def test_invalid_input_raises_with_a_reason(monkeypatch):
    with pytest.raises(
        ValueError, match=r"noise=0.0 must be a finite number from 1e-50"
    ):
        ns.AttentionRegressor(flat, noise=0.0).fit(X, Y)
    with pytest.raises(ValueError, match=r"it needs one for each of 24 examples"):
        ns.AttentionRegressor(lambda x: perceptron(x[:3, 0])).fit(X, Y)
    with pytest.raises(
        ValueError, match=r"X of shape \(2, 3, 3\) must be \(examples, 3\), as in fit"
    ):
        ns.AttentionRegressor(flat).fit(X, Y).predict(np.zeros((2, 3, 3)))
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**34)
    with pytest.raises(
        ValueError,
        match=r"10,000 examples of 3 tokens, whose kernel has 30,000 rows, would need",
    ):
        ns.AttentionRegressor().fit(np.zeros((10_000, 3)), np.zeros(10_000))


def test_missing_scikit_learn_raises_with_the_install_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "netsor.sklearn", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        _ = ns.AttentionRegressor


# What is not allowed

NESTED = {
    "sharpness": lambda v: {"arguments": {"sharpness": v}},
    "scale": lambda v: {"grid": {"scale": [1.0, v]}},
    "noise": lambda v: {"grid": {"noise": [0.3, v]}},
    "heads": lambda v: {"grid": {"heads": [v]}},
    "grid": lambda v: {"grid": {"noise": v}},
    "kernel_draws": lambda v: {"heads": ns.inf, "kernel_draws": v},
}


@pytest.mark.parametrize("step", keep([27, 1], 27))
def test_misuse_raises_the_documented_error(step, monkeypatch):
    """Every wrong value for every parameter, alone and inside mappings: one line at
    `fit` that names the parameter.

    In a quick run every 27th, from another one each time.
    """
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**31)
    x = X[:4, :2]

    def fit(**given):
        return ns.AttentionRegressor(**{**SHORT, **given}).fit(x, x[:, 0]).predict(x)

    plain = {
        name: lambda v, name=name: {name: v}
        for name in ns.AttentionRegressor().get_params()
    }
    names = [*plain.items(), *NESTED.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such short chains say so
        for begin, (name, made) in enumerate(names):
            allowed = [
                v
                for v in wrong_for(name)
                if type(v).__name__ != "Traced" and not long(v)
            ]
            for value in allowed[begin % step :: step]:
                check("fit", fit, made(value), name)


def long(value):
    """A right grid of many values takes as many fits."""
    return isinstance(value, tuple) and len(value) > 9


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"prior": 3},
            r"prior=3 must be None or a function decorated with ns\.program",
        ),
        (
            {"prior": lambda x: x},
            r"prior must return a program, got an array of shape \(24, 3, 4\)",
        ),
        (
            {"prior": prior, "heads": 2},
            r"heads=2 must be left out; give arguments=\{'heads': 2\}",
        ),
        (
            {"prior": shifted, "heads": ns.inf, "evidence": True},
            r"heads=inf: the prior must have outputs of mean 0",
        ),
        ({"heads": ns.inf, "width": 8}, r"heads=inf needs width=inf, got width=8"),
        ({"heads": 0}, r"heads=0 must be a positive integer or inf"),
        ({"noise": "x"}, r"noise='x' must be a finite number from 1e-50"),
        ({"arguments": {"noise": 1.0}}, r"arguments=.* must be without 'noise'"),
        (
            {"arguments": {"foo": 1}},
            r"do not fit prior\(tokens: .*, heads: .*, sharpness: .*argument 'foo'",
        ),
        (
            {"grid": {"noise": []}},
            r"grid: noise=\[\] must be a sequence of one value or more",
        ),
        (
            {"grid": {"heads": [1, 1.5]}},
            r"grid: heads=1\.5 must be a positive integer or inf",
        ),
        ({"moves": 10**30}, r"moves=.* must be an integer from 1 to 1,000,000,000"),
        (
            {"random_state": "x"},
            r"random_state='x' must be None, an integer from 0 to 2\^32 − 1",
        ),
        ({"heads": 10**9}, r"rows for heads=1000000000, would need .* or heads"),
    ],
)
def test_invalid_parameters_raise_at_fit(given, problem):
    model = ns.AttentionRegressor(**given)
    for asked in (model.fit, model.cost):
        with pytest.raises(ValueError, match=problem):
            asked(X, Y)


# Against a computation that shares no code with the package


def kernel(x):
    """E[erf(w·a) erf(w·b)] of all tokens, for weights of standard deviation
    1.1/√features (Williams 1998).
    """
    a = x.reshape(-1, x.shape[-1])
    s = 1.21 / a.shape[1] * a @ a.T
    d = 1 + 2 * np.diag(s)
    return 2 / np.pi * np.arcsin(2 * s / np.sqrt(np.outer(d, d)))


def softmax(p):
    e = np.exp(p - p.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def limit(x, heads, count, rng):
    """Covariances of the function given the scores of all heads, which are Gaussian:
    sharpness 3, scale 1.
    """
    k, (examples, many) = kernel(x), x.shape[:2]
    scores = 3.0 * rng.standard_normal((count, heads, len(k))) @ np.linalg.cholesky(k).T
    a = softmax(scores.reshape(count, heads, examples, many))
    return (
        np.einsum(
            "rhei,eifj,rhfj->ref",
            a,
            k.reshape(examples, many, examples, many),
            a,
            optimize=True,
        )
        / heads
    )


def finite(x, heads, count, rng, width):
    """The same with every weight matrix drawn, but the readout."""
    h = erf(
        1.1
        / np.sqrt(x.shape[-1])
        * rng.standard_normal((count, 1, width, x.shape[-1]))
        @ x.swapaxes(1, 2)
    )
    h = np.moveaxis(h, -1, 2)  # (count, examples, tokens, width)
    g, parts = rng.standard_normal((count, width)), []
    for _ in range(heads):
        wq, wk, wv = rng.standard_normal((3, count, width, width)) / np.sqrt(width)
        q = 3.0 * np.einsum("rij,rj->ri", wq, g)
        p = np.einsum("ri,rij,retj->ret", q, wk, h, optimize=True) / np.sqrt(width)
        parts.append(np.einsum("ret,rij,retj->rei", softmax(p), wv, h, optimize=True))
    z = np.concatenate(parts, axis=2)
    return z @ z.swapaxes(1, 2) / (heads * width)


def weighted(cov, y, noise):
    """By importance: log evidence, means and variances of what is not seen, each with
    its standard error.
    """
    k = len(y)
    s = cov[:, :k, :k] + noise**2 * np.eye(k)
    gain = np.linalg.solve(s, cov[:, :k, k:])
    quadratic = np.einsum("i,rij,j->r", y, np.linalg.inv(s), y)
    logs = -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * s)[1])
    mean = np.einsum("rki,k->ri", gain, y)
    var = np.einsum(
        "rii->ri", cov[:, k:, k:] - np.einsum("rki,rkj->rij", gain, cov[:, :k, k:])
    )
    w = np.exp(logs - logs.max())
    evidence = logs.max() + np.log(w.mean()), w.std() / w.mean() / np.sqrt(len(w))
    w /= w.sum()
    centre = w @ mean
    square = var + (mean - centre) ** 2
    errors = (np.sqrt(w**2 @ (each - w @ each) ** 2) for each in (mean, square))
    return evidence, *zip((centre, w @ square), errors, strict=True)


@pytest.mark.parametrize(
    ("width", "heads", "noise"),
    keep(
        [(w, h, s) for w in (ns.inf, 1, 4) for h in (1, 2) for s in (0.1, 0.3, 1.0)],
        (ns.inf, 2, 0.3),
    ),
)
def test_predictions_by_importance_sampling(width, heads, noise):
    """Four examples seen and three predicted, against weighted draws by numpy: 5
    standard errors, level 1e-5 each.
    """
    rng = np.random.default_rng(7)
    x = rng.standard_normal((7, 2, 3))
    y = np.sin(2 * x[:4, 0, 0]) + 2.0
    cov = (
        limit(x, heads, 10_000, rng)
        if width == ns.inf
        else finite(x, heads, 10_000, rng, width)
    )
    evidence, mean, var = weighted(cov, y - y.mean(), noise)
    how = {
        "width": width,
        "heads": heads,
        "noise": noise,
        "arguments": {"sharpness": 3.0, "scale": 1.0},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some chains are short, and say so
        model = ns.AttentionRegressor(
            **how, evidence=True, draws=240, particles=64, thin=4, workers=1
        ).fit(x[:4], y)
    found = model.law(x[4:]).with_error
    own = model.log_marginal_likelihood_, model.log_marginal_likelihood_error_
    assert abs(own[0] - evidence[0]) < 5 * np.hypot(own[1], evidence[1])
    assert np.all(
        np.abs(found.mean().value - y.mean() - mean[0])
        < 5 * np.hypot(found.mean().error, mean[1])
    )
    assert np.all(
        np.abs(found.var().value - var[0]) < 5 * np.hypot(found.var().error, var[1])
    )


@pytest.mark.slow
@pytest.mark.parametrize(("width", "heads"), [(ns.inf, 2), (4, 1)])
def test_errors_of_predictions_cover_at_their_rates(width, heads):
    """Of a hundred seeds, one error covers 68 % and two cover 95 % of the evidence, and
    of the means and variances at three new examples, against 100,000 weighted draws by
    numpy. A count is below the 1e-5 quantile of the binomial law with probability 1e-5;
    errors half as large would show.
    """
    rng = np.random.default_rng(7)
    x = rng.standard_normal((7, 2, 3))
    y = np.sin(2 * x[:4, 0, 0]) + 2.0
    if width == ns.inf:
        parts = [limit(x, heads, 10_000, rng) for _ in range(10)]
    else:
        parts = [finite(x, heads, 10_000, rng, width) for _ in range(10)]
    evidence, mean, var = weighted(np.concatenate(parts), y - y.mean(), 0.3)
    seeds, departures = 100, []
    for seed in range(seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some chains are short, and say so
            model = ns.AttentionRegressor(
                width=width,
                heads=heads,
                noise=0.3,
                arguments={"sharpness": 3.0, "scale": 1.0},
                evidence=True,
                draws=240,
                particles=64,
                thin=4,
                workers=1,
                random_state=seed,
            ).fit(x[:4], y)
        law = model.law(x[4:]).with_error
        own = model.log_marginal_likelihood_, model.log_marginal_likelihood_error_
        of_mean = law.mean().value - y.mean(), law.mean().error
        numbers = [(own, evidence), (of_mean, mean), (law.var(), var)]
        z = [
            np.abs(found[0] - right[0]) / np.hypot(found[1], right[1])
            for found, right in numbers
        ]
        departures.append(np.concatenate([np.atleast_1d(each) for each in z]))
    for errors, rate in ((1, 0.6827), (2, 0.9545)):
        covered = (np.array(departures) <= errors).sum(axis=0)
        assert covered.min() >= stats.binom(seeds, rate).ppf(1e-5), covered
    half_as_large = (np.array(departures) <= 1).sum(axis=0)
    assert half_as_large.min() < stats.binom(seeds, 0.9545).ppf(1e-5)


def test_predictions_of_infinitely_many_heads_have_errors():
    """The kernel is a mean over draws: 5 errors, against the mean of 50,000; there were
    none.
    """
    rng = np.random.default_rng(8)
    x = rng.standard_normal((7, 2, 3))
    y = np.sin(2 * x[:4, 0, 0]) + 2.0
    _, mean, var = weighted(
        limit(x, 1, 50_000, rng).mean(axis=0)[None], y - y.mean(), 0.3
    )
    how = {"heads": ns.inf, "noise": 0.3, "arguments": {"sharpness": 3.0, "scale": 1.0}}
    found = (
        ns.AttentionRegressor(**how, kernel_draws=500)
        .fit(x[:4], y)
        .law(x[4:])
        .with_error
    )
    for (value, error), right in (
        (found.mean(), mean[0] + y.mean()),
        (found.var(), var[0]),
    ):
        assert np.all(np.abs(value - right) < 5 * error)
        assert np.all(error < 0.1)
        assert np.all(error > 0)
