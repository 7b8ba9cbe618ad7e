# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # An attention layer as a prior over functions
#
# A Bayesian neural network is a prior over functions $f(t)$ of an input. Here the input $t$ is an angle. It is shown to
# the network as three tokens, made from the points on the circle at $t$ and a quarter turn to either side of it:
#
# $$x^j(t) = \mathrm{erf}\bigl(W (\cos t_j, \sin t_j)\bigr), \qquad t_j = t + j\pi/2, \quad j = -1, 0, 1 .$$
#
# One attention layer with one head reads them, and $f(t)$ is a coordinate of its output for the token $x^0(t)$. The
# *same* weights serve all inputs, so the values $f(t)$ have a joint law. The layer has no biases and erf is odd, so
# $f(t + \pi) = -f(t)$, and half a turn shows all of a function.

# %%
"""Functions drawn from the prior of an attention layer, and from the Gaussian prior
with the same covariance.
"""

import matplotlib.pyplot as plt
import numpy as np

import netsor as ns
from netsor import inf

n, t = ns.Width("n"), np.linspace(0, np.pi, 25)


@ns.program
def prior(heads=1):
    """The values f(t) on the grid: attention for each input t, with weights in
    common.
    """
    angles = t[:, None] + np.pi / 2 * np.array([-1, 0, 1])  # (inputs, tokens)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    x = ns.erf(ns.weight(n, 2, std=8**0.5) @ ns.data(points))  # entries N(0, 8/2)
    return ns.nn.attention(x, heads)[:, 1]  # the output for the middle token


net = prior()
# the law of (f(t_1), …, f(t_25)): Gaussian given the scores
joint = net.law(n=inf, draws=8_000)
print(joint)

# %% [markdown]
# With infinitely many heads the prior is a Gaussian process, with the same covariance as for one head.

# %%
cov = joint.cov()
attention = joint.rvs(8_000, seed=1)
values, vectors = np.linalg.eigh(cov)
noise = np.random.default_rng(2).standard_normal(attention.shape)
gaussian = noise * np.sqrt(np.maximum(values, 0)) @ vectors.T
print(
    "excess kurtosis of f(0): {:.2f} ± {:.2f}".format(*joint[0].with_error.kurtosis())
)

# %% [markdown]
# **The size of a function**, the mean of $f(t)^2$ over the grid. Random scores make functions that are small as a
# whole, and functions that are large as a whole, more frequent than under the Gaussian prior.

# %%
for name, functions in (("one head", attention), ("Gaussian", gaussian)):
    power = (functions**2).mean(axis=1) / cov.diagonal().mean()
    small, large = (power < 0.1).mean(), (power > 4).mean()
    print(
        f"{name}: below 0.1 of its mean in {small:.1%} of the draws, above 4 times its"
        f" mean in {large:.1%}"
    )

# %% [markdown]
# **Squares at distant inputs.** For Gaussians, $f(t)^2$ and $f(t')^2$ have the correlation $\rho^2$, where $\rho$ is
# that of $f(t)$ and $f(t')$: zero a quarter turn apart, by symmetry. Given the scores, $f$ is Gaussian with random
# covariance $C$, and squares have the covariance $\operatorname{Cov}(C_{tt}, C_{t't'}) + 2\,\mathbb{E}[C_{tt'}^2]$. A
# quarter turn apart it is the second part that counts: given the scores the two values are correlated, with one sign or
# the other, and only the mean over the scores is zero.


# %%
def parts(law):
    """The two parts of the covariances of squares."""
    c = law.component_cov  # (replicas, inputs, inputs)
    return np.cov(c.diagonal(axis1=1, axis2=2).T), 2 * (c**2).mean(axis=0)


def correlation(covariance):
    """The correlations that belong to covariances."""
    return covariance / np.sqrt(np.outer(covariance.diagonal(), covariance.diagonal()))


squares, rho, quarter = correlation(sum(parts(joint))), correlation(cov), len(t) // 2
finite = correlation(sum(parts(net.law(n=64, draws=2_000))))
error = joint.with_error.cov().error[0, quarter] / cov[0, 0]
print(
    f"a quarter turn apart: rho = {rho[0, quarter]:.3f} ± {error:.3f}; squares"
    f" correlate {squares[0, quarter]:.3f}"
)
print(
    "the two parts of the covariance of squares:",
    *(f"{part[0, quarter]:.4f}" for part in parts(joint)),
)

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
axes[0].plot(t, attention[:12].T, color="#0072b2", lw=1)
axes[1].plot(t, gaussian[:12].T, color="black", lw=1)
for panel, title in zip(
    axes[:2], ("one head, width ∞", "infinitely many heads (Gaussian)"), strict=True
):
    panel.set(xlabel="input t", ylabel="f(t)", ylim=(-1.6, 1.6), title=title)
axes[2].plot(t, finite[0], ":", color="#009e73", lw=2, label="one head, width 64")
axes[2].plot(t, squares[0], color="#0072b2", lw=2, label="one head, width ∞")
axes[2].plot(
    t, rho[0] ** 2, color="black", lw=1.5, label="infinitely many heads (Gaussian)"
)
axes[2].set(
    xlabel="distance of the inputs",
    ylabel="correlation of the squares",
    ylim=(-0.05, 1.5),
)
axes[2].legend(frameon=False, loc="upper center", fontsize=8)
plt.setp(axes, xticks=[0, np.pi / 2, np.pi], xticklabels=["0", "π/2", "π"])
plt.show()

# %% [markdown]
# **Try next:** `prior(heads=8)`: how much of the correlation of squares at a quarter turn is left?
