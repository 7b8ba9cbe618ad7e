"""How wide is wide enough: KL of attention to its limit at each width, and what the
first correction predicts.

`python examples/wide_enough.py FIGURE.png DRAWS` draws the figure of the documentation.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import netsor as ns


@ns.program
def net(tokens=4, heads=2):
    """Attention over independent Gaussian tokens."""
    n = ns.Width("n")
    return ns.nn.attention(ns.gaussian(n, tokens), heads)[0]


def main(path: str = "wide_enough.png", draws: int = 1000) -> None:
    """Draw KL against the width for two layers, with the line c/n² of each."""
    widths = [16, 32, 64, 128, 256, 512, 1024]
    fig, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
    for colour, (name, layer) in zip(
        ("C0", "C1"),
        {"the paper's layer": ns.paper.layer(), "Gaussian tokens": net()}.items(),
        strict=True,
    ):
        limit = layer.law(n=ns.inf, draws=draws)
        constant = limit.correction().kl.value
        found = [
            ns.kl(layer.law(n=width, draws=draws, progress=False), limit)
            for width in widths
        ]
        value, error = np.array([tuple(kl) for kl in found]).T
        ax.errorbar(
            widths, value, 2 * error, fmt="o", color=colour, capsize=3, label=name
        )
        ax.plot(
            widths,
            constant / np.square(widths),
            color=colour,
            label=f"{constant:.2f}/n²",
        )
        print(
            name,
            *(f"{width:>5}: {kl}" for width, kl in zip(widths, found, strict=True)),
            sep="\n",
        )
    ax.set(xscale="log", yscale="log", xlabel="width n", ylabel="KL to the limit")
    ax.set_xticks(widths, map(str, widths))
    ax.minorticks_off()
    ax.legend()
    fig.savefig(path, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
