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
# # A custom activation, and the temperature that suits it
#
# Any function of numpy arrays can be a nonlinearity. Ours is a wavelet, $\phi(u) = c\,(1 - u^2)\,\exp(-u^2/2)$. We want
# tokens of second moment 1, so scores have variance $\sigma_Q^2 \sigma_K^2$: this fixes $c$. The library computes
# the second moment at infinite width, as the limit of `ns.mean_dot` of the tokens.

# %%
"""A custom activation: what the checker says of it, its law at several widths, and the
temperature.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import netsor as ns
from netsor import inf

n = ns.Width("n")


def wavelet(u, c=1.0):
    """The activation φ."""
    return c * (1 - u**2) * np.exp(-(u**2) / 2)


@ns.program
def kernel(tokens=2):
    """The products of tokens x^i = φ(W^i h), over n."""
    x = ns.nonlin(
        wavelet,
        ns.weight(n, n, batch=tokens) @ ns.gaussian(n),
        bounded=True,
        lipschitz=True,
    )
    return ns.mean_dot(x, x)


same, other, *_ = kernel().law(n=inf).mean()
print(
    f"with c = 1: E[φ(Z)²] = {same:.10f}, by hand 2/3^1.5 = {2 / 3**1.5:.10f}; E[φ(Z)]²"
    f" = {other:.10f}, by hand 1/8"
)
gain = same**-0.5
K = gain**2 * np.where(np.eye(4), same, other)  # the kernel of four tokens


# %% [markdown]
# **Help the checker.** It cannot look into a function, so it reports unknown properties. This $\phi$
# is bounded, and its derivative is bounded too, so it is Lipschitz: we may declare both.


# %%
@ns.program
def layer(sigma_q=1.0, bounded=None, lipschitz=None):
    """Attention with one head over four tokens x^i = φ(W^i h)."""
    g = ns.weight(n, n, batch=4) @ ns.gaussian(n)
    x = ns.nonlin(
        lambda u: wavelet(u, gain),
        g,
        name="wavelet",
        bounded=bounded,
        lipschitz=lipschitz,
    )
    return ns.nn.attention(x, heads=1, sigma_q=sigma_q)[0]


for net in (layer(), layer(bounded=True, lipschitz=True)):
    report = net.check()
    print(report.verdict, [point.name for point in report.points if point.findings])

# %% [markdown]
# **Temperature.** With $\sigma_K = 1$, softmax acts on scores of standard deviation $\sigma_Q$, so $1/\sigma_Q$ is its
# temperature. Hot ($\sigma_Q \to 0$) attention is uniform, so the variance given the scores is a constant and the
# output is Gaussian. Cold ($\sigma_Q \to \infty$) attention picks one token, all tokens have second moment 1, and
# again the output is Gaussian. In between it is not.

# %%
sigmas = np.geomspace(0.25, 32, 15)
curve = [
    ns.Attention(K, sigma_q=s).law(heads=1, points=2**13).kurtosis() for s in sigmas
]
print(
    f"largest excess kurtosis on this grid: {max(curve):.3f}, at sigma_q ="
    f" {sigmas[np.argmax(curve)]:.2f}"
)

# %% [markdown]
# **Finite widths against the limit,** at $\sigma_Q = 2$. At finite width a nonlinearity needs the coordinates of its
# vectors, so here the cost of a replica grows with $n$.

# %%
net = layer(sigma_q=2.0, bounded=True, lipschitz=True)
limit = net.law(n=inf, draws=10_000)
laws = {width: net.law(n=width, draws=10_000) for width in (16, 64, 256)}
print(
    f"width inf: variance {limit.var():.4f}, excess kurtosis {limit.kurtosis():.4f}"
    f" ({limit.status})"
)
for width, law in laws.items():
    kl = ns.kl(law, limit)
    shown = (
        f"variance {law.var():.4f}, excess kurtosis {law.kurtosis():.4f}, KL"
        f" {kl.value:.1e} ± {kl.error:.0e}"
    )
    print(f"width {width:3}: {shown}; {law.random_numbers} random numbers per replica")

# %%
y = np.linspace(0, 4, 161)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.semilogx(sigmas, curve, "o-", color="#0072b2", ms=4, label="width ∞, one head")
left.axhline(0, color="black", lw=1.5, label="infinitely many heads (Gaussian)")
left.set(
    xlabel="sigma_q (inverse temperature)", ylabel="excess kurtosis", ylim=(-0.01, 0.2)
)
for (width, law), colour in zip(
    laws.items(), ("#56b4e9", "#009e73", "#d55e00"), strict=True
):
    right.semilogy(y, law.pdf(y), ":", color=colour, lw=2, label=f"width {width}")
right.semilogy(y, limit.pdf(y), color="#0072b2", lw=2, label="width ∞, one head")
right.semilogy(
    y,
    stats.norm(scale=limit.std()).pdf(y),
    color="black",
    lw=1.5,
    label="infinitely many heads (Gaussian)",
)
right.set(xlabel="output coordinate y", ylabel="density", xlim=(0, 4), ylim=(1e-6, 1))
left.legend(frameon=False, fontsize=8)
right.legend(frameon=False, loc="lower left", fontsize=8)
plt.show()

# %% [markdown]
# **Try next:** an unbounded activation, such as `u * np.sin(u)`, with `bounded=False`: what does `check()` say now?
