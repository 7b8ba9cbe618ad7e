"""JAX models of all widths under a rule, and what is measured in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._validate import ArgumentError, Shape, one_of
from ...maximal_update._coordinate_check import Trained
from ...maximal_update._file_content import FileContent
from ...maximal_update._measurement import (
    ROUNDING,
    SMALL_LR,
    STEPS,
    Drawn,
    Matrices,
    Measurement,
    Network,
    Size,
)
from ...maximal_update._responses import Operations, Responses, measured, operations_of
from ...maximal_update._rules import (
    OutputScale,
    Part,
    Place,
    ScalingRule,
    matches,
    pattern_of,
)
from ...maximal_update._scale_places import part_of_mask, writers_of
from ...maximal_update._subject import Subject
from ...reader._graph import Node, UnsupportedError
from .._models import is_pair
from .._optax import EXPECTED, is_transformation, transformation_of
from ._arrays import JaxArrays, rms
from ._batch import Batch
from ._emitted_file import source_of
from ._graph import JaxGraph
from ._model import QUICK, Arrays, Model, graph_of, model_of
from ._optimisers import FAMILIES, OWN, OptaxFamily, optax_library
from ._real_training import JaxTraining, functions_of_source

WRITTEN_OUT = (
    "the scores need a factor, and it cannot be put on the parameters that make the"
    " queries: write it into the model"
)


NORMALS = 2**16  # numbers of random directions in a draw


@dataclass(frozen=True)
class JaxSubject(Subject):
    """A function of the width that makes JAX models, and how they are trained."""

    family: OptaxFamily

    framework = "JAX"

    @cached_property
    def models(self) -> dict[Size, Model]:
        """The models that were made, by size."""
        return {}

    @cached_property
    def graphs(self) -> JaxGraphs:
        """Their graphs."""
        return JaxGraphs(self)

    def model(self, width: int, depth: int | None) -> Model:
        """The model of a size."""
        if (width, depth) not in self.models:
            sizes = self.size(width, depth)
            self.check_takes(sizes)
            model = model_of(self.build(*sizes), self.batch, self.seed)
            self.models[width, depth] = model
        return self.models[width, depth]

    def shapes(self, width: int, depth: int | None) -> dict[str, Shape]:
        """The shapes of the parameters of a model of this size."""
        return self.model(width, depth).shapes

    def source_of(self, content: FileContent) -> str:
        """A rule as a file of plain JAX and optax."""
        model = self.model(self.base_width, self.base_depth)
        return source_of(content, self.family, model.kind, self._stacked())

    def _stacked(self) -> dict[str, int]:
        """The parameters of all layers of a scan, with the number of their axes of
        layers: these do not make a matrix of a vector.
        """
        graph = self.graphs.of(ScalingRule(), (self.base_width, self.base_depth))
        axes_of_layers = {}
        for node in graph.placeholders():
            if "part" in node.meta:
                name, layer_index = node.meta["part"]
                axes_of_layers[name] = len(layer_index)
        return axes_of_layers

    def trained(
        self,
        source: str,
        scales: Sequence[OutputScale],
        free: Sequence[str],
        seed: int,
    ) -> Trained:
        """Models that are trained with a written file."""
        return JaxTraining(
            subject=self,
            graphs=self.graphs,
            functions=functions_of_source(source),
            rule=ScalingRule({}, tuple(scales)),
            free=tuple(free),
            seed=seed,
        )

    def moving(self, shapes: Arrays, width: int, depth: int | None) -> Arrays:
        """Which parameters the optimiser of matrices has, by "matrix" and "other"."""
        matrices = self.matrices(width, depth)
        return {x: "matrix" if x in matrices else "other" for x in shapes}


def subject_of(
    build: Any, optimiser: Any, batch: Any, seed: int, base_width: int
) -> JaxSubject:
    """What a function of the width is, and how it is trained."""
    optax_library()
    if not callable(build) or is_pair(build):
        raise ArgumentError(
            "build",
            getattr(build, "__name__", type(build).__name__),
            "a function of the width that returns a model, not a model",
        )
    is_named = isinstance(optimiser, str)
    if is_named:
        one_of(optimiser, "optimiser", "", tuple(FAMILIES))
    elif not is_transformation(optimiser) and not callable(optimiser):
        raise ArgumentError(
            "optimiser",
            type(optimiser).__name__,
            f"one of {', '.join(FAMILIES)}, or {EXPECTED}",
        )
    return JaxSubject(
        build=build,
        family=FAMILIES[optimiser] if is_named else OWN,
        batch=batch,
        seed=seed,
        base_width=base_width,
        base_depth=None,
        make=None if is_named else optimiser,
    )


@dataclass
class JaxGraphs:
    """The graphs of a model by size: recording and compiling them takes most of the
    time, and other standard deviations have the same ones.
    """

    subject: JaxSubject
    plain: dict[Size, JaxGraph] = field(default_factory=dict)
    known: dict[tuple[Size, tuple[OutputScale, ...]], JaxGraph] = field(
        default_factory=dict
    )
    compiled: dict[Any, Any] = field(default_factory=dict)
    # by paths and parts of factors: the positions in the plain graph that have them
    positions: dict[tuple[str, Part | None], set[int]] = field(default_factory=dict)

    @staticmethod
    def arrays(seed: int) -> JaxArrays:
        """What JAX does with arrays."""
        return JaxArrays(np.random.default_rng(seed).normal(size=NORMALS))

    def matrices_of(self, size: Size) -> Matrices:
        """The parameters that have an optimiser for matrices."""
        return self.subject.matrices(*size)

    def orthogonal_of(self, size: Size) -> Collection[str]:
        """The parameters whose updates are, or may be, orthogonal matrices: all, if the
        optimiser is that of the user.
        """
        if self.subject.make is not None:
            return [*self.subject.shapes(*size)]
        return self.matrices_of(size) if self.subject.family.is_orthogonal else ()

    def of(self, rule: ScalingRule, size: Size) -> JaxGraph:
        """The graph under a rule."""
        if size not in self.plain:
            model = self.subject.model(*size)
            self.plain[size] = graph_of(model, self.subject.seed)
        key = (size, rule.scales)
        if key not in self.known:
            plain = self.plain[size]
            factors = self._factors(rule, size)
            self.known[key] = plain.with_factors(factors) if factors else plain
            if factors:
                self._check_factors(rule, size)
        return self.known[key]

    def _factors(self, rule: ScalingRule, size: Size) -> dict[Node, float]:
        """The factors of a rule, by the nodes of the plain graph that they multiply."""
        ratios = self.subject.ratios(*size)
        nodes = self.plain[size].every_node
        factors = {}
        for scale in rule.scales:
            for position in self._positions(scale):
                factors[nodes[position]] = scale.power.of(*ratios)
        return factors

    def _positions(self, scale: OutputScale) -> set[int]:
        """The positions of a factor; one of a pattern has those of all layers."""
        exact = self.positions.get((scale.path, scale.part))
        if exact is not None:
            return exact
        positions: set[int] = set()
        for (path, part), of_path in self.positions.items():
            if pattern_of(path) == scale.path and part == scale.part:
                positions |= of_path
        return positions

    def _check_factors(self, rule: ScalingRule, size: Size) -> None:
        """Raise an error unless factors of parameters do what factors of values do."""
        batch = self.subject.model(*size).batch
        ratios = self.subject.ratios(*size)
        scaled_graph = self.known[size, rule.scales]
        plain_graph = self.plain[size]
        with jax.enable_x64(True):
            parameters = self._of_first_draw(size, ScalingRule())
            scaled = scaled_parameters(parameters, rule.scales, ratios)
            expected = jax.jit(lambda p: _logits(scaled_graph, p, batch))(parameters)
            logits = jax.jit(lambda p: _logits(plain_graph, p, batch))(scaled)
        if not np.allclose(expected, logits, rtol=1e-6, atol=1e-9):
            raise UnsupportedError(WRITTEN_OUT)

    def _of_first_draw(self, size: Size, rule: ScalingRule) -> Arrays:
        """The trained parameters of the first initialisation under a rule."""
        of_draws = self.numbers(size, rule, [self.subject.seed])
        return {name: x[0] for name, x in of_draws.items()}

    def numbers(self, size: Size, rule: ScalingRule, seeds: Sequence[int]) -> Arrays:
        """The trainable parameters of some initialisations under a rule: their numbers,
        with an axis of initialisations, in double precision.
        """
        model = self.subject.model(*size)
        ratios = self.subject.ratios(*size)
        initialisations = [self._leaves(size, seed) for seed in seeds]
        parameters = {}
        for number, name in enumerate(model.leaves.names):
            if name not in model.trained:  # statistics, and others that do not move
                continue
            factor = rule.of(name).std.of(*ratios)
            draws = [
                np.asarray(leaves[number], dtype=float) for leaves in initialisations
            ]
            parameters[name] = factor * np.stack(draws)
        return parameters

    def _leaves(self, size: Size, seed: int) -> list[Any]:
        """The numbers of one initialisation, as people draw them."""
        key = ("init", size)
        with jax.enable_x64(False):
            if key not in self.compiled:
                init = self.subject.model(*size).functions.init
                assert init is not None
                self.compiled[key] = jax.jit(init, compiler_options=QUICK)
            return list(jax.tree.leaves(self.compiled[key](jax.random.key(seed))))

    def network(self, rule: ScalingRule, size: Size) -> Network:
        """The network of one width and depth."""
        graph = self.of(rule, size)
        model = self.subject.model(*size)
        key = ("values", size, rule.scales)
        with jax.enable_x64(True):
            parameters = self._of_first_draw(size, rule)
            if key not in self.compiled:
                self.compiled[key] = jax.jit(
                    lambda p: _all_values(graph, p), compiler_options=QUICK
                )
            by_position = self.compiled[key](parameters)
        nodes = graph.every_node
        values = {nodes[position]: x for position, x in by_position.items()}
        operations = operations_of(graph, model.batch.words)
        return Network(size, operations, values, model.shapes)

    def drawn(self, rule: ScalingRule, network: Network, draws: int) -> list[Drawn]:
        """Measure some initialisations of a network."""
        subject = self.subject
        size = network.size
        seeds = [subject.seed + k for k in range(draws)]
        ratios = subject.ratios(*size)
        rates = {
            name: SMALL_LR * rule.of(name).lr.of(*ratios) for name in network.shapes
        }
        is_narrow = tuple(x.is_narrow for x in network.operations.operations)
        key = ("draw", size, rule.scales, is_narrow)
        with jax.enable_x64(True):
            if key not in self.compiled:
                measurement = _Measurement(subject, network.operations, size)
                of_draws = jax.vmap(measurement.run, in_axes=(0, None, 0))
                self.compiled[key] = jax.jit(of_draws, compiler_options=QUICK)
            parameters = self.numbers(size, rule, seeds)
            generators = [np.random.default_rng(seed) for seed in seeds]
            normals = np.stack([rng.normal(size=NORMALS) for rng in generators])
            results = jax.device_get(self.compiled[key](parameters, rates, normals))
        return [_of_draw(results, k) for k in range(draws)]

    def place_of_scale(self, measurement: Measurement, index: int) -> Place:
        """Where a factor of the result of an operation can be put: on the parameters
        that write one of its factors, or a part of their entries.
        """
        operations = measurement.operations
        by_index = {x.index: x for x in operations.operations}
        operation = by_index[index]
        if operation.source is not None:
            operation = by_index[operation.source]
        graph = operations.graph
        assert isinstance(graph, JaxGraph)
        for input_index in operation.inputs:
            names = writers_of(by_index, input_index)
            if not names:
                continue
            name = names[0]
            target = operations.nodes[input_index]
            part = self._part(graph, name, target, measurement.values)
            position = self._position(graph, by_index, input_index, part)
            self.positions.setdefault((name, part), set()).add(position)
            return Place(name, part, names)
        raise UnsupportedError(WRITTEN_OUT)

    def _position(
        self,
        graph: JaxGraph,
        by_index: Mapping[int, Any],
        index: int,
        part: Part | None,
    ) -> int:
        """The position in the plain graph of what is multiplied.

        It is all that the parameters write, or the part of it that an operation reads.
        """
        source = by_index[index].source
        is_whole = part is None and source is not None
        node = graph.nodes[source if is_whole else index]
        plain = next(iter(self.plain.values()))
        # copies of a node share its `meta`
        positions = {id(x.meta): k for k, x in enumerate(plain.every_node)}
        return positions[id(node.meta)]

    @staticmethod
    def _part(
        graph: JaxGraph, name: str, target: Any, values: Mapping[Any, Any]
    ) -> Part | None:
        """The part of a parameter that a value depends on; None: all of it.

        Of a parameter of several layers it is that of the first one that matters.
        """
        placeholders = graph.placeholders()
        nodes = [node for node in placeholders if placeholders[node] == name]
        with jax.enable_x64(True):
            masks = [graph.mask_of(node, target, values) for node in nodes]
        mask = next((x for x in masks if x.any()), masks[0])
        for axis, size in enumerate(mask.shape):
            rows = np.moveaxis(mask, axis, 0).reshape(size, -1)
            matters = rows.any(axis=1)
            if not matters.all():
                part = part_of_mask(matters.tolist())
                assert part is not None
                # from the end, where vectors have their axis too
                return part._replace(axis=axis - mask.ndim if axis else 0)
        return None


def scaled_parameters(
    parameters: Arrays, scales: Sequence[OutputScale], ratios: tuple[float, float]
) -> Arrays:
    """The parameters with the factors of a rule."""
    scaled = dict(parameters)
    for scale in scales:
        factor = scale.power.of(*ratios)
        for pattern in scale.parameters:
            for name in matches(pattern, parameters):
                scaled[name] = _times(scaled[name], factor, scale.part)
    return scaled


def _times(x: Any, factor: float, part: Part | None) -> Any:
    """An array of which a part of one axis is multiplied."""
    if part is None:
        return x * factor
    size = x.shape[part.axis]
    factors = np.ones(size)
    factors[round(part.start * size) : round(part.stop * size)] = factor
    shape = [1] * x.ndim
    shape[part.axis] = size
    return x * factors.reshape(shape)


def _logits(graph: JaxGraph, parameters: Arrays, batch: Batch) -> Any:
    """The logits that a graph computes."""
    return graph.values(parameters, batch)[graph.logits]


def _all_values(graph: JaxGraph, parameters: Arrays) -> dict[int, Any]:
    """The values of all nodes that are arrays, by their places."""
    values = graph.values(parameters, None)
    return {
        k: values[node]
        for k, node in enumerate(graph.every_node)
        if hasattr(values[node], "dtype")
    }


@dataclass(frozen=True, eq=False)
class _Measurement:
    """What is measured in one initialisation of a model, as a function to compile."""

    subject: JaxSubject
    operations: Operations
    size: Size

    @cached_property
    def batch(self) -> Batch:
        """The batch of the model."""
        return self.subject.model(*self.size).batch

    def run(self, parameters: Arrays, rates: Mapping[str, Any], normals: Any) -> Any:
        """The responses, sizes of gradients and standard deviations."""
        after, gradients = self._steps(parameters, rates)
        result = measured(
            self.operations, parameters, after, self.batch, JaxArrays(normals)
        )
        fields = (
            result.responses,
            result.written,
            result.updates,
            result.scattered,
            result.through,
        )
        stds = {name: _std(x) for name, x in parameters.items()}
        return jax.tree.map(jnp.asarray, (fields, gradients, stds))

    def _steps(
        self, parameters: Arrays, rates: Mapping[str, Any]
    ) -> tuple[Arrays, Arrays]:
        """The parameters after some steps, and the sizes of the first gradients that
        are not 0.
        """
        graph = self.operations.graph
        assert isinstance(graph, JaxGraph)

        def loss(p: Arrays) -> Any:
            return self.batch.loss(_logits(graph, p, self.batch))

        optimiser = self.optimiser()
        state = optimiser.init(parameters)
        sizes: Arrays = dict.fromkeys(parameters, jnp.zeros(()))
        moved = parameters
        for _ in range(STEPS):
            gradients = _without_rounding(jax.grad(loss)(moved))
            for name, gradient in gradients.items():
                is_first = sizes[name] == 0
                sizes[name] = jnp.where(is_first, rms(gradient), sizes[name])
            directions, state = optimiser.update(gradients, state, moved)
            moved = {
                name: x - rates[name] * directions[name] for name, x in moved.items()
            }
        return moved, sizes

    def optimiser(self) -> Any:
        """What makes directions of gradients."""
        optax = optax_library()
        subject = self.subject
        if subject.make is not None:
            return optax.chain(transformation_of(subject.make), optax.scale(-1.0))
        if not subject.family.is_mixed:
            return subject.family.direction(optax)
        shapes = subject.shapes(*self.size)
        labels = subject.moving(shapes, *self.size)
        directions = {
            "matrix": optax.contrib.muon(-1.0),
            "other": FAMILIES["adamw"].direction(optax),
        }
        return optax.multi_transform(directions, labels)


def _without_rounding(gradients: Arrays) -> Arrays:
    """The gradients, with those that are 0 but for rounding as 0."""
    sizes = {name: rms(gradient) for name, gradient in gradients.items()}
    least = ROUNDING * jnp.stack([*sizes.values()]).max()
    return {
        name: jnp.where(sizes[name] < least, 0.0, gradient)
        for name, gradient in gradients.items()
    }


def _std(x: Any) -> Any:
    """The standard deviation of the entries; 0 of constants."""
    if x.size < 2:
        return jnp.zeros(())
    is_constant = (x == x.reshape(-1)[0]).all()
    return jnp.where(is_constant, 0.0, jnp.std(x, ddof=1))


def _of_draw(results: Any, k: int) -> Drawn:
    """What was measured in one of several draws: the results of `run` have an axis of
    draws.
    """
    (responses, written, updates, scattered, through), gradients, stds = results

    def numbers_of_edges(by_edge: Mapping[Any, Any]) -> dict[Any, float]:
        return {edge: _number(x, k) for edge, x in by_edge.items()}

    return Drawn(
        responses=Responses(
            responses=numbers_of_edges(responses),
            written=numbers_of_edges(written),
            updates=numbers_of_edges(updates),
            scattered=numbers_of_edges(scattered),
            through={edges: bool(x[k]) for edges, x in through.items()},
        ),
        gradients={name: float(x[k]) for name, x in gradients.items() if x[k]},
        stds={name: float(x[k]) for name, x in stds.items()},
    )


def _number(x: Any, k: int) -> float:
    """The number of a draw; of a reordering, it is 1 in all."""
    return float(np.asarray(x)[k]) if np.ndim(x) else float(x)
