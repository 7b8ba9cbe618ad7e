"""Optimisers for `ns.step` and `ns.train`, with PyTorch's arguments and semantics.

Each has one rule, `_update`, written in sums, multiples, functions of entries, and
orthogonalisation. The same lines move sampled matrices (in the reference interpreter)
and symbolic ones: sums of outer products, entries and vectors (in the engine).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ._array_api import Array, array_namespace
from ._validate import TraceError, as_floats, one_of, real, shown, whole

# a number, or a function of fan-in and fan-out
Rate = float | Callable[[float, float], float]
Coefficients = tuple[tuple[float, float, float], ...]

# Most optimiser steps in one program: the planning time grows faster than their square.
MAX_STEPS = 256
# Most Newton–Schulz steps: the polynomial (1.5, −0.5, 0) needs 91 to take a singular
# value from rounding error, 1e-16, to 1.
MAX_NS_STEPS = 100
# Singular values below this share of the largest count as 0. Five Newton–Schulz steps
# turn it into 0.005.
MUON_SINGULAR_VALUE_RTOL = 1e-5
# The factor of Muon's learning rate for a matrix with this fan-in and fan-out, by the
# names of PyTorch's `adjust_lr_fn`.
ADJUSTMENTS: dict[str, Callable[[float, float], float]] = {
    "original": lambda fan_in, fan_out: max(1.0, fan_out / fan_in) ** 0.5,
    "match_rms_adamw": lambda fan_in, fan_out: 0.2 * max(fan_in, fan_out) ** 0.5,
}


class Rates(NamedTuple):
    """The numbers of one step for one parameter.

    All but `eps` may be scalars of the program.
    """

    lr: Any
    adjusted: Any  # lr times the optimiser's factor for matrices of this shape
    decay: Any
    eps: float


class Arithmetic(Protocol):
    """Operations that an update may apply to one kind of parameter, besides sums and
    multiples.
    """

    def elementwise(self, f: Callable[..., Array], *parameters: Any) -> Any:
        """Apply a function to each entry."""

    def orthogonalised(
        self, g: Any, iterations: Coefficients | None, eps: float
    ) -> Any:
        """The polar factor of matrices, or its Newton–Schulz polynomial."""


class Optimiser(ABC):
    """The base class of optimisers: an object keeps its moments over all its steps.

    Pass the same object to `ns.step` again to continue; a new object starts afresh.

    To write an optimiser, derive a frozen dataclass from this class and define
    `_update`. The class variables tell the engine what the update needs. Their defaults
    are correct for every update that also moves vectors.

    Attributes
    ----------
    entrywise : bool
        Whether the update uses single entries of gradients or parameters, as
        `elementwise` does; True by default. Then finite matrices are sampled. False,
        for sums and orthogonalised sums of gradients, is faster: the engine tracks
        outer products.
    matrices_only : bool
        Whether the update is defined for matrices only, so that `ns.step` rejects
        vectors; False by default.
    proportional_to_gradient : bool
        Whether the update is proportional to the gradient, and so to its scale; False
        by default.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from typing import Any
    >>> @dataclass(frozen=True, eq=False)
    ... class SignDescent(ns.optim.Optimiser):
    ...     lr: Any = 1e-3
    ...     weight_decay: Any = 0.0
    ...
    ...     def _update(self, on, w, g, state, rates):
    ...         return w - rates.lr * on.elementwise(ns.optim.sign, g), state
    >>> n = ns.Width("n")
    >>> x = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    >>> loss = (ns.mean_dot(ns.gaussian(n), x) - 1.0) ** 2
    >>> signs = SignDescent(lambda fan_in, fan_out: 0.5 / fan_in)
    >>> trained = ns.Program(ns.step(loss, loss, optimiser=signs))
    >>> f"{trained.draw(n=64, draws=100).mean():.2f} {trained.law(n=ns.inf).mean():.2f}"
    '0.68 0.66'
    """

    entrywise: ClassVar[bool] = True
    matrices_only: ClassVar[bool] = False
    proportional_to_gradient: ClassVar[bool] = False

    lr: Any
    weight_decay: Any
    momentum: float = 0.0
    eps: Any = 0.0

    def __post_init__(self) -> None:
        """Check the options: `lr` and `eps` may be functions instead of numbers, `lr`
        and `weight_decay` scalars of a program.
        """
        may_be_function = ("lr", "eps")
        may_be_scalar = ("lr", "weight_decay")
        optimiser = type(self).__name__
        for name in ("lr", "weight_decay", "momentum", "eps"):
            value = getattr(self, name)
            if callable(value) and name in may_be_function:
                continue
            if hasattr(value, "op") and name in may_be_scalar:
                continue
            object.__setattr__(self, name, real(value, name, optimiser, least=0))
        nesterov = getattr(self, "nesterov", False)
        if not isinstance(nesterov, bool):
            raise TraceError(optimiser, "nesterov", nesterov, "True or False")

    @property
    def decays(self) -> bool:
        """Whether there is weight decay."""
        return not isinstance(self.weight_decay, float) or self.weight_decay > 0

    @property
    def entrywise_part(self) -> str:
        """The name, in errors, of functions of entries that have no known limit."""
        return f"the functions of entries in {type(self).__name__}'s update"

    def needs_entries(self, step: int) -> bool:
        """Whether the update at this step, 1, 2, …, needs entries of finite matrices.

        Signs of the gradient at the first step do not: see `sign`.
        """
        return self.entrywise

    def _adjustment(self, fan_in: float, fan_out: float) -> float:
        """The factor of the learning rate of a matrix of this shape."""
        return 1.0

    @abstractmethod
    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """The parameter and the state after a step.

        `on` is the arithmetic of the parameter `w` and its gradient `g`, and `state`
        is what the last step returned, None at the first.
        """


@dataclass(frozen=True, eq=False)
class SGD(Optimiser):
    """Gradient descent with heavy-ball or Nesterov momentum; `torch.optim.SGD`.

    Parameters
    ----------
    lr : float, callable or Scalar
        The learning rate: a number, a function of fan-in and fan-out, or a scalar such
        as `ns.hyperparameter("lr")`.
    momentum : float
        The decay of the buffer b ← momentum·b + (1 − dampening)·g. It starts as the
        first gradient.
    dampening : float
        The share of a gradient that the buffer leaves out.
    weight_decay : float or Scalar
        λ, added to the gradient as λ·w.
    nesterov : bool
        Whether to step along g + momentum·b instead of b.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    >>> loss = (ns.mean_dot(ns.gaussian(n), x) - 1.0) ** 2
    >>> sgd = ns.optim.SGD(0.5, momentum=0.9, nesterov=True)
    >>> losses = ns.train(loss, loss, sgd, steps=3)
    >>> " ".join(f"{x.mean():.2f}" for x in ns.Program(losses).draw(n=64, draws=100))
    '1.02 0.29 0.16 0.11'
    """

    entrywise: ClassVar[bool] = False
    proportional_to_gradient: ClassVar[bool] = True

    lr: Any = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: Any = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        real(self.dampening, "dampening", "SGD")
        allows_nesterov = self.momentum and not self.dampening
        if self.nesterov and not allows_nesterov:
            raise TraceError(
                "SGD", "nesterov", True, "False without momentum, or with dampening"
            )

    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """A multiple of the gradient, or of the buffer."""
        if self.decays:
            g = g + rates.decay * w
        if not self.momentum:
            return w - rates.lr * g, state
        if state is None:
            buffer = g
        else:
            buffer = self.momentum * state + (1.0 - self.dampening) * g
        direction = g + self.momentum * buffer if self.nesterov else buffer
        return w - rates.lr * direction, buffer


class AdamState(NamedTuple):
    """The moments of Adam after some steps.

    The first step needs no moments. So `second` is None after it, and `first` is its
    gradient: the moments are made when a second step needs them.
    """

    steps: int
    first: Any
    second: Any


@dataclass(frozen=True, eq=False)
class Adam(Optimiser):
    """Adam (Kingma and Ba 2015) with bias corrections and eps; `torch.optim.Adam`.

    Other parameters are those of `SGD`.

    Parameters
    ----------
    betas : tuple of float
        The decay rates of the averages of the gradient and of its square.
    eps : float or callable
        Added to the root of the second moment. A function of fan-in and fan-out scales
        it with the width.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    >>> loss = (ns.mean_dot(ns.gaussian(n), x) - 1.0) ** 2
    >>> adam = ns.optim.Adam(lambda fan_in, fan_out: 0.5 / fan_in)
    >>> losses = ns.train(loss, loss, adam, steps=3)
    >>> " ".join(f"{x.mean():.2f}" for x in ns.Program(losses).draw(n=64, draws=100))
    '1.03 0.68 0.43 0.26'
    """

    # Whether weight decay multiplies the parameter and stays out of the moments.
    decoupled: ClassVar[bool] = False

    lr: Any = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Any = 1e-8
    weight_decay: Any = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas, type(self).__name__)

    @property
    def entrywise_part(self) -> str:
        """The moments."""
        return f"the moments of {type(self).__name__}"

    def needs_entries(self, step: int) -> bool:
        """All steps but the first, which is g/(|g| + eps), whatever the betas."""
        decay_in_gradient = self.decays and not self.decoupled
        return step > 1 or decay_in_gradient

    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """m̂/(√v̂ + eps)."""
        if self.decays:
            if self.decoupled:
                w = (1.0 - rates.lr * rates.decay) * w
            else:
                g = g + rates.decay * w
        if state is None:
            direction = on.elementwise(partial(unit, eps=rates.eps), g)
            return w - rates.lr * direction, AdamState(steps=1, first=g, second=None)

        beta1, beta2 = self.betas
        mean_square = partial(_mean_square, keep=beta2)
        steps, m, v = state
        if v is None:
            first_gradient = m
            m = (1.0 - beta1) * first_gradient
            v = on.elementwise(mean_square, first_gradient)
        m = on.elementwise(partial(_average, keep=beta1), m, g)
        v = on.elementwise(mean_square, g, v)
        steps += 1
        bias_corrected = partial(
            _direction,
            first=1.0 - beta1**steps,
            second=1.0 - beta2**steps,
            eps=rates.eps,
        )
        direction = on.elementwise(bias_corrected, m, v)
        return w - rates.lr * direction, AdamState(steps=steps, first=m, second=v)


@dataclass(frozen=True, eq=False)
class AdamW(Adam):
    """Adam with decoupled decay (Loshchilov and Hutter 2019); `torch.optim.AdamW`.

    Other parameters are those of `Adam`.

    Parameters
    ----------
    weight_decay : float or Scalar
        λ: a step first multiplies the parameter by 1 − lr·λ.

    Examples
    --------
    >>> adamw = ns.optim.AdamW(lambda fan_in, fan_out: 0.1 / fan_in, betas=(0.9, 0.95))
    >>> adamw.weight_decay
    0.01
    """

    decoupled: ClassVar[bool] = True
    weight_decay: Any = 1e-2


@dataclass(frozen=True, eq=False)
class Lion(Optimiser):
    """Signs of an average of gradients, with decoupled decay (Chen et al. 2023).

    The arguments are those of the authors' implementation. The first step is the sign
    of the gradient. Other parameters are those of `SGD`.

    Parameters
    ----------
    betas : tuple of float
        β₁ and β₂: a step goes along the sign of β₁·b + (1 − β₁)·g, and then the buffer
        is b ← β₂·b + (1 − β₂)·g. It starts at 0.
    weight_decay : float or Scalar
        λ: a step first multiplies the parameter by 1 − lr·λ.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    >>> loss = (ns.mean_dot(ns.gaussian(n), x) - 1.0) ** 2
    >>> lion = ns.optim.Lion(lambda fan_in, fan_out: 0.5 / fan_in)
    >>> losses = ns.train(loss, loss, lion, steps=3)
    >>> " ".join(f"{x.mean():.2f}" for x in ns.Program(losses).draw(n=64, draws=100))
    '1.03 0.68 0.42 0.26'
    """

    lr: Any = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: Any = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas, "Lion")

    @property
    def entrywise_part(self) -> str:
        """The sign of the average."""
        return "the signs of Lion"

    def needs_entries(self, step: int) -> bool:
        """All steps but the first, which is the sign of the gradient."""
        return step > 1

    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """The sign of an average of the buffer and the gradient."""
        beta1, beta2 = self.betas
        average = (1.0 - beta1) * g
        buffer = (1.0 - beta2) * g
        if state is not None:
            average = beta1 * state + average
            buffer = beta2 * state + buffer
        if self.decays:
            w = (1.0 - rates.lr * rates.decay) * w
        return w - rates.lr * on.elementwise(sign, average), buffer


def _check_betas(betas: Any, optimiser: str) -> None:
    """Check the decay rates of two averages."""
    rates = as_floats(betas)
    if rates is None or rates.shape != (2,) or not ((rates >= 0) & (rates < 1)).all():
        raise TraceError(
            optimiser, "betas", betas, "two numbers from 0 up to, but not including, 1"
        )


@dataclass(frozen=True, eq=False)
class Muon(Optimiser):
    """Orthogonalised momentum (Jordan et al. 2024); `torch.optim.Muon`.

    It is PyTorch's in full precision, with decoupled weight decay. It moves matrices
    only. Each matrix of a batch, such as a head of attention, is
    orthogonalised separately. Other parameters are those of `SGD`.

    Parameters
    ----------
    weight_decay : float or Scalar
        λ: a step first multiplies the matrix by 1 − lr·λ, without the adjustment of lr.
    momentum : float
        The decay of the buffer b ← momentum·b + (1 − momentum)·g. It starts at 0.
    nesterov : bool
        Whether to orthogonalise (1 − momentum)·g + momentum·b instead of b.
    ns_coefficients : tuple of float
        The three coefficients of the Newton–Schulz polynomial, or a tuple of three for
        each step.
    eps : float
        The smallest norm by which the matrix is divided before the first polynomial.
    ns_steps : int, optional
        How often the polynomial is applied. None takes the polar factor itself, without
        singular values below 1e-5 of the largest.
    adjust_lr_fn : str or callable, optional
        The factor of lr: "original" (also None) is √max(1, fan-out/fan-in),
        "match_rms_adamw" is 0.2·√max(fan-in, fan-out), and a function of fan-in and
        fan-out is any other rule.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    >>> loss = (ns.mean_dot(ns.gaussian(n), x) - 1.0) ** 2
    >>> losses = ns.train(loss, loss, ns.optim.Muon(0.3), steps=3)
    >>> " ".join(f"{x.mean():.2f}" for x in ns.Program(losses).draw(n=64, draws=100))
    '1.02 0.76 0.57 0.43'
    """

    entrywise: ClassVar[bool] = False
    matrices_only: ClassVar[bool] = True

    lr: Any = 1e-3
    weight_decay: Any = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: Any = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7
    ns_steps: int | None = 5
    adjust_lr_fn: str | Callable[[float, float], float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjust_lr_fn is not None and not callable(self.adjust_lr_fn):
            one_of(self.adjust_lr_fn, "adjust_lr_fn", "Muon", tuple(ADJUSTMENTS))
        _ = self.iterations

    @property
    def iterations(self) -> Coefficients | None:
        """The coefficients of each Newton–Schulz step; None for the polar factor."""
        if self.ns_steps is None:
            return None
        steps = whole(self.ns_steps, "ns_steps", "Muon")
        problem = (
            f"ns_coefficients={shown(self.ns_coefficients)} with"
            f" ns_steps={shown(steps)} must be three finite numbers and 1 to"
            f" {MAX_NS_STEPS} steps"
        )
        return newton_schulz(
            "Muon", problem, coefficients=self.ns_coefficients, steps=steps
        )

    def _adjustment(self, fan_in: float, fan_out: float) -> float:
        """The factor of lr."""
        if callable(self.adjust_lr_fn):
            factor = self.adjust_lr_fn
        else:
            factor = ADJUSTMENTS[self.adjust_lr_fn or "original"]
        return float(factor(fan_in, fan_out))

    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """The orthogonalised buffer."""
        direction = g
        if self.momentum:
            term = (1.0 - self.momentum) * g
            state = term if state is None else self.momentum * state + term
            direction = term + self.momentum * state if self.nesterov else state
        if self.decays:
            w = (1.0 - rates.lr * rates.decay) * w
        direction = on.orthogonalised(direction, self.iterations, rates.eps)
        return w - rates.adjusted * direction, state


def newton_schulz(
    operation: str, problem: str, coefficients: Any, steps: int
) -> Coefficients:
    """The coefficients of each step, from three for all steps or three for each.

    For example, (1, 2, 3) with two steps becomes ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)). A
    table with a row for each step decides their number. `problem` is the beginning of
    the error that names `operation`.
    """
    triples = as_floats(coefficients)
    if triples is not None and triples.shape == (3,):
        # a number of steps out of range fails below, without a large array
        rows = min(max(steps, 0), MAX_NS_STEPS + 1)
        triples = triples[None].repeat(rows, axis=0)
    if triples is None or not _are_triples(triples):
        raise TraceError(
            operation,
            f"{problem}, or three finite numbers for each of at most {MAX_NS_STEPS}"
            " steps",
        )
    return tuple((a, b, c) for a, b, c in triples.tolist())


def _are_triples(array: npt.NDArray[np.float64]) -> bool:
    """Whether an array has three finite numbers for each of 1 to MAX_NS_STEPS steps."""
    if array.shape[1:] != (3,) or not 0 < len(array) <= MAX_NS_STEPS:
        return False
    return bool(np.isfinite(array).all())


class FirstStep(Protocol):
    """A function that makes the optimiser without memory for a name in `ns.step` from
    its options. It ignores options that the optimiser does not have.
    """

    def __call__(
        self,
        *,
        weight_decay: Any,
        eps: float,
        coefficients: Coefficients | None,
        lr_factor: Callable[[float, float], float],
    ) -> Optimiser:
        """An optimiser with lr = 1."""


class Exponents(NamedTuple):
    """The exponents of n in the learning rates of the kinds of parameters."""

    vectors: float
    matrices: float
    head: float


class NamedOptimiser(NamedTuple):
    """What commands and studies need to know about an optimiser that has a name."""

    kind: type[Optimiser]  # whose class variables say what it needs
    first_step: FirstStep  # the optimiser without memory
    # the optimiser itself, with PyTorch's defaults, from lr and eps
    with_memory: Callable[[Rate, Any], Optimiser]
    lr: float  # of a coordinate check, at the width of the model
    sweep_centre: float  # the middle of a sweep's learning rates, at the model's width
    exponents: Mapping[str, Exponents]  # by parametrisation
    takes: tuple[str, ...] = ()  # the options of `ns.step` for this optimiser only


def _sgd_first_step(
    *,
    weight_decay: Any,
    eps: float,
    coefficients: Coefficients | None,
    lr_factor: Callable[[float, float], float],
) -> SGD:
    """SGD's first step."""
    return SGD(lr=1.0, weight_decay=weight_decay)


