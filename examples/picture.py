"""The picture of the README: one output coordinate of an attention layer, at widths 16,
64, 256 and infinity.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import netsor as ns

n = ns.Width("n")


@ns.program
def net(tokens=4, heads=1):
    """One head, so that the law is as far from Gaussian as it gets."""
    x = ns.clip(ns.weight(n, n, batch=tokens) @ ns.gaussian(n), 100)
    return ns.nn.attention(x, heads)


def draw(path, draws=200_000):
    """Densities on a logarithmic scale, where tails can be seen."""
    y = np.linspace(0, 3.5, 141)
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for width, colour in ((16, "#56b4e9"), (64, "#009e73"), (256, "#d55e00")):
        law = net()[0].law(n=width, draws=draws)
        axes.semilogy(y, law.pdf(y), ":", color=colour, lw=2, label=f"width {width}")
    limit = net()[0].law(n=ns.inf, draws=draws)
    axes.semilogy(y, limit.pdf(y), color="#0072b2", lw=2, label="width ∞, one head")
    axes.semilogy(
        y,
        limit.infinite_heads().pdf(y),
        color="black",
        lw=1.5,
        label="infinitely many heads (Gaussian)",
    )
    axes.set(
        xlabel="output coordinate y", ylabel="density", xlim=(0, 3.5), ylim=(1e-6, 1.2)
    )
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "widths.png"
    draw(target)
    print(f"drew {target}")
