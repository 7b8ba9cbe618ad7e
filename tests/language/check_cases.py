"""Programs for the checker: each point of Assumption 3.1, held and broken."""

import numpy as np
from examples import (
    attention_layer,
    causal_attention,
    cross_attention,
    perceptron,
    recurrent,
    residual_block,
)

import netsor as ns

n, d = ns.Width("n"), ns.Width("d")

FACTORS = "factors of scores are MatMul outputs"
TIED = "the two factors of a score have different matrices"
CORRELATED = "the two factors of a score are uncorrelated"
ELSEWHERE = "matrices of score factors are used for nothing else"
BOUNDED = "inputs of score factors are bounded"
LIPSCHITZ = "functions are pseudo-Lipschitz"
DEEP = "a vector that depends on a score is not multiplied again"
MEANS = "no mean enters a program with scores"
ALIKE = "coordinates are treated alike"
WIDTHS = "every width goes to infinity"


def tokens(s=3):
    return ns.tanh(ns.gaussian(n, s))


def w(batch=()):
    return ns.weight(n, n, batch)


def tied():
    x, a = tokens(), w()
    return ns.softmax(ns.dot(a @ x, a @ x)) @ (w() @ x)


def shared(mask):
    """Reformer: queries are keys."""
    x = tokens()
    q = w() @ x
    return ns.softmax(ns.dot(q, q), mask=mask) @ (w() @ x)


def tied_by_members():
    x, a = tokens(), w(2)
    return ns.softmax(ns.dot(a[0] @ x, a[1] @ x)) @ (w() @ x)


def tied_apart():
    x, a = tokens(4), w()
    return ns.dot(a @ x[:2], a @ x[2:])


def used_elsewhere():
    x, a = tokens(), w()
    q = a @ x
    return ns.softmax(ns.dot(q, w() @ x)) @ q


def returned():
    x = tokens()
    q = w() @ x
    return ns.dot(q, w() @ x), q[0]


def scores(query=lambda q: q, key=lambda k: k):
    """Scores of two MatMul outputs that something was done to."""
    x = tokens()
    return ns.dot(query(w() @ x), key(w() @ x))


def bias_used_again():
    x, b = tokens(), ns.gaussian(n)
    return ns.dot(w() @ x + b, w() @ x), w() @ ns.tanh(b)


def bias_in_both():
    x, b = tokens(), ns.gaussian(n)
    return ns.dot(w() @ x + b, w() @ x + b)


def repeated_members(first, second):
    """Scores between copies of the matrices of one weight."""
    x, a = tokens(), w(3)
    return ns.dot(a[first] @ x, a[second] @ x)


def members(first, second):
    """A score by one member of a weight, and another use of that weight."""
    x, a = tokens(), w(2)
    return ns.dot(a[first] @ x, w() @ x), ns.tanh(a[second] @ x)


def sum_with_the_other_matrix():
    """<W x + U x, U x>: a matrix in common, inside a sum."""
    x, a, b = tokens(), w(), w()
    return ns.dot(a @ x + b @ x, b @ x)


def difference_without_the_other_matrix():
    """<(W x + U x) − U x, U x>: no matrix in common, for it cancels."""
    x, a, b = tokens(), w(), w()
    return ns.dot((a @ x + b @ x) - b @ x, b @ x)


def moved(same):
    """Stacked, turned and taken apart: the same vectors, or those of the other
    matrix.
    """
    x = tokens()
    q, k = w() @ x, w() @ x
    both = ns.stack([q, k]).transpose()  # (3, 2)
    return ns.dot(both[:, 0], ns.join([k, q])[:3] if not same else ns.join([k, q])[3:])


def by_data(shared):
    vectors = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    a = ns.weight(n, 3)
    return ns.dot(
        a @ ns.data(vectors), (a if shared else ns.weight(n, 3)) @ ns.data(vectors)
    )