def _muon_first_step(
    *,
    weight_decay: Any,
    eps: float,
    coefficients: Coefficients | None,
    lr_factor: Callable[[float, float], float],
) -> Muon:
    """Muon without momentum; the polar factor itself without coefficients."""
    return Muon(
        lr=1.0,
        weight_decay=weight_decay,
        momentum=0.0,
        nesterov=False,
        ns_coefficients=coefficients,
        eps=0.0,
        ns_steps=len(coefficients) if coefficients else None,
        adjust_lr_fn=lr_factor,
    )


def _adam_first_step(
    *,
    weight_decay: Any,
    eps: float,
    coefficients: Coefficients | None,
    lr_factor: Callable[[float, float], float],
) -> AdamW:
    """AdamW's first step: g/(|g| + ε)."""
    return AdamW(lr=1.0, eps=eps, weight_decay=weight_decay)


def _lion_first_step(
    *,
    weight_decay: Any,
    eps: float,
    coefficients: Coefficients | None,
    lr_factor: Callable[[float, float], float],
) -> Lion:
    """Lion's first step: the sign of the gradient."""
    return Lion(lr=1.0, weight_decay=weight_decay)


def _sgd_with_memory(lr: Rate, eps: Any) -> SGD:
    """SGD has no memory."""
    return SGD(lr)


