"""Optimisers for `ns.step` and `ns.train`: SGD, Adam, AdamW and Muon, with PyTorch's
arguments and semantics.

Each has one rule, `_update`, written in sums, multiples, functions of entries, and
orthogonalisation. The same lines move drawn matrices (in the reference interpreter),
and sums of outer products, entries and vectors (in the engine).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from ._array_api import Array, array_namespace
from ._validate import TraceError, as_floats, one_of, real, shown, whole

# a number, or a function of fan-in and fan-out
Rate = float | Callable[[float, float], float]
Coefficients = tuple[tuple[float, float, float], ...]

# of an optimiser in one program: the time of planning grows faster than their square
MAX_STEPS = 256
# (1.5, −0.5, 0) takes a singular value from rounding error, 1e-16, to 1 in 91 steps
MAX_NS_STEPS = 100
# Singular values below this share of the largest count as 0. Five Newton–Schulz steps
# turn it into 0.005
MUON_SINGULAR_VALUE_RTOL = 1e-5
ADJUSTMENTS: dict[str, Callable[[float, float], float]] = {
    "original": lambda fan_in, fan_out: max(1.0, fan_out / fan_in) ** 0.5,
    "match_rms_adamw": lambda fan_in, fan_out: 0.2 * max(fan_in, fan_out) ** 0.5,
}


class Rates(NamedTuple):
    """The numbers of one step for one parameter. Those that may be scalars of the
    program are of its kind.
    """

    lr: Any
    adjusted: Any  # lr · adjustment
    decay: Any
    eps: float


class Arithmetic(Protocol):
    """The operations of an update on one kind of parameters, in addition to sums and
    multiples.
    """

    def elementwise(self, f: Callable[..., Array], *parameters: Any) -> Any:
        """A function of entries."""

    def orthogonalised(
        self, g: Any, iterations: Coefficients | None, eps: float
    ) -> Any:
        """The polar factor of matrices, or its Newton–Schulz polynomial."""


class Optimiser(ABC):
    """The base class of optimisers: an object remembers its moments over all steps that
    it takes.

    Pass the same object to `ns.step` again to continue; a new object begins anew.
    """

    lr: Any
    weight_decay: Any
    momentum: float = 0.0
    eps: Any = 0.0

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "momentum", "eps"):
            value = getattr(self, name)
            function, scalar = callable(value), hasattr(value, "op")
            if not (function and name in ("lr", "eps")) and not (
                scalar and name in ("lr", "weight_decay")
            ):
                object.__setattr__(
                    self, name, real(value, name, type(self).__name__, least=0)
                )
        nesterov = getattr(self, "nesterov", False)
        if not isinstance(nesterov, bool):
            raise TraceError(type(self).__name__, "nesterov", nesterov, "True or False")

    @property
    def decays(self) -> bool:
        """Whether there is weight decay."""
        return not isinstance(self.weight_decay, float) or self.weight_decay > 0

    def _adjustment(self, fan_in: float, fan_out: float) -> float:
        """The factor of the learning rate of a matrix of this shape."""
        return 1.0

    def linear(self, step: int) -> bool:
        """Whether the update at this step, 1, 2, …, is a sum of gradients, which needs
        no entry of a matrix.
        """
        return True

    @abstractmethod
    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """The parameter and the state after a step; `state` is None at the first."""


@dataclass(frozen=True, eq=False)
class SGD(Optimiser):
    """Stochastic gradient descent, with heavy-ball or Nesterov momentum;
    `torch.optim.SGD`.

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
    >>> losses = ns.train(loss, loss, ns.optim.SGD(0.5, momentum=0.9, nesterov=True), steps=3)
    >>> " ".join(f"{x.mean():.2f}" for x in ns.Program(losses).draw(n=64, draws=100))
    '1.02 0.29 0.16 0.11'
    """

    lr: Any = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: Any = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        real(self.dampening, "dampening", "SGD")
        if self.nesterov and (not self.momentum or self.dampening):
            raise TraceError(
                "SGD", "nesterov", True, "False without momentum, or with dampening"
            )

    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """A multiple of the gradient, or of the buffer."""
        if self.decays:
            g = g + rates.decay * w
        if self.momentum:
            state = (
                g
                if state is None
                else self.momentum * state + (1.0 - self.dampening) * g
            )
            g = g + self.momentum * state if self.nesterov else state
        return w - rates.lr * g, state


@dataclass(frozen=True, eq=False)
class Adam(Optimiser):
    """Adam (Kingma and Ba 2015) with both moments, their bias corrections and eps;
    `torch.optim.Adam`.

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
    >>> losses = ns.train(loss, loss, ns.optim.Adam(lambda fan_in, fan_out: 0.5 / fan_in), steps=3)
    >>> " ".join(f"{x.mean():.2f}" for x in ns.Program(losses).draw(n=64, draws=100))
    '1.03 0.68 0.43 0.26'
    """

    decoupled: ClassVar[bool] = False
    lr: Any = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Any = 1e-8
    weight_decay: Any = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = as_floats(self.betas)
        if (
            betas is None
            or betas.shape != (2,)
            or not ((betas >= 0) & (betas < 1)).all()
        ):
            raise TraceError(
                type(self).__name__,
                "betas",
                self.betas,
                "two numbers from 0 up to, but not including, 1",
            )

    def linear(self, step: int) -> bool:
        """The first step is g/(|g| + eps), whatever the betas: it keeps no entry of the
        matrix.
        """
        return step == 1 and (self.decoupled or not self.decays)

    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """m̂/(√v̂ + eps)."""
        if self.decays and self.decoupled:
            w = (1.0 - rates.lr * rates.decay) * w
        elif self.decays:
            g = g + rates.decay * w
        first, second = self.betas
        if state is None:
            return w - rates.lr * on.elementwise(partial(unit, eps=rates.eps), g), (
                1,
                g,
                None,
            )
        steps, m, v = state
        square = partial(_mean_square, keep=second)
        if v is None:  # the first moments are made when a second step needs them
            m, v = (1.0 - first) * m, on.elementwise(square, m)
        m, v = (
            on.elementwise(partial(_average, keep=first), m, g),
            on.elementwise(square, g, v),
        )
        steps += 1
        along = partial(
            _direction,
            first=1.0 - first**steps,
            second=1.0 - second**steps,
            eps=rates.eps,
        )
        return w - rates.lr * on.elementwise(along, m, v), (steps, m, v)


@dataclass(frozen=True, eq=False)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019);
    `torch.optim.AdamW`.

    Other parameters are those of `Adam`.

    Parameters
    ----------
    weight_decay : float or Scalar
        λ: a step first multiplies the parameter by 1 − lr·λ.

    Examples
    --------
    >>> ns.optim.AdamW(lr=lambda fan_in, fan_out: 0.1 / fan_in, betas=(0.9, 0.95)).weight_decay
    0.01
    """

    decoupled: ClassVar[bool] = True
    weight_decay: Any = 1e-2