def data_of_one_matrix(second):
    a = ns.weight(n, 2)
    return ns.dot(a @ ns.data([1.0, 2.0]), a @ ns.data(second))


def nothing():
    """A weight of standard deviation 0 makes scores that are 0."""
    x, a = tokens(), ns.weight(n, n, std=0.0)
    return ns.dot(a @ x, a @ x)


def relu_by_the_user(u):
    return np.maximum(u, 0) - 0.3989422804014327


relu_by_the_user.__name__ = "relu"


def concatenated(tied):
    x = tokens()
    q, k = (ns.concat(w(2) @ x, axis=0) for _ in range(2))
    return ns.dot(q, q if tied else k)


def a_mean_returned(x):
    y = ns.nn.attention(tokens(), 2)
    return ns.mean_dot(x(y), x(y))[0, 0], y


def normal_scores(also=lambda x, z: ()):
    """Random scalars added to scores, as a relative bias is."""
    x, z = tokens(), ns.normal((3, 3))
    return ns.softmax(ns.dot(w() @ x, w() @ x) + z) @ (w() @ x), *also(x, z)


def rotary_scores():
    x = tokens()
    return ns.softmax(ns.dot(ns.rotary(w() @ x), ns.rotary(w() @ x))) @ (w() @ x)


def long_chain():
    """Every layer doubles the paths to the data: looked at one by one, they would take
    for ever.
    """
    x = ns.data(np.eye(3))
    for _ in range(200):
        x = x + 0.1 * x
    return ns.weight(n, 3) @ x


def undeclared():
    x = ns.nonlin(lambda u: np.exp(-u * u), ns.gaussian(n, 2))
    return ns.nn.attention(x, 1)


def declared():
    x = ns.nonlin(
        lambda u: np.exp(-u * u), ns.gaussian(n, 2), bounded=True, lipschitz=True
    )
    return ns.nn.attention(x, 1)


def exponential():
    return ns.apply(np.exp, ns.dot(w() @ tokens(), w() @ tokens()), lipschitz=False) @ (
        w() @ tokens()
    )


def deep():
    return w() @ ns.relu(ns.nn.attention(tokens(), 2))


def two_layers():
    return ns.nn.attention(ns.tanh(ns.nn.attention(tokens(), 2)), 2)


def two_linear_layers():
    return ns.nn.attention(ns.nn.attention(tokens(), 2), 2)


