"""Numbers of the study of published results against PyTorch: a tangent kernel by
autograd, and BERT without skips.
"""

import numpy as np
import torch
from scipy import stats
from transformers import BertConfig, BertModel

from tests.internals import _dong as dong
from tests.internals import _yang as yang


def tangent_kernel(width, generator):
    """Of one network of Tensor Programs II, by autograd."""
    shapes = ((3, width), (width, width), (width, width), (width,))
    weights = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    rows = []
    for first, last in yang.HALVES:
        k = torch.tensor(yang.IMAGES[first:last]) @ weights[0] / 3**0.5
        z = normed(k + torch.softmax(k @ k.T / width, dim=1) @ k)
        h = torch.relu(z @ weights[1] / width**0.5) @ weights[2] / width**0.5
        f = (normed(h + z) @ weights[3] / width**0.5).mean()
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(f, weights)]))
    both = torch.stack(rows)
    return (both @ both.T).numpy()


def normed(x):
    return (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)


def test_tangent_kernel_matches_tensor_programs():
    """All three entries at width 16, Kolmogorov–Smirnov at level 1e-4 each; half the
    width is rejected.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = np.stack([tangent_kernel(16, generator) for _ in range(600)])
    exact, other = (
        np.asarray(
            yang.tangent_program(1, width).draw(n=width, draws=600, progress=False)
        )
        for width in (16, 8)
    )
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert stats.ks_2samp(drawn[:, i, j], exact[:, i, j]).pvalue > 1e-4
    assert stats.ks_2samp(drawn[:, 0, 0], other[:, 0, 0]).pvalue < 1e-4


def test_bert_without_residuals_matches_transformers():
    """‖res‖/‖X‖ of BERT-base after an attention layer by itself, twice: means of
    logarithms within four errors.
    """
    torch.manual_seed(0)
    found = []
    for _ in range(8):
        model = BertModel(BertConfig(num_hidden_layers=2)).double().eval()
        with torch.no_grad():
            x = model.embeddings(torch.randperm(30_000)[:128][None])
            ratios = []
            for layer in (None, *model.encoder.layer):
                if layer is not None:
                    attended = layer.attention.self(x)[0]
                    x = layer.attention.output.LayerNorm(
                        layer.attention.output.dense(attended)
                    )
                tokens = x[0].numpy()
                ratios.append(
                    dong.composite(tokens - tokens.mean(axis=0))
                    / dong.composite(tokens)
                )
        found.append(ratios)
    drawn, exact = (
        np.log(np.array(found).T),
        np.log(dong.bert(2, skip=False, mlp=False, draws=16, seed=0)["ratio"]),
    )
    for layer in range(3):
        error = np.hypot(
            drawn[layer].std(ddof=1) / 8**0.5, exact[layer].std(ddof=1) / 4
        )
        assert abs(drawn[layer].mean() - exact[layer].mean()) < 4 * error < 0.5
