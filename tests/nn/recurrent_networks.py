"""Recurrent layers in plain numpy, token by token with matrices of states, given their
parameters.

Tokens are (tokens, n). Parameters are entries of matrices as code has them, with a
leading axis of heads or groups, also those with one row.
"""

import numpy as np


def softplus(z):
    return np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0.0)


def sigmoid(z):
    return np.exp(-softplus(-z))


def silu(z):
    return z * sigmoid(z)


def rms(u, eps=0.0):
    return u / np.sqrt((u**2).mean(-1, keepdims=True) + eps)


def unit(u):
    return u / np.sqrt((u**2).sum(-1, keepdims=True))


def convolved(u, taps, bias=0.0):
    """Σ_k taps[k] ⊙ u[t − k] + bias, for u (tokens, channels)."""
    y = np.zeros_like(u)
    for t in range(len(u)):
        for lag in range(min(len(taps), t + 1)):
            y[t] += taps[lag] * u[t - lag]
    return y + bias


def projected(x, matrices):
    """(heads, tokens, rows)."""
    return np.array([x @ w.T for w in matrices])


def finished(outputs, w, x, norm=None, gate=None):
    """The norm of each head, the gate and the output matrix, as in RetNet and
    DeltaNet.
    """
    mixed = []
    for head, y in enumerate(outputs):
        y = y if norm is None else norm(y)
        if gate is not None:
            y = y * gate(x @ w["W^G"][head].T)
        mixed.append(y)
    return np.concatenate(mixed, axis=-1) @ w["W^O"].T


def linear_attention(
    x, w, *, feature_map=None, normalize=False, scale=None, norm=None, gate=None
):
    q, k, v = (projected(x, w[name]) for name in ("W^Q", "W^K", "W^V"))
    if feature_map is not None:
        q, k = feature_map(q), feature_map(k)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    outputs = []
    for head in range(len(q)):
        group = head // (len(q) // len(k))
        state = np.zeros((v.shape[-1], k.shape[-1]))
        total = np.zeros(k.shape[-1])
        y = []
        for t in range(len(x)):
            state = state + np.outer(v[group, t], k[group, t])
            total = total + k[group, t]
            read = scale * state @ q[head, t]
            y.append(read / (scale * total @ q[head, t]) if normalize else read)
        outputs.append(np.array(y))
    return finished(outputs, w, x, norm, gate)


def retention(x, w, *, gamma, norm=None, gate=None):
    q, k, v = (projected(x, w[name]) for name in ("W^Q", "W^K", "W^V"))
    outputs = []
    for head in range(len(q)):
        state = np.zeros((v.shape[-1], k.shape[-1]))
        y = []
        for t in range(len(x)):
            state = gamma[head] * state + np.outer(v[head, t], k[head, t])
            y.append(state @ q[head, t] * q.shape[-1] ** -0.5)
        outputs.append(np.array(y))
    return finished(outputs, w, x, norm, gate)


def mamba2(
    x, w, *, rates, dt_bias=0.0, limits=None, skip=0.0, taps=None, norm=None, gate=None
):
    heads = len(w["w^Δ"])
    v, b, c = (projected(x, w[name]) for name in ("W^V", "W^B", "W^C"))
    if taps is not None:
        v, b, c = (
            silu(
                np.array([convolved(*pair) for pair in zip(u, taps[key], strict=True)])
            )
            for key, u in (("v", v), ("b", b), ("c", c))
        )
    dt_bias, skip = np.broadcast_to(dt_bias, heads), np.broadcast_to(skip, heads)
    outputs = []
    for head in range(heads):
        group = head // (heads // len(b))
        steps = softplus(x @ w["w^Δ"][head, 0] + dt_bias[head])
        if limits is not None:
            steps = np.clip(steps, *limits)
        state = np.zeros((v.shape[-1], b.shape[-1]))
        y = []
        for t in range(len(x)):
            state = np.exp(-rates[head] * steps[t]) * state
            state = state + steps[t] * np.outer(v[head, t], b[group, t])
            y.append(state @ c[group, t] + skip[head] * v[head, t])
        y = np.array(y)
        if gate is not None:
            y = y * gate(x @ w["W^G"][head].T)
        outputs.append(y)
    if norm is not None:
        groups = np.array_split(outputs, len(b))
        outputs = [norm(np.concatenate(group, axis=-1)) for group in groups]
    return np.concatenate(outputs, axis=-1) @ w["W^O"].T


def gated_delta(
    x, w, *, rates, dt_bias=0.0, beta_max=1.0, key_norm=unit, norm=None, gate=None
):
    heads = len(w["w^β"])
    q, k, v = (projected(x, w[name]) for name in ("W^Q", "W^K", "W^V"))
    q, k = key_norm(q) * q.shape[-1] ** -0.5, key_norm(k)
    rates, dt_bias = np.broadcast_to(rates, heads), np.broadcast_to(dt_bias, heads)
    outputs = []
    for head in range(heads):
        group = head // (heads // len(q))
        beta = beta_max * sigmoid(x @ w["w^β"][head, 0])
        alpha = np.ones(len(x))
        if rates[head]:
            steps = softplus(x @ w["w^Δ"][head, 0] + dt_bias[head])
            alpha = np.exp(-rates[head] * steps)
        state = np.zeros((v.shape[-1], q.shape[-1]))
        y = []
        for t in range(len(x)):
            state = alpha[t] * state
            written = beta[t] * (v[head, t] - state @ k[group, t])
            state = state + np.outer(written, k[group, t])
            y.append(state @ q[group, t])
        outputs.append(np.array(y))
    return finished(outputs, w, x, norm, gate)
