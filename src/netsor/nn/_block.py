"""A block of a transformer: two branches around a stream, and where the norms stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..language import TraceError, Vector, rms_norm
from ..language._given import one_of, shown
from ._affine import made_of

Layer = Callable[[Vector], Vector]


class Block(NamedTuple):
    """What `block` makes, and what its branches added to the stream.

    Parameters
    ----------
    output : Vector
        The stream that leaves the block.
    attended : Vector
        What the first branch added.
    fed : Vector
        What the second branch added.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> made = ns.nn.block(ns.gaussian(n, 4), lambda x: ns.nn.attention(x, heads=2), lambda x: ns.nn.mlp(x, 4 * n))
    >>> made.output.shape, made.fed.shape
    ((4,), (4,))
    """

    output: Vector
    attended: Vector
    fed: Vector


def block(x: Vector, attend: Layer, feed: Layer, norm: Layer = rms_norm, order: str = "pre") -> Block:
    """A stream x with two branches, such as an attention layer and a perceptron, functions of vectors.

    Parameters
    ----------
    x : Vector
        The stream, (…, tokens).
    attend : callable
        The first branch: from vectors to vectors of the same shape and width.
    feed : callable
        The second branch.
    norm : callable
        What is applied before, or after, a branch.
    order : str
        pre: x + attend(norm(x)), then x + feed(norm(x)); post: norm(x + attend(x)), then norm(x + feed(x)); parallel: x
        + attend(norm(x)) + feed(norm(x)); sandwich: as pre, with a norm of what each branch adds; after: x +
        norm(attend(x)), then x + norm(feed(x)).

    Returns
    -------
    Block
        The output, and what the branches added.

    Raises
    ------
    TraceError
        If a branch is no function, or gives vectors of another shape.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.gaussian(n, 4)
    >>> for _ in range(3):
    ...     x = ns.nn.block(x, lambda x: ns.nn.attention(x, heads=2), lambda x: ns.nn.mlp(x, 4 * n)).output
    ...
    >>> x
    <Vector of shape (4,) in R^n, by Add>
    """
    if not isinstance(x, Vector):
        raise TraceError("block", f"x={shown(x)} must be vectors")
    order = one_of(order, "order", "block", ("pre", "post", "parallel", "sandwich", "after"))

    def normed(u: Vector) -> Vector:
        return made_of(norm, u, "norm", "block")

    def branch(f: Layer, u: Vector, name: str) -> Vector:
        made = made_of(f, u if order in ("post", "after") else normed(u), name, "block")
        return normed(made) if order in ("sandwich", "after") else made

    attended = branch(attend, x, "attend")
    if order == "parallel":
        fed = branch(feed, x, "feed")
        return Block(x + attended + fed, attended, fed)
    middle = normed(x + attended) if order == "post" else x + attended
    fed = branch(feed, middle, "feed")
    return Block(normed(middle + fed) if order == "post" else middle + fed, attended, fed)
