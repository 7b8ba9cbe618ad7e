"""Gradients of a described transformer in plain numpy: every weight drawn, and a tape
that is read backwards.

Nothing of the library is used, so that it shares no mistake with it. One call is one
initialisation.
"""

import math

import numpy as np
from scipy import special

from .plain import ACTIVATIONS, allowed, matrices

ROOT = math.sqrt(2 / math.pi)
SLOPES = {
    "gelu_tanh": lambda u: _gelu_slope(u, np.tanh(ROOT * (u + 0.044715 * u**3))),
    "silu": lambda u: special.expit(u) * (1 + u * (1 - special.expit(u))),
    "gelu": lambda u: (
        special.ndtr(u) + u * np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
    ),
    "relu": lambda u: (u > 0).astype(float),
}
KINDS = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "output",
    "in": "in",
    "gate": "gate",
    "out": "out",
}


def _gelu_slope(u, t):
    return 0.5 * (1 + t) + 0.5 * u * (1 - t**2) * ROOT * (1 + 3 * 0.044715 * u**2)


class Node:
    """An array, and how its gradient goes on to those that it was made of."""

    def __init__(self, value, *back):
        self.value, self.back, self.grad = value, back, np.zeros_like(value)


def read_back(loss):
    order, seen = [], set()

    def visit(node):
        if id(node) not in seen:
            seen.add(id(node))
            for parent, _ in node.back:
                visit(parent)
            order.append(node)

    visit(loss)
    loss.grad = np.ones_like(loss.value)
    for node in reversed(order):
        for parent, pull in node.back:
            parent.grad = parent.grad + pull(node.grad)


def einsum(spec, a, b):
    (left, right), out = spec.split("->")[0].split(","), spec.split("->")[1]
    return Node(
        np.einsum(spec, a.value, b.value),
        (a, lambda g: np.einsum(f"{out},{right}->{left}", g, b.value)),
        (b, lambda g: np.einsum(f"{left},{out}->{right}", a.value, g)),
    )


def add(a, b):
    return Node(a.value + b.value, (a, lambda g: g), (b, lambda g: g))


def each(f, slope, a):
    return Node(f(a.value), (a, lambda g: g * slope(a.value)))


def rows(a, index):
    def pull(g):
        made = np.zeros_like(a.value)
        np.add.at(made, index, g)
        return made

    return Node(a.value[index], (a, pull))


def reshaped(a, shape):
    return Node(a.value.reshape(shape), (a, lambda g: g.reshape(a.value.shape)))


def linear(f, transposed, a):
    return Node(f(a.value), (a, transposed))


def softmax(a, mask):
    p = special.softmax(np.where(mask, a.value, -np.inf), axis=-1)
    return Node(p, (a, lambda g: p * (g - (p * g).sum(axis=-1, keepdims=True))))


def cross_entropy(a, targets):
    z = special.log_softmax(a.value, axis=-1)
    at = np.arange(len(targets)), list(targets)
    hot = np.zeros_like(z)
    hot[at] = 1.0
    return Node(-np.mean(z[at]), (a, lambda g: g * (np.exp(z) - hot) / len(targets)))


def rms(x, eps):
    letters = "abcd"[: x.value.ndim - 1]
    square = einsum(f"{letters}n,{letters}n->{letters}", x, x)
    n = x.value.shape[-1]
    inverse = each(
        lambda s: (s / n + eps) ** -0.5,
        lambda s: -0.5 / n * (s / n + eps) ** -1.5,
        square,
    )
    return einsum(f"{letters},{letters}n->{letters}n", inverse, x)


def norm(model, x):
    if model.norm == "layer":
        x = linear(*[lambda u: u - u.mean(axis=-1, keepdims=True)] * 2, x)
    return rms(x, model.eps)


def attention(model, x, w, mask):
    group = np.arange(model.heads) // (model.heads // model.key_heads)
    q, k, v = (einsum("hdn,sn->hsd", w[name], x) for name in "qkv")
    k, v = rows(k, group), rows(v, group)
    if model.qk_norm:
        q, k = rms(q, model.eps), rms(k, model.eps)
    if model.positions == "rotary":
        q, k = (
            linear(lambda u: turned(model, u, 1), lambda g: turned(model, g, -1), u)
            for u in (q, k)
        )
    scores = einsum("hid,hjd->hij", q, k)
    scale = model.d**-0.5 if model.score_scale is None else model.score_scale
    scores = each(lambda p: scale * p, lambda p: scale, scores)
    if model.score_cap is not None:
        c = model.score_cap
        scores = each(
            lambda p: c * np.tanh(p / c), lambda p: 1 - np.tanh(p / c) ** 2, scores
        )
    mixed = einsum("hij,hjd->ihd", softmax(scores, mask), v)
    return einsum("ne,se->sn", w["o"], reshaped(mixed, (len(x.value), -1)))


