"""Scores with correlated factors: if E[Z^x Z^y] ≠ 0, the score n^(−1/2) ⟨x, y⟩ grows
like n^(1/2).

The engine computes the limit of ⟨x, y⟩/n in a few replicas at infinite width. Random
scalars replace the scores inside x and y, because in the limit scores are independent
of the variables Z.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..._array_api import Floats
from ...language.operations._operation import Dot, Gaussian, MatMul, Normal, Source
from ...language.operations._rotary import Rotate
from ...language.values._array import Value, VectorAccess
from ...language.values._graph import Bools, asked_entries, topological_order, widths_of
from ...language.values._scalar import Scalar
from ...language.values._vector import Vector
from .._exceptions import ExactError
from ..graph._rewrite import Context, rewritten
from ..plan._plan import Plan
from ..plan._plan_query import make_plan
from ..run._quadrature_error import sample_block

REPLICAS = 8  # a product of order 1 may be 0 by chance in one replica, but not in all
MIN_CORRELATION = 1e-6  # of x and y: rounding may leave smaller ones when a sum cancels
CERTAIN = 10.0  # a product is nonzero if it exceeds this many times its error

Product = tuple[Vector, Vector, Bools]  # ⟨x_i, y_j⟩/n, for the marked i, j


def correlated(outputs: Sequence[Value], scores: Sequence[Value]) -> set[Value]:
    """The scores with correlated factors in an entry that an output depends on."""
    # It skips scores whose ⟨x, y⟩/n the engine cannot compute at infinite width, and
    # scores whose factors depend on a transposed matrix: lowering a backward pass takes
    # long, and `law` raises an error anyway if such a score diverges.
    values = topological_order(outputs)
    # the sources of sums of Gaussian vectors with mean 0, else None
    made: dict[Value, frozenset[Source] | None] = {}
    backward = set[Value]()
    for value in values:
        parts = [made[x] for x in value.op.inputs if isinstance(x, Vector)]
        if not backward.isdisjoint(value.op.inputs):
            backward.add(value)
        match value.op:
            case Gaussian(source, mean):
                made[value] = None if mean.any() else frozenset([source])
            case MatMul(weight):
                made[value] = frozenset([weight.source])
                if weight.transposed:
                    backward.add(value)
            case op:
                known = [part for part in parts if part is not None]
                linear = (
                    op.acts is VectorAccess.LINEARLY or isinstance(op, Rotate)
                ) and len(known) == len(parts)
                made[value] = frozenset().union(*known) if linear else None

    def in_limit(value: Value) -> bool:
        """Whether a value is a score whose width goes to infinity."""
        return (
            isinstance(value.op, Dot)
            and value.op.power == 0.5
            and value.op.x.width.name is not None
        )

    def change(old: Value, new: Value) -> Value:
        """Replace each score by a random scalar."""
        return (
            replace(new, op=Normal(Source(None), 1.0, new.shape))
            if in_limit(old)
            else new
        )

    unclear = []
    for p in scores:
        x, y = (made[factor] for factor in p.op.inputs)
        if (
            in_limit(p)
            and p not in backward
            and (x is None or y is None or not x.isdisjoint(y))
        ):
            unclear.append(p)
    if not unclear:
        return set()
    context, asked = Context({}, dict.fromkeys(values, 0)), asked_entries(outputs)
    factors: Any = iter(
        rewritten([x for p in unclear for x in p.op.inputs], context, change)
    )
    return _found([(p, (next(factors), next(factors), asked[p])) for p in unclear])


def _found(products: Sequence[tuple[Value, Product]]) -> set[Value]:
    """The scores whose products are certainly nonzero, by one lowering; if that fails,
    by bisection.
    """
    try:
        # warnings of the user's functions: `law` shows them
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = certain([product for _, product in products])
    except ExactError:
        half = len(products) // 2
        return _found(products[:half]) | _found(products[half:]) if half else set()
    return {
        score
        for (score, _), entries in zip(products, found, strict=True)
        if entries.any()
    }


def certain(products: Sequence[Product]) -> list[Bools]:
    """Whether the limit of each marked ⟨x_i, y_j⟩/n is certainly nonzero; False for the
    others.
    """
    scalars: list[Scalar] = []
    for x, y, asked in products:
        scalars.append(Scalar(Dot(x, y, 1.0), asked.shape))
        scalars += (
            Scalar(Dot(v[..., None], v[..., None], 1.0), (*v.shape, 1, 1))
            for v in (x, y)
        )
    bound = {
        w.name: np.inf
        for w in widths_of(topological_order(scalars))
        if w.name is not None
    }
    ends = np.cumsum([p.size for p in scalars])[:-1]

    def limits(plan: Plan) -> list[Floats]:
        """The scalars, each (replicas, entries)."""
        with np.errstate(all="ignore"):
            return np.split(sample_block(plan, 0, REPLICAS)[0], ends, axis=1)

    plan = make_plan(scalars, bound)
    found, known = limits(plan), []
    for (x, y, asked), limit, xx, yy in zip(
        products, found[::3], found[1::3], found[2::3], strict=True
    ):
        lengths = [
            np.sqrt(v.max(axis=0)).reshape(of.shape) for v, of in ((xx, x), (yy, y))
        ]
        sizes = np.broadcast_to(
            lengths[0][..., :, None] * lengths[1][..., None, :], asked.shape
        )
        known.append((np.abs(limit) > MIN_CORRELATION * sizes.ravel()) & asked.ravel())
    # see `_expectation_ops`
    for shift in range(1, 5 if plan.nodes else 3 if plan.expects else 1):
        if not any(entries.any() for entries in known):
            break
        moved = limits(make_plan(scalars, bound, shift=shift))
        for limit, other, entries in zip(found[::3], moved[::3], known, strict=True):
            entries &= np.abs(limit) > CERTAIN * np.abs(other - limit)
    return [
        np.reshape(entries.any(axis=0), p[2].shape)
        for entries, p in zip(known, products, strict=True)
    ]
