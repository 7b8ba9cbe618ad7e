"""The progress of diabetes, by attention priors of one head, four and infinitely many, beside a Gaussian process."""

import time

import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import netsor as ns

n = ns.Width("n")


def patients(seen=200, features=("bmi", "bp", "s3", "s5")):
    """Four measurements of patients and the progress of their illness, standardised: those seen, and the others."""
    data = load_diabetes(scaled=False)
    x = data.data[:, [data.feature_names.index(name) for name in features]]
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], data.target[order]
    x, y = (x - x[:seen].mean(axis=0)) / x[:seen].std(axis=0), (y - y[:seen].mean()) / y[:seen].std()
    return x[:seen], y[:seen], x[seen:], y[seen:]


@ns.program
def net(tokens=None, heads=1):
    """One query reads the tokens of every patient, with the same weights: the prior of `ns.AttentionRegressor`."""
    tokens = np.eye(2)[None] if tokens is None else tokens  # (patients, tokens, features)
    h = ns.erf(ns.weight(n, tokens.shape[-1], std=1.1) @ ns.data(tokens))
    q = ns.weight(n, n, batch=heads, std=2.0) @ ns.gaussian(n, 1)
    k, v = (ns.weight(n, n, batch=heads) @ h for _ in range(2))
    a = ns.softmax(ns.dot(q[:, None], k))  # (heads, patients, 1, tokens)
    return ns.weight(1, heads * n, std=2.0) @ ns.concat(a @ v, axis=0)[:, 0]


def scores(mean, std, y):
    """Root mean square error, mean log density, and the share of values in central intervals of 90 %."""
    error = float(np.sqrt(np.mean((mean - y) ** 2)))
    inside = float(np.mean(np.abs(y - mean) < norm.ppf(0.95) * std))
    return error, float(np.mean(norm.logpdf(y, mean, std))), inside


def compared(seen=200, noise=0.7, draws=400, particles=128):
    """(name, scores, log evidence, seconds) of each prior."""
    x, y, new, truth = patients(seen)
    for heads, name in ((1, "one head"), (4, "four heads"), (ns.inf, "infinitely many")):
        start = time.perf_counter()
        how = {"evidence": True, "draws": draws, "particles": particles}
        model = ns.AttentionRegressor(net, noise=noise, arguments={"heads": heads}, **how)
        mean, std = model.fit(x, y).predict(new, return_std=True)
        evidence = ns.Estimate(model.log_marginal_likelihood_, model.log_marginal_likelihood_error_)
        yield name, scores(mean, np.hypot(std, noise), truth), evidence, time.perf_counter() - start
    start = time.perf_counter()
    kernel = ConstantKernel() * RBF([1.0] * x.shape[1]) + WhiteKernel(noise**2)
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0).fit(x, y)
    found = scores(*process.predict(new, return_std=True), truth)
    evidence = ns.Estimate(process.log_marginal_likelihood_value_, 0.0)
    yield "RBF, fitted", found, evidence, time.perf_counter() - start


if __name__ == "__main__":
    print("prior            error  log density  inside 90 %  log evidence")
    for name, (error, density, inside), evidence, seconds in compared():
        print(f"{name:16} {error:.3f}  {density:11.3f}  {inside:11.3f}  {evidence} ({seconds:.0f} s)", flush=True)
