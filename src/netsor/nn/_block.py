"""A block of a transformer: two branches around a stream, and where the norms stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..language import TraceError, Vector, rms_norm
from ..language._given import one_of, shown
from ._affine import made_of

Layer = Callable[[Vector], Vector]


class Block(NamedTuple):
    """What `block` makes, and what its branches added to the stream."""

    output: Vector
    attended: Vector
    fed: Vector


def block(x: Vector, attend: Layer, feed: Layer, norm: Layer = rms_norm, order: str = "pre") -> Block:
    """A stream x with two branches, such as an attention layer and a perceptron, functions of vectors.

    pre: x + attend(norm(x)), then x + feed(norm(x)); post: norm(x + attend(x)), then norm(x + feed(x)); parallel:
    x + attend(norm(x)) + feed(norm(x)); sandwich: as pre, with a norm of what each branch adds; after: x +
    norm(attend(x)), then x + norm(feed(x)).
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
