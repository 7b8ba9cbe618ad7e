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
# # A recurrent net: one matrix, used at each step
#
# States $h_t = \mathrm{erf}(g_t)$ with $g_t = W h_{t-1} + U x_t$, and the same $W$ at each step. At infinite width the
# coordinates of the $g_t$ are jointly Gaussian with mean 0, and with $K_{st}$ the mean product of a coordinate
# of $h_s$ and of $h_t$
#
# $$\operatorname{Cov}(Z^{g_s}, Z^{g_t}) = \sigma_W^2 K_{s-1, t-1} + \sigma_U^2 \langle x_s, x_t \rangle / 2 .$$
#
# With a *fresh* matrix at each step the first term is there only for $s = t$. So in the limit reuse matters between two
# steps, and not at one step alone.

# %%
"""A recurrent net: the kernel of its states with one matrix or a fresh one a step, at
infinite and finite width.
"""

import matplotlib.pyplot as plt
import numpy as np

import netsor as ns
from netsor import inf

n = ns.Width("n")
steps, sigma_w, sigma_u, time = 8, 1.3, 0.7, np.arange(8)
# a constant and a wave of period four
inputs = np.stack([np.ones(steps), np.cos(np.pi * time / 2)], axis=1)


@ns.program
def net(fresh=False):
    """The kernel of the states, and a read-out of the last state and of the mean
    state.
    """
    w = ns.weight(n, n, batch=steps, std=sigma_w)
    u = ns.weight(n, 2, std=sigma_u) @ ns.data(inputs)
    states = [ns.erf(u[0])]
    for t in range(1, steps):
        states.append(ns.erf(w[t if fresh else 0] @ states[-1] + u[t]))
    h = ns.stack(states)
    return ns.mean_dot(h, h), ns.weight(1, n) @ h[-1], ns.weight(1, n) @ h.mean(0)


print("limit:", net().check().verdict)
kernels = {
    fresh: net(fresh)[0].law(n=inf).mean().reshape(steps, steps)
    for fresh in (False, True)
}


# %% [markdown]
# **By hand,** with $\frac{2}{\pi} \arcsin \bigl(2 C_{ab} / \sqrt{(1 + 2 C_{aa})(1 + 2 C_{bb})}\bigr)$ for the mean of
# $\mathrm{erf}(a)\,\mathrm{erf}(b)$ under Gaussians of covariance $C$: a few lines of numpy give the same kernels.


# %%
def by_hand(fresh):
    """The limit kernel of the states."""
    signal = sigma_u**2 * inputs @ inputs.T / 2
    kernel = np.zeros((steps, steps))
    for _ in range(steps):  # each round makes one more step right
        past = kernel * np.eye(steps) if fresh else kernel
        cov = signal + sigma_w**2 * np.pad(past[:-1, :-1], (1, 0))
        scale = np.sqrt(1 + 2 * np.diag(cov))
        kernel = 2 / np.pi * np.arcsin(2 * cov / np.outer(scale, scale))
    return kernel


for fresh, kernel in kernels.items():
    print(
        f"fresh={fresh!s:5}: largest difference to the recursion by hand"
        f" {np.abs(kernel - by_hand(fresh)).max():.1e}"
    )
difference = np.abs(kernels[False] - kernels[True])
print(
    f"one matrix against fresh: at one step {difference.diagonal().max():.0e}, between"
    f" two {difference.max():.3f}"
)
for part, name in ((1, "last state"), (2, "mean state")):
    one, new = (net(fresh)[part].law(n=inf).var() for fresh in (False, True))
    print(
        f"variance of a read-out of the {name}: one matrix {one:.4f}, fresh ones"
        f" {new:.4f}"
    )

# %% [markdown]
# **At finite width** the kernel is random. Its standard deviation falls like $n^{-1/2}$, and the KL of the read-out of
# the mean state to its Gaussian limit falls much faster, close to $n^{-2}$.

# %%
widths = np.array([16, 32, 64, 128, 256])
limit, means, spread, kl = net()[2].law(n=inf), [], [], []
for width in widths:
    law = net()[0].law(n=width, draws=1_000)
    means.append(law.mean().reshape(steps, steps))
    spread.append(np.sqrt(law.cov().diagonal().mean()))
    kl.append(ns.kl(net()[2].law(n=width, draws=4_000), limit))
    print(
        f"width {width:3}: deviation of the kernel {spread[-1]:.4f}, KL"
        f" {kl[-1].value:.1e} ± {kl[-1].error:.0e}"
    )
slopes = [
    np.polyfit(np.log(widths), np.log(found), 1)[0]
    for found in (spread, [k.value for k in kl])
]
print(f"deviation ∝ n^{slopes[0]:.2f}, KL ∝ n^{slopes[1]:.2f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(
    time, kernels[False][-1], "o-", color="#0072b2", ms=4, label="one matrix, width ∞"
)
left.plot(
    time,
    kernels[True][-1],
    "s-",
    color="#e69f00",
    ms=4,
    label="fresh matrices, width ∞",
)
left.plot(
    time,
    means[0][-1],
    ":",
    color="#56b4e9",
    lw=3,
    label=f"one matrix, mean at width {widths[0]}",
)
left.set(xlabel="step t", ylabel="kernel of the last step with step t")
right.loglog(
    widths,
    spread,
    "o:",
    color="#009e73",
    ms=4,
    label="standard deviation of the kernel",
)
right.errorbar(
    widths,
    *zip(*kl, strict=True),
    fmt="s:",
    color="#d55e00",
    ms=4,
    capsize=3,
    label="KL of the read-out",
)
right.set(xlabel="width n", ylabel="distance to the limit")
right.set_xticks(widths, widths)
right.minorticks_off()
left.legend(frameon=False, fontsize=8)
right.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# **Try next:** set the inputs to zero after the first step; in the limit, one matrix and fresh ones then agree.
