"""Regression with an attention prior, as a scikit-learn estimator.

It needs scikit-learn; see `ns.AttentionRegressor`.
"""

from __future__ import annotations

import inspect
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from . import language
from ._array_api import single_threaded
from ._validate import (
    SCALE,
    ArgumentError,
    Positive,
    as_number,
    check_fields,
    real,
    scale,
    shown,
    whole,
)
from .engine.backends import Backend, choose
from .language.values._width import Width, inf
from .laws import Estimate, Joint, Provenance
from .laws._estimate import Array, combined
from .laws._likelihood import Observations, updated_by_columns
from .posterior import _bayes
from .posterior._latent import Latent, embedding
from .programs._bound_program import AtWidths
from .programs._decorator import program
from .programs._program import Program
from .runtime._memory import check_memory
from .runtime._parallel import Progress

n = Width("n")
two_or_more = partial(whole, least=2, most=_bayes.MOST)
# relative error of Gaussian expectations below which the evidence changes by less than
# its own error
ROUNDED = 1e-6
# arrays of the size of the tokens' kernel that exist while a plan is made, in all and
# for each head; measured
COPIES = 11.0
COPIES_PER_HEAD = 6.0


class Combination(NamedTuple):
    """One combination of the values of the grid."""

    noise: float
    arguments: dict[str, Any]  # of the prior; `heads` too, also if infinite

    @property
    def infinite_heads(self) -> bool:
        """Whether the prior is the Gaussian process of infinitely many heads."""
        return bool(self.arguments.get("heads") == inf)


class GivenExamples(NamedTuple):
    """The function at new examples given the data, for each state of the posterior."""

    mean: Array  # (states, examples)
    cov: Array
    origin: Provenance


@program
def attention_prior(
    tokens: Any, heads: int = 1, sharpness: float = 2.0, scale: float = 2.0
) -> Any:
    """One random query reads the tokens of each example, with the same weights for all.

    Tokens (examples, tokens, features) are data; there is one output for each example.
    `sharpness` is the standard deviation of the scores' matrix, `scale` that of the
    readout.
    """
    # `n` is the width of the hidden layers and of each head
    features = tokens.shape[-1]
    first_layer = language.weight(n, features, std=1.1) @ language.data(tokens)
    h = language.erf(first_layer)  # (examples, tokens)
    q = language.weight(n, n, batch=heads, std=sharpness) @ language.gaussian(n, 1)
    k = language.weight(n, n, batch=heads) @ h
    v = language.weight(n, n, batch=heads) @ h
    a = language.softmax(language.dot(q[:, None], k))  # (heads, examples, 1, tokens)
    readout = language.weight(1, heads * n, std=scale)
    return readout @ language.concat(a @ v, axis=0)[:, 0]


def as_tokens(x: Array) -> Array:
    """Tokens (examples, tokens, features) as they are; flat data (examples, features)
    as tokens (examples, features, features + 1).

    Each token has the one-hot name and the value of a feature: the example [5, 6] has
    the tokens [1, 0, 5] and [0, 1, 6].
    """
    if x.ndim == 3:
        return x
    count, features = x.shape
    names = np.broadcast_to(np.eye(features), (count, features, features))
    return np.concatenate([names, x[:, :, None]], axis=2)


def checked_count(value: Any, name: str) -> float:
    """Check a number of heads or a width, which may be infinite."""
    return inf if as_number(value) == inf else whole(value, name, why=" or inf")


