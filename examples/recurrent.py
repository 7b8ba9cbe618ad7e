"""A recurrent net: one matrix, used at every step."""

import numpy as np

import netsor as ns

n = ns.Width("n")
inputs = np.random.default_rng(0).standard_normal((5, 3))


@ns.program
def net(steps=5):
    """h_t = tanh(W h_{t−1} + U x_t), with the same W at each step."""
    w = ns.weight(n, n, std=0.9)
    u = ns.weight(n, 3) @ ns.data(inputs[:steps])
    states = [ns.tanh(u[0])]
    for t in range(1, steps):
        states.append(ns.tanh(w @ states[-1] + u[t]))
    return ns.stack(states)


if __name__ == "__main__":
    print(net(steps=3))
    h = net().simulate(n=64, draws=500)
    print(
        "kernel of the states at width 64:\n",
        np.einsum("rsn,rtn->st", h, h) / h.shape[0] / h.shape[2],
    )
