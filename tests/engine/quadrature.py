"""Gaussian expectations by nested Gauss–Legendre rules on graded panels: slow, and
independent of the package.
"""

import numpy as np

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
END = 12.0  # standard deviations
EVEN = np.linspace(-END, END, 25)
FINE = np.array(
    [
        0,
        0.2,
        0.5,
        1,
        1.5,
        2,
        2.5,
        3,
        3.5,
        4,
        5,
        6,
        7,
        8,
        10,
        12,
        16,
        20,
        24,
        32,
        45,
        *2.0 ** np.arange(6, 18),
    ]
)
AROUND = np.array([0, 0.5, 1, 2, 3, 4.5, 6, 8])


def edges_of(breaks):
    return np.concatenate(
        [point + sign * FINE for point in (0.0, *breaks) for sign in (1, -1)]
    )


def rule(edges):
    edges = np.unique(np.clip(edges, -END, END))
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    x = (middle[:, None] + half[:, None] * NODES).ravel()
    return x, (half[:, None] * WEIGHTS).ravel() * np.exp(-(x**2) / 2) / np.sqrt(
        2 * np.pi
    )


def mean(f, mu, std, breaks=()):
    """E[f(mu + std x)]."""
    if std == 0:
        return f(np.array([mu]))[0]
    x, w = rule(np.concatenate([EVEN, (edges_of(breaks) - mu) / std]))
    return w @ f(mu + std * x)


def pair(f, g, mu, nu, std_u, std_v, rho, breaks_f=(), breaks_g=()):
    """E[f(u) g(v)], first over v given u."""
    if 0 in (std_u, std_v, rho):
        return mean(f, mu, std_u, breaks_f) * mean(g, nu, std_v, breaks_g)
    rest, slope = std_v * np.sqrt((1 - rho) * (1 + rho)), rho * std_v
    turns = [
        (point - nu + sign * AROUND * rest) / slope
        for point in (0.0, *breaks_g)
        for sign in (1, -1)
    ]
    x, w = rule(
        np.concatenate(
            [
                EVEN,
                (edges_of(breaks_f) - mu) / std_u,
                (edges_of(breaks_g) - nu) / slope,
                *turns,
            ]
        )
    )
    w = w * f(mu + std_u * x)
    keep = np.abs(w) > 1e-25 * np.abs(w).max(initial=0)
    return sum(
        np.sum(w[part] * _given(g, nu + slope * x[part], rest, breaks_g))
        for part in np.array_split(np.nonzero(keep)[0], 1 + keep.sum() // 64)
    )


def _given(g, m, s, breaks):
    if s == 0:
        return g(m)
    own = (edges_of(breaks) - m[:, None]) / s
    edges = np.sort(
        np.clip(
            np.concatenate([np.broadcast_to(EVEN, (len(m), len(EVEN))), own], axis=1),
            -END,
            END,
        )
    )
    keep = np.diff(edges, axis=1).max(axis=0, initial=0) > 0
    left, half = edges[:, :-1][:, keep], (np.diff(edges, axis=1) / 2)[:, keep]
    z = (left + half)[..., None] + half[..., None] * NODES
    w = half[..., None] * WEIGHTS * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return np.sum(w * g(m[:, None, None] + s * z), axis=(1, 2))