def turned(model, u, sign):
    r = round(model.rotary_fraction * model.d)
    angle = np.outer(
        np.arange(u.shape[1]), model.rotary_base ** (-2.0 * np.arange(r // 2) / r)
    )
    z = (u[..., : r // 2] + 1j * u[..., r // 2 : r]) * np.exp(sign * 1j * angle)
    return np.concatenate([z.real, z.imag, u[..., r:]], axis=-1)


def perceptron(model, x, w):
    f, slope = ACTIVATIONS[model.activation], SLOPES[model.activation]
    h = einsum("mn,sn->sm", w["in"], x)
    h = Node(
        h.value + w["b_in"].value,
        (h, lambda g: g),
        (w["b_in"], lambda g: g.sum(axis=0)),
    )
    if model.gated:
        h = einsum("sm,sm->sm", each(f, slope, einsum("mn,sn->sm", w["gate"], x)), h)
    else:
        h = each(f, slope, h)
    return einsum("nm,sm->sn", w["out"], h)


def block(model, x, w, mask):
    post, sandwich = model.order == "post", model.order == "sandwich"
    attended = attention(model, x if post else norm(model, x), w, mask)
    middle = add(x, norm(model, attended) if sandwich else attended)
    middle = norm(model, middle) if post else middle
    fed = perceptron(
        model,
        middle if post else norm(model, x if model.order == "parallel" else middle),
        w,
    )
    stream = add(middle, norm(model, fed) if sandwich else fed)
    return norm(model, stream) if post else stream


def passed(model, ids, rng):
    """Forward: the loss; the stream before each block and after the last; matrices of
    each block, and of the ends.

    Last, for each array in the order of drawing, the nodes that hold it: several, if
    blocks are copies of one draw.
    """
    numbers = rng.normal(0.0, model.std_embedding, (model.vocabulary, model.width))
    if model.padding is not None:
        numbers[model.padding] = 0.0
    table = Node(numbers)
    drawn = [[table]]
    used = rows(table, list(ids))
    if model.padding is not None:  # PyTorch gives this row no gradient by the input
        used = linear(
            *[lambda u: np.where(np.array(ids)[:, None] == model.padding, 0.0, u)] * 2,
            used,
        )
    x = each(lambda u: model.embedding_scale * u, lambda u: model.embedding_scale, used)
    if model.positions == "learned":
        drawn.append(
            [Node(rng.normal(0.0, model.std_position, (len(ids), model.width)))]
        )
        x = add(x, drawn[-1][0])
    x = norm(model, x) if model.input_norm else x
    streams, weights = [x], []
    for i in range(model.layers):
        if i == 0 or not model.shared:
            arrays = matrices(model, rng)
            copies = {name: [] for name in arrays}
            drawn += copies.values()
        # copies are parameters of their own
        weights.append({name: Node(array) for name, array in arrays.items()})
        for name, node in weights[-1].items():
            copies[name].append(node)
        streams.append(
            block(model, streams[-1], weights[-1], allowed(model, i, len(ids)))
        )
    y = norm(model, streams[-1]) if model.final_norm else streams[-1]
    y, targets = (
        (rows(y, np.arange(len(ids) - 1)), ids[1:]) if model.causal else (y, ids)
    )
    if model.readout == "transform":
        drawn.append(
            [Node(rng.normal(0.0, model.std_logits, (model.width, model.width)))]
        )
        f, slope = ACTIVATIONS[model.activation], SLOPES[model.activation]
        y = norm(model, each(f, slope, einsum("mn,sn->sm", drawn[-1][0], y)))
    head = table
    if not model.tied:
        head = Node(rng.normal(0.0, model.std_logits, table.value.shape))
        drawn.append([head])
    logits = einsum("wn,sn->sw", head, y)
    logits = each(lambda p: model.logit_scale * p, lambda p: model.logit_scale, logits)
    if model.logit_cap is not None:
        c = model.logit_cap
        logits = each(
            lambda p: c * np.tanh(p / c), lambda p: 1 - np.tanh(p / c) ** 2, logits
        )
    return cross_entropy(logits, targets), streams, weights, (table, head), drawn


def drawn_gradients(model, ids, rng):
    """One initialisation: the backward quantities of an audit, but for ratios."""
    loss, streams, weights, (table, head), _ = passed(model, ids, rng)
    read_back(loss)
    made = {
        "loss": loss.value,
        "grad_mean_square": np.array([np.mean(x.grad**2) for x in streams[1:]]),
        "grad_input": np.mean(streams[0].grad ** 2),
        "grad_embedding": np.sum(table.grad**2),
    }
    for short, kind in KINDS.items():
        if kind != "gate" or model.gated:
            made[f"grad_{kind}"] = np.array(
                [np.sum(w[short].grad ** 2) for w in weights]
            )
    return made if model.tied else made | {"grad_head": np.sum(head.grad**2)}
