"""The tangent kernel of attention, by PyTorch's autograd on matrices that are drawn,
against the law of `ns.ntk`.

Two samples, Kolmogorov–Smirnov; level 1e-4 for all quantities of a case together; seeds
are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import netsor as ns

LEVEL = 1e-4
TOKENS = 4


def outputs(
    weights: dict[str, torch.Tensor], x: torch.Tensor, r: torch.Tensor
) -> torch.Tensor:
    """Two outputs at the first token; the weights are N(0, 1) variables, of shapes
    (heads, n, n) and (n, heads n).
    """
    width = x.shape[-1]
    q, k, v = (
        torch.einsum("hab,ib->hia", weights[name], x) / width**0.5 for name in "qkv"
    )
    a = torch.softmax(q[:, :1] @ k.transpose(1, 2) / width**0.5, dim=-1)
    u = (a @ v)[:, 0].reshape(-1)
    return r @ (weights["o"] @ u / len(u) ** 0.5) / width**0.5


def drawn(heads: int, width: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and kernels of networks, one by one: every matrix drawn, every gradient
    by autograd.
    """
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    made, kernels = [], []
    for _ in range(draws):
        weights = {name: normal(heads, width, width) for name in "qkv"} | {
            "o": normal(width, heads * width)
        }
        for weight in weights.values():
            weight.requires_grad_()
        f = outputs(weights, normal(TOKENS, width), normal(2, width))
        rows = [
            torch.autograd.grad(f[b], list(weights.values()), retain_graph=True)
            for b in range(2)
        ]
        jacobian = torch.stack(
            [torch.cat([g.reshape(-1) for g in row]) for row in rows]
        )
        made.append(f.detach().numpy())
        kernels.append((jacobian @ jacobian.T).numpy())
    return np.array(made), np.array(kernels)


def statistics(f: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Both outputs, the kernel, and its products with theirs: these tell what depends
    on what.
    """
    own, between = kernel[:, 0, 0], kernel[:, 0, 1]
    products = [f[:, 0] ** 2 * own, f[:, 0] * f[:, 1] * between, f[:, 0] * own]
    return np.stack([f[:, 0], own, kernel[:, 1, 1], between, *products], axis=1)


@pytest.mark.parametrize(
    ("heads", "width", "draws"),
    [(1, 16, 4000), (4, 16, 4000), (1, 64, 3000), (4, 64, 1500)],
)
def test_tangent_kernel_of_a_module_matches_autograd(
    heads: int, width: int, draws: int
) -> None:
    n = ns.Width("n")
    x, r = ns.gaussian(n, TOKENS), ns.gaussian(n, 2)
    f = ns.dot(r, ns.nn.attention(x, heads)[0])
    net = ns.Program((f, ns.ntk(f)))
    real = statistics(*drawn(heads, width, draws))
    p = [
        [
            stats.ks_2samp(a, b).pvalue
            for a, b in zip(
                real.T, statistics(*net.draw(n=m, draws=20_000)).T, strict=True
            )
        ]
        for m in (width, width // 2)
    ]
    print(
        f"H = {heads}, n = {width}: mean {real[:, 1].mean():.3f}, p {np.round(p[0], 2)}"
    )
    assert min(p[0]) > LEVEL / real.shape[1]
    assert min(p[1]) < LEVEL / real.shape[1]  # another width is rejected
