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
# # The paper's attention layer, from scratch
#
# Write a network once, in the notation of the theory, and evaluate it at any width. Here it is one attention layer over
# tokens $x^i = \mathrm{clip}(W^i h)$, with one matrix $W^i$ for each token. Head $a$ has the scores
#
# $$p^a_{ij} = n^{-1/2} \langle W^{Q,a} x^i, W^{K,a} x^j \rangle ,$$
#
# and every matrix has independent entries of variance 1/(number of inputs).

# %%
"""The paper's attention layer from scratch: its law at three widths and in the limit,
and a simulation of it.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import netsor as ns
from netsor import inf

# a name: it becomes a number, or infinity, only when you compute a law
n = ns.Width("n")


def attention(x, heads):
    """Multi-head attention with the 1/√n scaling, in six lines."""
    q = ns.weight(n, n, batch=heads) @ x  # (heads, tokens) vectors in R^n
    k = ns.weight(n, n, batch=heads) @ x
    v = ns.weight(n, n, batch=heads) @ x
    a = ns.softmax(ns.dot(q, k))  # (heads, tokens, tokens) scalars
    # the heads end to end: (tokens,) vectors in R^(heads·n)
    u = ns.concat(a @ v, axis=0)
    return ns.weight(n, heads * n) @ u


@ns.program
def layer(tokens=4, heads=2):
    """Tokens x^i = clip(W^i h), h ~ N(0, I), through attention."""
    h = ns.gaussian(n)
    x = ns.clip(ns.weight(n, n, batch=tokens) @ h, 100)
    return attention(x, heads)


net = layer()
print(net)

# %% [markdown]
# Does the theorem of the paper cover this program? `check()` goes through its assumptions one by one.

# %%
print(net.check())

# %% [markdown]
# The law of one coordinate of the first token. At finite width it is a mixture of Gaussians over replicas, exact up to
# the error bars printed below; no weight matrix is drawn for it. At infinite width it is a convolution over heads. All
# these laws share a seed, so they are coupled, and even a small KL differs significantly from zero.

# %%
first = net[0]
limit = first.law(n=inf)
laws = {width: first.law(n=width) for width in (16, 64, 256)}
print(
    "width   variance          excess kurtosis   KL to the limit       random numbers"
    " per replica"
)
for width, law in laws.items():
    var, kurtosis, kl = (
        law.with_error.var(),
        law.with_error.kurtosis(),
        ns.kl(law, limit),
    )
    shown = (
        f"{var.value:.4f} ± {var.error:.4f}   {kurtosis.value:.4f} ±"
        f" {kurtosis.error:.4f}"
    )
    print(
        f"{width:5}   {shown}   {kl.value:.2e} ± {kl.error:.0e}   {law.random_numbers}"
    )
print(
    f"  inf   {limit.var():.4f}            {limit.kurtosis():.4f}           "
    f" ({limit.status})"
)

# %% [markdown]
# Is this really the law of the network at width 16? Simulate the network, with every matrix sampled and multiplied, and
# compare. The Kolmogorov–Smirnov test says how often the distance between draws and law would be as large by chance.

# %%
draws = first.simulate(n=16, draws=20_000, coordinates=0)
test = stats.kstest(draws, laws[16].cdf)
print(
    f"{len(draws)} networks of width 16: distance to the exact law"
    f" {test.statistic:.4f}, p-value {test.pvalue:.2f}"
)

y = np.linspace(-3.5, 3.5, 281)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.hist(
    draws,
    bins=np.linspace(-3.5, 3.5, 71),
    density=True,
    color="#dddddd",
    label="20,000 networks, width 16",
)
left.plot(
    y,
    laws[16].pdf(y),
    color="#56b4e9",
    linestyle=":",
    lw=2,
    label="exact law, width 16",
)
left.set(xlabel="output coordinate y", ylabel="density", ylim=(0, 1.05))
left.legend(frameon=False, loc="upper left", fontsize=8)
for (width, law), colour in zip(
    laws.items(), ("#56b4e9", "#009e73", "#d55e00"), strict=True
):
    right.semilogy(
        y, law.pdf(y), color=colour, linestyle=":", lw=2, label=f"width {width}"
    )
right.semilogy(y, limit.pdf(y), color="#0072b2", lw=2, label="width ∞, two heads")
gaussian = stats.norm(scale=limit.std())
right.semilogy(
    y, gaussian.pdf(y), color="black", lw=1.5, label="infinitely many heads (Gaussian)"
)
right.set(xlabel="output coordinate y", ylabel="density", xlim=(0, 3.5), ylim=(1e-7, 2))
right.legend(frameon=False, loc="lower left", fontsize=8)
plt.show()

# %% [markdown]
# **Try next:** replace `ns.clip(…, 100)` by `ns.relu(…)` and run `check()` again, or use one head instead of two.