CASES = {
    "the paper's layer": (lambda: attention_layer.net().output, "proved", set()),
    "causal": (lambda: causal_attention.net().output, "proved", set()),
    "cross, low rank": (lambda: cross_attention.net().output, "proved", set()),
    "matrices of one batch": (tied_by_members, "proved", set()),
    "perceptron": (lambda: perceptron.net().output, "proved", set()),
    "recurrent": (lambda: recurrent.net().output, "proved", set()),
    "1/n scaling": (
        lambda: ns.nn.attention(tokens(), 2, scaling="linear"),
        "proved",
        set(),
    ),
    "declared": (declared, "proved", set()),
    "bounded by composition": (
        lambda: ns.nn.attention(ns.relu(tokens()), 2),
        "proved",
        set(),
    ),
    "a nonlinearity at the end": (
        lambda: ns.relu(ns.nn.attention(tokens(), 2)),
        "proved",
        set(),
    ),
    "tied": (tied, "no limit", {TIED, CORRELATED}),
    "score of a vector with itself": (
        lambda: ns.dot(*[w() @ ns.gaussian(n)] * 2),
        "no limit",
        {TIED, CORRELATED, BOUNDED},
    ),
    "tied on different vectors": (tied_apart, "conjectured", {TIED}),
    "tied on correlated vectors": (
        lambda: (lambda a, x: ns.dot(a @ ns.tanh(x), a @ ns.erf(x)))(
            w(), ns.gaussian(n)
        ),
        "no limit",
        {TIED, CORRELATED},
    ),
    "tied on relus": (
        lambda: (lambda a, x: ns.dot(a @ ns.relu(x[0]), a @ ns.relu(x[1])))(
            w(), tokens(2)
        ),
        "no limit",
        {TIED, CORRELATED},
    ),
    "used elsewhere": (used_elsewhere, "conjectured", {ELSEWHERE}),
    "returned": (returned, "conjectured", {ELSEWHERE}),
    # combinations of MatMul outputs by fixed numbers
    "scaled": (lambda: scores(lambda q: 2 * q, lambda k: -k / 3), "proved", set()),
    "scaled by a score": (
        lambda: scores(lambda q: scores()[0] * q),
        "conjectured",
        {FACTORS},
    ),
    "mean of queries": (lambda: scores(lambda q: q.mean()), "proved", set()),
    "differences of queries": (
        lambda: scores(lambda q: np.array([[1.0, -1.0, 0.0]]) @ q),
        "proved",
        set(),
    ),
    "mixed by scores": (
        lambda: scores(lambda q: ns.softmax(scores()) @ q),
        "conjectured",
        {FACTORS},
    ),
    "a bias": (lambda: scores(lambda q: q + ns.gaussian(n)), "proved", set()),
    "two biases": (
        lambda: scores(lambda q: q + ns.gaussian(n), lambda k: k + ns.gaussian(n, 3)),
        "proved",
        set(),
    ),
    "one bias in both": (bias_in_both, "no limit", {TIED, CORRELATED}),
    "a bias used again": (bias_used_again, "conjectured", {ELSEWHERE}),
    "a mean in one factor": (lambda: scores(lambda q: q + 1), "conjectured", {FACTORS}),
    "a mean in both": (
        lambda: scores(lambda q: q + 1, lambda k: k - 2),
        "no limit",
        {FACTORS, CORRELATED},
    ),
    "a mean in both that vanishes": (
        lambda: scores(lambda q: q + 1, lambda k: k + 2 - 2),
        "conjectured",
        {FACTORS},
    ),
    "a matrix in common inside a sum": (
        sum_with_the_other_matrix,
        "no limit",
        {TIED, CORRELATED},
    ),
    "a matrix that cancels": (difference_without_the_other_matrix, "proved", set()),
    "factors are initial": (
        lambda: ns.dot(ns.gaussian(n, 2), w() @ tokens()),
        "proved",
        set(),
    ),
    "one initial vector": (
        lambda: ns.dot(*[ns.gaussian(n)] * 2),
        "no limit",
        {TIED, CORRELATED},
    ),
    "correlated initial vectors": (
        lambda: (lambda h: ns.dot(h[0], h[1]))(
            ns.gaussian(n, 2, cov=[[2, -1], [-1, 2]])
        ),
        "no limit",
        {TIED, CORRELATED},
    ),
    "uncorrelated initial vectors with common sources": (
        lambda: (lambda h: ns.dot(h[0], h[2]))(
            ns.gaussian(n, 3, cov=[[2, 1, 0], [1, 2, 1], [0, 1, 2]])
        ),
        "conjectured",
        {TIED},
    ),
    # scores that no output depends on
    "two of one array": (
        lambda: (lambda h: ns.dot(h, h)[0, 1])(ns.gaussian(n, 2)),
        "proved",
        set(),
    ),
    "two of one array, both ways": (
        lambda: (lambda h: ns.dot(h, h)[[0, 1], [1, 0]])(ns.gaussian(n, 2)),
        "proved",
        set(),
    ),
    "one of one array with itself": (
        lambda: (lambda h: ns.dot(h, h)[[0, 1], [1, 1]])(ns.gaussian(n, 2)),
        "no limit",
        {TIED, CORRELATED},
    ),
    "two of one matrix": (
        lambda: (lambda q: ns.dot(q, q)[0, 1])(w() @ tokens()),
        "conjectured",
        {TIED},
    ),
    "queries that are keys, none of its own": (
        lambda: shared(np.eye(3) < 1),
        "conjectured",
        {TIED},
    ),
    "queries that are keys, causal": (
        lambda: shared("causal"),
        "no limit",
        {TIED, CORRELATED},
    ),
    "queries that are keys, one with its own": (
        lambda: shared(np.diag([1, 0, 1]) < 1),
        "no limit",
        {TIED, CORRELATED},
    ),
    "queries that are keys, the others": (
        lambda: shared(np.diag([1, 0, 1]) < 1)[[0, 2]],
        "conjectured",
        {TIED},
    ),
    "queries that are keys, each alone": (
        lambda: shared(np.eye(3) > 0),
        "proved",
        set(),
    ),
    "a difference of equal vectors": (
        lambda: (lambda q: ns.dot(q[0] - q[0], q[0]))(w() @ tokens()),
        "proved",
        set(),
    ),
    "initial vectors with a mean": (
        lambda: ns.dot(ns.gaussian(n, mean=1.0), ns.gaussian(n, mean=2.0)),
        "no limit",
        {FACTORS, CORRELATED},
    ),
    # members of a batch
    "repeated members, apart": (
        lambda: repeated_members([0, 0], [1, 1]),
        "proved",
        set(),
    ),
    "repeated members, shared": (
        lambda: repeated_members([0, 0, 1, 1], [2, 2, 2, 0]),
        "proved",
        set(),
    ),
    "repeated members, tied": (
        lambda: repeated_members([0, 0, 1], [1, 0, 2]),
        "no limit",
        {TIED, CORRELATED},
    ),
    "another member elsewhere": (lambda: members(0, 1), "proved", set()),
    "the same member elsewhere": (
        lambda: members([0, 0], 0),
        "conjectured",
        {ELSEWHERE},
    ),
    "stacked and taken apart": (lambda: moved(same=False), "proved", set()),
    "stacked and taken apart, tied": (
        lambda: moved(same=True),
        "no limit",
        {TIED, CORRELATED},
    ),
    "concatenated": (lambda: concatenated(tied=False), "conjectured", {FACTORS}),
    "concatenated and tied": (
        lambda: concatenated(tied=True),
        "no limit",
        {FACTORS, CORRELATED},
    ),
    # data and weights of nothing
    "data": (lambda: by_data(shared=False), "proved", set()),
    "data, tied": (lambda: by_data(shared=True), "no limit", {TIED, CORRELATED}),
    "data, tied and orthogonal": (
        lambda: data_of_one_matrix([2.0, -1.0]),
        "conjectured",
        {TIED},
    ),
    "data, tied and nearly orthogonal": (
        lambda: data_of_one_matrix([2.0, -1.01]),
        "no limit",
        {TIED, CORRELATED},
    ),
    "a weight that is 0": (nothing, "proved", set()),
    "long chain": (long_chain, "proved", set()),
    # factors that are functions
    "two relus": (
        lambda: ns.dot(ns.relu(ns.gaussian(n)), ns.relu(w() @ tokens(1)[0])),
        "no limit",
        {FACTORS, CORRELATED},
    ),
    "relu and tanh": (
        lambda: ns.dot(ns.relu(ns.gaussian(n)), ns.tanh(ns.gaussian(n))),
        "conjectured",
        {FACTORS},
    ),
    "cos and sin of one vector": (
        lambda: (lambda h: ns.dot(ns.cos(h), ns.sin(h)))(ns.gaussian(n)),
        "conjectured",
        {FACTORS},
    ),
    "a vector and its tanh": (
        lambda: (lambda h: ns.dot(h, ns.tanh(h)))(ns.gaussian(n)),
        "no limit",
        {FACTORS, ELSEWHERE, CORRELATED},
    ),
    "a norm with itself": (
        lambda: (lambda h: ns.dot(h, h))(ns.rms_norm(tokens())),
        "no limit",
        {FACTORS, CORRELATED, LIPSCHITZ, MEANS},
    ),
    "a layer norm with itself": (
        lambda: (lambda h: ns.dot(h, h))(ns.layer_norm(w() @ tokens(), 0.1)),
        "no limit",
        {FACTORS, CORRELATED, MEANS},
    ),
    "a mean that vanishes, with itself": (
        lambda: (lambda g: ns.dot(g, g))(
            ns.mean_dot(w() @ tokens(), ns.ones(n))[..., None] * ns.ones(n)
        ),
        "conjectured",  # n^(1/2) times the square of a mean of order n^(-1/2)
        {FACTORS, MEANS},
    ),
    "a mean that does not vanish, with itself": (
        lambda: (lambda g: ns.dot(g, g))(
            ns.mean_dot(ns.relu(ns.gaussian(n)), ns.ones(n)) * ns.ones(n)
        ),
        "no limit",
        {FACTORS, CORRELATED, MEANS},
    ),
    "a function of the user's with the name of the library's": (
        lambda: ns.dot(
            *(
                ns.nonlin(relu_by_the_user, ns.gaussian(n), lipschitz=True)
                for _ in range(2)
            )
        ),
        "conjectured",  # its mean is 0, and nobody knows
        {FACTORS},
    ),
    # random scalars: given them, they are numbers
    "random scalars added to scores": (normal_scores, "proved", set()),
    "random scalars in a nonlinearity": (
        lambda: normal_scores(lambda x, z: [w() @ (z[0] * x)]),
        "proved",
        set(),
    ),
    "random scalars in a factor": (
        lambda: normal_scores(lambda x, z: [ns.dot(z[0] * (w() @ x), w() @ x)]),
        "conjectured",
        {FACTORS},
    ),
    "random scalars alone": (
        lambda: ns.normal(2) * ns.tanh(w() @ tokens(2)),
        "proved",
        set(),
    ),
    "rotary": (rotary_scores, "conjectured", {FACTORS, ALIKE}),
    "rotary without scores": (
        lambda: w() @ ns.rotary(tokens()),
        "conjectured",
        {ALIKE},
    ),
    "rotary of one vector": (
        lambda: (lambda q: ns.dot(q, q))(ns.rotary(w() @ tokens())),
        "no limit",
        {FACTORS, CORRELATED, ALIKE},
    ),
    "a mean returned": (lambda: a_mean_returned(ns.tanh), "proved", set()),
    "an unbounded mean returned": (
        lambda: a_mean_returned(lambda y: y),
        "conjectured",
        {MEANS},
    ),
    "relu": (
        lambda: ns.nn.attention(ns.relu(ns.gaussian(n, 2)), 1),
        "conjectured",
        {BOUNDED},
    ),
    "undeclared": (undeclared, "conjectured", {BOUNDED, LIPSCHITZ}),
    "exponential": (exponential, "conjectured", {LIPSCHITZ}),
    "deep": (deep, "conjectured", {DEEP}),
    "two layers": (two_layers, "conjectured", {DEEP}),
    "two layers without a nonlinearity": (
        two_linear_layers,
        "conjectured",
        {DEEP, BOUNDED},
    ),
    "norm": (
        lambda: ns.nn.attention(ns.rms_norm(tokens(), 0.1), 1),
        "conjectured",
        {MEANS},
    ),
    "norm without scores": (lambda: w() @ ns.rms_norm(tokens(), 0.1), "proved", set()),
    "norm without eps": (
        lambda: w() @ ns.rms_norm(tokens()),
        "conjectured",
        {LIPSCHITZ},
    ),
    "fixed head": (
        lambda: ns.nn.attention(tokens(), 2, head_dim=8),
        "conjectured",
        {WIDTHS},
    ),
    "block": (
        lambda: residual_block.net().output,
        "conjectured",
        {BOUNDED, LIPSCHITZ, DEEP, MEANS},
    ),
}
