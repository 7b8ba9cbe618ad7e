"""A two-layer perceptron with biases, on given data."""

import numpy as np

import netsor as ns

n = ns.Width("n")
points = np.linspace(-1, 1, 5)[:, None] * np.ones(2)


@ns.program
def net(sigma_w=1.5, sigma_b=0.1):
    """f(x) = W_2 φ(W_1 x + b_1) + b_2."""
    x = ns.weight(n, 2, std=sigma_w) @ ns.data(points) + ns.gaussian(n, cov=sigma_b**2)
    return ns.weight(1, n, std=sigma_w) @ ns.relu(x) + ns.gaussian(1, cov=sigma_b**2)


if __name__ == "__main__":
    print(net())
    print(net().check())
    f = net().simulate(n=256, draws=1000)[..., 0]
    print("prior covariance of f at width 256:\n", np.cov(f.T))
