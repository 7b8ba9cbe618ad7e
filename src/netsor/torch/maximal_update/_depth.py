"""Modules of several depths under a rule, and what is measured in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from ...laws._power_law import Fit
from ...maximal_update._branches import Term, branches_of, by_pattern
from ...maximal_update._depth_rule import (
    WEAK,
    Measured,
    check_names,
    layer_pattern,
    named_output,
)
from ...maximal_update._measurement import LEVEL, LEVEL_OF_EPS, Size, fits_of
from ...maximal_update._power import Power
from ...maximal_update._rules import (
    OutputScale,
    ScalingRule,
    groups_of,
    layer_pattern_of,
)
from ._arrays import rms
from ._batch import Batch, logits_in
from ._measure import Draw, Graphs, TorchSubject, steps_of
from ._parameter_names import parameters_of
from ._prepared import placed_scales
from ._real_training import recorded
from ._scale_hooks import add_scale

NOISE = 1  # tells the seeds of random numbers in place of zeros from other seeds


@dataclass
class TorchDepths:
    """The networks of a subject at several depths and one width."""

    subject: TorchSubject
    depths: tuple[int, ...]
    draws: int
    # by patterns of paths of branches: what makes them weak
    factors: dict[str, float] = field(default_factory=dict)
    # by pattern and depth: the factor between the output of a submodule and the term of
    # the stream, which `forward` may have
    passed_on: dict[tuple[str, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graphs = Graphs(self.subject)

    def size(self, depth: int) -> Size:
        """The size of a network."""
        return self.subject.base_width, depth

    def found_terms(self) -> dict[str, list[Term]]:
        """The terms of streams of the deepest network, by pattern."""
        for depth in self.depths:
            size = self.size(depth)
            network = self.graphs.network(ScalingRule(), size)
            terms = by_pattern(branches_of(network.operations, network.values, depth))
            module = self.subject.new(*size, self.subject.seed, ScalingRule())
            batch = self.subject.batch_for(module)
            nodes = network.operations.nodes
            with torch.no_grad(), without_zeros(module, self.subject.seed):
                numbers = {k: p.detach() for k, p in parameters_of(module).items()}
                values = network.operations.graph.values(numbers, batch)
            for pattern, of_layers in terms.items():
                term = of_layers[0]
                size_of_term = rms(values[nodes[term.operation]])
                size_of_output = rms(values[nodes[term.output]])
                size_of_stream = rms(values[nodes[term.stream]])
                self.passed_on[pattern, depth] = size_of_term / size_of_output
                if pattern not in self.factors:
                    self.factors[pattern] = WEAK * size_of_stream / size_of_term
        return terms

    def placed(self, rule: ScalingRule) -> tuple[OutputScale, ...]:
        """The factors of a rule of patterns, in the smallest network."""
        return placed_scales(rule, self.subject.build(*self.subject.base))

    def measure(self, rule: ScalingRule) -> Measured:
        """Measure all depths under a rule of patterns."""
        depths = [float(depth) for depth in self.depths]
        draws_by_depth = [
            [self._draw(rule, depth, k) for k in range(self.draws)]
            for depth in self.depths
        ]

        def fits(field: str, level: float = LEVEL) -> dict[str, Fit | None]:
            """The exponents of one field of the draws."""
            numbers = [
                [getattr(draw, field) for draw in of_depth]
                for of_depth in draws_by_depth
            ]
            return fits_of(numbers, depths, level)

        return Measured(
            branches=fits("branches"),
            changes=fits("changes"),
            gradients=fits("gradients", LEVEL_OF_EPS),
            outputs=fits("outputs"),
            pattern=self.pattern,
        )

    @cached_property
    def pattern(self) -> str:
        """A pattern that as many parameters have as there are layers."""
        counts = []
        for depth in self.depths:
            module = self.subject.new(
                *self.size(depth), self.subject.seed, ScalingRule()
            )
            names = groups_of(parameters_of(module))
            counts.append({pattern: len(members) for pattern, members in names.items()})
        return layer_pattern(counts, self.depths)

    def _draw(self, rule: ScalingRule, depth: int, k: int) -> DepthDraw:
        """Measure initialisation k at a depth, with weak branches."""
        subject = self.subject
        size = self.size(depth)
        module = subject.new(*size, subject.seed + k, rule)
        names_by_pattern = groups_of(parameters_of(module))
        check_names(rule, names_by_pattern)
        batch = subject.batch_for(module)
        for path, _ in [*module.named_modules()]:
            factor = self.factors.get(layer_pattern_of(path))
            if factor is not None:
                add_scale(module, OutputScale(path, None, Power(), "branch"), factor)
        sizes = output_sizes(module, batch, [*self.factors], seed=subject.seed + k)
        branches = {
            pattern: size * self.passed_on[pattern, depth]
            for pattern, size in sizes.items()
        }
        groups = self.graphs.groups(rule, module, size)
        with torch.no_grad(), recorded(module, {}) as before:
            module(*batch.inputs)
        draw = steps_of(subject.family, module, batch, groups)
        with torch.no_grad(), recorded(module, {}) as after:
            module(*batch.inputs)
        gradients = {}
        for pattern, names in names_by_pattern.items():
            squares = [draw.gradients.get(name, 0.0) ** 2 for name in names]
            gradients[pattern] = math.sqrt(np.mean(squares))
        return DepthDraw(
            branches=branches,
            changes=loss_changes(module, batch, draw, names_by_pattern),
            gradients=gradients,
            outputs=self._output_changes(before, after, depth),
        )

    def _output_changes(
        self, before: Mapping[str, Any], after: Mapping[str, Any], depth: int
    ) -> dict[str, float]:
        """How much the outputs of submodules change, by names of the middle layer."""
        changes = {}
        for path, value in after.items():
            name = named_output(path, self.pattern, depth)
            if name is not None and value.shape == before[path].shape:
                changes[name] = rms(value - before[path])
        return changes


class DepthDraw(NamedTuple):
    """What was measured in one draw of a network, by pattern."""

    branches: Mapping[str, float]
    changes: Mapping[str, float]
    gradients: Mapping[str, float]
    outputs: Mapping[str, float]


def output_sizes(
    module: Any, batch: Batch, patterns: Sequence[str], seed: int
) -> dict[str, float]:
    """The sizes of outputs of submodules by pattern, where matrices of zeros have
    random numbers of this seed.
    """
    squares: dict[str, list[float]] = {}
    handles = []
    for path, submodule in module.named_modules():
        pattern = layer_pattern_of(path)
        if pattern in patterns:
            of_pattern = squares.setdefault(pattern, [])
            handles.append(submodule.register_forward_hook(_recorder(of_pattern)))
    with torch.no_grad(), without_zeros(module, seed):
        module(*batch.inputs)
    for handle in handles:
        handle.remove()
    return {
        pattern: math.sqrt(np.mean(of_pattern))
        for pattern, of_pattern in squares.items()
    }


@contextmanager
def without_zeros(module: Any, seed: int) -> Iterator[None]:
    """A context in which matrices of zeros have random numbers.

    They are independent for each `seed`, and of a module that was initialised with it.
    Their size is that of a matrix which keeps mean squares, σ²/fan-in; for tables,
    where that is arbitrary, it makes no difference either, as networks of one width are
    compared.
    """
    zeros = []
    for p in module.parameters():
        is_matrix = p.ndim >= 2 and p.numel() > 0
        if is_matrix and not p.any():
            zeros.append(p)
    generator = torch.Generator().manual_seed(_seed_of_noise(seed))
    try:
        for p in zeros:
            noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            fan_in = p[0].numel()
            p.data.copy_(noise / math.sqrt(fan_in))
        yield
    finally:
        for p in zeros:
            p.data.zero_()


def _seed_of_noise(seed: int) -> int:
    """A seed of torch for numbers that are independent of those of `seed` itself."""
    (word,) = np.random.SeedSequence((seed, NOISE)).generate_state(1)
    return int(word)


def _recorder(squares: list[float]) -> Callable[..., None]:
    """A hook that records the square of the size of an output."""

    def record(module: Any, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        squares.append(rms(first) ** 2)

    return record


def loss_changes(
    module: Any, batch: Batch, draw: Draw, names: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """How much the updates of the parameters of each pattern change the loss: all
    parameters are those after the steps, but for those of the pattern.
    """
    parameters = parameters_of(module)

    def loss() -> float:
        """The loss of the batch."""
        return float(batch.loss(logits_in(module(*batch.inputs))))

    changes = {}
    moved = {name: x.clone() for name, x in draw.after.items()}
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(moved[name])
        after = loss()
        for pattern, of_pattern in names.items():
            for name in of_pattern:
                parameters[name].copy_(draw.before[name])
            changes[pattern] = abs(loss() - after)
            for name in of_pattern:
                parameters[name].copy_(moved[name])
    return changes
