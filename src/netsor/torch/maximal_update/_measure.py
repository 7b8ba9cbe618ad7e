"""The exponents of all sizes, responses and updates of a module under a rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Node

from ..._validate import ArgumentError, Shape
from ...laws._power_law import Fit, fit
from ...reader._graph import UnsupportedError
from ._batch import Batch, batch_of, logits_in
from ._forward_graph import forward_graph
from ._optimisers import Family
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
from ._solve import Exponents

Build = Callable[..., Any]
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

    def new(self, width: int, depth: int | None, seed: int, rule: ScalingRule) -> Any:
        """A module in double precision, with the rule applied."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build(width) if depth is None else self.build(width, depth)
        if not isinstance(module, torch.nn.Module):
            raise ArgumentError(
                "build", type(module).__name__, "a function that returns a module"
            )
        module = module.double().eval()
        rule.prepare(module, *self.ratios(width, depth))
        return module

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


def measure(
    subject: Subject,
    rule: ScalingRule,
    sizes: Sequence[tuple[int, int | None]],
    draws: int,
    tick: Callable[[], None] = lambda: None,
) -> Measurement:
    """Measure networks of several widths, or several depths."""
    graphs = [_traced(subject, rule, size) for size in sizes]
    shapes = [last_axes(each.operations, each.values) for each in graphs]
    by_size = with_narrow([each.operations for each in graphs], shapes)
    first = by_size[0]
    if any(x.graph.operations != first.graph.operations for x in by_size):
        raise UnsupportedError(VARIES)
    responses: list[list[Responses]] = []
    gradients: list[list[dict[str, float]]] = []
    stds: list[list[dict[str, float]]] = []
    for (width, depth), operations in zip(sizes, by_size, strict=True):
        responses.append([])
        gradients.append([])
        stds.append([])
        for k in range(draws):
            module = subject.new(width, depth, subject.seed + k, rule)
            batch = subject.batch_for(module)
            if operations.graph.is_data_dependent:
                graph = forward_graph(module, batch)
                if graph.operations != first.graph.operations:
                    raise UnsupportedError(VARIES)
                operations = replace(operations, graph=graph, nodes=graph.nodes)
            rates = rule.groups(module, SMALL_LR, *subject.ratios(width, depth))
            draw = steps_of(subject.family, module, batch, rates)
            generator = torch.Generator().manual_seed(subject.seed + k)
            responses[-1].append(
                measured(operations, draw.before, draw.after, batch, generator)
            )
            gradients[-1].append(draw.gradients)
            stds[-1].append({name: _std(p) for name, p in draw.before.items()})
            tick()
    at = [float(depth or 0) for _, depth in sizes]
    if len({width for width, _ in sizes}) > 1:
        at = [float(width) for width, _ in sizes]
    random = [name for name, size in stds[0][0].items() if size]
    return Measurement(
        operations=first,
        exponents=_exponents(responses, at),
        gradients=_fits(gradients, at),
        stds=_fits(stds, at),
        values=graphs[0].values,
        shapes=[each.shapes for each in graphs],
        random=frozenset(random),
    )


class Traced(NamedTuple):
    """The operations of a network, and their values in one draw."""

    operations: Operations
    values: Mapping[Node, Any]
    shapes: Mapping[str, Shape]  # of all parameters


def _traced(
    subject: Subject, rule: ScalingRule, size: tuple[int, int | None]
) -> Traced:
    """The operations of the network of one width and depth."""
    module = subject.new(*size, subject.seed, rule)
    batch = subject.batch_for(module)
    graph = forward_graph(module, batch)
    with torch.no_grad():
        values = graph.values(_numbers(module), batch)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    return Traced(operations_of(graph, batch.words), values, shapes)


def _numbers(module: Any) -> dict[str, Any]:
    """The parameters of a module, by name."""
    return {name: p.detach() for name, p in module.named_parameters()}


def _std(p: Any) -> float:
    """The standard deviation of the entries; 0 of constants."""
    if p.numel() < 2 or bool((p == p.reshape(-1)[0]).all()):
        return 0.0
    return float(p.std())


def steps_of(
    family: Family, module: Any, batch: Batch, groups: list[dict[str, Any]]
) -> Draw:
    """Take some steps from an initialisation, with these learning rates."""
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimiser = family.make(groups)
    sizes: dict[str, float] = {}
    for _ in range(STEPS):
        optimiser.zero_grad()
        batch.loss(logits_in(module(*batch.inputs))).backward()
        for name, p in module.named_parameters():
            if p.grad is not None and not sizes.get(name):
                sizes[name] = rms(p.grad)
        optimiser.step()
    return Draw(before, _numbers(module), sizes)


def _exponents(responses: list[list[Responses]], at: Sequence[float]) -> Exponents:
    """The exponents of all that was measured: lists by width, and by draw."""

    def of(kind: str) -> Any:
        """The fits of one field."""
        return _fits([[getattr(x, kind) for x in draws] for draws in responses], at)

    return Exponents(
        responses=of("responses"),
        written=of("written"),
        updates=of("updates"),
        products=responses[0][0].products,
    )


def _fits(numbers: list[list[Any]], at: Sequence[float]) -> dict[Any, Fit | None]:
    """The exponent of each number of dictionaries, by width and by draw."""
    keys: Iterable[Any] = numbers[0][0].keys()
    fits: dict[Any, Fit | None] = {}
    for key in keys:
        draws = [np.array([x.get(key, 0.0) for x in at_size]) for at_size in numbers]
        fits[key] = fit(draws, at, LEVEL)
    return fits


def depth_taken(build: Build) -> bool:
    """Whether a function takes a depth after the width."""
    try:
        inspect.signature(build).bind(64, 2)
    except TypeError:
        return False
    return True
