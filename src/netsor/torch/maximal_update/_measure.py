"""The exponents of all sizes, responses and updates of a module under a rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Node

from ..._validate import ArgumentError, Shape
from ...laws._power_law import Fit, fit
from ...reader._graph import UnsupportedError
from ._batch import Batch, batch_of, logits_in
from ._forward_graph import ForwardGraph, forward_graph
from ._optimisers import Family
from ._parameter_names import parameters_of
from ._responses import (
    Operations,
    Responses,
    last_axes,
    measured,
    operations_of,
    rms,
    with_narrow,
)
from ._rules import ScalingRule
from ._scale_hooks import OutputScale, with_scaled_rows
from ._solve import Exponents

Build = Callable[..., Any]
Size = tuple[int, int | None]  # the width and the depth
Matrices = dict[str, Sequence[int] | None]
# Of the learning rate of a measurement: so small that all changes are linear in it
SMALL_LR = 1e-5
# Steps of a measurement: after one, weights behind a matrix that starts at 0 have moved
STEPS = 2
LEVEL = 0.01  # of intervals
VARIES = (
    "the module computes other operations at other widths or for other numbers: give a"
    " batch in which all its parts act"
)


@dataclass(frozen=True)
class Subject:
    """A function that makes modules, and how they are trained."""

    build: Build
    family: Family
    batch: Any
    seed: int
    base_width: int
    base_depth: int | None
    # by patterns of names: into how many equal parts a fused matrix falls, or a
    # function of the width that returns their sizes
    split_sizes: Mapping[str, int | Callable[[int], Sequence[int]]] = field(
        default_factory=dict
    )

    # a function of the module that returns the optimiser of the user
    make: Callable[[Any], Any] | None = None

    def given_rates(self, module: Any) -> dict[str, float]:
        """The learning rates of the optimiser of the user, by names of parameters."""
        names = {id(p): name for name, p in parameters_of(module).items()}
        rates = dict.fromkeys(names.values(), 0.0)
        if self.make is None:
            return dict.fromkeys(names.values(), 1.0)
        for group in self.make(module).param_groups:
            for p in group["params"]:
                rates[names[id(p)]] = float(group["lr"])
        return rates

    @cached_property
    def largest_rate(self) -> float:
        """The largest of these at the smallest width."""
        module = self.new(self.base_width, self.base_depth, self.seed, ScalingRule())
        return max(self.given_rates(module).values())

    def matrices(self, width: int, depth: int | None) -> Matrices:
        """The parameters with an optimiser for matrices, and the sizes of their parts.

        Both axes of a matrix grow with the width.
        """
        if not self.family.is_mixed:
            return {}
        shapes, larger = self._shapes(width, depth), self._shapes(2 * width, depth)
        found: Matrices = {}
        for name, shape in shapes.items():
            pairs = zip(shape, larger[name], strict=True)
            if len(shape) == 2 and all(new > old for old, new in pairs):
                found[name] = self._split(name, shape[0], width)
        return found

    def matrices_of_size(self, width: int, depth: int | None = None) -> Matrices:
        """The same, by default for the smallest depth."""
        return self.matrices(width, depth or self.base_depth)

    def at_base_depth(self, width: int) -> Any:
        """A module of the smallest depth, as it is built."""
        if self.base_depth is None:
            return self.build(width)
        return self.build(width, self.base_depth)

    def _shapes(self, width: int, depth: int | None) -> dict[str, Shape]:
        """The shapes of the parameters of a module of this size."""
        module = self.new(width, depth, self.seed, ScalingRule())
        return {name: tuple(p.shape) for name, p in parameters_of(module).items()}

    def _split(self, name: str, rows: int, width: int) -> Sequence[int] | None:
        """The sizes of the parts of a matrix; None: it is one."""
        for pattern, parts in self.split_sizes.items():
            if not fnmatchcase(name, pattern):
                continue
            sizes = [rows // parts] * parts if isinstance(parts, int) else parts(width)
            if sum(sizes) != rows:
                raise ArgumentError(
                    "split_sizes",
                    f"{list(sizes)} of {name}",
                    f"sizes that add up to its {rows} rows",
                )
            return list(sizes)
        return None

    def new(self, width: int, depth: int | None, seed: int, rule: ScalingRule) -> Any:
        """A module in double precision, with the rule applied."""
        sizes = (width,) if depth is None else (width, depth)
        self._check_takes(sizes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build(*sizes)
        if not isinstance(module, torch.nn.Module):
            raise ArgumentError(
                "build", type(module).__name__, "a function that returns a module"
            )
        module = module.double().eval()
        rule.prepare(module, *self.ratios(width, depth))
        return module

    def _check_takes(self, sizes: tuple[int, ...]) -> None:
        """Reject a function that does not take the width, and the depth if there is
        one.
        """
        try:
            inspect.signature(self.build).bind(*sizes)
        except TypeError as error:
            name = getattr(self.build, "__name__", "build")
            arguments = "width" if len(sizes) == 1 else "width, depth"
            raise ArgumentError(
                "build", f"{name} ({error})", f"a function such as {name}({arguments})"
            ) from None
        except ValueError:  # it has no signature that Python knows
            return

    def batch_for(self, module: Any) -> Batch:
        """The batch of a module, in double precision."""
        return batch_of(module, self.batch, self.seed).cast(torch.float64)

    def ratios(self, width: int, depth: int | None) -> tuple[float, float]:
        """The width and the depth, relative to the base."""
        deeper = 1.0 if depth is None else depth / (self.base_depth or depth)
        return width / self.base_width, deeper


@dataclass(frozen=True)
class Draw:
    """One initialisation, and its gradients and parameters after some steps."""

    before: dict[str, Any]
    after: dict[str, Any]
    gradients: dict[str, float]  # sizes of those of the first step that are not 0


@dataclass
class Measurement:
    """What was measured under a rule."""

    operations: Operations  # of the smallest network
    exponents: Exponents
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


@dataclass
class Graphs:
    """The graphs of a module by size: recording them takes most of the time, and other
    standard deviations have the same ones.
    """

    subject: Subject
    known: dict[tuple[Size, tuple[OutputScale, ...]], ForwardGraph] = field(
        default_factory=dict
    )
    matrices: dict[Size, Matrices] = field(default_factory=dict)

    def matrices_of(self, size: Size) -> Matrices:
        """The parameters that have an optimiser for matrices."""
        if size not in self.matrices:
            self.matrices[size] = self.subject.matrices(*size)
        return self.matrices[size]

    def of(self, rule: ScalingRule, size: Size) -> ForwardGraph:
        """The graph under a rule."""
        key = (size, rule.scales)
        if key not in self.known:
            module = self.subject.new(*size, self.subject.seed, rule.without_rows())
            self.known[key] = self.recorded(rule, size, module)
        return self.known[key]

    def recorded(self, rule: ScalingRule, size: Size, module: Any) -> ForwardGraph:
        """The graph of a module, which has no factors of rows."""
        graph = forward_graph(module, self.subject.batch_for(module))
        ratios = self.subject.ratios(*size)
        placed = rule.placed(module)
        rows = [(x, x.power.of(*ratios)) for x in placed if x.parameters]
        return with_scaled_rows(graph, rows)

    def of_draw(self, rule: ScalingRule, network: Network, module: Any) -> ForwardGraph:
        """The graph of one draw, recorded again if its numbers change it."""
        graph = network.operations.graph
        if not graph.is_data_dependent or _computes(graph, module, self.subject):
            return graph
        again = self.recorded(rule, network.size, module)
        if again.operations != graph.operations:
            raise UnsupportedError(VARIES)
        return again


def _computes(graph: ForwardGraph, module: Any, subject: Subject) -> bool:
    """Whether a graph computes the logits of a module."""
    if graph.has_constants_of_numbers:
        return False
    batch = subject.batch_for(module)
    with torch.no_grad():
        expected = logits_in(module(*batch.inputs))
        try:
            found = graph.values(_numbers(module), batch)[graph.logits]
        except (RuntimeError, IndexError):  # other shapes
            return False
    return found.shape == expected.shape and bool(torch.allclose(found, expected))


def measure(
    graphs: Graphs,
    rule: ScalingRule,
    sizes: Sequence[Size],
    draws: int,
) -> Measurement:
    """Measure networks of several widths, or several depths."""
    networks = _networks(graphs, rule, sizes)
    drawn = [
        [_drawn(graphs, rule, network, k) for k in range(draws)] for network in networks
    ]
    at = _abscissae(sizes)

    def all_of(kind: str) -> Any:
        """One field of all draws, by size and draw."""
        return [[getattr(draw, kind) for draw in of_size] for of_size in drawn]

    return Measurement(
        operations=networks[0].operations,
        exponents=_exponents(all_of("responses"), at),
        gradients=fits_of(all_of("gradients"), at),
        stds=fits_of(all_of("stds"), at),
        values=networks[0].values,
        shapes=[each.shapes for each in networks],
        random=frozenset(name for name, size in drawn[0][0].stds.items() if size),
        matrices=graphs.matrices_of(sizes[0]),
    )


def _abscissae(sizes: Sequence[Size]) -> list[float]:
    """What the exponents are in: the widths, or the depths of networks of one width."""
    widths = [float(width) for width, _ in sizes]
    if len(set(widths)) > 1:
        return widths
    return [float(depth or 0) for _, depth in sizes]


def _networks(
    graphs: Graphs, rule: ScalingRule, sizes: Sequence[Size]
) -> list[Network]:
    """The networks of all sizes, with operations that know whether they grow."""
    networks = [network_of(graphs, rule, size) for size in sizes]
    shapes = [last_axes(each.operations, each.values) for each in networks]
    of_size = with_narrow([each.operations for each in networks], shapes)
    names = of_size[0].graph.operations
    if any(operations.graph.operations != names for operations in of_size):
        raise UnsupportedError(VARIES)
    pairs = zip(networks, of_size, strict=True)
    return [each._replace(operations=operations) for each, operations in pairs]


def network_of(graphs: Graphs, rule: ScalingRule, size: Size) -> Network:
    """The network of one width and depth."""
    subject = graphs.subject
    graph = graphs.of(rule, size)
    module = subject.new(*size, subject.seed, rule.without_rows())
    batch = subject.batch_for(module)
    with torch.no_grad():
        values = graph.values(_numbers(module), batch)
    shapes = {name: tuple(p.shape) for name, p in parameters_of(module).items()}
    return Network(size, operations_of(graph, batch.words), values, shapes)


def _drawn(graphs: Graphs, rule: ScalingRule, network: Network, k: int) -> Drawn:
    """Measure initialisation k of a network."""
    subject, operations = graphs.subject, network.operations
    seed = subject.seed + k
    module = subject.new(*network.size, seed, rule)
    batch = subject.batch_for(module)
    if operations.graph.is_data_dependent:
        plain = subject.new(*network.size, seed, rule.without_rows())
        graph = graphs.of_draw(rule, network, plain)
        operations = replace(operations, graph=graph, nodes=graph.nodes)
    matrices = graphs.matrices_of(network.size)
    rates = groups_for(subject, rule, module, network.size, matrices)
    draw = steps_of(subject.family, module, batch, rates)
    generator = torch.Generator().manual_seed(seed)
    responses = measured(operations, draw.before, draw.after, batch, generator)
    stds = {name: _std(p) for name, p in draw.before.items()}
    return Drawn(responses, draw.gradients, stds)


def groups_for(
    subject: Subject, rule: ScalingRule, module: Any, size: Size, matrices: Matrices
) -> list[dict[str, Any]]:
    """The groups of a measurement: small learning rates that follow the rule, and the
    optimiser of the user.
    """
    groups = rule.groups(module, SMALL_LR, *subject.ratios(*size), matrices)
    given, largest = subject.given_rates(module), subject.largest_rate
    names = {id(p): name for name, p in parameters_of(module).items()}
    for group in groups:
        group["lr"] *= given[names[id(group["params"][0])]] / largest
    return groups


def _numbers(module: Any) -> dict[str, Any]:
    """The parameters of a module, by name."""
    return {name: p.detach() for name, p in parameters_of(module).items()}


def _std(p: Any) -> float:
    """The standard deviation of the entries; 0 of constants."""
    if p.numel() < 2 or bool((p == p.reshape(-1)[0]).all()):
        return 0.0
    return float(p.std())


def steps_of(
    family: Family, module: Any, batch: Batch, groups: list[dict[str, Any]]
) -> Draw:
    """Take some steps from an initialisation, with these learning rates."""
    before = {name: p.detach().clone() for name, p in parameters_of(module).items()}
    optimiser = family.make(groups)
    sizes: dict[str, float] = {}
    for _ in range(STEPS):
        optimiser.zero_grad()
        batch.loss(logits_in(module(*batch.inputs))).backward()
        for name, p in parameters_of(module).items():
            if p.grad is not None and not sizes.get(name):
                sizes[name] = rms(p.grad)
        optimiser.step()
    return Draw(before, _numbers(module), sizes)


def _exponents(responses: list[list[Responses]], at: Sequence[float]) -> Exponents:
    """The exponents of all that was measured: lists by width, and by draw."""

    def of(kind: str) -> Any:
        """The fits of one field."""
        return fits_of([[getattr(x, kind) for x in draws] for draws in responses], at)

    return Exponents(
        responses=of("responses"),
        written=of("written"),
        updates=of("updates"),
        products=responses[0][0].products,
    )


def fits_of(numbers: list[list[Any]], at: Sequence[float]) -> dict[Any, Fit | None]:
    """The exponent of each number of dictionaries, by width and by draw."""
    keys: Iterable[Any] = numbers[0][0].keys()
    fits: dict[Any, Fit | None] = {}
    for key in keys:
        draws = [np.array([x.get(key, 0.0) for x in at_size]) for at_size in numbers]
        fits[key] = fit(draws, at, LEVEL)
    return fits
