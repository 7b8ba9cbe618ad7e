"""An audit of differential attention (Ye et al. 2024): the difference of two softmaxes
in each head.

The paper trains λ, starting at 0.8; here λ is 0.8. The difference of softmaxes is not a
distribution over tokens, so the audit measures both softmaxes.
"""

import netsor as ns

n = ns.Width("n")
LAMBDA = 0.8


def differential(x, heads, d):
    """Σ over heads of W^O (1 − λ) norm((A − λA') V), with values twice as wide as
    queries.
    """
    (q, k, q2, k2), v = (
        (ns.weight(d, n, batch=heads) @ x for _ in range(4)),
        ns.weight(2 * d, n, batch=heads) @ x,
    )
    scores = [ns.probe("scores", p) for p in (ns.dot(q, k), ns.dot(q2, k2))]
    first, second = (ns.probe("weights", ns.softmax(p, "causal")) for p in scores)
    mixed = (1 - LAMBDA) * ns.rms_norm((first - LAMBDA * second) @ v, eps=1e-5)
    return ns.probe("attention", ns.weight(n, 2 * heads * d) @ ns.concat(mixed))


@ns.program
def net(tokens=6, blocks=2, heads=2, d=8):
    """Pre-norm blocks."""
    x = ns.probe("embedding", ns.gaussian(n, tokens))
    for _ in range(blocks):
        x = x + differential(ns.rms_norm(x), heads, d)
        f = ns.nn.mlp(ns.rms_norm(x), 2 * n, activation=ns.silu, gate=True)
        x = ns.probe("stream", x + ns.probe("mlp", f))
    return ns.probe("logits", ns.nn.logits(ns.rms_norm(x), 50))


if __name__ == "__main__":
    print(ns.audit(net(), n=32, draws=50))
