"""An audit of a mixture of experts: a router sends every token to two of them, and its
load is a law too.
"""

import numpy as np

import netsor as ns

n = ns.Width("n")


def top2(p):
    """The softmax over the two largest of the last axis, 0 elsewhere."""
    kept = np.where(
        p >= np.sort(p, axis=-1)[..., -2:-1],
        np.exp(p - p.max(axis=-1, keepdims=True)),
        0.0,
    )
    return kept / kept.sum(axis=-1, keepdims=True)


def experts(x, count, m):
    """Σ_e a_e W^2_e relu(W^1_e x), with a = top2 of the router's logits."""
    given = ns.probe("experts", ns.apply(top2, ns.nn.logits(x, count), axes=1))
    h = ns.relu(ns.weight(m, n, batch=count) @ x)
    return ns.probe(
        "mlp", ns.weight(n, count * m) @ ns.concat(count**0.5 * given.transpose() * h)
    )


@ns.program
def net(tokens=8, blocks=2, heads=2, count=4):
    """Pre-norm blocks; each expert is a perceptron of width 2n."""
    x = ns.probe("embedding", ns.gaussian(n, tokens))
    for _ in range(blocks):
        a = ns.nn.attend(ns.rms_norm(x), heads, 8, "causal")
        ns.probe("scores", a.scores), ns.probe("weights", a.weights)
        x = x + ns.probe("attention", a.output)
        x = ns.probe("stream", x + experts(ns.rms_norm(x), count, 2 * n))
    return ns.probe("logits", ns.nn.logits(ns.rms_norm(x), 50))


if __name__ == "__main__":
    print(ns.audit(net(), n=32, draws=50))
