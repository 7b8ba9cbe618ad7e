"""Exponents of standard deviations, scales and learning rates under which every change
is of order 1.

Let c be the exponent of the largest change of a value, and r that of the response of an
operation to an input. Then c of the result is the largest of c + r over the inputs and
of the exponents u of the updates of its weights. A parametrisation is maximal if c is 0
wherever a nonlinearity, or the loss, reads a value:

- a random matrix that acts on x has the largest standard deviation for which c(x) + r
  is 0. If it has few outputs, such as a head, what it writes at first is smaller than
  order 1;
- a weight that acts on given inputs, such as a table of words, writes order 1;
- a product of two activations, such as scores, and a weight that already has its
  standard deviation, such as a tied head, need a scale;
- the learning rate of a weight makes u equal to 0.

Between a weight and the nonlinearity, values may be scaled by constants (embeddings
times √n, scores over d): their exponents count too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ..laws._power_law import Exponent, Fit
from ._responses import Edge, Operation, Operations

NOTHING = -float("inf")  # the exponent of what does not change
NEAR = 0.12  # of an exponent: what finite widths change
# an exponent beyond this is not taken for 0, however wide its interval
MOST_NOISE = 0.75
# An exponent of a change above this grows. Those of rules are multiples of 1/2; a
# quarter is an error of a measured response.
EXCESS = 0.3


@dataclass(frozen=True)
class Exponents:
    """Measured exponents; None where a size is 0 in a draw."""

    responses: Mapping[Edge, Fit | None]
    written: Mapping[Edge, Fit | None]
    updates: Mapping[Edge, Fit | None]
    products: Collection[tuple[Edge, Edge]]


@dataclass
class Solution:
    """Exponents by which to change a parametrisation."""

    std: dict[str, float] = field(default_factory=dict)
    lr: dict[str, float] = field(default_factory=dict)
    # parameters that may start smaller, or at 0
    free: set[str] = field(default_factory=set)
    # operations whose result needs a factor
    scales: dict[int, float] = field(default_factory=dict)
    # operations whose change grows for a reason that no exponent removes
    growing: dict[int, float] = field(default_factory=dict)
    # c of every result
    change: dict[int, float] = field(default_factory=dict)
    # by edges of weights: the exponent of what multiplies a result before it is read
    after: dict[Edge, float] = field(default_factory=dict)


def simplest(fit: Fit | None, denominator: int = 4) -> float:
    """The simplest exponent that agrees with a measured one; −∞ if there is none.

    It is 0 if that lies in the interval, so that a few large entries, as of the steps
    of a scan, do not count as growth; otherwise the nearest fraction.
    """
    if fit is None:
        return NOTHING
    value, _, low, high = fit.exponent
    lowest = min(low, value - NEAR)
    highest = max(high, value + NEAR)
    if abs(value) < MOST_NOISE and lowest <= 0 <= highest:
        return 0.0
    return round(value * denominator) / denominator


def halves(exponent: float) -> float:
    """The nearest multiple of 1/2; 0 if it is about a quarter."""
    if abs(exponent) < EXCESS:
        return 0.0
    return round(2 * exponent) / 2 + 0.0


def nearest_half(exponent: Exponent) -> float:
    """The multiple of 1/2 nearest to a measured exponent."""
    return round(2 * exponent.value) / 2 + 0.0


def is_decided(exponent: Exponent) -> bool:
    """Whether the interval excludes all multiples of 1/2 but the nearest."""
    nearest = nearest_half(exponent)
    return nearest - 0.5 < exponent.low and exponent.high < nearest + 0.5


@dataclass
class Solver:
    """Follows changes through a network."""

    operations: Operations
    exponents: Exponents
    random: Collection[str]  # parameters that start from random numbers
    solution: Solution = field(default_factory=Solution)

    def __post_init__(self) -> None:
        self._by_index = {x.index: x for x in self.operations.operations}
        # what reads a value, and is not a linear function of it
        self._readers: dict[int, list[Operation]] = {x: [] for x in self._by_index}
        # the linear functions of a value
        self._scaled: dict[int, list[Operation]] = {x: [] for x in self._by_index}
        self._followed = self.operations.followed()
        for operation in self._followed:
            if operation.source is not None:
                if operation.source in self._scaled:
                    self._scaled[operation.source].append(operation)
                continue
            for k in operation.inputs:
                self._readers[k].append(operation)

    def solve(self) -> Solution:
        """The exponents of all weights and scales."""
        for operation in self._followed:
            self._follow(operation)
        for operation in self._followed:
            self._rates(operation)
        return self.solution

    def _response(self, edge: Edge) -> float:
        """r of an input, a multiple of 1/4."""
        return simplest(self.exponents.responses.get(edge))

    def _scaling_after(self, operation: Operation) -> float:
        """The exponent of the constants that multiply a result before a nonlinearity
        or the loss reads it.
        """
        after = self._after_readers(operation, 0.0)
        for scaled in self._scaled[operation.index]:
            r = self._response(Edge(scaled.index, operation.index))
            after += self._after_readers(scaled, r)
        return max(after, default=0.0)

    def _after_readers(self, operation: Operation, before: float) -> list[float]:
        """What multiplies a value that something reads, after the factor `before`.

        Where a nonlinearity reads it, that is the factor; a factor in front of a matrix
        belongs to the matrix.
        """
        if operation.index == self.operations.last:
            return [before]
        after = []
        for reader in self._readers[operation.index]:
            edge = Edge(reader.index, operation.index)
            response = self._response(edge)
            if any(moving == edge for moving, _ in self.exponents.products):
                after.append(0.0)
            elif not reader.contracts:
                after.append(before)
            elif response > NOTHING:  # not of queries that start from 0
                # too large products of activations get a scale of their own
                total = before + response + self._scaling_after(reader)
                after.append(min(total, 0.0))
        return after

    def _follow(self, operation: Operation) -> None:
        """c of a result, and the standard deviations of its weights.

        c is the largest of c + r over the inputs, and of the exponents of updates.
        """
        change = NOTHING
        weights = dict(self._weights_by_input(operation))
        for index in operation.moving:
            of_input = self.solution.change.get(index, NOTHING)
            of_input += self._response(Edge(operation.index, index))
            weight = weights.get(index)
            if weight is not None and of_input > NOTHING:
                of_input = self._with_std(operation, weight, of_input)
            change = max(change, of_input)
        edges_of_products = set(weights.values())
        for index in operation.weights:
            edge = Edge(operation.index, index)
            if edge not in edges_of_products:
                self._std_of_written(operation, edge)
            if self.exponents.updates.get(edge) is not None:
                change = max(change, -self._scaling_after(operation))
        self.solution.change[operation.index] = self._judged(operation, change)

    def _weights_by_input(self, operation: Operation) -> dict[int, Edge]:
        """The weight through which each moving input acts on the result."""
        return {
            moving.input: weight
            for moving, weight in self.exponents.products
            if moving.operation == operation.index
        }

    def _with_std(self, operation: Operation, weight: Edge, incoming: float) -> float:
        """c of a product by a weight after its standard deviation is changed.

        `incoming` is c before.
        """
        names = operation.weights[weight.input] & set(self.random)
        if not names:
            return incoming
        needed = -(incoming + self._scaling_after(operation))
        # few outputs: smaller at first than it is to become
        moving = Edge(operation.index, self._input_of(weight))
        written = simplest(self.exponents.written[weight])
        is_readout = written < self._response(moving)
        if is_readout:
            self.solution.free |= names
            needed = min(needed, 0.0)
        for name in names:
            decided = self.solution.std.setdefault(name, needed)
            if decided > needed + EXCESS:  # by an earlier use, such as a table of words
                self.solution.scales[operation.index] = needed - decided
                self.solution.free -= names
        return incoming + needed

    def _input_of(self, weight: Edge) -> int:
        """The moving input that acts through a weight."""
        return next(
            moving.input for moving, other in self.exponents.products if other == weight
        )

    def _std_of_written(self, operation: Operation, weight: Edge) -> None:
        """The standard deviation for which a weight on given inputs writes order 1."""
        written = simplest(self.exponents.written.get(weight))
        if written == NOTHING:
            return
        needed = -written - self._scaling_after(operation)
        if operation.moving and needed > 0:
            return  # it is added to other terms, and may start smaller
        for name in operation.weights[weight.input] & set(self.random):
            self.solution.std.setdefault(name, needed)

    def _judged(self, operation: Operation, change: float) -> float:
        """c of a result after a scale, where something reads it that is no scale."""
        readers = self._readers[operation.index]
        is_last = operation.index == self.operations.last
        is_read = is_last or any(not x.contracts for x in readers)
        if change <= EXCESS or not is_read:
            return change
        origin = operation
        if operation.source is not None:
            origin = self._by_index[operation.source]
        if origin.contracts:
            self.solution.scales[operation.index] = -change
        else:
            self.solution.growing[operation.index] = change
        return 0.0

    def _rates(self, operation: Operation) -> None:
        """The learning rates for which updates change the result by order 1."""
        for index, names in operation.weights.items():
            edge = Edge(operation.index, index)
            update = self.exponents.updates.get(edge)
            if update is None:
                continue
            after = self._scaling_after(operation)
            self.solution.after[edge] = after
            scale = self.solution.scales.get(operation.index, 0.0)
            total = simplest(update, denominator=2) + after + scale
            for name in names:
                rate = self.solution.lr.get(name, float("inf"))
                self.solution.lr[name] = min(rate, -halves(total))
