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
# # Why the number of heads matters
#
# At infinite width an output coordinate $y$ of attention with $H$ heads is Gaussian *given* the scores, with variance
#
# $$v = \frac{\sigma_O^2 \sigma_V^2}{H} \sum_{a=1}^{H} w_a, \qquad w_a = \sum_{jk} A^a_{ij} K_{jk} A^a_{ik},$$
#
# where $K$ is the kernel of the tokens and $A^a = \mathrm{softmax}(P^a)$. The heads have independent scores, so $v$ is
# a mean of $H$ independent variables. Its expectation, the variance of $y$, does not depend on $H$. The excess kurtosis
# of $y$, which is $3 \operatorname{Var}(v) / \mathbb{E}[v]^2$, falls like $1/H$. For a nearly Gaussian symmetric law
# $\mathrm{KL} \approx \mathrm{kurtosis}^2 / 48$, so KL falls like $1/H^2$. Let us see all three.

# %%
"""Variance, excess kurtosis and KL to the Gaussian of infinitely many heads, against
the number of heads.
"""

import matplotlib.pyplot as plt
import numpy as np

import netsor as ns
from netsor import inf

# one coordinate of the first token
one_head = ns.paper.layer(tokens=4, heads=1).law(n=inf)
# these tokens have the kernel K = I
gaussian = ns.Attention(np.eye(4)).infinite_heads(points=2**15)[0]
heads = 2 ** np.arange(7)
# no work is done again: the law of one head is known
limits = [one_head.with_heads(H) for H in heads]
kurtosis = np.array([law.kurtosis() for law in limits])
kl = np.array([ns.kl(law, gaussian).value for law in limits])

print("heads   variance   excess kurtosis   KL to the Gaussian   48 KL / kurtosis²")
for H, law, k, d in zip(heads, limits, kurtosis, kl, strict=True):
    print(f"{H:5}   {law.var():.6f}   {k:15.6f}   {d:18.3e}   {48 * d / k**2:17.3f}")
print(f"  inf   {gaussian.var():.6f}   (Gaussian, by a separate computation)")

# %% [markdown]
# The exponents, by least squares in the logarithms. KL bends a little at few heads, so its fit starts at four.

# %%
slope_kurtosis = np.polyfit(np.log(heads), np.log(kurtosis), 1)[0]
slope_kl = np.polyfit(np.log(heads[2:]), np.log(kl[2:]), 1)[0]
print(f"kurtosis ∝ H^{slope_kurtosis:.3f}, KL ∝ H^{slope_kl:.3f}")

# %% [markdown]
# At finite width heads do not remove everything. All heads read the same tokens, and at finite width the products
# $\langle x^i, x^j \rangle / n$ of the tokens are random. That randomness is common to all heads, so averaging over
# heads leaves it in place: the kurtosis levels off above zero, and does so lower at larger width.

# %%
few = np.array([1, 4, 16, 64])
finite = {}
for width in (64, 256):
    laws = [
        ns.paper.layer(tokens=4, heads=int(H)).law(n=width, draws=5_000) for H in few
    ]
    finite[width] = [law.with_error.kurtosis() for law in laws]
    shown = [
        f"H = {H}: {k.value:.3f} ± {k.error:.3f}"
        for H, k in zip(few, finite[width], strict=True)
    ]
    print(f"excess kurtosis at width {width}:", "; ".join(shown))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for (width, found), colour in zip(finite.items(), ("#009e73", "#d55e00"), strict=True):
    values, errors = zip(*found, strict=True)
    left.errorbar(
        few,
        values,
        errors,
        color=colour,
        fmt="s:",
        ms=4,
        capsize=3,
        label=f"width {width}",
    )
left.loglog(heads, kurtosis, "o-", color="#0072b2", ms=4, label="width ∞")
left.set(xlabel="heads H", ylabel="excess kurtosis", ylim=(1e-3, 2))
right.loglog(heads, kl, "o-", color="#0072b2", ms=4, label="width ∞, H heads")
right.loglog(
    heads, kurtosis**2 / 48, "--", color="#777777", lw=1.2, label="kurtosis² / 48"
)
right.set(xlabel="heads H", ylabel="KL to the Gaussian of ∞ heads")
for axes, place in ((left, "lower left"), (right, "upper right")):
    axes.set_xticks(heads, heads)
    axes.minorticks_off()
    axes.legend(frameon=False, loc=place, fontsize=8)
plt.show()

# %% [markdown]
# **Try next:** pass `sigma_q=3.0` to `ns.paper.layer` and to `ns.Attention`, and see which of the columns change.
