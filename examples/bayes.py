"""The progress of diabetes by attention priors of one head, four and infinitely many, a
Gaussian process, a network.
"""

import time
import warnings

import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor

import netsor as ns

n = ns.Width("n")


def patients(seen=200, features=("bmi", "bp", "s3", "s5")):
    """Four measurements of patients and the progress of their illness, standardised:
    those seen, and the others.
    """
    data = load_diabetes(scaled=False)
    x = data.data[:, [data.feature_names.index(name) for name in features]]
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], data.target[order]
    x, y = (
        (x - x[:seen].mean(axis=0)) / x[:seen].std(axis=0),
        (y - y[:seen].mean()) / y[:seen].std(),
    )
    return x[:seen], y[:seen], x[seen:], y[seen:]


@ns.program
def net(tokens=None, heads=1, sharpness=2.0, scale=2.0):
    """One query reads the tokens of every patient, with the same weights: the prior of
    `ns.AttentionRegressor`.
    """
    # (patients, tokens, features)
    tokens = np.eye(2)[None] if tokens is None else tokens
    h = ns.erf(ns.weight(n, tokens.shape[-1], std=1.1) @ ns.data(tokens))
    q = ns.weight(n, n, batch=heads, std=sharpness) @ ns.gaussian(n, 1)
    k, v = (ns.weight(n, n, batch=heads) @ h for _ in range(2))
    a = ns.softmax(ns.dot(q[:, None], k))  # (heads, patients, 1, tokens)
    return ns.weight(1, heads * n, std=scale) @ ns.concat(a @ v, axis=0)[:, 0]


def scores(mean, std, y):
    """Root mean square error, mean log density, and the share of values in central
    intervals of 90 %.
    """
    error = float(np.sqrt(np.mean((mean - y) ** 2)))
    inside = float(np.mean(np.abs(y - mean) < norm.ppf(0.95) * std))
    return error, float(np.mean(norm.logpdf(y, mean, std))), inside


# for which the evidence is found; the scale is 2 and the noise 0.7
GRID = {"sharpness": (1.0, 2.0, 4.0)}
NETWORKS = {
    "hidden_layer_sizes": [(16,), (64,), (64, 64)],
    "alpha": [0.1, 1.0, 10.0, 100.0],
}


def by_attention(
    x, y, new, grid=GRID, draws=480, particles=192, kernel_draws=500, **more
):
    """Infinitely many heads, with a sharpness chosen by evidence; then with the same
    one four heads, and one.
    """
    chains = {"draws": draws, "chains": 16, "thin": 3, "particles": particles}
    how = {"evidence": True, "kernel_draws": kernel_draws, **chains, **more}
    chosen, noise = {}, 0.7
    for heads, name in (
        (ns.inf, "attention, infinitely many heads"),
        (4, "four heads"),
        (1, "one head"),
    ):
        start = time.process_time()
        tried = grid if heads == ns.inf else None
        model = ns.AttentionRegressor(
            net, noise=noise, arguments={**chosen, "heads": heads}, grid=tried, **how
        )
        with warnings.catch_warnings():
            # of chains that are short: R-hat is printed below
            warnings.simplefilter("ignore", UserWarning)
            mean, std = model.fit(x, y).predict(new, return_std=True)
        chosen, noise = {**model.arguments_}, model.noise_
        evidence = ns.Estimate(
            model.log_marginal_likelihood_, model.log_marginal_likelihood_error_
        )
        details = {
            **chosen,
            "noise": noise,
            "R-hat": round(model.r_hat_, 3),
            "effective": model.effective_,
        }
        yield (
            name,
            mean,
            np.hypot(std, noise),
            evidence,
            time.process_time() - start,
            details,
        )


def by_process(x, y, new):
    """scikit-learn's Gaussian process: a length for each measurement, a scale and the
    noise are fitted.
    """
    start = time.process_time()
    kernel = ConstantKernel() * RBF([1.0] * x.shape[1]) + WhiteKernel(0.5)
    process = GaussianProcessRegressor(
        kernel, n_restarts_optimizer=2, random_state=0
    ).fit(x, y)
    mean, std = process.predict(new, return_std=True)
    evidence = ns.Estimate(process.log_marginal_likelihood_value_, 0.0)
    return (
        "Gaussian process, RBF",
        mean,
        std,
        evidence,
        time.process_time() - start,
        str(process.kernel_),
    )


def by_network(x, y, new, grid=NETWORKS):
    """A trained network: size and weight decay by five-fold cross-validation, whose
    error is its standard deviation.
    """
    start = time.process_time()
    trained = MLPRegressor(
        activation="tanh", solver="lbfgs", max_iter=500, random_state=0
    )
    search = GridSearchCV(trained, grid, cv=5, scoring="neg_mean_squared_error")
    with warnings.catch_warnings():
        # of networks with little decay, which are not chosen
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(x, y)
    mean, std = search.predict(new), np.full(len(new), np.sqrt(-search.best_score_))
    return (
        "trained network",
        mean,
        std,
        None,
        time.process_time() - start,
        search.best_params_,
    )


def compared(seen=200, **how):
    """(name, scores, log evidence or None, seconds of processor time, settings) of each
    way.
    """
    x, y, new, truth = patients(seen)
    ways = (
        by_attention(x, y, new, **how),
        (by(x, y, new) for by in (by_process, by_network)),
    )
    for way in ways:
        for name, mean, std, evidence, seconds, details in way:
            yield name, scores(mean, std, truth), evidence, seconds, details


if __name__ == "__main__":
    print(
        "way                                error  log density  inside 90 %  log"
        " evidence"
    )
    for name, (error, density, inside), evidence, seconds, details in compared():
        print(
            f"{name:33}  {error:.3f}  {density:11.3f}  {inside:11.3f}  {evidence}"
            f" ({seconds:.0f} s, {details})",
            flush=True,
        )
