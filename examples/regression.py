"""Regression with an attention prior: the progress of diabetes from four measurements,
which are four tokens.
"""

import numpy as np
from sklearn.datasets import load_diabetes

import netsor as ns

n = ns.Width("n")


def patients(count=60, features=("bmi", "bp", "s3", "s5")):
    """Tokens (patients, features, entries), each a one-hot name and a value, and the
    progress; both standardised.
    """
    data = load_diabetes(scaled=False)
    x = data.data[:, [data.feature_names.index(name) for name in features]]
    x, y = (
        (x - x.mean(axis=0)) / x.std(axis=0),
        (data.target - data.target.mean()) / data.target.std(),
    )
    names = np.broadcast_to(
        np.eye(len(features)), (count, len(features), len(features))
    )
    return np.concatenate([names, x[:count, :, None]], axis=2), y[:count]


@ns.program
def net(count=60, heads=1):
    """One query reads the tokens of every patient, with the same weights: the values f
    of all patients, jointly.
    """
    tokens, _ = patients(count)
    # (patients, features)
    x = ns.erf(ns.weight(n, tokens.shape[-1], std=1.1) @ ns.data(tokens))
    q = ns.weight(n, n, batch=heads, std=2.0) @ ns.gaussian(n, 1)
    k, v = (ns.weight(n, n, batch=heads) @ x for _ in range(2))
    a = ns.softmax(ns.dot(q[:, None], k))  # (heads, patients, 1, features)
    return ns.weight(1, heads * n, std=2.0) @ ns.concat(a @ v, axis=0)[:, 0]


if __name__ == "__main__":
    _, y = patients()
    attention = net().law(n=ns.inf, draws=4_000)
    for name, prior in (
        ("one head", attention),
        ("infinitely many heads", attention.gaussian()),
    ):
        given = prior.condition(dict(enumerate(y[:40])), noise=0.8)
        every = prior.condition(dict(enumerate(y)), noise=0.8)
        print(
            f"{name}: log evidence of 40 patients {given.log_evidence}, effective"
            f" sample size {given.effective:.0f}"
        )
        print(
            "    log density of the other twenty given these"
            f" {every.log_evidence - given.log_evidence}"
        )