def _muon_with_memory(lr: Rate, eps: Any) -> Muon:
    """Muon, with its momentum and with steps of one size for all matrices."""
    return Muon(lr, weight_decay=0.0, eps=0.0, adjust_lr_fn=lambda fan_in, fan_out: 1.0)


def _adam_with_memory(lr: Rate, eps: Any) -> Adam:
    """Adam, with its two moments."""
    return Adam(lr, eps=eps)


def _lion_with_memory(lr: Rate, eps: Any) -> Lion:
    """Lion, with its momentum."""
    return Lion(lr)


# Adam's first step is the sign of the gradient, as Lion's is
SIGN_DESCENT = {
    "sp": Exponents(vectors=0.0, matrices=0.0, head=0.0),
    "ntk": Exponents(vectors=-0.5, matrices=-1.5, head=-1.0),
    "mup": Exponents(vectors=0.0, matrices=-1.0, head=-1.0),
}
NAMED = {
    "sgd": NamedOptimiser(
        kind=SGD,
        first_step=_sgd_first_step,
        with_memory=_sgd_with_memory,
        lr=1e-3,
        sweep_centre=2.0**-7,
        exponents={
            "sp": Exponents(vectors=0.0, matrices=0.0, head=0.0),
            "ntk": Exponents(vectors=0.0, matrices=-1.0, head=-1.0),
            "mup": Exponents(vectors=1.0, matrices=0.0, head=-1.0),
        },
    ),
    "muon": NamedOptimiser(
        kind=Muon,
        first_step=_muon_first_step,
        with_memory=_muon_with_memory,
        lr=1e-3,
        sweep_centre=0.02,
        exponents={
            "sp": Exponents(vectors=0.0, matrices=0.0, head=0.0),
            "ntk": Exponents(vectors=0.0, matrices=-0.5, head=-0.5),
            "mup": Exponents(vectors=0.5, matrices=0.0, head=-0.5),
        },
        takes=("newton_schulz", "scale"),
    ),
    "adam": NamedOptimiser(
        kind=Adam,
        first_step=_adam_first_step,
        with_memory=_adam_with_memory,
        lr=1e-4,
        sweep_centre=3e-3,
        exponents=SIGN_DESCENT,
        takes=("eps",),
    ),
    "lion": NamedOptimiser(
        kind=Lion,
        first_step=_lion_first_step,
        with_memory=_lion_with_memory,
        lr=1e-4,
        # a sixth of Adam's: the authors advise a third to a tenth of AdamW's
        sweep_centre=5e-4,
        exponents=SIGN_DESCENT,
    ),
}


