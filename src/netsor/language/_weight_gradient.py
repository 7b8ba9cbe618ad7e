"""The uses of matrices that a gradient is made of.

A use makes W x with cotangent δ, or W^T x. In R^out × R^in, the space of W, its part of ∂p/∂W is l r^T: l = δ and
r = x, or l = x and r = δ if W acted transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ._array import Source, Value
from ._given import shown
from ._grad import Use
from ._graph import weights_of
from ._join import join
from ._operation import Gaussian, Normal
from ._optimiser_ops import Acting, OptimiserStep, initial_value, steps_of
from ._scalar import Scalar
from ._source_location import TraceError
from ._vector import Vector
from ._weight import Weight

Parameter = Weight | Vector | Scalar
Version = tuple[Source, tuple[OptimiserStep, ...]]  # a matrix, and the steps that it has made


class Parameters:
    """What counts: matrices by their members, initial vectors and random scalars."""

    def __init__(self, given: Any, values: Sequence[Value], operation: str) -> None:
        self.members: dict[Source, set[int]] = {}
        self.leaves: list[Value] = []
        used = {w.source for w in weights_of(values)}
        latest: dict[Value, Value] = {}  # what an initial vector is after the last step
        for value in values:
            first, count = initial_value(value)
            if first not in latest or count > initial_value(latest[first])[1]:
                latest[first] = value
        if given is None:
            listed: Iterable[Any] = weights_of(values)
        else:
            listed = given if isinstance(given, list | tuple) else [given]
        for parameter in listed:
            match parameter:
                case Weight(source=source, members=members) if source in used:
                    self.members.setdefault(source, set()).update(members.ravel().tolist())
                case Vector(op=Gaussian()) | Scalar(op=Normal()) if parameter in latest:
                    if latest[parameter] not in self.leaves:  # listed twice, it is one parameter
                        self.leaves.append(latest[parameter])
                case _:
                    raise TraceError(
                        operation,
                        f"weights={shown(parameter)} must be weights, initial vectors (ns.gaussian) or random scalars "
                        "(ns.normal) that the program uses",
                    )

    def counts(self, op: Acting) -> bool:
        """Whether some matrix that acts is among them."""
        return not self.members.get(op.weight.source, set()).isdisjoint(op.weight.members.ravel().tolist())


@dataclass(frozen=True, eq=False)
class Term:
    """Σ_k scale · l[b, k] r[b, k]^T, a part of ∂p_output/∂W for each matrix b; r is (1, K) if all b have the same."""

    output: int
    members: tuple[int, ...]
    left: Vector
    right: Vector
    used: Weight


def version_of(op: Acting) -> Version:
    """The matrix that acts, as it was after its last step."""
    return op.weight.source, steps_of(op)


def terms_of(output: int, use: Use, chosen: Parameters) -> Iterable[Term]:
    """The parts of a gradient that a use makes."""
    weight, x, d = use.op.weight, use.op.x, use.d
    members = weight.members.ravel()
    d = d.reshape(len(members), -1)
    x = x.reshape(len(members) if use.op.each else 1, -1)
    left, right = (x, d) if weight.transposed else (d, x)
    whole = Term(output, tuple(members.tolist()), left, right, weight)
    counting = np.isin(members, list(chosen.members[weight.source]))
    if counting.all() and len(np.unique(members)) == len(members):
        yield whole
        return
    for k in np.flatnonzero(counting):  # one by one, where some do not count or act twice
        yield alone(whole, int(k))


def alone(term: Term, k: int) -> Term:
    """The part that one of its matrices has."""
    left, right = (v if v.shape[0] == 1 else v[k : k + 1] for v in (term.left, term.right))
    return replace(term, members=(term.members[k],), left=left, right=right)


def pooled(parts: Sequence[Vector]) -> Vector:
    """The vectors of several uses, (matrices, K): side by side along K."""
    rows = max(part.shape[0] for part in parts)
    same = [part if part.shape[0] == rows else part.broadcast_to((rows, part.shape[1])) for part in parts]
    return same[0] if len(same) == 1 else join(same, axis=1)
