"""The picture of the README: how sharp attention is in three untrained models.

A model whose attention starts almost one-hot passes hardly any gradient to queries and
keys. Whether it does depends on the scale of its scores, block by block.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import netsor as ns

FLAGGED_BELOW = 0.5
"""The rule `entropy` of an audit flags attention that is sharper than this."""

LLAMA = ns.models.read("llama-3-405b")
MODELS = {
    "GPT-2": (ns.models.read("gpt2"), "#009e73"),
    "Llama 3.1 405B with QK-norm": (LLAMA.replace(qk_norm=True), "#56b4e9"),
    "Llama 3.1 405B": (LLAMA, "#d55e00"),
}


def entropies(model, draws):
    """Depth from 0 to 1, and 5 %, 50 % and 95 % quantiles of the entropy there."""
    audit = ns.audit(model, tokens=16, draws=draws, widths="actual", gradients=False)
    rows = [row for row in audit.rows() if row["quantity"] == "entropy"]
    depth = np.linspace(0, 1, len(rows))
    bands = [[row[name] for row in rows] for name in ("low", "median", "high")]
    return depth, np.array(bands)


def draw(path, draws=20):
    """One line a model, from its first block to its last."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.axhspan(0, FLAGGED_BELOW, color="#d55e00", alpha=0.12, lw=0)
    axes.text(0.98, 0.03, "flagged by the rule entropy: below one half", ha="right")
    for label, (model, colour) in MODELS.items():
        depth, (low, median, high) = entropies(model, draws)
        axes.fill_between(depth, low, high, color=colour, alpha=0.25, lw=0)
        axes.plot(depth, median, color=colour, lw=2.2)
        axes.annotate(
            label,
            (0.3, np.interp(0.3, depth, median)),
            xytext=(0, 6),
            textcoords="offset points",
            color=colour,
            weight="bold",
        )
    axes.set(
        title="Attention of an untrained Llama 3.1 405B is already sharp",
        xlabel="depth",
        ylabel="attention entropy / uniform",
        xlim=(0, 1),
        ylim=(0, 1.08),
    )
    axes.set_xticks((0, 0.5, 1), ("first block", "middle", "last block"))
    axes.set_yticks((0, 0.5, 1), ("0", "½", "1"))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "entropy.png"
    draw(target)
    print(f"drew {target}")
