"""A training loop of a JAX model that runs literally, with optax.

The passes and the update are one compiled function. `Loop` is the healthy loop; its
fields after `loss` depart from it, one mistake each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from .._array_api import Floats
from ..checks._run_check import (
    CLIPPED,
    GRADIENT,
    LOSS,
    PARAMETERS,
    STD_FACTOR,
    UPDATE,
    Departures,
    Hypothesis,
    TrainingLoop,
)
from ..checks._run_mistakes import (
    divided_twice,
    labels_not_shifted,
    labels_shifted_twice,
    last_pass_only,
    logged_late,
    mistakes_of_clipping,
    mistakes_of_factor,
    mistakes_of_logging,
    one_batch,
    summed_gradients,
    summed_loss,
    summed_over_tokens,
    two_updates,
)
from ._models import Functions


class Batch(NamedTuple):
    """What a model is called with, and the labels of its logits."""

    inputs: tuple[Any, ...]
    # of the shape of the logits without words; negative ones are ignored; None: the
    # model or the user's function has the loss
    labels: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class Loop(TrainingLoop):
    """A training loop: what it trains, on what, and how.

    `TrainingLoop` describes the fields that loops of every framework have.

    Attributes
    ----------
    functions : Functions
        The model: how its parameters are drawn, and how it is called.
    optimiser : optax.GradientTransformation
        What makes updates of gradients: all that happens between them.
    batches : sequence of Batch
        The inputs and labels of single passes.
    loss : callable or None
        A function of the model's outputs and the inputs; None: cross-entropy.
    std_factor : float
        By which matrices are multiplied at the start.
    shift : int
        By how many tokens labels are moved.
    one_batch : bool
        Whether every step uses the first batches.
    """

    functions: Functions
    optimiser: Any
    batches: Sequence[Batch]
    loss: Callable[[Any, Any], Any] | None
    std_factor: float = 1.0
    shift: int = 0
    one_batch: bool = False

    def enlarged(self) -> Loop:
        """The loop with all matrices multiplied by `STD_FACTOR` at the start."""
        return replace(self, std_factor=STD_FACTOR)

    def run(self, seed: int) -> dict[str, Floats]:
        """The numbers of a run by name, one for each step."""
        parameters = self._init(jax.random.key(seed))
        parameters = jax.tree.map(self._enlarged, parameters)
        moving, rest = parted(parameters, self._kind)
        state = self.optimiser.init(moving)
        rows = []
        for step in range(self.logged_first + self.steps + 1):
            row, moving, state = self._step(moving, rest, state, self._batches(step))
            rows.append(row)
        logged_rows = rows[self.logged_first :]
        named = {
            name: np.array([float(row[name]) for row in logged_rows], dtype=float)
            for name in logged_rows[0]
        }
        return named if self.of_log is None else self.of_log(named)

    @cached_property
    def _init(self) -> Callable[[Any], Any]:
        """The parameters of a key."""
        assert self.functions.init is not None
        return jax.jit(self.functions.init)  # type: ignore[no-any-return]

    @cached_property
    def _kind(self) -> str:
        """How parameters that are trained are told from others, as `kind_of` says."""
        return kind_of(jax.eval_shape(self.functions.init, jax.random.key(0)))

    def _enlarged(self, x: Any) -> Any:
        """A parameter at the start: matrices are multiplied by `std_factor`."""
        if self.std_factor == 1.0 or not is_matrix(x):
            return x
        return x * self.std_factor

    def _batches(self, step: int) -> list[Batch]:
        """The batches of a step."""
        first_batch = 0 if self.one_batch else step * self.accumulation
        count = len(self.batches)
        return [
            _shifted(self.batches[(first_batch + k) % count], self.shift)
            for k in range(self.accumulation)
        ]

    @cached_property
    def _step(self) -> Callable[..., Any]:
        """One step: its numbers, and the parameters and the state after it."""
        return jax.jit(self._stepped)  # type: ignore[no-any-return]

    def _stepped(
        self, moving: Any, rest: Any, state: Any, batches: Sequence[Batch]
    ) -> Any:
        """One step, of which JAX compiles one function.

        `moving` are the parameters that are trained, `rest` the others, and `state` is
        that of the optimiser. It returns the numbers of the step, and `moving` and
        `state` after it.
        """
        loss, gradients = self._mean_of_passes(moving, rest, batches)
        row = {LOSS: loss * self.logged_factor, GRADIENT: norm(gradients)}
        if self.clip is not None:
            # as torch.nn.utils.clip_grad_norm_, which adds 1e-6
            scale = jax.numpy.minimum(1.0, self.clip / (row[GRADIENT] + 1e-6))
            gradients = jax.tree.map(lambda x: x * scale, gradients)
        row[CLIPPED] = norm(gradients)
        row[PARAMETERS] = norm(moving)
        after = moving
        for _ in range(self.updates):
            changes, state = self.optimiser.update(gradients, state, after)
            after = jax.tree.map(jax.numpy.add, after, changes)
        row[UPDATE] = norm(jax.tree.map(jax.numpy.subtract, after, moving))
        return row, after, state

    def _mean_of_passes(
        self, moving: Any, rest: Any, batches: Sequence[Batch]
    ) -> tuple[Any, Any]:
        """The mean loss over the passes of a step, and its gradient times a factor."""

        def loss_of(moving: Any, batch: Batch) -> Any:
            parameters = joined(moving, rest, self._kind)
            return self._loss(self.functions.apply(parameters, *batch.inputs), batch)

        losses = []
        gradients = []
        for batch in batches:
            loss, gradient = jax.value_and_grad(loss_of)(moving, batch)
            losses.append(loss)
            gradients.append(gradient)
        count = len(batches)
        factor = self.gradient_factor / count
        mean = jax.tree.map(lambda *terms: sum(terms) * factor, *gradients)
        return sum(losses) / count, mean

    def _loss(self, outputs: Any, batch: Batch) -> Any:
        """The loss of a batch; a model may return it."""
        if self.loss is not None:
            return self.loss(outputs, batch.inputs)
        if batch.labels is None:
            return outputs
        return cross_entropy(outputs, batch.labels)

    def mistakes(self, departures: Departures) -> list[Hypothesis]:
        """The mistakes that the loop can have."""
        listed = [
            *self._of_accumulation(),
            *self._of_gradients(departures.first(CLIPPED)),
            *self._of_steps(),
            *mistakes_of_logging(self, departures),
        ]
        factor = departures.first(GRADIENT)
        if factor is not None:
            listed += mistakes_of_factor(self, factor)
        return listed

    def _of_accumulation(self) -> list[Hypothesis]:
        """Sums and means over the passes of a step."""
        if self.accumulation == 1:
            return []
        return [
            summed_gradients(self),
            summed_loss(self),
            divided_twice(self),
            last_pass_only(self),
        ]

    def _of_gradients(self, clipped: float | None) -> list[Hypothesis]:
        """Sums over tokens, and clipping that is missing or at another norm."""
        listed = []
        labels = self.batches[0].labels
        tokens = 0 if labels is None else int((labels >= 0).sum())
        if tokens > 1:
            listed.append(summed_over_tokens(self, tokens))
        return [*listed, *mistakes_of_clipping(self, clipped)]

    def _of_steps(self) -> list[Hypothesis]:
        """Labels, batches, and updates in another order or number."""
        listed = [logged_late(self), two_updates(self)]
        if len(self.batches) > self.accumulation:
            listed.append(one_batch(replace(self, one_batch=True)))
        labels = self.batches[0].labels
        if labels is not None and labels.ndim > 1:
            listed.append(labels_not_shifted(replace(self, shift=1)))
            listed.append(labels_shifted_twice(replace(self, shift=-1)))
        return listed


def is_matrix(x: Any) -> bool:
    """Whether a parameter is floating point, and has two axes or more."""
    return is_floating(x) and x.ndim > 1


def is_floating(x: Any) -> bool:
    """Whether an array is floating point, and so moves."""
    return bool(jax.numpy.issubdtype(x.dtype, np.floating))


class Parted(NamedTuple):
    """What an optimiser moves, as users give it the parameters, and the rest."""

    moving: Any
    rest: Any


def kind_of(tree: Any) -> str:
    """Which rule separates the parameters that are trained from the others."""
    if hasattr(tree, "flat_state"):
        return "nnx"
    is_linen = isinstance(tree, Mapping) and "params" in tree
    return "linen" if is_linen else "arrays"


def parted(tree: Any, kind: str) -> Parted:
    """The parameters of a tree: `nnx.Param`, the collection "params", or all arrays."""
    if kind == "nnx":
        from flax import nnx

        return Parted(*nnx.split_state(tree, nnx.Param, ...))
    if kind == "linen":
        rest = {name: x for name, x in tree.items() if name != "params"}
        return Parted(tree["params"], rest)
    # None stands for the leaves that the other tree has
    moving = jax.tree.map(lambda x: x if is_floating(x) else None, tree)
    rest = jax.tree.map(lambda x: None if is_floating(x) else x, tree)
    return Parted(moving, rest)


def joined(moving: Any, rest: Any, kind: str) -> Any:
    """The whole tree, of the two that `parted` returned."""
    if kind == "nnx":
        from flax import nnx

        return nnx.merge_state(moving, rest)
    if kind == "linen":
        return {**rest, "params": moving}

    def is_none(x: Any) -> bool:
        return x is None

    return jax.tree.map(
        lambda x, y: y if x is None else x, moving, rest, is_leaf=is_none
    )


def norm(tree: Any) -> Any:
    """The norm of all entries together."""
    squares = [(x.astype(np.float32) ** 2).sum() for x in jax.tree.leaves(tree)]
    return jax.numpy.sqrt(sum(squares))


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean cross-entropy of the labels that are not negative.

    Logits have the shape (…, words), labels (…).
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(np.float32), axis=-1)
    counts = labels >= 0
    words = jax.numpy.where(counts, labels, 0)
    of_labels = jax.numpy.take_along_axis(log_probabilities, words[..., None], axis=-1)
    return -(of_labels[..., 0] * counts).sum() / counts.sum()


def next_tokens(ids: Any) -> Any:
    """The next token of each; that of the last one is ignored."""
    last = np.full_like(ids[..., :1], -1)
    return np.concatenate([ids[..., 1:], last], axis=-1)


def _shifted(batch: Batch, shift: int) -> Batch:
    """A batch with labels one token to the right (1) or left (−1)."""
    labels = batch.labels
    if shift > 0:
        labels = np.concatenate([batch.inputs[0][:, :1], labels[:, :-1]], axis=1)
    elif shift < 0:
        labels = np.concatenate([labels[:, 1:], labels[:, -1:]], axis=1)
    return batch._replace(labels=labels)
