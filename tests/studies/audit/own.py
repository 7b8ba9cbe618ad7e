"""The networks of the examples in plain numpy: every matrix drawn and multiplied, and
what an audit measures.

Nothing of the library is used, so that it shares no mistake with it. One call is one
initialisation.
"""

import numpy as np
from scipy import special

from ...models.plain import ACTIVATIONS, choices, rms, tokens

CAUSAL = np.tri(64, dtype=bool)


def matrix(rng, rows, columns, batch=(), sigma=1.0):
    return rng.normal(0.0, sigma / columns**0.5, (*batch, rows, columns))


def on(w, x):
    """A batch of matrices on tokens: (heads, tokens, d)."""
    return np.einsum("hdn,sn->hsd", w, x)


def joined(x):
    """Heads set end to end."""
    return np.moveaxis(x, 0, 1).reshape(x.shape[1], -1)


def softmax(p):
    return special.softmax(
        np.where(CAUSAL[: p.shape[-2], : p.shape[-1]], p, -np.inf), axis=-1
    )


def block(before, branches, stream, scores=None, weights=None):
    total = sum(np.mean(u**2) for u in (before, *branches.values()))
    row = tokens(stream) | {
        f"{name}_share": np.mean(u**2) / total for name, u in branches.items()
    }
    mask = CAUSAL[: len(stream), : len(stream)]
    given = scores if weights is None else weights
    found = choices(given if scores is None else scores, given, mask)
    kept = (["score_std", "score_max"] if scores is not None else []) + (
        ["entropy", "largest_weight"] if weights is not None else []
    )
    return row | {name: found[name] for name in kept}


def ends(embedded, rows, y, words, rng, sigma=1.0):
    logits = y @ matrix(rng, words, y.shape[1], sigma=sigma).T
    each = special.log_softmax(logits, axis=-1)
    made = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    made |= {f"input_{name}": number for name, number in tokens(embedded).items()}
    return made | {
        "logit_std": logits.std(),
        "loss": -each.mean(),
        "max_probability": np.exp(each.max()),
    }


def parallel(rng, n, count=8, blocks=4, heads=4, width=256, std=0.02, d=32):
    x = embedded = rng.normal(0.0, std, (count, n))
    rows, sigma = [], std * width**0.5
    for _ in range(blocks):
        u = rms(x, 0.0)
        q, k, v = (on(matrix(rng, d, n, (heads,), sigma), u) for _ in range(3))
        scores = np.einsum("hid,hjd->hij", rms(q, 0.0), rms(k, 0.0)) / d**0.5
        weights = softmax(scores)
        a = (
            joined(weights @ v)
            @ matrix(rng, n, heads * d, sigma=std * (d * heads) ** 0.5).T
        )
        h = ACTIVATIONS["gelu"](u @ matrix(rng, 4 * n, n, sigma=sigma).T)
        f = h @ matrix(rng, n, 4 * n, sigma=2 * sigma).T
        rows.append(block(x, {"attention": a, "mlp": f}, x + a + f, scores, weights))
        x = x + a + f
    return ends(embedded, rows, rms(x, 0.0), 1000, rng, sigma)


def swiglu(rng, x):
    n = x.shape[1]
    gate, up, down = matrix(rng, 2 * n, n), matrix(rng, 2 * n, n), matrix(rng, n, 2 * n)
    return (ACTIVATIONS["silu"](x @ gate.T) * (x @ up.T)) @ down.T


def stacked(attend, rng, n, count, blocks):
    """Pre-norm blocks: attend(u) gives what is added, scores and weights."""
    x = embedded = rng.normal(size=(count, n))
    rows = []
    for _ in range(blocks):
        a, scores, weights = attend(rms(x, 0.0))
        f = swiglu(rng, rms(x + a, 0.0))
        rows.append(block(x, {"attention": a, "mlp": f}, x + a + f, scores, weights))
        x = x + a + f
    return ends(embedded, rows, rms(x, 0.0), 50, rng)


def differential(rng, n, count=6, blocks=2, heads=2, d=8, weight=0.8):
    def attend(u):
        scores = [
            np.einsum(
                "hid,hjd->hij", *(on(matrix(rng, d, n, (heads,)), u) for _ in "qk")
            )
            / d**0.5
            for _ in "12"
        ]
        first, second = map(softmax, scores)
        v = on(matrix(rng, 2 * d, n, (heads,)), u)
        mixed = (1 - weight) * rms((first - weight * second) @ v, 1e-5)
        made = joined(mixed) @ matrix(rng, n, 2 * heads * d).T
        return made, np.concatenate(scores), np.concatenate([first, second])

    return stacked(attend, rng, n, count, blocks)


def linear(rng, n, count=6, blocks=2, heads=2, d=8, slow=16):
    """By its recurrence: a state that is multiplied by the gates of a token, then added
    to.
    """

    def attend(u):
        q, k, v, g, r = (on(matrix(rng, d, n, (heads,)), u) for _ in range(5))
        gate = special.expit(g) ** (1 / slow)
        state, made, scores = (
            np.zeros((heads, d, d)),
            np.zeros((heads, count, d)),
            np.zeros((heads, count, count)),
        )
        # the keys of earlier tokens, with the gates since
        decayed = np.zeros((heads, count, d))
        for i in range(count):
            state = gate[:, i, :, None] * state + k[:, i, :, None] * v[:, i, None, :]
            made[:, i] = np.einsum("hd,hde->he", q[:, i], state) / d**0.5
            decayed *= gate[:, i, None]
            decayed[:, i] = k[:, i]
            scores[:, i] = np.einsum("hd,hjd->hj", q[:, i], decayed) / d**0.5
        mixed = rms(made, 1e-5) * ACTIVATIONS["silu"](r)
        return joined(mixed) @ matrix(rng, n, heads * d).T, scores, None

    return stacked(attend, rng, n, count, blocks)


def experts(rng, n, count=8, blocks=2, heads=2, number=4, d=8):
    x = embedded = rng.normal(size=(count, n))
    rows = []
    for _ in range(blocks):
        u = rms(x, 0.0)
        scores = (
            np.einsum(
                "hid,hjd->hij", *(on(matrix(rng, d, n, (heads,)), u) for _ in "qk")
            )
            / d**0.5
        )
        weights = softmax(scores)
        a = (
            joined(weights @ on(matrix(rng, d, n, (heads,)), u))
            @ matrix(rng, n, heads * d).T
        )
        u, f = rms(x + a, 0.0), np.zeros_like(x)
        router, loads = u @ matrix(rng, number, n).T, np.zeros(number)
        networks = [
            (matrix(rng, 2 * n, n), matrix(rng, n, 2 * n)) for _ in range(number)
        ]
        for token, logits in enumerate(router):
            chosen = np.argsort(logits)[-2:]
            loads[chosen] += 1
            for expert, share in zip(
                chosen, special.softmax(logits[chosen]), strict=True
            ):
                first, last = networks[expert]
                f[token] += share * (last @ np.maximum(first @ u[token], 0.0))
        row = block(x, {"attention": a, "mlp": f}, x + a + f, scores, weights)
        rows.append(
            row
            | {
                "largest_load": loads.max() / loads.mean(),
                "least_load": loads.min() / loads.mean(),
            }
        )
        x = x + a + f
    return ends(embedded, rows, rms(x, 0.0), 50, rng)


NETWORKS = {
    "parallel": parallel,
    "differential": differential,
    "linear": linear,
    "experts": experts,
}
