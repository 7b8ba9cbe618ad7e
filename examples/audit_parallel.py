"""An audit of a custom network: parallel blocks with QK-norm, at the scale of a model
that is drawn with std 0.02.
"""

import netsor as ns

n = ns.Width("n")
STD = 0.02


def attend(x, heads, sigma, d=32):
    """Attention with QK-norm; entries of W^O have a fan-in of heads·d."""
    sigmas = {
        "sigma_q": sigma,
        "sigma_k": sigma,
        "sigma_v": sigma,
        "sigma_o": STD * (heads * d) ** 0.5,
    }
    return ns.nn.attend(x, heads, d, "causal", qk_norm=ns.rms_norm, **sigmas)


@ns.program
def net(tokens=8, blocks=4, heads=4, width=256):
    """x ← x + attention(norm(x)) + mlp(norm(x)), two branches of the same vectors."""
    sigma = STD * width**0.5  # entries N(0, σ²/fan-in) = N(0, STD²)
    x = ns.gaussian(n, tokens, cov=STD**2)
    ns.probe("embedding", x)
    for _ in range(blocks):
        u = ns.rms_norm(x)
        a = attend(u, heads, sigma)
        f = ns.nn.mlp(u, 4 * n, activation=ns.gelu, sigma_w=sigma, sigma_out=2 * sigma)
        ns.probe("scores", a.scores)
        ns.probe("weights", a.weights)
        ns.probe("attention", a.output)
        x = ns.probe("stream", x + a.output + ns.probe("mlp", f))
    return ns.probe("logits", ns.nn.logits(ns.rms_norm(x), 1000, sigma=sigma))


if __name__ == "__main__":
    print(ns.audit(net(), n=256, draws=50))
