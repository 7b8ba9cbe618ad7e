"""The three findings in plain PyTorch: every matrix is drawn, gradients are autograd's."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.internals import _positions, _recurrent, _words

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peers
LEVEL = 1e-4


def same_law(real, ours, shift):
    """Neither sample is refused; and one that is moved by `shift` is."""
    assert stats.ks_2samp(real, ours).pvalue > LEVEL
    assert stats.ks_2samp(np.asarray(real) + shift, ours).pvalue < LEVEL


def small_gpt2():
    """GPT-2 with three blocks of width 48, without dropout, on ids 0, 1, …"""
    config = transformers.GPT2Config(
        n_embd=48,
        n_layer=3,
        n_head=2,
        n_positions=16,
        vocab_size=32,
        initializer_range=0.2,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        activation_function="gelu",
    )
    return transformers.GPT2Model(config)


def cosine_of(first, second):
    return torch.nn.functional.cosine_similarity(first, second, dim=0).item()


def test_words_cosines_of_gpt2(monkeypatch):
    """Two contexts of four words; learned positions are common to both."""
    torch.manual_seed(0)
    found = []
    ids = torch.arange(8).reshape(2, 4)
    for _ in range(500):
        with torch.no_grad():
            last = small_gpt2()(ids).last_hidden_state[:, -1]
        found.append(cosine_of(*last))
    model = _words.models.read(small_gpt2().config)
    net = _words.contexts_of(model, 2, 4)
    grams = net.draw(draws=2000, seed=1, progress=False, **model.widths())
    same_law(found, _words.mean_cosine(np.asarray(grams)), 0.1)


@pytest.mark.parametrize("activation", ["ReLU", "SwiGLU"])
def test_words_cosines_through_32_blocks(activation):
    """The stack of the finding at width 256."""
    n, tokens, heads, contexts = 256, 4, 32, 4
    rng = torch.Generator().manual_seed(2)
    sigma = _words.STD * math.sqrt(_words.WIDTH)
    gated = activation == "SwiGLU"
    hidden = _words.HIDDEN[gated] * n // _words.WIDTH
    sigma_out = _words.STD * math.sqrt(_words.HIDDEN[gated])

    def matrix(out, fan_in, scale):
        return scale / math.sqrt(fan_in) * torch.randn(out, fan_in, generator=rng)

    def normed(x):
        return x / x.square().mean(-1, keepdim=True).sqrt()

    found = []
    for _ in range(40):
        x = _words.STD * torch.randn(contexts, tokens, n, generator=rng)
        for _ in range(_words.DEPTH):
            u = normed(x)
            q, k, v = (
                (u @ matrix(n, n, sigma).T).unflatten(-1, (heads, -1)).transpose(1, 2)
                for _ in range(3)
            )
            mixed = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True
            )
            mixed = mixed.transpose(1, 2).flatten(-2)
            x = x + mixed @ matrix(n, n, sigma).T
            u = normed(x)
            h = u @ matrix(hidden, n, sigma).T
            if gated:
                up = u @ matrix(hidden, n, sigma).T
                h = torch.nn.functional.silu(h) * up
            else:
                h = torch.relu(h)
            x = x + h @ matrix(n, hidden, sigma_out).T
        last = x[:, -1].double()
        found.append(_words.mean_cosine((last @ last.T).numpy()))
    ours = _words.stacks(activation, tokens, n, 200, seed=3)["cosine"][:, -1]
    same_law(found, ours, 0.3)


def test_shares_of_gpt2(monkeypatch):
    """Shares of six tokens in the gradient of a random readout of the last."""
    size = _positions.Size(3, 48, 192, heads=2, groups=2, gated=False, scaled=True)
    monkeypatch.setitem(_positions.MODELS, "gpt2", size)
    monkeypatch.setattr(_positions, "HEAD_DIM", 24)
    monkeypatch.setattr(_positions, "STD", 0.2)
    torch.manual_seed(1)
    tokens, found = 6, []
    for _ in range(600):
        model = small_gpt2()
        words = model.wte(torch.arange(tokens))[None].detach().requires_grad_()
        last = model(inputs_embeds=words).last_hidden_state[0, -1]
        (torch.randn(48) @ last).backward()
        square = words.grad[0].square().sum(-1)
        found.append((square / square.sum()).numpy())
    real = np.array(found)
    ours = _positions.sampled("gpt2", tokens, "learned", 0, 0, 2000, seed=4)["shares"]
    for position in (0, 2, 5):
        same_law(real[:, position], ours[:, position], 0.1)


def test_shares_of_a_long_context_without_scores():
    """Uniform attention over 64 tokens, six blocks of width 512: the limit's shares."""
    n, tokens, depth = 512, 64, 6
    network = _positions.network("gpt2", depth)
    exact = _positions.limits("gpt2", tokens, depth, 0, 0, seed=0)["shares"][0]
    mixing = torch.tensor(_positions.Uniform(tokens).matrix(), dtype=torch.float32)
    rng = torch.Generator().manual_seed(5)

    def matrix(out, fan_in, scale):
        return scale / math.sqrt(fan_in) * torch.randn(out, fan_in, generator=rng)

    def normed(x):
        return x / x.square().mean(-1, keepdim=True).sqrt()

    found = []
    for _ in range(30):
        words = network.embedding * torch.randn(tokens, n, generator=rng)
        words.requires_grad_()
        x = words
        for _ in range(depth):
            values = normed(x) @ matrix(n, n, 1.0).T
            x = x + mixing @ values @ matrix(n, n, network.values).T
            h = torch.nn.functional.gelu(normed(x) @ matrix(4 * n, n, network.hidden).T)
            x = x + h @ matrix(n, 4 * n, network.out).T
        (torch.randn(n, generator=rng) @ normed(x)[-1]).backward()
        square = words.grad.square().sum(-1)
        found.append((square / square.sum()).numpy())
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(len(found))
    for position in (0, 1, 32, 62, 63):
        close = 0.03 * exact[position]  # of order 1/n
        assert abs(mean[position] - exact[position]) < 4 * error[position] + close
    assert np.abs(mean - exact)[-1] < 0.05 * exact[-1]


def test_variance_of_linear_attention_at_width_16():
    """Twice that of the limit, with real matrices and states."""
    n, tokens, heads, nets = 16, _recurrent.TOKENS, _recurrent.HEADS, 60_000
    rng = torch.Generator().manual_seed(6)

    def matrix(*shape):
        return torch.randn(nets, *shape, generator=rng) / math.sqrt(shape[-1])

    h = torch.randn(nets, 1, n, generator=rng)
    x = torch.cat([h @ matrix(n, n).mT for _ in range(tokens)], dim=1)
    outputs = []
    for _ in range(heads):
        q, k, v = (x @ matrix(n, n).mT for _ in range(3))
        state = torch.zeros(nets, n, n)
        for t in range(tokens):
            state = state + v[:, t, :, None] * k[:, t, None, :]
        outputs.append((state @ q[:, -1, :, None])[..., 0] / math.sqrt(n))
    y = (matrix(heads * n)[:, None] @ torch.cat(outputs, 1)[..., None]).flatten()
    square = y.double().square()
    error = (square.std() / math.sqrt(nets)).item()
    exact = _recurrent.closed_variance("linear", n)
    assert abs(square.mean().item() - exact) < 4 * error < 0.1 * exact
    limit = _recurrent.closed_variance("linear", math.inf)
    assert square.mean().item() - limit > 10 * error
