"""Residual streams and their branches, found in the operations of a network.

A stream is a chain of sums x + f(x), f being a branch. How strong a branch is decides
how a network follows its depth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..reader._graph import UnsupportedError
from ._responses import Node, Operation, Operations
from ._rules import layer_pattern_of

SUMS = frozenset({"add"})
# operations of a branch that pass a factor on to their only moving input
ELEMENTWISE = frozenset({"mul", "div", "neg"})


class Term(NamedTuple):
    """A term that a layer adds to a stream."""

    operation: int
    stream: int  # the value that it is added to
    output: int  # the output of a submodule that it is, up to constant factors
    path: str  # of this submodule
    # whether something in the branch reads what one of its parameters writes, so that
    # the branch can learn features of its own
    is_deep: bool


@dataclass
class _Streams:
    """The sums of all streams of a network."""

    by_index: Mapping[int, Operation]

    def __post_init__(self) -> None:
        self.ancestors: dict[int, frozenset[int]] = {}
        for k, operation in self.by_index.items():
            above = frozenset({k}).union(*(self.ancestors[x] for x in operation.inputs))
            self.ancestors[k] = above
        self.skips: dict[int, int] = {}  # of each sum x + f(x), x
        self.branches: dict[int, int] = {}  # of each sum, f(x)
        self.lengths: dict[int, int] = {}  # sums along the stream up to this one
        for k, operation in self.by_index.items():
            self._find(k, operation)

    def _find(self, k: int, operation: Operation) -> None:
        """Note an operation that is a sum x + f(x)."""
        if not self.is_sum(k):
            return
        for skip, branch in (operation.inputs, operation.inputs[::-1]):
            start = self.without_views(skip)
            # of parallel branches, the second one reads what the first one reads
            starts = {start, self.skips.get(start, start)}
            if any(x in self.ancestors[branch] for x in starts):
                self.skips[k], self.branches[k] = start, branch
                self.lengths[k] = 1 + self.lengths.get(start, 0)
                return

    def is_sum(self, k: int) -> bool:
        """Whether an operation adds two activations."""
        operation = self.by_index[k]
        is_of_activations = len(operation.inputs) == 2 and not operation.weights
        return operation.name in SUMS and is_of_activations

    def without_views(self, k: int) -> int:
        """The value that a view shows."""
        while self.by_index[k].is_view and len(self.by_index[k].inputs) == 1:
            (k,) = self.by_index[k].inputs
        return k

    def sums(self, least: int) -> list[int]:
        """The sums of streams of at least so many."""
        long: set[int] = set()
        for end, length in self.lengths.items():
            k: int | None = end if length >= least else None
            while k is not None:
                long.add(k)
                k = self.skips[k] if self.skips[k] in self.lengths else None
        return sorted(long)

    def terms(self, k: int) -> list[int]:
        """The terms of a branch that is itself a sum."""
        inner = self.without_views(k)
        if inner in self.skips or not self.is_sum(inner):
            return [k]
        return [x for term in self.by_index[inner].inputs for x in self.terms(term)]

    def reads_its_parameters(self, term: int, start: int) -> bool:
        """Whether an operation between the start of a branch and its end reads what a
        parameter writes, and is no constant factor.
        """
        end = self._before_bias(term)
        inside = self.ancestors[end] - self.ancestors[start] - {end}
        return any(self.by_index[k].weights for k in inside)

    def _before_bias(self, term: int) -> int:
        """The operation that makes a term, before constant factors and biases."""
        operation = self.by_index[term]
        if operation.source is not None:
            return self._before_bias(operation.source)
        is_bias = operation.name in SUMS and bool(operation.weights)
        if is_bias and len(operation.inputs) == 1:
            return self._before_bias(operation.inputs[0])
        return term


def branches_of(
    operations: Operations, values: Mapping[Node, Any], depth: int
) -> list[Term]:
    """The terms that layers add to streams, in a network of this many layers."""
    by_index = {x.index: x for x in operations.operations}
    streams = _Streams(by_index)
    terms = []
    for k in streams.sums(least=depth):
        start = streams.skips[k]
        for index in streams.terms(streams.branches[k]):
            output = _output(operations, by_index, index, values)
            path = by_index[output].path
            is_deep = streams.reads_its_parameters(index, start)
            terms.append(Term(index, start, output, path, is_deep))
    if not terms:
        raise UnsupportedError(
            "no residual stream, a chain of sums x + f(x) as long as the network is"
            " deep: no powers of the depth keep updates of order 1 without one"
        )
    return terms


def _output(
    operations: Operations,
    by_index: Mapping[int, Operation],
    index: int,
    values: Mapping[Node, Any],
) -> int:
    """The output of a submodule that, times a factor, is a term of the stream."""
    operation: Operation | None = by_index[index]
    while operation is not None:
        marks = [k for k in (*operation.chain, operation.index) if by_index[k].path]
        if marks:
            mark = marks[-1]
            same = values[operations.nodes[mark]], values[operations.nodes[index]]
            if math.prod(same[0].shape) == math.prod(same[1].shape):
                return mark
        is_factor = operation.name in ELEMENTWISE and len(operation.inputs) == 1
        if not is_factor:
            break
        operation = by_index.get(operation.inputs[0])
    raise UnsupportedError(
        f"a term of the residual stream, the result of {by_index[index].name}, is not"
        " the output of a submodule: make its last operation one, or write the factor"
        " of the depth into forward()"
    )


def by_pattern(terms: list[Term]) -> dict[str, list[Term]]:
    """Terms by their paths, with * for the number of a layer."""
    found: dict[str, list[Term]] = {}
    for term in terms:
        found.setdefault(layer_pattern_of(term.path), []).append(term)
    return found
