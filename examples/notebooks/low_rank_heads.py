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
# # Low-rank heads: infinite width, finite head dimension
#
# In practice queries, keys and values live in $\mathbb{R}^d$ with $d$ smaller than the width $n$ of the tokens, and $d$
# is often 64. The scores are $p^a_{ij} = d^{-1/2} \langle W^{Q,a} x^i, W^{K,a} x^j \rangle$ with matrices in
# $\mathbb{R}^{d \times n}$. Here $n$ goes to infinity and $d$ stays. The theorem of the paper needs every width to go
# to infinity, so the library labels such a law *conjectured*; we check it below against exact laws at finite $n$.

# %%
"""Attention with heads of finite dimension d at infinite width: its law, and its
distance to the limit in d.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import netsor as ns
from netsor import inf

n, d = ns.Width("n"), ns.Width("d")


@ns.program
def layer(tokens=4, heads=2):
    """The first token of attention with head dimension d over tokens x^i = clip(W^i
    h).
    """
    x = ns.clip(ns.weight(n, n, batch=tokens) @ ns.gaussian(n), 100)
    return ns.nn.attention(x, heads, head_dim=d)[0]


net = layer()
limit = net.law(n=inf, d=inf)
print(
    f"d = inf: {limit.status}; variance {limit.var():.4f}, excess kurtosis"
    f" {limit.kurtosis():.4f}"
)

# %% [markdown]
# Why does a finite $d$ matter? A score is a product of two Gaussian vectors of $\mathbb{R}^d$, so it is Gaussian only
# given the queries; and the products of the values $W^{V,a} x^j$ over $d$ are random too. So the variance of the
# output, given everything that the heads sample, is more random than at $d = \infty$, and the tails are heavier.

# %%
dims = 2 ** np.arange(2, 8)
laws = {int(dim): net.law(n=inf, d=int(dim)) for dim in dims}
distances = {dim: ns.kl(law, limit) for dim, law in laws.items()}
for dim, law in laws.items():
    var, kurtosis, kl = law.with_error.var(), law.with_error.kurtosis(), distances[dim]
    shown = (
        f"variance {var.value:.4f} ± {var.error:.4f}, excess kurtosis"
        f" {kurtosis.value:.3f} ± {kurtosis.error:.3f}"
    )
    print(
        f"d = {dim:3}: {law.status}; {shown}, KL to d = inf {kl.value:.2e} ±"
        f" {kl.error:.0e}"
    )
slope = np.polyfit(np.log(dims), np.log([kl.value for kl in distances.values()]), 1)[0]
print(f"KL ∝ d^{slope:.2f}")

# %% [markdown]
# Is the conjectured law at $d = 8$ the limit of the exact ones? Their KL to it should go to zero as $n$ grows.

# %%
for width in (64, 512):
    kl = ns.kl(net.law(n=width, d=8), laws[8])
    print(
        f"n = {width:4}, d = 8: KL to n = inf, d = 8 is {kl.value:.1e} ± {kl.error:.0e}"
    )

# %%
y = np.linspace(0, 3.5, 141)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for dim, colour in ((8, "#56b4e9"), (64, "#d55e00")):
    left.semilogy(
        y, laws[dim].pdf(y), ":", color=colour, lw=2, label=f"d = {dim}, width ∞"
    )
left.semilogy(y, limit.pdf(y), color="#0072b2", lw=2, label="d = ∞, width ∞")
gaussian = stats.norm(scale=limit.std())
left.semilogy(
    y, gaussian.pdf(y), color="black", lw=1.5, label="infinitely many heads (Gaussian)"
)
left.set(xlabel="output coordinate y", ylabel="density", xlim=(0, 3.5), ylim=(1e-7, 2))
left.legend(frameon=False, loc="lower left", fontsize=8)
values, errors = zip(*distances.values(), strict=True)
right.errorbar(
    dims,
    values,
    errors,
    fmt="o:",
    color="#d55e00",
    ms=4,
    capsize=3,
    label="KL to d = ∞",
)
right.plot(
    dims,
    values[-1] * (dims[-1] / dims) ** 2.0,
    "--",
    color="#777777",
    lw=1.2,
    label="slope −2",
)
right.set(
    xscale="log",
    yscale="log",
    xlabel="head dimension d",
    ylabel="KL to d = ∞, at width ∞",
)
right.set_xticks(dims, dims)
right.minorticks_off()
right.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# **Try next:** more heads: `layer(heads=16)` brings the laws at $d = 8$ and $d = \infty$ closer, as heads are averaged.
