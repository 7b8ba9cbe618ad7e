"""Convolutions, written with the operations of the language."""

import numpy as np
import pytest

import netsor as ns

LENGTH, KERNEL, DEPTH = 6, 3, 2


@ns.program
def convolutions():
    """Convolutions with zeros beside the sequence, and average pooling."""
    n = ns.Width("n")
    x = ns.gaussian(n, LENGTH)
    for _ in range(DEPTH):
        zeros = 0 * x[: KERNEL // 2]
        windows = np.arange(LENGTH)[:, None] + np.arange(KERNEL)
        u = ns.concat(ns.join([zeros, x, zeros])[windows], axis=-1)
        x = ns.relu(ns.weight(n, KERNEL * n, std=2**0.5) @ u)
    return ns.dot(ns.gaussian(n), x.mean())


def relu_kernel(k):
    """E[relu(u) relu(v)] for Gaussian u and v with the covariance matrix k."""
    size = np.sqrt(np.outer(np.diag(k), np.diag(k)))
    cosine = np.clip(k / size, -1, 1)
    angle = np.arccos(cosine)
    return size * (np.sin(angle) + (np.pi - angle) * cosine) / (2 * np.pi)


def test_limit_of_convolutions_is_proved_and_that_of_the_kernel_recursion():
    k = np.eye(LENGTH)
    for _ in range(DEPTH):
        shifted = [
            np.eye(LENGTH, k=offset) @ k @ np.eye(LENGTH, k=-offset)
            for offset in range(-(KERNEL // 2), KERNEL // 2 + 1)
        ]
        k = relu_kernel(2 * np.mean(shifted, axis=0))
    law = convolutions().law(n=ns.inf)
    assert law.status == "proved"
    assert law.var() == pytest.approx(k.mean(), rel=1e-6)


def test_convolutions_at_finite_width_have_the_law_of_drawn_matrices():
    net = convolutions()
    exact, drawn = net.law(n=8, draws=4000), net.simulate(n=8, draws=4000)
    assert exact.status == "exact"
    assert ns.kolmogorov(exact, drawn).value < 0.05
