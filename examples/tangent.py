"""The pictures of docs/tangent.md: the tangent kernel of attention, by heads and
widths, and next to the output.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import netsor as ns

n = ns.Width("n")
COLOURS = "#0072b2", "#009e73", "#d55e00"
DOTTED = (0, (1.0, 1.2))  # finite widths
STYLE = {
    "font.size": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
}


@ns.program
def net(heads=1, tokens=4):
    """Two outputs at the first token, and their tangent kernel."""
    x, r = ns.gaussian(n, tokens), ns.gaussian(n, 2)
    f = ns.dot(r, ns.nn.attention(x, heads)[0])
    return f, ns.ntk(f)


def one_head(nodes=16):
    """Given its weights a, f and Θ are a linear and a quadratic form in normals, with
    known moments; a by quadrature.

    Returns the mean of Θ for any number of heads, and for one head its standard
    deviation, that of the entry between two outputs, the covariance of f² and Θ, E[f²],
    and the variance of E[f² | a].
    """
    z, weight = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(*[z] * 4), axis=-1).reshape(-1, 4)
    weight = np.prod(
        np.stack(np.meshgrid(*[weight / weight.sum()] * 4), axis=-1), axis=-1
    ).ravel()
    a = np.exp(grid) / np.exp(grid).sum(axis=1, keepdims=True)
    square = (a**2).sum(axis=1)  # E[f² | a]
    # of the c_j − f
    cov = np.eye(4) - a[:, :, None] - a[:, None, :] + square[:, None, None]
    mean = 2 * square + 2 * (a**2 * np.diagonal(cov, axis1=1, axis2=2)).sum(axis=1)
    between = 4 * ((a[:, :, None] * a[:, None, :] * cov) ** 2).sum(axis=(1, 2))
    both = 4 * (a**2 * (a - square[:, None]) ** 2).sum(axis=1)
    theta, f2 = weight @ mean, weight @ square
    std = np.sqrt(weight @ (2 * between + (mean - theta) ** 2))
    covariance = weight @ (both + (square - f2) * (mean - theta))
    return (
        theta,
        std,
        np.sqrt(weight @ between),
        covariance,
        f2,
        weight @ (square - f2) ** 2,
    )


def figure(path, title_x, title_y, **axes_options):
    """One panel, as wide as a column."""
    made, axes = plt.subplots(figsize=(3.4, 2.5), layout="constrained")
    axes.set(xlabel=title_x, ylabel=title_y, **axes_options)
    return axes, lambda: (axes.legend(), made.savefig(path, dpi=300), plt.close(made))


def density(axes, sample, **options):
    """A histogram, drawn as a line."""
    share, edges = np.histogram(sample, bins=80, range=(0.2, 2.6))
    axes.plot(
        (edges[1:] + edges[:-1]) / 2,
        share / len(sample) / (edges[1] - edges[0]),
        **options,
    )


def draw(folder, draws):
    """Four pictures into a folder: solid lines are infinite width, dotted ones finite,
    black is infinite heads.
    """
    theta, std, between, covariance, f2, spread = one_head()
    limits = {heads: net(heads).draw(n=ns.inf, draws=draws) for heads in (1, 4, 16)}
    own = {"title_x": "tangent kernel Θ", "title_y": "density", "xlim": (0.2, 2.6)}

    axes, save = figure(folder / "tangent-heads.png", **own)
    for (heads, (_, kernel)), colour in zip(limits.items(), COLOURS, strict=True):
        density(
            axes,
            kernel[:, 0, 0],
            color=colour,
            label=f"{heads} head{'s' * (heads > 1)}",
        )
    axes.axvline(theta, color="black", label="infinitely many")
    axes.set_ylim(bottom=0)
    save()

    axes, save = figure(folder / "tangent-widths.png", **own)
    for width, colour in zip(
        (64, 256, 1024), ("#56b4e9", "#cc79a7", "#e69f00"), strict=True
    ):
        kernel = net(4)[1].draw(n=width, draws=draws)
        density(
            axes,
            kernel[:, 0, 0],
            color=colour,
            linestyle=DOTTED,
            label=f"width {width}",
        )
    density(axes, limits[4][1][:, 0, 0], color=COLOURS[1], label="width ∞")
    axes.set_ylim(bottom=0)
    save()

    axes, save = figure(
        folder / "tangent-output.png",
        "|f| / standard deviation of f",
        "mean of Θ given |f|",
    )
    for (heads, (f, kernel)), colour in zip(limits.items(), COLOURS, strict=True):
        size = np.abs(f[:, 0]) / np.sqrt(f2)
        places = np.array_split(np.argsort(size), 25)  # as many draws in each
        x = [size[some].mean() for some in places]
        y = [kernel[some, 0, 0].mean() for some in places]
        axes.plot(x, y, color=colour, label=f"{heads} head{'s' * (heads > 1)}")
    axes.axhline(theta, color="black", label="infinitely many")
    save()

    axes, save = figure(
        folder / "tangent-decay.png", "heads H", "", xscale="log", yscale="log"
    )
    counts = np.array([1, 4, 16, 64])
    limits[64] = net(64).draw(n=ns.inf, draws=max(200, draws // 5))
    kernels = [limits[int(heads)][1] for heads in counts]
    lines = {
        "sd of Θ / mean": (
            std / theta,
            [k[:, 0, 0].std() / k[:, 0, 0].mean() for k in kernels],
        ),
        "sd of Θ between outputs / mean": (
            between / theta,
            [k[:, 0, 1].std() / theta for k in kernels],
        ),
        "correlation of Θ and f²": (
            # f has kurtosis 3 + 3 spread/(H f2²)
            covariance / std / np.sqrt(2 * f2**2 + 3 * spread / counts),
            [
                np.corrcoef(
                    limits[int(heads)][0][:, 0] ** 2, limits[int(heads)][1][:, 0, 0]
                )[0, 1]
                for heads in counts
            ],
        ),
    }
    for (name, (first, found)), colour, mark in zip(
        lines.items(), COLOURS, "os^", strict=True
    ):
        axes.plot(counts, first / np.sqrt(counts), color=colour)
        axes.plot(counts, found, mark, color=colour, label=name)
    axes.set_xticks(counts, counts)
    axes.set_yticks([0.03, 0.1, 0.3], ["0.03", "0.1", "0.3"])
    axes.minorticks_off()
    save()


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    with plt.rc_context(STYLE):
        draw(target, int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
    print(f"drew {target}/tangent-*.png")
