"""The networks of published results, as programs, against PyTorch's own layers and
gradients: the same laws.
"""

import math

import numpy as np
import pytest
from scipy import stats

from tests.internals import (
    TEXT,
    VOCABULARY_SIZE,
    _deepscale,
    encoder,
    ids,
    query_gradient,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
LEVEL, DRAWS = 1e-4, 1_000
F = torch.nn.functional


def normal(rng, *shape, std=1.0):
    return std * torch.randn(*shape, generator=rng, dtype=torch.float64)


def embedded(rng, tokens, width, word, position):
    words = normal(rng, VOCABULARY_SIZE, width, std=word)
    x = (
        words[ids(tokens)]
        + normal(rng, tokens, width, std=position)
        + normal(rng, 1, width, std=0.02)
    )
    return words, F.layer_norm(x, (width,), eps=1e-12)


def layer(rng, x, width, beta, longest, dropout=0.0):
    """One layer of the encoder of Giorlandino and Goldt; the matrix of queries, and
    what comes out.
    """
    d, v, b = width, math.sqrt(0.2 / width), math.sqrt(4e-4)
    std = math.sqrt(beta) * math.log(longest) ** 0.25 / math.sqrt(d)
    query = normal(rng, d, d, std=std).requires_grad_()
    q, k = x @ query.T, x @ normal(rng, d, d, std=std).T
    a = F.dropout(torch.softmax(q @ k.T / math.sqrt(d), -1), dropout)
    y = a @ (x @ normal(rng, d, d, std=v).T + normal(rng, 1, d, std=b))
    x = F.layer_norm(x + F.dropout(y, dropout), (d,), eps=1e-12)
    h = torch.relu(x @ normal(rng, d, d, std=v).T + normal(rng, 1, d, std=b))
    y = h @ normal(rng, d, d, std=v).T + normal(rng, 1, d, std=b)
    return query, F.layer_norm(x + F.dropout(y, dropout), (d,), eps=1e-12)


def test_encoder_has_the_law_of_torch():
    """The value's bias is mixed by weights that sum to 1, so that it is added as it
    is.
    """
    tokens, width, layers, rng = 12, 24, 8, torch.Generator().manual_seed(1)
    found = []
    for _ in range(DRAWS):
        _, x = embedded(rng, tokens, width, 0.1, 0.1)
        for _ in range(layers):
            _, x = layer(rng, x, width, 3.0, 512)
        c = F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).T
        found.append(((c.sum() - tokens) / (tokens * (tokens - 1))).item())
    ours = np.asarray(
        encoder(tokens, 3.0, layers).draw(n=width, draws=DRAWS, seed=2, progress=False)
    )[:, -1]
    assert stats.ks_2samp(found, ours).pvalue > LEVEL
    flatter = np.asarray(
        encoder(tokens, 0.3, layers).draw(n=width, draws=DRAWS, seed=2, progress=False)
    )[:, -1]
    assert stats.ks_2samp(found, flatter).pvalue < LEVEL  # another β is rejected


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradient_of_queries_has_the_law_of_torch(dropout):
    """With the whole cross-entropy over 2000 words, where ours has it to first order in
    the logits.
    """
    tokens, width, rng = 6, 16, torch.Generator().manual_seed(3)
    torch.manual_seed(4)  # of dropout
    found = []
    for _ in range(DRAWS):
        words, x = embedded(rng, tokens, width, 0.01, 0.05)
        query, x = layer(rng, F.dropout(x, dropout), width, 2.0, tokens, dropout)
        z = F.layer_norm(
            torch.relu(x @ normal(rng, width, width, std=0.02).T), (width,), eps=1e-12
        )
        F.cross_entropy(z @ words.T, torch.tensor(ids(tokens))).backward()
        found.append((query.grad**2).sum().item())
    ours = np.asarray(
        query_gradient(tokens, 2.0, width, dropout).draw(
            draws=DRAWS, seed=5, progress=False
        )
    )
    assert stats.ks_2samp(found, ours).pvalue > LEVEL
    assert stats.ks_2samp(found, 1.5 * ours).pvalue < LEVEL


def test_gradient_of_a_head_has_the_law_of_torch():
    tokens, width, head, rng = 8, 12, 6, torch.Generator().manual_seed(6)
    found = []
    for _ in range(DRAWS):
        x = normal(rng, tokens, width).requires_grad_()
        q, k, v = (
            x @ normal(rng, width, head, std=1 / math.sqrt(width)) for _ in range(3)
        )
        y = torch.softmax(q @ k.T / math.sqrt(head), -1) @ v
        (y * normal(rng, tokens, head)).sum().backward()
        found.append((x.grad**2).mean().item())
    net = _deepscale.head_gradient(tokens, width, head, 1.0, 0.0)
    ours = np.asarray(net.draw(draws=DRAWS, seed=7, progress=False))[:, 0]
    assert stats.ks_2samp(found, ours).pvalue > LEVEL


def test_text_is_as_repetitive_as_the_published_one():
    """The mean cosine of tokens before the first layer, 0.025 in their figure."""
    same = np.equal.outer(ids(192), ids(192)).sum() - 192
    share = same / (192 * 191)
    assert (0.02**2 + 0.1**2 * share) / (2 * 0.1**2 + 0.02**2) == pytest.approx(
        0.025, abs=0.002
    )
    assert len(TEXT.split()) >= 192
