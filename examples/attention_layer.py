"""The layer of the paper's experiments: four tokens, two heads, standard scaling."""

import netsor as ns

n = ns.Width("n")


@ns.program
def net(tokens=4, heads=2):
    """Tokens x^i = clip(W^i h), independent W^i, through one attention layer."""
    h = ns.gaussian(n)
    x = ns.clip(ns.weight(n, n, batch=tokens) @ h, 100)
    return ns.nn.attention(x, heads)


if __name__ == "__main__":
    print(net())
    print(net().check())
    y = net()[0].simulate(n=16, draws=20_000, coordinates=0)
    print(f"width 16: E[y^2] = {(y**2).mean():.3f}, E[y^4] = {(y**4).mean():.3f}")