# Functions of entries, for arrays of any library


def unit(g: Array, eps: float) -> Array:
    """g/(|g| + eps), and 0 for g = 0."""
    xp = array_namespace(g)
    size = xp.abs(g) + eps
    if not eps:  # 0/0 counts as 0
        size = xp.where(size > 0, size, 1.0)
    return g / size


def sign(g: Array) -> Array:
    """The sign of each entry, 0 for 0: a function that `_update` may apply.

    The engine knows it, so signs of sums of gradients have laws at infinite width.

    Parameters
    ----------
    g
        An array of any library.

    Returns
    -------
    signs : array
        −1, 0 or 1 for each entry, an array of the same library.

    Examples
    --------
    >>> ns.optim.sign(np.array([-2.0, 0.0, 3.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    return unit(g, 0.0)


def sign_eps(f: Callable[..., Any]) -> float | None:
    """eps if f is `unit` with this eps, 0 for the sign, None for other functions."""
    if f is sign or f is np.sign:
        return 0.0
    if isinstance(f, partial) and f.func is unit:
        return float(f.keywords["eps"])
    return None


def entry_function_name(f: Callable[..., Any]) -> str:
    """The name of a function of entries, as plans print it."""
    function = f.func if isinstance(f, partial) else f
    name = getattr(function, "__name__", type(function).__name__)
    return str(name).strip("_")


def _average(m: Array, g: Array, keep: float) -> Array:
    """The first moment after a gradient g, with m before it."""
    return keep * m + (1.0 - keep) * g


def _mean_square(g: Array, *before: Array, keep: float) -> Array:
    """The second moment after a gradient g.

    `before` is that before the gradient, and is missing at the first.
    """
    result = (1.0 - keep) * g * g
    for v in before:
        result = result + keep * v
    return result


def _direction(m: Array, v: Array, first: float, second: float, eps: float) -> Array:
    """Adam's m̂/(√v̂ + eps), with the bias corrections m̂ = m/first and v̂ = v/second."""
    xp = array_namespace(m, v)
    # multiplied out, for one division of arrays instead of three
    size = xp.sqrt(v) * (first / math.sqrt(second)) + first * eps
    if not eps:  # 0/0 counts as 0
        size = xp.where(size > 0, size, 1.0)
    return m / size


def orthogonalised(g: Array, iterations: Coefficients | None, eps: float) -> Array:
    """The polar factor U V of matrices (…, rows, columns) = U S V; or with
    coefficients, its approximation by Newton–Schulz steps.

    Singular vectors whose singular values are rounding errors are left out. `eps` is
    the smallest norm by which a matrix is divided before the steps.
    """
    xp = array_namespace(g)
    if iterations is None:
        u, s, v = xp.linalg.svd(g, full_matrices=False)
        is_significant = s > MUON_SINGULAR_VALUE_RTOL * s[..., :1]
        keep = xp.where(is_significant, 1.0, 0.0)
        return (u * keep[..., None, :]) @ v
    rows, columns = g.shape[-2:]
    if rows > columns:  # the smaller of x x^T and x^T x
        transposed = orthogonalised(xp.matrix_transpose(g), iterations, eps)
        return xp.matrix_transpose(transposed)
    square_norm = xp.sum(g * g, axis=(-2, -1), keepdims=True)
    norm = xp.clip(xp.sqrt(square_norm), eps, None)
    x = g / xp.where(norm > 0, norm, 1.0)
    for a, b, c in iterations:
        square = x @ xp.matrix_transpose(x)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x
