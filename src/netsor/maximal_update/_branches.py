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
        self.ancestors: dict[int, frozenset[int]] = {}  # of each operation, and itself
        for index, operation in self.by_index.items():
            of_inputs = [self.ancestors[x] for x in operation.inputs]
            self.ancestors[index] = frozenset({index}).union(*of_inputs)
        self.skips: dict[int, int] = {}  # of each sum x + f(x), x
        self.branches: dict[int, int] = {}  # of each sum, f(x)
        self.lengths: dict[int, int] = {}  # sums along the stream up to this one
        for index, operation in self.by_index.items():
            self._note_sum(index, operation)

    def _note_sum(self, index: int, operation: Operation) -> None:
        """Note an operation that is a sum x + f(x): f(x) depends on x."""
        if not self.is_sum(index):
            return
        left, right = operation.inputs
        for skip, branch in ((left, right), (right, left)):
            start = self.without_views(skip)
            # of parallel branches, the second one reads what the first one reads
            starts = {start, self.skips.get(start, start)}
            if starts & self.ancestors[branch]:
                self.skips[index], self.branches[index] = start, branch
                self.lengths[index] = 1 + self.lengths.get(start, 0)
                return

    def is_sum(self, index: int) -> bool:
        """Whether an operation adds two activations."""
        operation = self.by_index[index]
        is_of_activations = len(operation.inputs) == 2 and not operation.weights
        return operation.name in SUMS and is_of_activations

    def without_views(self, index: int) -> int:
        """The value that a view shows."""
        operation = self.by_index[index]
        while operation.is_view and len(operation.inputs) == 1:
            (index,) = operation.inputs
            operation = self.by_index[index]
        return index

    def sums(self, least: int) -> list[int]:
        """The sums of streams with at least so many of them."""
        sums: set[int] = set()
        for end, length in self.lengths.items():
            if length < least:
                continue
            index = end
            while index in self.lengths:  # back to the start of the stream
                sums.add(index)
                index = self.skips[index]
        return sorted(sums)

    def terms(self, index: int) -> list[int]:
        """The terms of a branch that is itself a sum; else the branch."""
        branch = self.without_views(index)
        if branch in self.skips or not self.is_sum(branch):
            return [index]
        terms: list[int] = []
        for summand in self.by_index[branch].inputs:
            terms += self.terms(summand)
        return terms

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
            term = Term(
                operation=index,
                stream=start,
                output=output,
                path=by_index[output].path,
                is_deep=streams.reads_its_parameters(index, start),
            )
            terms.append(term)
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

    def size(number: int) -> int:
        """The number of entries of a value."""
        return math.prod(values[operations.nodes[number]].shape)

    operation: Operation | None = by_index[index]
    while operation is not None:
        outputs = [k for k in (*operation.chain, operation.index) if by_index[k].path]
        if outputs and size(outputs[-1]) == size(index):
            return outputs[-1]
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
    patterns: dict[str, list[Term]] = {}
    for term in terms:
        patterns.setdefault(layer_pattern_of(term.path), []).append(term)
    return patterns
