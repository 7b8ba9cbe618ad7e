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


WIDTHS = {16: "#f0a35e", 64: "#dd6b20", 256: "#9c3a06"}  # darker as it grows
LIMIT = "#0072b2"
GAUSSIAN = "#000000"


def draw(path, draws=200_000):
    """Densities on a logarithmic scale, where tails can be seen."""
    y = np.linspace(0, 3.5, 141)
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for width, colour in WIDTHS.items():
        law = net()[0].law(n=width, draws=draws)
        axes.semilogy(y, law.pdf(y), color=colour, lw=1.8)
        axes.text(3.53, law.pdf(3.5), f"width {width}", color=colour, va="center")
    limit = net()[0].law(n=ns.inf, draws=draws)
    axes.semilogy(y, limit.pdf(y), color=LIMIT, lw=2.4)
    axes.text(3.53, limit.pdf(3.5), "width ∞", color=LIMIT, va="center", weight="bold")
    axes.semilogy(y, limit.infinite_heads().pdf(y), color=GAUSSIAN, lw=1.5, ls="--")
    axes.text(2.25, 2.5e-6, "Gaussian of the same variance", ha="right", color=GAUSSIAN)
    axes.set(
        title="One attention head is not Gaussian, at any width",
        xlabel="output coordinate y",
        ylabel="density",
        xlim=(0, 3.5),
        ylim=(1e-6, 1.2),
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "widths.png"
    draw(target)
    print(f"drew {target}")
