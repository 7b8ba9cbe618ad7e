"""A described transformer in plain numpy: every weight drawn and multiplied, and what
an audit measures, from arrays.

Nothing of the library is used, so that it shares no mistake with it. One call is one
initialisation.
"""

import math

import numpy as np
from scipy import special

ACTIVATIONS = {
    "relu": lambda u: np.maximum(u, 0.0),
    "gelu": lambda u: u * special.ndtr(u),
    "gelu_tanh": lambda u: (
        0.5 * u * (1 + np.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
    ),
    "silu": lambda u: u * special.expit(u),
    "tanh": np.tanh,
}


def drawn(model, ids, rng):
    """One initialisation: the quantities of each block, and of the output, by name."""
    table = rng.normal(0.0, model.std_embedding, (model.vocabulary, model.width))
    if model.padding is not None:
        table[model.padding] = 0.0
    x = model.embedding_scale * table[list(ids)]
    if model.positions == "learned":
        x = (
            x
            + rng.normal(0.0, model.std_position, (model.length, model.width))[
                : len(ids)
            ]
        )
    x = x + rng.normal(0.0, model.std_type, model.width)
    x = norm(model, x) if model.input_norm else x
    made = {f"input_{name}": number for name, number in tokens(x).items()}
    rows = []
    weights = matrices(model, rng)
    for i in range(model.layers):
        weights = weights if model.shared or i == 0 else matrices(model, rng)
        x, row = block(model, x, weights, allowed(model, i, len(ids)))
        rows.append(row)
    made |= {name: np.array([row[name] for row in rows]) for name in rows[0]}
    y = norm(model, x) if model.final_norm else x
    return made | output(model, y, table, ids, rng)


def matrices(model, rng):
    n, d, m = model.width, model.d, model.hidden
    experts = () if model.experts is None else (model.experts,)
    shapes = {
        "q": (model.heads, d, n),
        "k": (model.key_heads, d, n),
        "v": (model.key_heads, d, n),
        "o": (n, model.heads * d),
        "in": (*experts, m, n),
        "gate": (*experts, m, n),
        "out": (*experts, n, m),
        "router": (model.experts or 0, n),
    }
    made = {
        name: rng.normal(0.0, getattr(model, f"std_{name}"), shape)
        for name, shape in shapes.items()
    }
    return made | {
        "b_in": rng.normal(0.0, model.bias_in, m),
        "b_out": rng.normal(0.0, model.bias_out, n),
    }


def norm(model, x, eps=None):
    if model.norm == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    return rms(x, model.eps if eps is None else eps)


def rms(x, eps):
    square = np.mean(x**2, axis=-1, keepdims=True) + eps
    return np.where(square > 0, x / np.sqrt(np.where(square > 0, square, 1.0)), 0.0)


def allowed(model, layer, tokens):
    i, j = np.ogrid[:tokens, :tokens]
    far = (
        model.window
        if model.window is not None and layer % model.window_every == 0
        else tokens
    )
    return (i - j < far) & (j - i < (1 if model.causal else far))


def block(model, x, w, mask):
    bare = model.order in ("post", "after")
    attended, scores, weights = attention(model, x if bare else norm(model, x), w, mask)
    if model.order in ("sandwich", "after"):
        attended = norm(model, attended)
    middle = x + attended
    if model.order == "post":
        middle = given = norm(model, middle)
    else:
        given = (
            middle if bare else norm(model, x if model.order == "parallel" else middle)
        )
    fed, loads = (
        perceptron(model, given, w)
        if model.experts is None
        else routed(model, given, w)
    )
    if model.order in ("sandwich", "after"):
        fed = norm(model, fed)
    stream = norm(model, middle + fed) if model.order == "post" else middle + fed
    row = tokens(stream) | choices(scores, weights, mask) | loads
    first = np.mean(x**2) + np.mean(attended**2)
    before = np.mean(middle**2) if model.order == "post" else first
    after = before + np.mean(fed**2)
    row["attention_share"] = (
        np.mean(attended**2) / first * before / after if first and after else 0.0
    )
    row["mlp_share"] = np.mean(fed**2) / after if after else 0.0
    return stream, row


def attention(model, x, w, mask):
    group = np.arange(model.heads) // (model.heads // model.key_heads)
    q, k, v = (
        np.einsum("hdn,sn->hsd", u, x) for u in (w["q"], w["k"][group], w["v"][group])
    )
    if model.qk_norm and model.qk_norm_whole:  # before keys are shared by heads
        q, k = (
            u / np.sqrt(np.mean(u[::step] ** 2, axis=(0, 2))[:, None] + model.eps)
            for u, step in ((q, 1), (k, model.heads // model.key_heads))
        )
    elif model.qk_norm:
        q, k = (rms(u, model.eps) for u in (q, k))
    if model.positions == "rotary":
        q, k = (turned(model, u) for u in (q, k))
    scores = np.einsum("hid,hjd->hij", q, k) * (
        model.d**-0.5 if model.score_scale is None else model.score_scale
    )
    if model.score_cap is not None:
        scores = model.score_cap * np.tanh(scores / model.score_cap)
    if model.positions == "alibi":  # for a number of heads that is a power of two
        slopes = 2.0 ** (-8.0 * np.arange(1, model.heads + 1) / model.heads)
        scores = scores - slopes[:, None, None] * np.abs(
            np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
        )
    weights = special.softmax(np.where(mask, scores, -np.inf), axis=-1)
    mixed = np.einsum("hij,hjd->ihd", weights, v).reshape(len(x), -1)
    return mixed @ w["o"].T, scores, weights


def turned(model, u):
    """Rotary positions by complex numbers: coordinates f and f + r/2 are one of
    them.
    """
    r = round(model.rotary_fraction * model.d)
    angle = np.outer(
        np.arange(u.shape[1]), model.rotary_base ** (-2.0 * np.arange(r // 2) / r)
    )
    z = (u[..., : r // 2] + 1j * u[..., r // 2 : r]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag, u[..., r:]], axis=-1)


def perceptron(model, x, w):
    f, h = ACTIVATIONS[model.activation], x @ w["in"].T + w["b_in"]
    return (f(x @ w["gate"].T) * h if model.gated else f(h)) @ w["out"].T + w[
        "b_out"
    ], {}


def routed(model, x, w):
    """A mixture of experts, token by token; what they make, and the loads."""
    made, loads = np.zeros_like(x), np.zeros(model.experts)
    f = ACTIVATIONS[model.activation]
    for token, u in enumerate(x):
        logits = w["router"] @ u
        chosen = np.argsort(logits)[-model.experts_per_token :]
        loads[chosen] += 1
        for e, share in zip(chosen, special.softmax(logits[chosen]), strict=True):
            h = w["in"][e] @ u
            made[token] += share * (
                w["out"][e] @ (f(w["gate"][e] @ u) * h if model.gated else f(h))
            )
    return made, {
        "largest_load": loads.max() / loads.mean(),
        "least_load": loads.min() / loads.mean(),
    }


def tokens(x):
    size = np.linalg.norm(x, axis=1)
    pairs = [(a, b) for a in range(len(x)) for b in range(a)]
    cosines = [
        x[a] @ x[b] / size[a] / size[b] if size[a] * size[b] else 0.0 for a, b in pairs
    ]
    p = np.linalg.svd(x, compute_uv=False) ** 2
    p = p / p.sum() if p.sum() else p
    return {
        "mean_square": np.mean(x**2),
        "cosine": np.mean(cosines),
        "effective_rank": np.exp(special.entr(p).sum()),
    }


def choices(scores, weights, mask):
    rows = [i for i in range(len(mask)) if mask[i].sum() > 1]
    relative = [
        special.entr(weights[:, i]).sum(axis=-1) / math.log(mask[i].sum()) for i in rows
    ]
    return {
        "score_std": scores[:, mask].std(),
        "score_max": scores[:, mask].max(),
        "entropy": np.mean(relative) if rows else 1.0,
        "largest_weight": weights[:, rows].max() if rows else 1.0,
    }


def output(model, y, table, ids, rng):
    y, targets = (y[:-1], ids[1:]) if model.causal else (y, ids)
    if model.readout == "transform":
        hidden = y @ rng.normal(0.0, model.std_logits, (model.width, model.width)).T
        y = norm(model, ACTIVATIONS[model.activation](hidden))
    words = table if model.tied else rng.normal(0.0, model.std_logits, table.shape)
    logits = model.logit_scale * y @ words.T
    if model.logit_cap is not None:
        logits = model.logit_cap * np.tanh(logits / model.logit_cap)
    each = special.log_softmax(logits, axis=-1)
    return {
        "logit_std": logits.std(),
        "loss": -np.mean(each[np.arange(len(targets)), list(targets)]),
        "max_probability": np.exp(each.max()),
    }
