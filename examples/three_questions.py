"""Three questions to one head: is it sharp, what do tokens share, what do three say?"""

import matplotlib.pyplot as plt
from scipy.special import entr

import netsor as ns

n = ns.Width("n")


@ns.program
def net(tokens=4):
    """The outputs of all tokens, and the entropy of the first row of attention."""
    x = ns.gaussian(n, tokens)
    q, k, v = (ns.weight(n, n, std=1.5) @ x for _ in range(3))
    a = ns.softmax(ns.dot(q, k))
    entropy = ns.apply(lambda row: entr(row).sum(axis=-1), a[0], axes=1)
    return ns.weight(n, n) @ (a @ v), entropy


if __name__ == "__main__":
    wide = net()[1].law(n=64, draws=20_000)
    limit = net()[1].law(n=ns.inf, draws=20_000)
    print("Wasserstein-1 distance of the entropies:", ns.wasserstein1(wide, limit))
    ns.plot(wide, limit, labels=["n = 64", "n = ∞"])
    plt.savefig("entropy.png", dpi=200)
    outputs = net()[0].law(n=64, draws=20_000)
    axes = outputs.plot(plt.figure().gca(), entries=(0, 1))
    axes.figure.savefig("outputs.png", dpi=200)
    given = outputs.condition({0: 1.5, 1: -0.5, 2: 0.5}, noise=0.1)
    print("log evidence:", given.log_evidence)
    print("effective sample:", round(given.effective))
    ns.plot(outputs[3], given[3], labels=["before", "given three"])
    plt.savefig("posterior.png", dpi=200)
