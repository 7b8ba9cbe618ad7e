"""The options of a coordinate check, and its networks: the changes of a step, as one
program.

For an activation h it measures √(mean h²) over tokens and coordinates, and the same for
h' − h. For a weight W that acts on x it measures W' x − W x, with x before the step:
this depends on the learning rate of W alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..._array_api import Bools
from ..._validate import ArgumentError, choice, real, shown, whole
from ...engine import ExactError
from ...engine.backends import Numpy
from ...engine.run._quadrature_error import node_bias
from ...language import (
    Scalar,
    TraceError,
    Value,
    Vector,
    Weight,
    inf,
    mean_dot,
    stack,
    step,
    train,
)
from ...language.operations._operation import MatMul, SteppedMatMul
from ...language.values._array import Take
from ...language.values._graph import topological_order
from ...language.values._scalar import Constant
from ...language.values._vector import Gaussian, Scale
from ...models import Transformer
from ...models._training import KINDS, WeightUse, training, unit_vectors
from ...optim import NAMED, Optimiser
from ...programs._program import Program
from .._idle_settings import reject_idle_rates
from .._output_dir import Arrays
from .._parametrisation import GROW_HEAD_DIM, Parametrisation
from .._study import DrawTask
from .._training import FEWEST, TrainingCase, TrainingRequest, call_build, sizes_of

DRAWS = 32
# of an exponent: promises hold for large n, and the widths of a check are finite
TOLERANCE = 0.1
MOST_LAYERS = 200
# of positive learning rates: beyond these, changes overflow or vanish in rounding
LEAST_LR, MOST_LR = 1e-30, 1e12
LETTERS = {"width": "n", "depth": "L"}  # in formulas
SIZE, CHANGE, UPDATE = "size", "change", "update"
# activations with a block number even in a model of one block
IN_BLOCKS = ("scores", "attention", "mlp", "stream")


class Entry(NamedTuple):
    """A measured number: its quantity, its activation or kind of weight, and its
    block.
    """

    what: str
    name: str
    block: int | None = None
    step: int | None = None  # after which a change is measured; None: the last


class Watched(NamedTuple):
    """A measured activation, and a mask of the entries that count; None: all."""

    name: str
    block: int | None
    value: Value
    mask: Bools | None


class Network(NamedTuple):
    """A network with its loss, and what is measured in it."""

    watched: list[Watched]
    loss: Scalar
    acts: Sequence[WeightUse]
    rates: Any  # as `ns.step` takes them
    eps: Any = 0.0  # of Adam: for all weights, or by weight
    # the trained ones; None: all matrices
    parameters: list[Weight | Vector] | None = None
    # the loss of the logits, which are watched last; None: `loss`
    loss_of: Callable[[Vector], Scalar] | None = None
    # trained vectors by name, whose changes are measured
    vectors: Mapping[str, Vector] = {}
    # of products that are logits before a constant factor, this factor
    factors: Mapping[Value, float] = {}


def _watched(
    values: Mapping[str, Sequence[Value]], masks: Sequence[Bools | None]
) -> list[Watched]:
    """The activations in one list, from `values`: for each name, its value in every
    block. `masks` are those of the scores, one for each block, or empty.

    The blocks are numbered from 1; a name with one value has no number, unless it is
    one of IN_BLOCKS.
    """
    watched = []
    for name, activations in values.items():
        has_blocks = len(activations) > 1 or name in IN_BLOCKS
        for k, activation in enumerate(activations, 1):
            mask = masks[k - 1] if name == "scores" and masks else None
            watched.append(
                Watched(
                    name=name,
                    block=k if has_blocks else None,
                    value=activation,
                    mask=mask,
                )
            )
    return watched


def of_program(net: Program, rates: Any, eps: Any = 0.0) -> Network:
    """The network of a program whose output is the loss: measured are the values that
    it names with `ns.probe`, and the uses of its matrices.

    `rates` are learning rates as `ns.step` takes them, `eps` is that of Adam.
    """
    if not net.probes:
        raise ValueError(
            f"{net.name} has no probes: name its activations with ns.probe"
        )
    loss = net.output
    if not isinstance(loss, Scalar) or loss.shape:
        raise ValueError(
            f"{net.name} must return its loss, one scalar; it returned {loss!r}"
        )
    values: dict[str, list[Value]] = {}
    for probe in net.probes:
        values.setdefault(probe.name, []).append(probe.value)
    masks = [probe.mask for probe in net.probes if probe.name == "scores"]
    names = _weight_names(loss)
    acts = []
    for value in topological_order([loss, *(probe.value for probe in net.probes)]):
        if isinstance(value, Vector) and isinstance(value.op, MatMul):
            source = value.op.weight.source
            if source in names:
                acts.append(WeightUse(block=None, kind=names[source], value=value))
    vectors = _trained_vectors(loss, rates)
    return Network(
        watched=_watched(values, masks),
        loss=loss,
        acts=acts,
        rates=rates,
        eps=eps,
        parameters=[*_weights(acts), *vectors.values()] if vectors else None,
        vectors=vectors,
        factors=_factors_of_logits(values.get("vocabulary", ())),
    )


def _weights(acts: Sequence[WeightUse]) -> list[Weight]:
    """The matrices that act, each once."""
    weights: dict[Any, Weight] = {}
    for act in acts:
        assert isinstance(act.value.op, MatMul)
        weight = act.value.op.weight
        weights.setdefault(weight.source, weight)
    return [*weights.values()]


def _trained_vectors(loss: Scalar, rates: Any) -> dict[str, Vector]:
    """The vectors, such as biases, that learning rates name."""
    if not isinstance(rates, Mapping):
        return {}
    vectors = {}
    for value in topological_order([loss]):
        if isinstance(value, Vector) and isinstance(value.op, Gaussian):
            name = value.op.source.name
            if name is not None and name in rates:
                vectors[name] = value
    return vectors


def _factors_of_logits(logits: Sequence[Value]) -> dict[Value, float]:
    """The constant factor of the logits by the product that it multiplies."""
    factors: dict[Value, float] = {}
    for value in logits:
        factor = 1.0
        while isinstance(value.op, Take | Scale):
            if isinstance(value.op, Scale):
                constant = value.op.c.op
                if not isinstance(constant, Constant) or value.op.c.shape:
                    break
                factor *= float(constant.numbers)
            value = value.op.x
        if isinstance(value.op, MatMul):
            factors[value] = factor
    return factors


def _weight_names(loss: Scalar) -> dict[Any, str]:
    """The names of the matrices that the loss depends on, in the order in which they
    act. Without a name, or with one that another matrix has too, they are numbered, as
    "weight 2".
    """
    sources: dict[Any, None] = {}  # an ordered set
    for value in topological_order([loss]):
        if isinstance(value.op, MatMul):
            sources[value.op.weight.source] = None
    count_of = Counter(source.name for source in sources)
    names = {}
    for k, source in enumerate(sources, 1):
        is_unique = source.name and count_of[source.name] == 1
        names[source] = source.name if is_unique else f"weight {k}"
    return names


def measured(net: Network, optimiser: str, steps: int = 1) -> dict[Entry, Scalar]:
    """The mean square of every entry: of activations before the first step, of their
    changes, and of the changes that updates of weights make. The loss and its change
    are entries too, not squared.

    Changes over all steps come first; those after fewer steps, which have the number of
    the step, come last.
    """
    *after_earlier_steps, after_all = _values_after_steps(net, optimiser, steps)
    squares: dict[Entry, Scalar] = {}
    for watched, after in zip(net.watched, after_all.watched, strict=True):
        name, block, before, mask = watched
        squares[Entry(SIZE, name, block)] = square(before, mask)
        squares[Entry(CHANGE, name, block)] = square(after - before, mask)
    squares |= _squares_of_updates(net, after_all)
    squares[Entry(SIZE, "loss")] = net.loss
    squares[Entry(CHANGE, "loss")] = _loss_change(net, after_all)
    for step_number, values in enumerate(after_earlier_steps, 1):
        for watched, after in zip(net.watched, values.watched, strict=True):
            name, block, before, mask = watched
            entry = Entry(what=CHANGE, name=name, block=block, step=step_number)
            squares[entry] = square(after - before, mask)
        entry = Entry(CHANGE, "loss", step=step_number)
        squares[entry] = _loss_change(net, values)
    return squares


def _squares_of_updates(net: Network, after: ValuesAfterStep) -> dict[Entry, Scalar]:
    """The mean squares of what updates of weights change: W' x − W x with x before the
    step, and v' − v of vectors.
    """
    squares: dict[Entry, Scalar] = {}
    for use, product in zip(net.acts, after.products, strict=True):
        if isinstance(product.op, SteppedMatMul):
            before = use.value  # W x
            assert isinstance(before.op, MatMul)
            stepped_weight = replace(product.op, x=before.op.x)
            change = replace(product, op=stepped_weight) - before
            factor = net.factors.get(before, 1.0)
            squares[Entry(UPDATE, use.kind, use.block)] = square(change) * factor**2
    for name, stepped in zip(net.vectors, after.vectors, strict=True):
        squares[Entry(UPDATE, name)] = square(stepped - net.vectors[name])
    return squares


def _loss_change(net: Network, after: ValuesAfterStep) -> Scalar:
    """The change of the loss in a step."""
    if net.loss_of is None:
        assert after.loss is not None
        return after.loss - net.loss
    return net.loss_of(after.watched[-1]) - net.loss


class ValuesAfterStep(NamedTuple):
    """The values of a network after a step: those of `Network.watched`, the products of
    `Network.acts`, the vectors, and the loss, None if it follows from the logits.
    """

    watched: list[Any]
    products: list[Any]
    vectors: list[Any]
    loss: Scalar | None


def _values_after_steps(
    net: Network, optimiser: str, steps: int
) -> list[ValuesAfterStep]:
    """The values after each step, the first step first."""
    values: list[Any] = [watched.value for watched in net.watched]
    values += [act.value for act in net.acts]
    values += net.vectors.values()
    if net.loss_of is None:
        values.append(net.loss)
    count = len(net.watched)
    products_end = count + len(net.acts)
    vectors_end = products_end + len(net.vectors)
    after_steps = []
    for after in _trained_values(values, net, optimiser, steps):
        after_steps.append(
            ValuesAfterStep(
                watched=after[:count],
                products=after[count:products_end],
                vectors=after[products_end:vectors_end],
                loss=after[-1] if net.loss_of is None else None,
            )
        )
    return after_steps


def _trained_values(
    values: list[Any], net: Network, optimiser: str, steps: int
) -> list[list[Any]]:
    """The same values after each step of training, in the same order."""
    rates = net.rates
    has_optimisers = isinstance(rates, Mapping) and any(
        isinstance(rate, Optimiser) for rate in rates.values()
    )
    if has_optimisers:  # of a JAX model: a matrix may have a kind of its own
        return [step(values, net.loss, optimiser=rates, weights=net.parameters)]
    if steps == 1 and not net.eps:
        return [step(values, net.loss, rates, optimiser, net.parameters)]
    # by weights; None: for all
    rate_of = rates if isinstance(rates, Mapping) else {None: rates}
    eps_of = net.eps
    if not isinstance(eps_of, Mapping):
        eps_of = dict.fromkeys(rate_of, net.eps)
    with_memory = NAMED[optimiser].with_memory
    optimisers = {
        weights: with_memory(rate, eps_of.get(weights, 0.0))
        for weights, rate in rate_of.items()
    }
    after_steps = train(
        values, net.loss, optimiser=optimisers, steps=steps, weights=net.parameters
    )
    return after_steps[1:]


def joined(entries: Mapping[Entry, Scalar]) -> Program:
    """A program whose output has the numbers of all entries, in their order."""
    return Program(stack(list(entries.values())), "coordinate check")


def limits(
    entries: Mapping[Entry, Scalar],
) -> tuple[dict[Entry, Scalar], dict[Entry, str]]:
    """The entries that have a limit at n = ∞, and for the others the reason, without
    the place in the program: (with a limit, reasons).
    """
    refused: dict[Entry, str] = {}
    try:
        joined(entries).plan(n=inf)
    except ExactError:
        for entry, number in entries.items():
            try:
                Program(number).plan(n=inf)
            except ExactError as error:
                refused[entry] = re.sub(r" \(at .*?\)(?=; |$)", "", str(error))
    with_limit = dict(entries)
    for entry in refused:
        del with_limit[entry]
    return with_limit, refused


def square(x: Any, mask: Bools | None = None) -> Scalar:
    """The mean square of the coordinates of all vectors; of scalars, the mean square of
    those in the mask.
    """
    if isinstance(x, Vector):
        column = x.reshape(-1)[:, None]
        return mean_dot(column, column).mean()
    squares: Scalar = x * x
    if mask is not None and not mask.all():
        # the mean over all is then that over the mask
        factors = mask.astype(np.float64) * (mask.size / mask.sum())
        squares = squares * factors
    return squares.mean()


@dataclass(frozen=True)
class CheckCase(TrainingCase):
    """A network of one width and depth, with its batch and its learning rates."""

    rates: tuple[tuple[str, float], ...] = ()
    eps: tuple[tuple[str, float], ...] = ()  # of Adam, by kinds of weights

    @property
    @lru_cache(maxsize=8)  # noqa: B019 (cases are equal if their fields are)
    def network(self) -> Network:
        """The network and its loss. Biases and gains of a model have the learning rate
        and eps of embeddings.
        """
        if self.model is not None:
            return self._network_of_model(self.model)
        program = call_build(self.program_request.model, self.width)
        rates = self.program_request.lr
        if isinstance(program, tuple) and len(program) == 2:
            # a PyTorch or JAX model, with the learning rates of its optimiser at this
            # width, or one for all
            program, rates = program
        if not isinstance(program, Program):
            allowed = (
                f"a function of the width that returns a Program, not {shown(program)}"
            )
            raise ArgumentError("model", self.program_request.name, allowed)
        return of_program(program, rates, self.program_request.eps)

    def _network_of_model(self, model: Transformer) -> Network:
        """The network of a described model, with the cross-entropy of its batch."""
        net = training(model, self.ids, self.targets, vectors_of=self.vectors)
        vocabulary = model.vocabulary or 0
        batch = unit_vectors(sorted({*self.ids, *self.targets}), vocabulary)
        logits = vocabulary * mean_dot(net.logits, batch)
        activations = {**net.watched, "logits": [logits], "vocabulary": [net.logits]}
        kinds: dict[Any, str] = dict(net.kinds())
        for vector in net.vectors:
            kinds[vector] = "embedding"
        lr = dict(self.rates)
        eps = dict(self.eps)
        return Network(
            watched=_watched(activations, net.masks),
            loss=net.loss,
            acts=net.acts,
            rates={parameter: lr[kind] for parameter, kind in kinds.items()},
            eps={parameter: eps[kind] for parameter, kind in kinds.items() if eps},
            parameters=net.parameters,
            loss_of=net.loss_of,
        )

    @property
    @lru_cache(maxsize=8)  # noqa: B019 (cases are equal if their fields are)
    def _measured(self) -> tuple[dict[Entry, Scalar], dict[Entry, str]]:
        """The mean squares by entry and, at infinite width, why other entries have no
        limit: see `limits`.
        """
        try:
            trained = self.program_request or self
            entries = measured(self.network, trained.optimiser, trained.steps)
            if math.isinf(self.width):
                return limits(entries)
            return entries, {}
        except TraceError as error:
            if self.model is None:
                raise
            raise ValueError(f"{self.model.name}: {error}") from None

    @property
    def entries(self) -> list[Entry]:
        """The numbers of a draw, in order."""
        return list(self._measured[0])

    @property
    def empty(self) -> bool:
        """Whether nothing has a limit."""
        return math.isinf(self.width) and not self.entries

    @property
    def refused(self) -> dict[Entry, str]:
        """Why entries have no limit."""
        return self._measured[1]

    @property
    @lru_cache(maxsize=8)  # noqa: B019 (a program that is the same object is planned once)
    def program(self) -> Program:
        """The program of all that is measured."""
        return joined(self._measured[0])

    @property
    def errors(self) -> dict[Entry, float]:
        """The quadrature error of every number, of its mean over draws; 0 at finite
        widths.
        """
        program = self.program._at(self.widths)
        moves = program.moves(Numpy())
        errors = node_bias(program)
        if moves is not None:
            errors = errors + moves.each
        return dict(zip(self.entries, errors, strict=True))


@dataclass(frozen=True)
class CheckTask(DrawTask):
    """Some draws of a network: a task of a coordinate check."""

    def run(self) -> Arrays:
        """The draws: "numbers" (draws, entries), and how many "random_numbers" they
        took.
        """
        program = self.case.program
        widths = self.case.widths
        # the report shows overflow after a step
        with np.errstate(over="ignore", invalid="ignore"):
            # `Check` has the quadrature errors
            (numbers,) = program._at(widths).unchecked(self.sampling(workers=1))
        plan = program.plan(backend=self.backend, **widths)
        return {
            "numbers": numbers,
            "random_numbers": np.array(plan.random_numbers * self.draws),
        }


def _learning_rate(value: Any) -> float:
    """A learning rate, validated: 0, or one whose changes can be measured."""
    rate = real(value, "lr", least=0, most=MOST_LR)
    if 0 < rate < LEAST_LR:
        allowed = f"0, or a number from {LEAST_LR:g} to {MOST_LR:g}"
        raise ArgumentError("lr", value, allowed)
    return rate


def _is_promise(promise: Any) -> bool:
    """Whether it is a mapping that can be the promise of a program: exponents from −4
    to 4 for "features", "logits" or both.
    """
    if not isinstance(promise, Mapping) or not promise.keys() <= {"features", "logits"}:
        return False
    for exponent in promise.values():
        if not isinstance(exponent, int | float) or not -4 <= exponent <= 4:
            return False
    return True


@dataclass(frozen=True, eq=False)
class Request(TrainingRequest):
    """The validated options of a coordinate check."""

    optimiser: Annotated[str, choice(*NAMED)] = "sgd"
    draws: Annotated[int, partial(whole, least=FEWEST)] = DRAWS
    depths: Any = None  # a tuple, once it is validated
    lr: Any = None
    promise: Mapping[str, float] | None = None  # of a program
    tolerance: Annotated[float, partial(real, above=0, most=1)] = TOLERANCE
    # of a PyTorch module: the names of its parameters, and whether its biases or gains
    # take steps
    trainable: tuple[str, ...] = ()
    trains_vectors: bool = False

    case_type: ClassVar[type[TrainingCase]] = CheckCase
    command: ClassVar[str] = "netsor coord-check"
    smaller: ClassVar[str] = "fewer draws, tokens or widths"
    default_widths: ClassVar[tuple[float, ...]] = (256, 1024, 4096)
    of_models: ClassVar[Mapping[str, str]] = {
        **TrainingRequest.of_models,
        "depths": "a program defines its depth",
    }
    of_programs: ClassVar[Mapping[str, str]] = {
        "promise": "a parametrisation has its own exponents"
    }

    def __post_init__(self) -> None:
        """Validate the options. Depths come first: the defaults of others depend on
        them.
        """
        self._set("depths", sizes_of("depths", self.depths))
        is_against_depth = self.widths is None and self.axis == "depth"
        if is_against_depth and isinstance(self.model, Transformer):
            self._set("widths", (self.model.width,))
        has_eps_by_weight = callable(self.eps) and self.is_user_program
        if not has_eps_by_weight:
            real(self.eps, "eps", least=0, most=1)
        super().__post_init__()
        if self.lr is None:
            raise ArgumentError(
                "lr",
                None,
                "given for a program: a number, a function of (in, out), or a dict",
            )
        if isinstance(self.lr, int | float):
            _learning_rate(self.lr)
        if len(self.widths) > 1 and self.axis == "depth":
            raise ValueError("widths and depths: one of them must be a single number")
        if not has_eps_by_weight:
            self._check_eps()
        elif "eps" not in NAMED[self.optimiser].takes:
            raise ArgumentError(
                "eps", self.eps, f"0 for {self.optimiser}: it is for Adam"
            )

    def _check_model(self, model: Transformer) -> None:
        """Validate the depths and learning rates of a described model, and fill in
        their defaults.
        """
        if self.depths is None:
            self._set("depths", (model.layers,))
        if max(self.depths) > MOST_LAYERS:
            allowed = f"at most {MOST_LAYERS}"
            if self.depths == (model.layers,):
                raise ArgumentError("layers", model.layers, allowed)
            raise ArgumentError("depths", self.depths, allowed)
        self._set("lr", self._rates(model))
        super()._check_model(model)

    @property
    def rates_by_kind(self) -> Mapping[str, float]:
        """The learning rates of a model at its own width, by kinds of weights."""
        return self.lr  # type: ignore[no-any-return]

    @property
    def no_promise(self) -> str:
        """Why nothing is compared with promises; empty if changes are."""
        return "" if self.axis == "width" else "this check is against the depth"

    def _rates(self, model: Transformer) -> dict[str, float]:
        """The learning rate of each kind of weight, at the model's own width."""
        default = NAMED[self.optimiser].lr
        if not isinstance(self.lr, Mapping):
            rate = _learning_rate(default if self.lr is None else self.lr)
            return dict.fromkeys(KINDS, rate)
        for kind in self.lr.keys() - set(KINDS):
            raise ArgumentError(
                "lr", kind, f"for one of the kinds of weights {', '.join(KINDS)}"
            )
        reject_idle_rates(list(self.lr), model)
        return {kind: _learning_rate(self.lr.get(kind, default)) for kind in KINDS}

    @property
    def axis(self) -> str:
        """What changes between the networks: "width" or "depth"."""
        return "depth" if len(self.depths or ()) > 1 else "width"

    @property
    def widens_heads(self) -> bool:
        """Whether the dimension of a head grows with the width."""
        return self.axis == "width" and self.grow == GROW_HEAD_DIM

    @property
    def at(self) -> tuple[float, ...]:
        """The widths, or depths, of the slopes."""
        return tuple(self.depths) if self.axis == "depth" else super().at

    @cached_property
    def checks(self) -> tuple[Parametrisation, ...]:
        """The parametrisations; of a program one, which is in its weights."""
        if self.rules:
            return self.rules
        promise = {} if self.promise is None else self.promise
        if not _is_promise(promise):
            allowed = (
                "a dict of exponents from -4 to 4 for 'features' and 'logits', or one"
            )
            raise ArgumentError("promise", promise, allowed)
        as_written = Parametrisation(
            name="program",
            words="as it is written",
            features=promise.get("features", 0.0),
            outputs=promise.get("logits", 0.0),
        )
        return (as_written,)

    def case_options(
        self, rule: Parametrisation, width: float, depth: float
    ) -> dict[str, Any]:
        """The learning rates and eps of each kind of weight; a program has its own."""
        if self.is_user_program:
            return {}
        rates = []
        for kind, rate in self.lr.items():
            rates.append((kind, rate * rule.scaling(kind).lr.of(width, depth)))
        return {"rates": tuple(rates), "eps": self.eps_by_kind(rule, width, depth)}
