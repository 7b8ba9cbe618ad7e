"""What attention and the recurrent layers share: heads, rotary positions and scores.

Vectors of a layer have its heads as their first axis. Queries have one matrix per head;
keys and values may have one for a group of consecutive heads.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .._validate import as_number, real, whole
from ..language import Scalar, TraceError, Vector, Width, concat, dot, mean_dot
from ..language import rotary as rotate
from ..language.operations._rotary import Stretch
from ._block import affine

PerHead = TypeVar("PerHead", Vector, Scalar)


class Rotary(NamedTuple):
    """Rotary positions of queries and keys. The parameters are those of `rotary`.

    Examples
    --------
    >>> n, d = ns.Width("n"), ns.Width("d")
    >>> positions = ns.nn.Rotary(base=500_000.0)
    >>> ns.nn.attention(ns.gaussian(n, 4), heads=2, head_dim=d, rotary=positions).shape
    (4,)
    """

    base: float = 10000.0
    fraction: float = 1.0
    positions: npt.ArrayLike | None = None
    stretch: Stretch | None = None


class Heads:
    """The heads of a layer and their groups, as checked integers.

    Parameters
    ----------
    operation : str
        The name of the layer, for errors.
    heads, groups : int
        The arguments of the layer. Groups are of equal size; without `groups`, every
        head is its own group.
    """

    def __init__(self, operation: str, heads: int, groups: int | None = None) -> None:
        self.operation = operation
        self.heads = whole(heads, "heads", operation)
        self.groups = self.heads
        if groups is not None:
            self.groups = whole(groups, "groups", operation)
        if self.heads % self.groups:
            raise TraceError(
                operation,
                f"groups={groups} must divide heads={heads}: groups have equal sizes",
            )

    def repeated(self, by_group: PerHead) -> PerHead:
        """Values of groups, (groups, …), repeated for the heads, (heads, …).

        For example, with 4 heads in 2 groups, [a, b] becomes [a, a, b, b].
        """
        if self.groups == self.heads:
            return by_group
        group_of_head = np.repeat(np.arange(self.groups), self.heads // self.groups)
        return by_group[group_of_head]

    def rotated(self, u: Vector, rotary: Rotary | None) -> Vector:
        """Queries or keys u, (heads, …, tokens), with rotary positions if any."""
        if rotary is None:
            return u
        if not isinstance(rotary, Rotary):
            allowed = "an ns.nn.Rotary(base, fraction, positions)"
            raise TraceError(self.operation, "rotary", rotary, allowed)
        return rotate(u, **rotary._asdict())

    def scores(
        self, q: Vector, k: Vector, scaling: str | float, integer_width: str = ""
    ) -> Scalar:
        """The scaled products of queries and keys, (heads, …, queries, keys).

        With q and k in R^d, they are ⟨q, k⟩/√d for "sqrt", ⟨q, k⟩/d for "linear",
        ⟨q, k⟩ for "none", and c ⟨q, k⟩/√d for a number c. Only layers that pass the
        name of their argument d as `integer_width` have "none", which needs a d that is
        a number.
        """
        if not isinstance(scaling, str) and as_number(scaling) is not None:
            return real(scaling, "scaling", self.operation) * dot(q, k)
        if isinstance(scaling, str):
            if scaling == "sqrt":
                return dot(q, k)
            if scaling == "linear":
                return mean_dot(q, k)
            if scaling == "none" and integer_width:
                d = self.integer_dimension(q.width, integer_width)
                return math.sqrt(d) * dot(q, k)
        allowed = "'sqrt', 'linear' or a number"
        if integer_width:
            allowed = "'sqrt', 'linear', 'none' or a number"
        raise TraceError(self.operation, "scaling", scaling, allowed)

    def integer_dimension(self, width: Width, name: str) -> int:
        """The number d of a width that must not be symbolic.

        ⟨q, k⟩ without a power of d has no limit as d grows.
        """
        if width.name is not None:
            raise TraceError(
                self.operation,
                f"{name}={width} must be an integer with this scaling: the sum over its"
                " coordinates has no limit otherwise",
            )
        return int(width.factor)

    def output(
        self, y: Vector, width: Width, sigma_o: float | Scalar, sigma_b: float
    ) -> Vector:
        """W^O times the concatenated outputs of the heads, (heads, …) to (…)."""
        return affine(
            concat(y, axis=0), width, sigma_w=sigma_o, sigma_b=sigma_b, name="W^O"
        )
