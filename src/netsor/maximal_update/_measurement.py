"""The exponents of all sizes, responses and updates of a network under a rule."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from .._validate import Shape
from ..laws._power_law import Fit, fit
from ..reader._graph import UnsupportedError
from ._responses import (
    Arrays,
    Edge,
    Node,
    Operations,
    Responses,
    last_axes,
    with_narrow,
)
from ._rules import NUMBER, Place, ScalingRule
from ._solve import Exponents

Size = tuple[int, int | None]  # the width and the depth
Matrices = dict[str, Sequence[int] | None]
# Of the learning rate of a measurement: so small that all changes are linear in it
SMALL_LR = 1e-5
# Steps of a measurement: after one, weights behind a matrix that starts at 0 have moved
STEPS = 2
# Gradients below this share of the largest are 0 but for rounding, as those of biases
# of keys, which a softmax does not see. Adam would make steps of the rounding errors.
ROUNDING = 1e-13
LEVEL = 0.01  # of intervals
FEWEST_DRAWS = 3  # two initialisations give intervals that decide no exponent
# of those of gradients, which decide the power of eps: a wrong one changes little
LEVEL_OF_EPS = 0.05
# The least part of the square of a change that counts as aligned: random signs change
# their square by some percent
LEAST_ALIGNED = 0.02
VARIES = (
    "the module computes other operations at other widths or for other numbers: give a"
    " batch in which all its parts act"
)


class Graphs(Protocol):
    """Networks of all sizes, as a framework makes and runs them."""

    def arrays(self, seed: int) -> Arrays:
        """What the framework does with arrays."""

    def matrices_of(self, size: Size) -> Matrices:
        """The parameters that have an optimiser for matrices."""

    def orthogonal_of(self, size: Size) -> Collection[str]:
        """The parameters whose updates are orthogonal matrices."""

    def network(self, rule: ScalingRule, size: Size) -> Network:
        """The network of one width and depth."""

    def drawn(self, rule: ScalingRule, network: Network, draws: int) -> list[Drawn]:
        """Measure some initialisations of a network."""

    def place_of_scale(self, measurement: Measurement, index: int) -> Place:
        """Where a factor of the result of an operation can be put."""


@dataclass
class Measurement:
    """What was measured under a rule."""

    operations: Operations  # of the smallest network
    exponents: Exponents
    # of all layers together: see `repeated_groups`
    gradients: Mapping[str, Fit | None]
    stds: Mapping[str, Fit | None]  # of the entries of random parameters
    values: Mapping[Node, Any]  # of all operations in one draw of that network
    shapes: Sequence[Mapping[str, Shape]]  # of all parameters, at each size
    random: frozenset[str] = field(default_factory=frozenset)
    # those with an optimiser for matrices, at the smallest size
    matrices: Matrices = field(default_factory=dict)


class Network(NamedTuple):
    """The operations of a network of one size, and their values in one draw."""

    size: Size
    operations: Operations
    values: Mapping[Node, Any]
    shapes: Mapping[str, Shape]  # of all parameters


class Drawn(NamedTuple):
    """What was measured in one draw of a network."""

    responses: Responses
    gradients: Mapping[str, float]
    stds: Mapping[str, float]


def measure(
    graphs: Graphs,
    rule: ScalingRule,
    sizes: Sequence[Size],
    draws: int,
) -> Measurement:
    """Measure networks of several widths, or several depths."""
    networks = _networks(graphs, rule, sizes)
    # draws_by_size[s][d] is draw d of the network of size s
    draws_by_size = [graphs.drawn(rule, network, draws) for network in networks]
    scales = _varied_sizes(sizes)
    shapes = [network.shapes for network in networks]
    groups = repeated_groups(shapes)
    orthogonal = _edges_of(networks[0].operations, graphs.orthogonal_of(sizes[0]))
    gradients = [
        [_pooled(draw.gradients, groups) for draw in of_size]
        for of_size in draws_by_size
    ]
    stds = [[draw.stds for draw in of_size] for of_size in draws_by_size]
    stds_of_first_draw = stds[0][0]
    exponents = _exponents(draws_by_size, scales, orthogonal)
    _check_all_act(networks[0].operations, draws_by_size, exponents)
    return Measurement(
        operations=networks[0].operations,
        exponents=exponents,
        gradients=fits_of(gradients, scales, LEVEL_OF_EPS),
        stds=fits_of(stds, scales),
        values=networks[0].values,
        shapes=shapes,
        random=frozenset(name for name, std in stds_of_first_draw.items() if std),
        matrices=graphs.matrices_of(sizes[0]),
    )


def _check_all_act(
    operations: Operations,
    draws_by_size: Sequence[Sequence[Drawn]],
    exponents: Exponents,
) -> None:
    """Reject parameters whose updates act in too few draws for an exponent, but not
    in none, such as those of an expert that is chosen rarely.
    """
    draws = [draw.responses for of_size in draws_by_size for draw in of_size]
    acting: dict[str, int] = {}
    measured: set[str] = set()
    for operation in operations.operations:
        for index, names in operation.weights.items():
            edge = Edge(operation.index, index)
            count = sum(bool(draw.updates.get(edge)) for draw in draws)
            for name in names:
                acting[name] = max(acting.get(name, 0), count)
            if exponents.updates.get(edge) is not None:
                measured |= names
    rare = [name for name, count in acting.items() if count and name not in measured]
    if rare:
        name = rare[0]
        raise UnsupportedError(
            f"the update of {name} changes nothing in {len(draws) - acting[name]} of"
            f" {len(draws)} initialisations, too many for an exponent: give a batch in"
            " which all parts of the module act, or more draws"
        )


def repeated_groups(shapes: Sequence[Mapping[str, Shape]]) -> list[list[str]]:
    """Names of parameters that are the same in every layer, or in every expert.

    They differ in the number of the layer, or in numbers of parts of it that all have
    parameters of the same names; and they have the same shape in networks of every
    size.
    """
    shapes_of = {
        name: tuple(of_network.get(name) for of_network in shapes) for name in shapes[0]
    }
    # by the path of a container and the number of a part: the names that follow the
    # number, with their shapes
    parts: dict[str, dict[str, set[Any]]] = {}
    for name, of_sizes in shapes_of.items():
        for number in NUMBER.finditer(name):
            container = name[: number.start()]
            suffix = name[number.end() :]
            of_container = parts.setdefault(container, {})
            of_container.setdefault(number.group(), set()).add((suffix, of_sizes))

    groups: dict[Any, list[str]] = {}
    for name, of_sizes in shapes_of.items():
        key = _pattern_of_alike(name, parts), of_sizes
        groups.setdefault(key, []).append(name)
    return [*groups.values()]


def _pattern_of_alike(name: str, parts: Mapping[str, Mapping[str, set[Any]]]) -> str:
    """A name with * for the number of its layer, and for numbers of parts of layers
    that all have the same parameters.
    """
    pattern, end = "", 0
    for k, number in enumerate(NUMBER.finditer(name)):
        first, *others = parts[name[: number.start()]].values()
        is_of_layer = k == 0
        is_alike = is_of_layer or all(other == first for other in others)
        pattern += name[end : number.start()]
        pattern += "*" if is_alike else number.group()
        end = number.end()
    return pattern + name[end:]


def _pooled(
    sizes: Mapping[str, float], groups: Sequence[Sequence[str]]
) -> dict[str, float]:
    """The geometric mean over each group, of sizes that are not 0, for all its names.

    One scalar in each layer has a gradient of few numbers, and its exponent a wide
    interval: all layers have one rule, so they have one measurement.
    """
    means = dict(sizes)
    for names in groups:
        positive = [sizes[name] for name in names if sizes.get(name)]
        if positive:
            mean = float(np.exp(np.mean(np.log(positive))))
            means.update(dict.fromkeys(names, mean))
    return means


def _varied_sizes(sizes: Sequence[Size]) -> list[float]:
    """What the exponents are in: the widths, or the depths of networks of one width."""
    widths = [float(width) for width, _ in sizes]
    if len(set(widths)) > 1:
        return widths
    return [float(depth or 0) for _, depth in sizes]


def _networks(
    graphs: Graphs, rule: ScalingRule, sizes: Sequence[Size]
) -> list[Network]:
    """The networks of all sizes, with operations that know whether they grow.

    One width cannot show what grows, so the last axes are compared between the sizes.
    All networks must have the same operations.
    """
    networks = [graphs.network(rule, size) for size in sizes]
    arrays = graphs.arrays(seed=0)
    shapes = [
        last_axes(network.operations, network.values, arrays) for network in networks
    ]
    operations_by_size = with_narrow([net.operations for net in networks], shapes)
    names = operations_by_size[0].graph.operations
    for size, operations in zip(sizes, operations_by_size, strict=True):
        if operations.graph.operations != names:
            raise UnsupportedError(_unlike_text(sizes[0], size))
    return [
        network._replace(operations=operations)
        for network, operations in zip(networks, operations_by_size, strict=True)
    ]


def _unlike_text(first: Size, other: Size) -> str:
    """Why networks of two sizes cannot be compared, with what to try."""
    axis = 0 if first[0] != other[0] else 1
    name = ("width", "depth")[axis]
    return (
        f"the module computes other operations at {name} {other[axis]} than at"
        f" {name} {first[axis]}: begin with larger {name}s, as for heads that are"
        " more than one, or give a batch in which all its parts act"
    )


def _edges_of(operations: Operations, names: Collection[str]) -> set[Edge]:
    """The uses of some parameters as weights."""
    return {
        Edge(operation.index, index)
        for operation in operations.operations
        for index, of_weight in operation.weights.items()
        if not of_weight.isdisjoint(names)
    }


def _exponents(
    draws_by_size: Sequence[Sequence[Drawn]],
    scales: Sequence[float],
    orthogonal: Collection[Edge],
) -> Exponents:
    """The exponents of all responses, by size and draw, in the widths or depths.

    `orthogonal` are weights whose updates are orthogonal matrices.
    """

    def fits(field: str) -> Any:
        """The fits of one field of the responses."""
        numbers = [
            [getattr(draw.responses, field) for draw in of_size]
            for of_size in draws_by_size
        ]
        return fits_of(numbers, scales)

    responses = [[draw.responses for draw in of_size] for of_size in draws_by_size]
    return Exponents(
        responses=fits("responses"),
        written=fits("written"),
        updates=fits_of(aligned_updates(responses, orthogonal), scales),
        products=_products([draw.responses for draw in draws_by_size[0]]),
    )


def _products(draws: Sequence[Responses]) -> set[tuple[Edge, Edge]]:
    """Moving inputs that act on a result through a weight: as in the first draw in
    which they act.
    """
    through: dict[tuple[Edge, Edge], Any] = {}
    for draw in draws:
        for edges, is_through in draw.through.items():
            moving, _ = edges
            if draw.responses[moving]:
                through.setdefault(edges, is_through)
    return {edges for edges, is_through in through.items() if is_through}


def aligned_updates(
    responses: Sequence[Sequence[Responses]], orthogonal: Collection[Edge]
) -> list[list[dict[Edge, float]]]:
    """What updates change, by size and by draw: of sums over many entries, the part
    that is there because the update is aligned with its inputs.

    With T tokens an entry of an update is a sum of T terms, of which each token has one
    of its own. In a sum over n entries these add up to n/√T. The other terms add up
    like random numbers, to √n. So exponents are those of large widths as soon as n is
    large against T only, while those of the first part are always. Updates with random
    signs have the second part alone. `orthogonal` are uses of weights whose updates are
    orthogonal matrices: the entries of these are no such sums.
    """
    draws = [of_draw for of_size in responses for of_draw in of_size]
    every_edge = {edge for draw in draws for edge in draw.updates}
    edges = {
        edge for edge in every_edge - {*orthogonal} if _is_always_aligned(draws, edge)
    }
    return [
        [
            {
                edge: _aligned(of_draw, edge) if edge in edges else change
                for edge, change in of_draw.updates.items()
            }
            for of_draw in of_size
        ]
        for of_size in responses
    ]


def _is_always_aligned(draws: Sequence[Responses], edge: Edge) -> bool:
    """Whether it is in all draws in which the update changes something."""
    return all(_is_aligned(x, edge) for x in draws if x.updates.get(edge))


def _is_aligned(responses: Responses, edge: Edge) -> bool:
    """Whether a change has a part that random signs do not have."""
    change = responses.updates.get(edge, 0.0)
    return bool(_aligned(responses, edge) ** 2 > LEAST_ALIGNED * change**2)


def _aligned(responses: Responses, edge: Edge) -> float:
    """The part of a change that an update with random signs does not have."""
    squares = responses.updates.get(edge, 0.0) ** 2
    squares -= responses.scattered.get(edge, 0.0) ** 2
    return math.sqrt(max(squares, 0.0))


def fits_of(
    numbers: list[list[Any]], scales: Sequence[float], level: float = LEVEL
) -> dict[Any, Fit | None]:
    """The exponent of each number of dictionaries, by size and by draw.

    A number that a dictionary lacks is 0. `scales` are the widths, or the depths. Draws
    in which a number is 0 are left out, such as those in which no token chooses an
    expert; with fewer than `FEWEST_DRAWS` others at some size there is no exponent.
    """
    draws = [of_draw for of_size in numbers for of_draw in of_size]
    keys: Iterable[Any] = dict.fromkeys(key for of_draw in draws for key in of_draw)
    fits: dict[Any, Fit | None] = {}
    for key in keys:
        samples = [
            np.array([of_draw[key] for of_draw in of_size if of_draw.get(key)])
            for of_size in numbers
        ]
        has_enough = all(len(of_size) >= FEWEST_DRAWS for of_size in samples)
        fits[key] = fit(samples, scales, level) if has_enough else None
    return fits
