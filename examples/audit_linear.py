"""An audit of gated linear attention (Yang et al. 2024): no softmax, and a gate that
forgets, coordinate by coordinate.

S_i = α_i ⊙ S_{i−1} + k_i v_i^T and o_i = S_i^T q_i. Written out, o_i = Σ_{j ≤ i} ⟨q_i
e^{c_i}, k_j e^{−c_j}⟩ v_j with c the sums of log α up to a token: scores, which a
triangle of ones masks.
"""

import numpy as np
from scipy import special

import netsor as ns

n = ns.Width("n")
SLOW = 16  # the paper's τ: gates are sigmoid(g)^(1/τ)


def gated_linear(x, heads, d):
    """Σ over heads of W^O (norm(o) ⊙ silu(r))."""
    q, k, v, g, r = (ns.weight(d, n, batch=heads) @ x for _ in range(5))
    past = np.tri(x.shape[-1])
    c = (past / SLOW) @ ns.nonlin(special.log_expit, g)
    grown = ns.dot(
        ns.nonlin(lambda u, s: u * np.exp(s), q, c),
        ns.nonlin(lambda u, s: u * np.exp(-s), k, c),
    )
    scores = ns.probe("scores", grown * past, mask=past > 0)
    return ns.probe(
        "attention",
        ns.weight(n, heads * d)
        @ ns.concat(ns.rms_norm(scores @ v, eps=1e-5) * ns.silu(r)),
    )


@ns.program
def net(tokens=6, blocks=2, heads=2, d=8):
    """Pre-norm blocks."""
    x = ns.probe("embedding", ns.gaussian(n, tokens))
    for _ in range(blocks):
        x = x + gated_linear(ns.rms_norm(x), heads, d)
        f = ns.nn.mlp(ns.rms_norm(x), 2 * n, activation=ns.silu, gate=True)
        x = ns.probe("stream", x + ns.probe("mlp", f))
    return ns.probe("logits", ns.nn.logits(ns.rms_norm(x), 50))


if __name__ == "__main__":
    print(ns.audit(net(), n=32, draws=50, widths="actual"))
