"""What a kernel estimate cannot see: the KL of width n to the limit, by the paper's estimator and by coupling."""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import netsor as ns

WIDTHS = np.array([16, 64, 256, 1024])


def net():
    """The layer of the paper's experiments."""
    return ns.paper.layer(tokens=4, heads=2)


def measure(trials=10, sample=50_000, draws=400_000):
    """For each width, the paper's estimate in every trial, and ours with its error; and the paper's for the limit."""
    limit = net().law(n=ns.inf, draws=draws)
    theirs, ours = [], []
    for k, width in enumerate([*WIDTHS, ns.inf]):
        law = net().law(n=width, draws=draws)
        seeds = [1000 * k + 2 * trial for trial in range(trials)]
        theirs.append([ns.paper_kl(law.rvs(sample, seed=s), limit.rvs(sample, seed=s + 1)) for s in seeds])
        if width < ns.inf:
            ours.append(ns.kl(law, limit))
    return np.array(theirs), ours


def draw(path, **sizes):
    """Both curves, on logarithmic scales."""
    theirs, ours = measure(**sizes)
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    mean, spread = theirs[:-1].mean(axis=1), theirs[:-1].std(axis=1)
    axes.errorbar(WIDTHS, mean, spread, fmt="o:", color="#d55e00", capsize=3, label="kernel estimates of 50,000 draws")
    values, errors = ([e[i] for e in ours] for i in (0, 1))
    axes.errorbar(WIDTHS, values, errors, fmt="s-", color="#0072b2", capsize=3, label="coupled, no kernel")
    floor = theirs[-1].mean()
    axes.axhline(floor, color="black", lw=1, ls="--", label="kernel estimates, both samples from the limit")
    axes.set(xscale="log", yscale="log", xlabel="width n", ylabel="KL(width n ‖ limit)", xticks=WIDTHS)
    axes.set_xticklabels(WIDTHS)
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)
    return mean, ours, floor


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "estimators.png"
    sizes = {} if len(sys.argv) > 1 else {"trials": 2, "sample": 5000, "draws": 20_000}
    mean, ours, floor = draw(target, **sizes)
    for width, kernel, coupled in zip(WIDTHS, mean, ours, strict=True):
        print(f"n = {width:5}: kernel {kernel:.2e}, coupled {coupled.value:.3e} ± {coupled.error:.0e}")
    print(f"both samples from the limit: kernel {floor:.2e}")
