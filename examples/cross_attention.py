"""Cross-attention: queries from one sequence, keys and values from another."""

import netsor as ns

n = ns.Width("n")
d = ns.Width("d")


@ns.program
def net(tokens=2, context=6, heads=2):
    """Two decoder tokens look at six encoder tokens, with heads of dimension d."""
    x = ns.tanh(ns.gaussian(n, tokens))
    c = ns.tanh(ns.gaussian(n, context))
    return ns.nn.attention(x, heads, head_dim=d, context=c)


if __name__ == "__main__":
    print(net())
    y = net().simulate(n=64, d=8, draws=2000)
    print(f"width 64, head dimension 8: E[y^2] = {(y**2).mean():.3f}")
