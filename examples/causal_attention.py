"""Causal attention: token i sees tokens 1 … i."""

import netsor as ns

n = ns.Width("n")


@ns.program
def net(tokens=6, heads=4):
    """Independent tokens through one causal layer."""
    x = ns.erf(ns.gaussian(n, tokens))
    return ns.nn.attention(x, heads, mask="causal")


if __name__ == "__main__":
    print(net())
    y = net().simulate(n=64, draws=1000)
    print("E[y_i^2]:", (y**2).mean(axis=(0, 2)).round(3))
