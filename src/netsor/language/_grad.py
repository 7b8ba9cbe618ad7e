"""Gradients of scalars, as values of the same program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._array import Value
from ._given import shown
from ._graph import ordered
from ._operation import Constant, Take
from ._reverse import Reverse
from ._scalar import Scalar, ScalarLike, as_scalar, broadcast, constant
from ._vector import Vector
from ._where import TraceError


def grad(p: Scalar, wrt: Any, weights: ScalarLike | None = None) -> Any:
    """The gradient of a scalar with respect to vectors or scalars that it is made of: values of the same program.

    A coordinate of an output y is read by a random readout, `ns.dot(ns.gaussian(n), y)`, which has the law of the
    coordinate of one more matrix. Derivatives of a user's functions are declared, see `ns.nonlin` and `ns.apply`.
    Gradients are values as others, and have gradients.

    Parameters
    ----------
    p : Scalar
        Several are summed.
    wrt : Vector, Scalar, or list of them
        At any place of the program; an index of a value stands for its entries.
    weights : Scalar or array_like, optional
        That broadcast to the shape of p: the gradient is that of Σ weights·p.

    Returns
    -------
    Vector, Scalar, or tuple of them
        Of the shape and kind of `wrt`. Of scalars it is ∂p/∂q. **Of vectors it is √width · ∂p/∂x**, so that its
        coordinates are of order 1 at every width if p is a score: for p = ns.dot(r, x), which is n^(−1/2) ⟨r, x⟩, it is
        r. The squared norm of the gradient itself is then `ns.mean_dot(g, g)`.

    Raises
    ------
    TraceError
        If p is no scalar, does not depend on `wrt`, or goes through a function without a derivative.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x, r = ns.gaussian(n, 3), ns.gaussian(n)
    >>> y = x + ns.nn.attention(x, heads=2)
    >>> p = ns.dot(r, y[0])  # a coordinate of the first output
    >>> g = ns.grad(p, x)  # √n ∂p/∂x, three vectors
    >>> net = ns.Program((p, ns.mean_dot(g[0], g[0]), ns.dot(g[0], x[0])))
    >>> net.law(n=16, draws=100).dim
    3
    """
    p, by = as_loss(p, "grad"), _weights(weights, p)
    several = isinstance(wrt, list | tuple)
    asked = list(wrt) if several else [wrt]
    leaves = [_leaf(x, p) for x in asked]
    reverse = Reverse([(p, by)], leaves)
    made = []
    for x, leaf in zip(asked, leaves, strict=True):
        whole = reverse.of(leaf)
        made.append(whole if leaf is x else whole.take(x.op.flat, "index"))
    return tuple(made) if several else made[0]


def as_loss(p: object, operation: str, name: str = "p") -> Scalar:
    """Check that an argument is a scalar of the program, which has a gradient."""
    if isinstance(p, Vector):
        raise TraceError(
            operation,
            f"{name} must be a scalar, got {p!r}: read a coordinate by a random readout, ns.dot(ns.gaussian(n), y), or "
            "take ns.mean_dot(y, y)",
        )
    if not isinstance(p, Scalar) or isinstance(p.op, Constant):
        raise TraceError(operation, f"{name}={shown(p)} must be a scalar of the program")
    return p


def _weights(weights: ScalarLike | None, p: Scalar) -> Scalar:
    if weights is None:
        return constant(np.ones(p.shape))
    by = as_scalar(weights, "grad")
    if broadcast("grad", by, p) != p.shape:
        raise TraceError("grad", f"weights of shape {by.shape} must broadcast to the shape {p.shape} of p")
    return by.broadcast_to(p.shape)


def _leaf(x: object, p: Scalar) -> Value:
    """The value whose entries are asked for; an index stands for those of what it indexes."""
    if not isinstance(x, Value) or isinstance(x.op, Constant):
        raise TraceError("grad", f"wrt={shown(x)} must be a vector or a scalar of the program, or a list of them")
    made = set(ordered([p]))
    entries = isinstance(x.op, Take) and len(np.unique(x.op.flat)) == x.op.flat.size  # repeats are values of their own
    leaf = x.op.x if isinstance(x.op, Take) and (entries or x not in made) else x
    if leaf not in made:
        raise TraceError(
            "grad",
            f"p is not made of wrt={x!r}: name the value that the program uses, or an index of it; what is computed "
            "anew, however alike, is another value",
        )
    return leaf
