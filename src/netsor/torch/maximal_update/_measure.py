"""Modules of all widths under a rule, and what is measured in their initialisations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ..._validate import ArgumentError, Shape
from ...maximal_update._coordinate_check import Trained
from ...maximal_update._file_content import FileContent
from ...maximal_update._measurement import (
    ROUNDING,
    SMALL_LR,
    STEPS,
    VARIES,
    Drawn,
    Matrices,
    Measurement,
    Network,
    Size,
)
from ...maximal_update._own_optimiser import Settings
from ...maximal_update._responses import measured, operations_of
from ...maximal_update._rules import OutputScale, Place, ScalingRule
from ...maximal_update._scale_places import place_of_scale
from ...maximal_update._subject import Subject
from ...reader._graph import UnsupportedError
from ._arrays import TorchArrays, rms
from ._batch import Batch, batch_of, logits_in
from ._emitted_file import source_of
from ._forward_graph import ForwardGraph, forward_graph
from ._optimisers import Family
from ._own_updates import orthogonalised, own_updates
from ._parameter_names import parameters_of
from ._prepared import groups_of_rule, placed_scales, prepare
from ._real_training import Training, functions_of
from ._rows import multiply_rows
from ._scale_hooks import with_scaled_rows


@dataclass(frozen=True)
class TorchSubject(Subject):
    """A function that makes modules, and how they are trained."""

    family: Family

    framework = "PyTorch"

    def source_of(self, content: FileContent) -> str:
        """A rule as a file of plain PyTorch."""
        return source_of(content)

    def trained(
        self,
        source: str,
        scales: Sequence[OutputScale],
        free: Sequence[str],
        seed: int,
    ) -> Trained:
        """Modules that are trained with a written file."""
        return Training(
            build=self.build,
            family=self.family,
            batch=self.batch,
            seed=seed,
            base=self.base,
            functions=functions_of(source),
            scales=scales,
            matrices=self.matrices_of_size,
            free=free,
        )

    # of a mixture of the user, by the shapes of the parameters of a module
    known_rates: dict[Any, dict[str, float]] = field(default_factory=dict)

    def given_rates(self, module: Any) -> dict[str, float]:
        """The learning rates of the optimiser of the user, by names of parameters.

        Those of a mixture are what its first step shows, which includes factors that
        the class has for shapes.
        """
        parameters = parameters_of(module)
        if self.make is None:
            return dict.fromkeys(parameters, 1.0)
        if not self.family.is_mixed:
            return _of_groups(self.make(module), module, "lr")
        key = tuple(tuple(p.shape) for p in parameters.values())
        if key not in self.known_rates:
            updates = own_updates(self.make, module)
            rates = {name: x.rate for name, x in updates.items() if x is not None}
            self.known_rates[key] = {name: rates.get(name, 0.0) for name in parameters}
        return self.known_rates[key]

    def settings(self, module: Any) -> Settings:
        """The settings of the optimiser of the user, and the sizes of gradients."""
        optimiser = self.make(module)
        batch = self.batch_for(module)
        batch.loss(logits_in(module(*batch.inputs))).backward()
        eps = _of_groups(optimiser, module, "eps")
        if self.family.is_mixed:
            matrices = orthogonalised(own_updates(self.make, module))
            eps = {name: x for name, x in eps.items() if name not in matrices}
        return Settings(
            lr=_of_groups(optimiser, module, "lr"),
            eps=eps,
            weight_decay=_of_groups(optimiser, module, "weight_decay"),
            gradients=_sizes_of_gradients(module),
        )

    @cached_property
    def largest_rate(self) -> float:
        """The largest of these at the smallest width."""
        module = self.new(self.base_width, self.base_depth, self.seed, ScalingRule())
        return max(self.given_rates(module).values())

    def shapes(self, width: int, depth: int | None) -> dict[str, Shape]:
        """The shapes of the parameters of a module of this size."""
        module = self.new(width, depth, self.seed, ScalingRule())
        return {name: tuple(p.shape) for name, p in parameters_of(module).items()}

    def new(self, width: int, depth: int | None, seed: int, rule: ScalingRule) -> Any:
        """A module in double precision, with the rule applied."""
        sizes = self.size(width, depth)
        self.check_takes(sizes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build(*sizes)
        if not isinstance(module, torch.nn.Module):
            raise ArgumentError(
                "build", type(module).__name__, "a function that returns a module"
            )
        module = module.double().eval()
        width_ratio, depth_ratio = self.ratios(width, depth)
        parameters = parameters_of(module)
        for rows in self.unlike_rows:
            multiply_rows(parameters[rows.name], rows, width_ratio)
        prepare(rule, module, width_ratio, depth_ratio)
        return module

    def batch_for(self, module: Any) -> Batch:
        """The batch of a module, in double precision."""
        return batch_of(module, self.batch, self.seed).cast(torch.float64)


@dataclass(frozen=True)
class Draw:
    """One initialisation, and its gradients and parameters after some steps."""

    before: dict[str, Any]
    after: dict[str, Any]
    gradients: dict[str, float]  # sizes of those of the first step that are not 0


@dataclass
class Graphs:
    """The graphs of a module by size: recording them takes most of the time, and other
    standard deviations have the same ones.
    """

    subject: TorchSubject
    known: dict[tuple[Size, tuple[OutputScale, ...]], ForwardGraph] = field(
        default_factory=dict
    )
    matrices: dict[Size, Matrices] = field(default_factory=dict)

    def matrices_of(self, size: Size) -> Matrices:
        """The parameters that have an optimiser for matrices."""
        if size not in self.matrices:
            self.matrices[size] = self.subject.matrices(*size)
        return self.matrices[size]

    def orthogonal_of(self, size: Size) -> Collection[str]:
        """The parameters whose updates are orthogonal matrices."""
        return self.matrices_of(size) if self.subject.family.is_orthogonal else ()

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
        scales = placed_scales(rule, module)
        rows = [(x, x.power.of(*ratios)) for x in scales if x.parameters]
        return with_scaled_rows(graph, rows)

    def of_draw(self, rule: ScalingRule, network: Network, module: Any) -> ForwardGraph:
        """The graph of one draw, recorded again if its numbers change it."""
        graph = self.of(rule, network.size)
        if not graph.is_data_dependent or _computes(graph, module, self.subject):
            return graph
        again = self.recorded(rule, network.size, module)
        if again.operations != graph.operations:
            raise UnsupportedError(VARIES)
        return again

    @staticmethod
    def arrays(seed: int) -> TorchArrays:
        """What PyTorch does with arrays."""
        return TorchArrays(torch.Generator().manual_seed(seed))

    def network(self, rule: ScalingRule, size: Size) -> Network:
        """The network of one width and depth."""
        subject = self.subject
        graph = self.of(rule, size)
        module = subject.new(*size, subject.seed, rule.without_rows())
        batch = subject.batch_for(module)
        with torch.no_grad():
            values = graph.values(_numbers(module), batch)
        shapes = {name: tuple(p.shape) for name, p in parameters_of(module).items()}
        return Network(size, operations_of(graph, batch.words), values, shapes)

    def drawn(self, rule: ScalingRule, network: Network, draws: int) -> list[Drawn]:
        """Measure some initialisations of a network."""
        return [self._draw(rule, network, k) for k in range(draws)]

    def _draw(self, rule: ScalingRule, network: Network, k: int) -> Drawn:
        """Measure initialisation k of a network."""
        subject = self.subject
        operations = network.operations
        seed = subject.seed + k
        module = subject.new(*network.size, seed, rule)
        batch = subject.batch_for(module)
        if self.of(rule, network.size).is_data_dependent:
            plain = subject.new(*network.size, seed, rule.without_rows())
            graph = self.of_draw(rule, network, plain)
            operations = replace(operations, graph=graph, nodes=graph.nodes)
        rates = self.groups(rule, module, network.size)
        draw = steps_of(subject.family, module, batch, rates)
        with torch.no_grad():
            responses = measured(
                operations, draw.before, draw.after, batch, self.arrays(seed)
            )
        stds = {name: _std(p) for name, p in draw.before.items()}
        return Drawn(responses, draw.gradients, stds)

    def groups(self, rule: ScalingRule, module: Any, size: Size) -> list[Any]:
        """The groups of a measurement: small learning rates that follow the rule, and
        the optimiser of the user.
        """
        subject = self.subject
        groups = groups_of_rule(
            rule, module, SMALL_LR, *subject.ratios(*size), self.matrices_of(size)
        )
        rates_of_user = subject.given_rates(module)
        largest = subject.largest_rate
        names = {id(p): name for name, p in parameters_of(module).items()}
        for group in groups:
            (p,) = group["params"]
            group["lr"] *= rates_of_user[names[id(p)]] / largest
        return groups

    @staticmethod
    def place_of_scale(measurement: Measurement, index: int) -> Place:
        """Where a factor of the result of an operation can be put."""
        return place_of_scale(measurement.operations, index, measurement.values)


def _computes(graph: ForwardGraph, module: Any, subject: TorchSubject) -> bool:
    """Whether a graph computes the logits of a module."""
    if graph.has_constants_of_numbers:
        return False
    batch = subject.batch_for(module)
    with torch.no_grad():
        expected = logits_in(module(*batch.inputs))
        try:
            logits = graph.values(_numbers(module), batch)[graph.logits]
        except (RuntimeError, IndexError):  # other shapes
            return False
    return logits.shape == expected.shape and bool(torch.allclose(logits, expected))


def _of_groups(optimiser: Any, module: Any, setting: str) -> dict[str, float]:
    """A setting of the groups of an optimiser, by names of parameters; 0 without."""
    names = {id(p): name for name, p in parameters_of(module).items()}
    numbers = dict.fromkeys(names.values(), 0.0)
    for group in optimiser.param_groups:
        for p in group["params"]:
            numbers[names[id(p)]] = float(group.get(setting, 0.0))
    return numbers


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
    """Take some steps from an initialisation, with these learning rates.

    The sizes of gradients are the first ones that are not 0.
    """
    before = {name: p.detach().clone() for name, p in parameters_of(module).items()}
    optimiser = family.make(groups)
    gradient_sizes: dict[str, float] = {}
    for _ in range(STEPS):
        optimiser.zero_grad()
        batch.loss(logits_in(module(*batch.inputs))).backward()
        for name, size in _sizes_of_gradients(module).items():
            gradient_sizes[name] = gradient_sizes.get(name) or size
        optimiser.step()
    return Draw(before, _numbers(module), gradient_sizes)


def _sizes_of_gradients(module: Any) -> dict[str, float]:
    """The sizes of the gradients; those that are 0 but for rounding become 0."""
    gradients = {
        name: p.grad for name, p in parameters_of(module).items() if p.grad is not None
    }
    sizes = {name: rms(gradient) for name, gradient in gradients.items()}
    largest = max(sizes.values(), default=0.0)
    for name, gradient in gradients.items():
        if sizes[name] < ROUNDING * largest:
            gradient.zero_()
            sizes[name] = 0.0
    return sizes
