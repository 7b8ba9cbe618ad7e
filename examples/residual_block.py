"""A pre-norm transformer block: attention and a perceptron, each around a residual
connection.
"""

import netsor as ns

n = ns.Width("n")


@ns.program
def net(tokens=4, heads=2, blocks=1):
    """x ← x + attention(norm(x)), x ← x + mlp(norm(x))."""
    x = ns.gaussian(n, tokens)
    for _ in range(blocks):
        x = x + ns.nn.attention(ns.rms_norm(x), heads)
        x = x + ns.nn.mlp(ns.rms_norm(x), 4 * n, activation=ns.gelu)
    return x


if __name__ == "__main__":
    print(net())
    print(net().check())
    x = net().simulate(n=32, draws=200)
    print(f"width 32: E[x^2] = {(x**2).mean():.3f}")