@dataclass(frozen=True, eq=False)
class Muon(Optimiser):
    """Momentum, orthogonalised (Jordan et al. 2024), with decoupled weight decay;
    `torch.optim.Muon` in full precision.

    It moves matrices only. Each matrix of a batch, such as a head of attention, is
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
        """The coefficients of each step."""
        if self.ns_steps is None:
            return None
        given, steps = self.ns_coefficients, whole(self.ns_steps, "ns_steps", "Muon")
        allowed = (
            f"with ns_steps={shown(steps)} must be three finite numbers and 1 to"
            f" {MAX_NS_STEPS} steps"
        )
        return newton_schulz(
            "Muon", f"ns_coefficients={shown(given)} {allowed}", given, steps
        )

    def _adjustment(self, fan_in: float, fan_out: float) -> float:
        """The factor of lr."""
        given = self.adjust_lr_fn
        return float(
            (given if callable(given) else ADJUSTMENTS[given or "original"])(
                fan_in, fan_out
            )
        )

    def _update(
        self, on: Arithmetic, w: Any, g: Any, state: Any, rates: Rates
    ) -> tuple[Any, Any]:
        """The orthogonalised buffer."""
        if self.momentum:
            new = (1.0 - self.momentum) * g
            state = new if state is None else self.momentum * state + new
            g = new + self.momentum * state if self.nesterov else state
        if self.decays:
            w = (1.0 - rates.lr * rates.decay) * w
        return (
            w - rates.adjusted * on.orthogonalised(g, self.iterations, rates.eps),
            state,
        )


def newton_schulz(operation: str, problem: str, given: Any, steps: int) -> Coefficients:
    """The coefficients of each step, from three for all steps or three for each;
    `problem` begins the error.
    """
    triples = as_floats(given)
    if triples is not None and triples.shape == (3,):
        triples = triples[None].repeat(min(max(steps, 0), MAX_NS_STEPS + 1), axis=0)
    finite = triples is not None and all(map(math.isfinite, triples.flat))
    if (
        triples is None
        or triples.shape[1:] != (3,)
        or not 0 < len(triples) <= MAX_NS_STEPS
        or not finite
    ):
        raise TraceError(
            operation,
            f"{problem}, or three finite numbers for each of at most {MAX_NS_STEPS}"
            " steps",
        )
    return tuple((a, b, c) for a, b, c in triples.tolist())


class NamedOptimiser(NamedTuple):
    """The properties of an optimiser by name, for commands and studies."""

    # without memory
    first: Callable[
        [Any, Any, Coefficients | None, Callable[[float, float], float]], Optimiser
    ]
    memory: Callable[[Rate, Any], Optimiser]  # of lr and eps, with PyTorch's defaults
    lr: float  # of a coordinate check, at the width of the model
    # the middle of the learning rates of a sweep, at the width of the model
    grid: float
    # of n in lr, by parametrisation: vectors, matrices, the head
    exponents: Mapping[str, tuple[float, float, float]]
    takes: tuple[str, ...] = ()  # options of `ns.step`


NAMED = {
    "sgd": NamedOptimiser(
        lambda decay, eps, steps, factor: SGD(1.0, weight_decay=decay),
        lambda lr, eps: SGD(lr),
        1e-3,
        2.0**-7,
        {"sp": (0.0, 0.0, 0.0), "ntk": (0.0, -1.0, -1.0), "mup": (1.0, 0.0, -1.0)},
    ),
    "muon": NamedOptimiser(
        # without steps it is the polar factor itself
        lambda decay, eps, steps, by: Muon(
            1.0, decay, 0.0, False, steps, 0.0, len(steps) if steps else None, by
        ),
        lambda lr, eps: Muon(
            lr, 0.0, eps=0.0, adjust_lr_fn=lambda fan_in, fan_out: 1.0
        ),
        1e-3,
        0.02,
        {"sp": (0.0, 0.0, 0.0), "ntk": (0.0, -0.5, -0.5), "mup": (0.5, 0.0, -0.5)},
        ("newton_schulz", "scale"),
    ),
    "adam": NamedOptimiser(
        lambda decay, eps, steps, factor: AdamW(1.0, eps=eps, weight_decay=decay),
        lambda lr, eps: Adam(lr, eps=eps),
        1e-4,
        3e-3,
        {"sp": (0.0, 0.0, 0.0), "ntk": (-0.5, -1.5, -1.0), "mup": (0.0, -1.0, -1.0)},
        ("eps",),
    ),
}


# Functions of entries, for arrays of any library


def unit(g: Array, eps: float) -> Array:
    """g/(|g| + eps), and 0 for g = 0."""
    xp = array_namespace(g)
    down = xp.abs(g) + eps
    return g / (down if eps else xp.where(down > 0, down, 1.0))


def _average(m: Array, g: Array, keep: float) -> Array:
    return keep * m + (1.0 - keep) * g


def _mean_square(g: Array, *before: Array, keep: float) -> Array:
    return sum((keep * v for v in before), (1.0 - keep) * g * g)


def _direction(m: Array, v: Array, first: float, second: float, eps: float) -> Array:
    xp = array_namespace(m, v)
    # a division, and not three
    down = xp.sqrt(v) * (first / math.sqrt(second)) + first * eps
    return m / (down if eps else xp.where(down > 0, down, 1.0))


def orthogonalised(g: Array, iterations: Coefficients | None, eps: float) -> Array:
    """The polar factor of matrices (…, rows, columns), or its Newton–Schulz
    polynomial.
    """
    xp = array_namespace(g)
    if iterations is None:
        u, s, v = xp.linalg.svd(g, full_matrices=False)
        kept = s > MUON_SINGULAR_VALUE_RTOL * s[..., :1]
        return (u * xp.where(kept, 1.0, 0.0)[..., None, :]) @ v
    if g.shape[-2] > g.shape[-1]:
        return xp.matrix_transpose(
            orthogonalised(xp.matrix_transpose(g), iterations, eps)
        )
    size = xp.clip(xp.sqrt(xp.sum(g * g, axis=(-2, -1), keepdims=True)), eps, None)
    x = g / xp.where(size > 0, size, 1.0)
    for a, b, c in iterations:
        square = x @ xp.matrix_transpose(x)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x