@single_threaded
@dataclass(eq=False, repr=False)
class AttentionRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Bayesian regression with an attention prior, as a scikit-learn estimator.

    `X` is (examples, tokens, features), or flat (examples, features): then each feature
    is a token, one-hot name and value. Scale features and targets to a size of about 1;
    targets are centred for you. After `fit`: `log_marginal_likelihood_` and its error
    `log_marginal_likelihood_error_` (of tempering; of the kernel's mean for infinitely
    many heads; 0 for a Gaussian process in closed form), `arguments_`, `noise_`,
    `r_hat_`, `effective_`. Other parameters are those of `Program.posterior`.

    Parameters
    ----------
    prior : callable, optional
        A function of tokens and `arguments`, decorated with `ns.program`, with one
        output for each example. None for one layer of attention with arguments `heads`,
        `sharpness` and `scale`.
    noise : float
        The standard deviation of the noise.
    heads : int or inf
        The number of heads; `inf` for the Gaussian process of infinitely many, whose
        kernel is a mean over `kernel_draws` draws of the prior with one head.
    width : int or inf
        The value of every width.
    arguments : mapping, optional
        Other arguments of the prior.
    grid : mapping, optional
        Values of arguments, `heads` or `noise`, {name: values}. The combination with
        the largest evidence is used; `evidence_` has all of them.
    evidence : bool
        Whether `fit` computes the evidence without a grid too, which takes longer than
        the posterior.
    runs : int
        The number of independent runs for the evidence, each with half as many
        particles.
    kernel_draws : int
        The draws for the kernel of infinitely many heads.
    random_state : int, numpy.random.RandomState or None
        The seed of the fit.

    Examples
    --------
    >>> x = np.linspace(-2, 2, 12)[:, None]
    >>> model = ns.AttentionRegressor(noise=0.1, draws=160, particles=64)
    >>> model = model.fit(x, np.sin(x[:, 0]))
    >>> mean, std = model.predict([[0.3]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(0.3)) < 4 * std[0])
    True
    """

    prior: Callable[..., Program] | None = None
    _: KW_ONLY
    noise: float = 0.3
    heads: Annotated[float, checked_count] = 1
    width: Annotated[float, checked_count] = inf
    arguments: Mapping[str, Any] | None = None
    grid: Mapping[str, Sequence[Any]] | None = None
    evidence: bool = False
    draws: int = 400
    chains: int = 8
    thin: int = 8
    particles: int = 256
    moves: int = 3
    runs: Annotated[int, two_or_more] = 8
    kernel_draws: Annotated[int, two_or_more] = 1000
    workers: Positive | None = None
    backend: str | Backend = "numpy"
    device: str | None = None
    progress: Progress = False
    random_state: Any = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # the draws for new examples depend on all examples of the call
        tags.non_deterministic = True
        return tags

    def fit(self, X: Any, y: Any) -> AttentionRegressor:
        """Sample the posterior given examples and their targets.

        Parameters
        ----------
        X : array_like
            (examples, tokens, features), or (examples, features).
        y : array_like
            (examples,).
        """
        combinations = self._begin(X, y)
        self.evidence_ = []
        chosen = combinations[0]
        if self.grid or self.evidence:
            evidences = [self._evidence(combination) for combination in combinations]
            for combination, evidence in zip(combinations, evidences, strict=True):
                values = {**combination.arguments, "noise": combination.noise}
                grid_values = {name: values[name] for name in self.grid or ()}
                self.evidence_.append((grid_values, evidence))
            best = max(range(len(evidences)), key=lambda k: evidences[k].value)
            chosen = combinations[best]
            self.log_marginal_likelihood_ = evidences[best].value
            self.log_marginal_likelihood_error_ = evidences[best].error
        self.noise_ = chosen.noise
        self.arguments_ = chosen.arguments
        if chosen.infinite_heads:
            self.states_ = np.zeros((1, 0))
            self.r_hat_ = 1.0
            self.effective_ = math.inf
        else:
            self.latent_, self.origin_ = self._latent(self.X_, self.arguments_)
            chains = self._sampled(self.latent_)
            self.states_ = chains.z
            self.r_hat_ = chains.r_hat
            self.effective_ = chains.effective
        return self

    def _sampled(self, latent: Latent) -> _bayes.Sampled:
        """The states of Markov chains over these random numbers, given the data."""
        return _bayes.sampled(
            latent,
            data=self._data(self.noise_),
            schedule=self._schedule(),
            seed=self.seed_,
            progress=self.progress,
        )

    def _schedule(self) -> _bayes.Schedule:
        """The lengths of the chains, after checks."""
        return _bayes.Schedule(
            draws=self.draws,
            chains=self.chains,
            thin=self.thin,
            particles=self.particles,
            moves=self.moves,
        ).checked()

    def _begin(self, X: Any, y: Any) -> list[Combination]:
        """Check parameters and data, store the data, and list the grid."""
        combinations = self._combinations()
        X, y = validate_data(
            self, X, y, allow_nd=True, y_numeric=True, dtype=np.float64
        )
        if X.ndim > 3:
            raise ValueError(
                f"X of shape {X.shape} must be (examples, tokens, features) or"
                " (examples, features)"
            )
        self.shape_ = X.shape[1:]
        self.X_ = as_tokens(X)
        self.mean_ = float(np.mean(y))
        self.y_ = np.asarray(y, dtype=np.float64) - self.mean_
        try:
            self.seed_ = int(check_random_state(self.random_state).randint(2**31))
        except ValueError:
            allowed = (
                "None, an integer from 0 to 2^32 − 1 or a numpy.random.RandomState"
            )
            raise ArgumentError("random_state", self.random_state, allowed) from None
        self._checked_size(len(self.X_), combinations)
        return combinations

    def _combinations(self) -> list[Combination]:
        """The combinations of the grid, one without a grid, after a check of all
        parameters but X and y.
        """
        check_fields(copy(self))
        self._schedule()
        choose(self.backend, self.device)
        self._check_prior()
        self._check_arguments()
        arguments = dict(self.arguments or {})
        grid = dict(self.grid or {})
        defaults: dict[str, Any] = {"noise": self.noise}
        if self.prior is None or self.heads == inf:
            defaults["heads"] = self.heads
        defaults |= arguments
        # the names of values in messages
        labels = {name: f"arguments: {name}" for name in arguments}
        labels |= {name: f"grid: {name}" for name in grid}
        combinations = []
        for values in itertools.product(*grid.values()):
            on_grid = dict(zip(grid, values, strict=True))
            combinations.append(self._checked(defaults | on_grid, labels))
        return combinations

    def _check_prior(self) -> None:
        """Check the prior, and that heads are given to it by `arguments`."""
        if self.prior is None:
            return
        if not callable(self.prior):
            raise ArgumentError(
                "prior", self.prior, "None or a function decorated with ns.program"
            )
        if self.heads not in (1, inf):
            raise ArgumentError(
                "heads",
                self.heads,
                f"left out; give arguments={{'heads': {self.heads}}} to your own prior",
            )

    def _check_arguments(self) -> None:
        """Check that `arguments` and `grid` are mappings that can be combined."""
        for name in ("arguments", "grid"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise ArgumentError(
                    name, getattr(self, name), "None or a mapping by names"
                )
        if "noise" in dict(self.arguments or {}):
            raise ArgumentError(
                "arguments",
                self.arguments,
                "without 'noise', which is a parameter itself",
            )
        for name, values in dict(self.grid or {}).items():
            self._check_grid_values(name, values)

    @staticmethod
    def _check_grid_values(name: str, values: Any) -> None:
        """Check that the grid has a sequence of values for this argument."""
        is_single = isinstance(values, str) or getattr(values, "ndim", 1) == 0
        is_sequence = isinstance(values, Sequence | np.ndarray)
        if is_single or not is_sequence or not len(values):
            raise ArgumentError(
                f"grid: {name}", values, "a sequence of one value or more"
            )

    def _checked(
        self, arguments: dict[str, Any], labels: Mapping[str, str]
    ) -> Combination:
        """A combination of noise and arguments of the prior, after checks.

        `labels` name arguments and values of the grid in errors.
        """
        noise = real(
            arguments.pop("noise"),
            labels.get("noise", "noise"),
            least=1 / SCALE,
            most=SCALE,
        )
        label = labels.get("heads", "heads")
        if "heads" in arguments:
            arguments["heads"] = checked_count(arguments["heads"], label)
        prior_arguments = dict(arguments)
        if prior_arguments.get("heads") == inf:
            if self.width != inf:
                raise ValueError(
                    f"{label}=inf needs width=inf, got width={shown(self.width)}"
                )
            del prior_arguments["heads"]  # the prior is called for one head
        if self.prior is None:
            for name in prior_arguments.keys() & {"sharpness", "scale"}:
                scale(prior_arguments[name], labels[name])
        signature: Any = "(…)"
        try:
            signature = inspect.signature(self.prior or attention_prior)
            signature.bind(None, **prior_arguments)
        except (TypeError, ValueError) as error:
            # ValueError: some classes of Python have no signature
            raise ValueError(
                f"arguments and grid do not fit prior{signature}, got"
                f" {shown(prior_arguments)}: {error}"
            ) from None
        return Combination(noise, arguments)

    def cost(self, X: Any, y: Any) -> _bayes.ChainCost:
        """The cost of `fit` with these data, without fitting. The parameters are those
        of `fit`.

        The likelihood is timed for the first combination of the grid; the others are
        assumed to cost as much.

        Returns
        -------
        cost : ChainCost
            `seconds`, the largest `bytes` of memory, and the number of `likelihoods`.
        """
        model = clone(self)
        combinations = model._begin(X, y)
        size = model._checked_size(len(model.X_), combinations)
        count = len(combinations)
        with_evidence = bool(self.grid or self.evidence)
        combination = combinations[0]
        start = time.perf_counter()
        if combination.infinite_heads:
            heads, _ = model._infinite(model.X_, combination.arguments)
            factors = heads.factors()
            next(factors)  # the first draw takes the time of planning too
            planning = time.perf_counter() - start
            next(factors, None)
            seconds_of_draw = time.perf_counter() - start - planning
            drawing = (self.kernel_draws + _bayes.MAX_ERROR_DRAWS) * seconds_of_draw
            seconds = 0.0
            if with_evidence:
                seconds = count * (planning + drawing)
            return _bayes.ChainCost(seconds=seconds, bytes=size, likelihoods=count)
        latent, _ = model._latent(model.X_, combination.arguments)
        planning = time.perf_counter() - start
        # the posterior is one path; each run of the evidence has half as many particles
        paths = 1.0
        if with_evidence:
            paths += 1 + self.runs / 2
        data = model._data(combination.noise)
        of_one = _bayes.cost(latent, data, schedule=self._schedule(), paths=paths)
        return _bayes.ChainCost(
            seconds=count * (planning + of_one.seconds),
            bytes=max(of_one.bytes, size),
            likelihoods=count * of_one.likelihoods,
        )

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The posterior mean of the function at new examples, best in one call.

        Other parameters are those of `fit`.

        Parameters
        ----------
        return_std : bool
            Whether to return the standard deviations too.

        Returns
        -------
        y : numpy.ndarray, or tuple of numpy.ndarray
            The posterior mean (examples,), in the units of the `y` of `fit`; with
            `return_std`, a tuple of the mean and the standard deviation (examples,).
        """
        posterior = self._posterior(X)
        mean = posterior.mean.mean(axis=0) + self.mean_
        if not return_std:
            return mean
        # the law of total variance over the states of the chains
        var_of_states = np.diagonal(posterior.cov, axis1=1, axis2=2)
        var = var_of_states.mean(axis=0) + posterior.mean.var(axis=0)
        return mean, np.sqrt(np.maximum(var, 0.0))

    def law(self, X: Any) -> Joint:
        """The joint law of the function at new examples, given the data."""
        posterior = self._posterior(X)
        return Joint(posterior.mean + self.mean_, posterior.cov, posterior.origin)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Joint draws of the function at new examples.

        Other parameters are those of `fit`.

        Parameters
        ----------
        n_samples : int
            The number of functions.
        random_state : int, numpy.random.RandomState or None
            The seed of the draws.

        Returns
        -------
        draws : numpy.ndarray
            (examples, n_samples), in the units of the `y` of `fit`.
        """
        seed = int(check_random_state(random_state).randint(2**31))
        return np.asarray(self.law(X).rvs(n_samples, seed=seed)).T

    def _posterior(self, X: Any) -> GivenExamples:
        """Mean, covariance and provenance of the function at new examples, given the
        data and each state of the chains.
        """
        check_is_fitted(self, "states_")
        X = validate_data(self, X, allow_nd=True, reset=False, dtype=np.float64)
        if X.shape[1:] != self.shape_:
            raise ValueError(
                f"X of shape {X.shape} must be (examples,"
                f" {', '.join(map(str, self.shape_))}), as in fit"
            )
        new, rows = self._new_examples(as_tokens(X))
        data = self._data(self.noise_)
        examples = np.concatenate([self.X_, new])
        fitted = Combination(self.noise_, self.arguments_)
        self._checked_size(len(examples), [fitted])
        if fitted.infinite_heads:
            heads, origin = self._infinite(examples, self.arguments_)
            mean, cov, error = heads.given(data, rows)
            total = combined(origin.quadrature_error, error)
            return GivenExamples(mean, cov, replace(origin, quadrature_error=total))
        latent = self.latent_
        origin = self.origin_
        if len(new):
            latent, origin = self._latent(examples, self.arguments_)

        def update(mean: Array, columns: Array) -> tuple[Array, Array]:
            """Mean and covariance at the rows, for some states."""
            return updated_by_columns(mean, columns, data, rows)

        batches = latent.over(self._extended_states(latent), update)
        mean = np.concatenate([mean for mean, _ in batches])
        cov = np.concatenate([cov for _, cov in batches])
        return GivenExamples(mean, cov, origin)

    def _extended_states(self, latent: Latent) -> Array:
        """The states of the fit (states, size), with random numbers of the prior for
        new examples.
        """
        positions = embedding(self.latent_, latent)
        # more examples can change the pivots of a low-rank kernel, and so its normals
        if positions is None:
            return self._sampled(latent).z
        rng = np.random.default_rng(self.seed_)
        z = rng.standard_normal((len(self.states_), latent.size))
        z[:, positions] = self.states_
        return z

    def _new_examples(self, tokens: Array) -> tuple[Array, npt.NDArray[np.intp]]:
        """The distinct examples that are not data, and the row of each example.

        Rows count the data first, and then the new examples: with three data a, b and
        c, the examples d, b, d have the new example d and the rows 3, 1, 3.
        """
        row_by_bytes = {example.tobytes(): row for row, example in enumerate(self.X_)}
        new: list[Array] = []
        rows = []
        for example in tokens:
            key = example.tobytes()
            if key not in row_by_bytes:
                row_by_bytes[key] = len(self.X_) + len(new)
                new.append(example)
            rows.append(row_by_bytes[key])
        new_tokens = np.array(new).reshape(-1, *self.X_.shape[1:])
        return new_tokens, np.array(rows, np.intp)

    def _data(self, noise: float) -> Observations:
        """The data of the fit as the first entries of a law, with this noise."""
        count = len(self.y_)
        return Observations(
            entries=np.arange(count),
            values=self.y_,
            noise=np.full(count, noise),
            operation="fit",
        )

    def _at(self, tokens: Array, arguments: Mapping[str, Any]) -> AtWidths:
        """The prior at these examples."""
        net = (self.prior or attention_prior)(tokens, **arguments)
        if not isinstance(net, Program):
            raise ValueError(
                f"prior must return a program, got {shown(net)}: decorate it with"
                " ns.program"
            )
        if net.shape not in ((len(tokens),), (len(tokens), 1)):
            raise ValueError(
                f"prior has outputs of shape {net.shape}: it needs one for each of"
                f" {len(tokens)} examples"
            )
        widths: Any = dict.fromkeys(net.widths, self.width)
        return net._at(widths)

    def _latent(
        self, tokens: Array, arguments: Mapping[str, Any]
    ) -> tuple[Latent, Provenance]:
        """The random numbers that chains move over, and the provenance of the law."""
        backend = choose(self.backend, self.device)
        prior = self._at(tokens, arguments)
        latent, origin = prior.latent(self.workers, backend, self.seed_)
        method = f"{origin.method}, given {len(self.y_)} examples"
        return latent, replace(origin, method=method)

    def _infinite(
        self, tokens: Array, arguments: Mapping[str, Any]
    ) -> tuple[_bayes.InfiniteHeads, Provenance]:
        """The Gaussian process of infinitely many heads, from draws of one head."""
        of_one_head = dict(arguments)
        of_one_head.pop("heads", None)
        head, origin = self._latent(tokens, of_one_head)
        method = f"infinitely many heads, given {len(self.y_)} examples"
        draws = 1 if head.plan.constant else self.kernel_draws
        heads = _bayes.InfiniteHeads(head, draws, self.seed_)
        return heads, replace(origin, method=method)

    def _evidence(self, combination: Combination) -> Estimate:
        """The log evidence of the data with this noise and these arguments."""
        data = self._data(combination.noise)
        if combination.infinite_heads:
            heads, _ = self._infinite(self.X_, combination.arguments)
            return heads.evidence(data)
        latent, origin = self._latent(self.X_, combination.arguments)
        shifted = []
        if origin.quadrature_error > ROUNDED:
            prior = self._at(self.X_, combination.arguments)
            shifted = prior.shifted(self.workers)
        particles = max(_bayes.MIN_PARTICLES, self.particles // 2)
        return _bayes.evidence(
            latent,
            data,
            schedule=self._schedule()._replace(particles=particles),
            runs=self.runs,
            seed=self.seed_,
            progress=self.progress,
            shifted=shifted,
        )

    def _checked_size(
        self, examples: int, combinations: Sequence[Combination]
    ) -> float:
        """The bytes that a plan for so many examples needs; an error if too many."""
        heads = 1.0
        for combination in combinations:
            count = float(combination.arguments.get("heads", 1))
            if count != inf:  # infinitely many are planned as one
                heads = max(heads, count)
        tokens = self.X_.shape[1]
        rows = examples * tokens
        size = 8 * (COPIES + COPIES_PER_HEAD * heads) * float(rows) ** 2
        for_heads = ""
        or_heads = ""
        if heads > 1:
            for_heads = f" for heads={heads:.0f}"
            or_heads = " or heads"
        check_memory(
            size,
            f"{examples:,} examples of {tokens} tokens, whose kernel has {rows:,}"
            f" rows{for_heads},",
            f"take fewer examples or tokens{or_heads}, or predict in parts",
        )
        return size
