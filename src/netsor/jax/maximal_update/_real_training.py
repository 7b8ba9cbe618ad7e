"""Real training of the first steps, with an emitted file and the optimisers of optax.

A coordinate check measures how much some steps change the outputs of every module: what
its parameters write, by the graph of the model.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...maximal_update._rules import ScalingRule, matches
from ...maximal_update._subject import TrainingRun
from .._models import Leaves, name_of_path
from .._optax import transformation_of
from .._run_loop import joined, norm, parted
from ._arrays import rms
from ._graph import JaxGraph, module_of
from ._model import QUICK, Model
from ._optimisers import optax_library

LOGITS = "logits"  # of the words in the batch


class Written(NamedTuple):
    """The functions of an emitted file."""

    initialise: Callable[..., Any]
    scale_outputs: Callable[..., Any]
    optimiser: Callable[..., Any]


def functions_of_source(source: str) -> Written:
    """The functions of the text of an emitted file, which is executed."""
    module = types.ModuleType("emitted")
    exec(compile(source, "emitted", "exec"), module.__dict__)
    return Written(*(module.__dict__[name] for name in Written._fields))


class State(NamedTuple):
    """The parameters of a training, and the state of its optimiser."""

    moving: Any
    rest: Any
    optimiser: Any


@dataclass(frozen=True, eq=False)
class JaxTraining:
    """Models of several widths, and how they are trained.

    Without `functions` all parameters have the same learning rate, and the models are
    left as they are (the standard parametrisation). The learning rate multiplies the
    updates of an optimiser that the user gives.
    """

    subject: Any  # a `JaxSubject`
    functions: Written | None
    seed: int
    graphs: Any  # those of the subject
    rule: ScalingRule = field(default_factory=ScalingRule)  # its factors of outputs
    # Parameters that may start at 0. What their start makes of changed inputs falls
    # with the width, so their modules are judged by what the update writes.
    free: Sequence[str] = ()
    compiled: dict[Any, Any] = field(default_factory=dict)

    def start(self, width: int, lr: float, draw: int) -> State:
        """A new model with the state of its optimiser."""
        return self._compiled("start", width)(  # type: ignore[no-any-return]
            jax.random.key(self.seed + draw), lr
        )

    def step(
        self, width: int, state: State, lr: float, clip_norm: float | None = None
    ) -> State:
        """One step, with gradients of at most this norm."""
        largest = float("inf") if clip_norm is None else clip_norm
        return self._compiled("step", width)(state, lr, largest)  # type: ignore[no-any-return]

    def loss_after(self, run: TrainingRun) -> float:
        """The loss after the steps of a run."""
        state = self.start(run.width, run.lr, run.draw)
        for factor in run.factors:
            state = self.step(run.width, state, factor * run.lr, run.clip_norm)
        return float(self._compiled("loss", run.width)(state))

    def changes(
        self, size: tuple[int, ...], lr: float, draw: int, steps: int
    ) -> Mapping[str, float]:
        """How much some steps change the outputs of all modules."""
        (width,) = size
        before = self.start(width, lr, draw)
        after = before
        for _ in range(steps):
            after = self.step(width, after, lr)
        changes = self._compiled("changes", width)(before, after)
        return {path: float(x) for path, x in changes.items()}

    def _compiled(self, name: str, width: int) -> Any:
        """A function of a model of this width, compiled once."""
        key = (name, width)
        if key not in self.compiled:
            model = self.subject.model(width, self.subject.base_depth)
            runs = _Runs(self, model, width)
            options = None if name == "step" else QUICK  # steps run often
            self.compiled[key] = jax.jit(getattr(runs, name), compiler_options=options)
        return self.compiled[key]


@dataclass(frozen=True, eq=False)
class _Runs:
    """What is compiled for the models of one width."""

    training: JaxTraining
    model: Model
    width: int

    @property
    def base(self) -> int:
        """The width at which the numbers of the file are given."""
        return int(self.training.subject.base_width)

    def start(self, key: Any, lr: Any) -> State:
        """The parameters of a key, and the state of the optimiser."""
        assert self.model.functions.init is not None
        tree = self.model.functions.init(key)
        moving, rest = parted(tree, self.model.kind)
        written = self.training.functions
        if written is not None:
            moving = written.initialise(moving, self.base)
        return State(moving, rest, self._optimiser(moving, lr).init(moving))

    def _optimiser(self, moving: Any, lr: Any) -> Any:
        """The optimiser with a learning rate."""
        optax = optax_library()
        subject = self.training.subject
        emitted = self.training.functions
        if subject.make is not None:  # the updates of the user have their own rates
            transformation = transformation_of(subject.make, moving)
            if emitted is not None:
                transformation = emitted.optimiser(moving, transformation, self.base)
            return optax.chain(transformation, optax.scale(lr))
        if emitted is not None:
            return emitted.optimiser(moving, lr, self.base)
        matrices = subject.matrices(self.width, subject.base_depth)

        def label(path: Any, x: Any) -> str:
            return "matrix" if name_of_path(path) in matrices else "other"

        labels = jax.tree_util.tree_map_with_path(label, moving)
        return subject.family.make(optax, lr, labels)

    def _loss(self, moving: Any, rest: Any) -> Any:
        """The loss of the batch."""
        written = self.training.functions
        if written is not None:
            moving = written.scale_outputs(moving, self.base)
        tree = joined(moving, rest, self.model.kind)
        return self.model.batch.loss(self.model.apply(tree, self.model.batch.inputs))

    def step(self, state: State, lr: Any, largest: Any) -> State:
        """One step, with gradients of at most the norm `largest`."""
        optax = optax_library()
        gradients = jax.grad(self._loss)(state.moving, state.rest)
        size = norm(gradients)
        scale = jnp.where(size > largest, largest / size, 1.0)
        gradients = jax.tree.map(lambda x: x * scale.astype(x.dtype), gradients)
        optimiser = self._optimiser(state.moving, lr)
        updates, after = optimiser.update(gradients, state.optimiser, state.moving)
        return State(optax.apply_updates(state.moving, updates), state.rest, after)

    def loss(self, state: State) -> Any:
        """The loss of the batch."""
        return self._loss(state.moving, state.rest)

    # Changes of outputs

    @cached_property
    def graph(self) -> JaxGraph:
        """The graph, with the factors of outputs in it."""
        training = self.training
        size = (self.width, training.subject.base_depth)
        graph: JaxGraph = training.graphs.of(training.rule, size)
        return graph

    def changes(self, before: State, after: State) -> dict[str, Any]:
        """How much the outputs of all modules differ: root mean squares, by path."""
        parameters_before = self._parameters(before)
        parameters_after = self._parameters(after)
        graph = self.graph
        batch = self.model.batch
        values_before = graph.values(parameters_before, batch)
        values_after = graph.values(parameters_after, batch)
        free_modules: set[str] = set()
        for pattern in self.training.free:
            free_modules.update(map(module_of, matches(pattern, parameters_before)))
        changes = {}
        for path, node in graph.outputs().items():
            start = values_before[node]
            if path in free_modules:
                start = self._with_weights_of(path, node, values_before, values_after)
            changes[path] = rms(self._counted(values_after[node] - start, node))
        of_logits = values_after[graph.logits] - values_before[graph.logits]
        changes[LOGITS] = rms(self._counted(of_logits, None))
        return changes

    def _counted(self, x: Any, node: Any) -> Any:
        """The entries that count: of logits, those of words in the batch."""
        graph = self.graph
        if node is None or x.shape == graph.logits.meta["val"].shape:
            return x[..., list(self.model.batch.words)]
        return x

    def _parameters(self, state: State) -> dict[str, Any]:
        """The parameters by name."""
        leaves = Leaves.of(state.moving)
        return dict(zip(leaves.names, leaves.arrays, strict=True))

    def _with_weights_of(
        self, path: str, end: Any, before: Mapping[Any, Any], after: Mapping[Any, Any]
    ) -> Any:
        """The output of a module with its weights of before and its inputs of after.

        `before` and `after` are the values of all nodes, and `end` is the node of the
        output. Only nodes that depend on these weights are computed again.
        """
        graph = self.graph
        assert end in graph.of_inputs()
        changed: dict[Any, Any] = {}
        for node, name in graph.graph.parameters.items():
            if module_of(name) == path:
                changed[node] = before[node]
        for node in graph.every_node:
            arguments = node.all_input_nodes
            if graph.is_operation(node) and any(x in changed for x in arguments):
                inputs = {x: changed.get(x, after[x]) for x in arguments}
                changed[node] = graph.apply(node, inputs)
            if node is end:
                break
        return changed[end]
