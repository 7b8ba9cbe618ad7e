"""A scikit-learn estimator: regression with an attention prior. Needs scikit-learn; see
`ns.AttentionRegressor`.
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
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from . import _bayes, language
from ._array_api import single_threaded
from ._bound_program import AtWidths
from ._decorator import program
from ._program import Program
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
from .engine._latent import Latent, embedding
from .engine._memory import check_memory
from .engine._parallel import Progress
from .engine.backends import Backend, choose
from .language._width import Width, inf
from .laws import Estimate, Joint, Provenance
from .laws._estimate import Array, combined
from .laws._likelihood import Observations, updated_by_columns

Combination = tuple[float, dict[str, Any]]  # the noise, and the arguments of the prior

n = Width("n")
two_or_more = partial(whole, least=2, most=_bayes.MOST)
# errors of Gaussian expectations below this change an evidence by less than its error
ROUNDED = 1e-6
# arrays of the size of the tokens' kernel while a plan is made, and more for each head:
# measured
COPIES = 11.0, 6.0


@program
def attention_prior(
    tokens: Any, heads: int = 1, sharpness: float = 2.0, scale: float = 2.0
) -> Any:
    """One random query reads the tokens of each example, with the same weights for all:
    (examples,) outputs.

    Tokens (examples, tokens, features) are data. `sharpness` is the standard deviation
    of the scores' matrix, `scale` that of the readout.
    """
    h = language.erf(
        language.weight(n, tokens.shape[-1], std=1.1) @ language.data(tokens)
    )
    q = language.weight(n, n, batch=heads, std=sharpness) @ language.gaussian(n, 1)
    k, v = (language.weight(n, n, batch=heads) @ h for _ in range(2))
    a = language.softmax(language.dot(q[:, None], k))  # (heads, examples, 1, tokens)
    return (
        language.weight(1, heads * n, std=scale) @ language.concat(a @ v, axis=0)[:, 0]
    )


def as_tokens(x: Array) -> Array:
    """Flat data (examples, features) as tokens: each feature is one, its name (one-hot)
    and its value.
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
    """Bayesian regression with an attention prior over functions, in scikit-learn's
    conventions.

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
    >>> model = ns.AttentionRegressor(noise=0.1, draws=160, particles=64).fit(x, np.sin(x[:, 0]))
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
        tried, _ = self._begin(X, y)
        self.evidence_, best = [], 0
        if self.grid or self.evidence:
            found = [self._evidence(*given) for given in tried]
            chosen = [
                {k: (arguments | {"noise": noise})[k] for k in self.grid or ()}
                for noise, arguments in tried
            ]
            self.evidence_ = list(zip(chosen, found, strict=True))
            best = max(range(len(tried)), key=lambda k: found[k].value)
            self.log_marginal_likelihood_, self.log_marginal_likelihood_error_ = (
                found[best].value,
                found[best].error,
            )
        self.noise_, self.arguments_ = tried[best]
        if self.arguments_.get("heads") == inf:
            self.states_, self.r_hat_, self.effective_ = np.zeros((1, 0)), 1.0, math.inf
        else:
            self.latent_, self.origin_ = self._latent(self.X_, self.arguments_)
            self.states_, self.r_hat_, self.effective_, *_ = self._sampled(self.latent_)
        return self

    def _sampled(self, latent: Latent) -> _bayes.Sampled:
        return _bayes.sampled(
            latent, self._data(self.noise_), self._schedule(), self.seed_, self.progress
        )

    def _schedule(self) -> _bayes.Schedule:
        return _bayes.Schedule(
            self.draws, self.chains, self.thin, self.particles, self.moves
        ).checked()

    def _begin(self, X: Any, y: Any) -> tuple[list[Combination], float]:
        """Check parameters and data and store the data; the combinations of the grid,
        and the bytes of a plan.
        """
        tried = self._combinations()
        X, y = validate_data(
            self, X, y, allow_nd=True, y_numeric=True, dtype=np.float64
        )
        if X.ndim > 3:
            raise ValueError(
                f"X of shape {X.shape} must be (examples, tokens, features) or"
                " (examples, features)"
            )
        self.shape_ = X.shape[1:]
        self.X_, self.mean_ = as_tokens(X), float(np.mean(y))
        self.y_ = np.asarray(y, dtype=np.float64) - self.mean_
        try:
            self.seed_ = int(check_random_state(self.random_state).randint(2**31))
        except ValueError:
            allowed = (
                "None, an integer from 0 to 2^32 − 1 or a numpy.random.RandomState"
            )
            raise ArgumentError("random_state", self.random_state, allowed) from None
        return tried, self._checked_size(len(self.X_), tried)

    def _combinations(self) -> list[Combination]:
        """Check all parameters but X and y; the combinations of the grid."""
        check_fields(copy(self))
        self._schedule()
        choose(self.backend, self.device)
        prior, heads = self.prior, self.heads
        if prior is not None and not callable(prior):
            raise ArgumentError(
                "prior", prior, "None or a function decorated with ns.program"
            )
        if prior is not None and heads not in (1, inf):
            raise ArgumentError(
                "heads",
                heads,
                f"left out; give arguments={{'heads': {heads}}} to your own prior",
            )
        for name in ("arguments", "grid"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise ArgumentError(
                    name, getattr(self, name), "None or a mapping by names"
                )
        arguments, grid = dict(self.arguments or {}), dict(self.grid or {})
        if "noise" in arguments:
            raise ArgumentError(
                "arguments",
                self.arguments,
                "without 'noise', which is a parameter itself",
            )
        for name, values in grid.items():
            single = isinstance(values, str) or getattr(values, "ndim", 1) == 0
            if (
                single
                or not isinstance(values, Sequence | np.ndarray)
                or not len(values)
            ):
                raise ArgumentError(
                    f"grid: {name}", values, "a sequence of one value or more"
                )
        own = {
            "noise": self.noise,
            **({"heads": heads} if prior is None or heads == inf else {}),
            **arguments,
        }
        labels = {name: f"arguments: {name}" for name in arguments} | {
            name: f"grid: {name}" for name in grid
        }
        tried = (
            own | dict(zip(grid, values, strict=True))
            for values in itertools.product(*grid.values())
        )
        return [self._checked(given, labels) for given in tried]

    def _checked(self, given: dict[str, Any], labels: Mapping[str, str]) -> Combination:
        """Check one combination; `labels` name arguments and grid values in
        messages.
        """
        noise = real(
            given.pop("noise"),
            labels.get("noise", "noise"),
            least=1 / SCALE,
            most=SCALE,
        )
        used, label = dict(given), labels.get("heads", "heads")
        if "heads" in given and checked_count(given["heads"], label) == inf:
            if self.width != inf:
                raise ValueError(
                    f"{label}=inf needs width=inf, got width={shown(self.width)}"
                )
            del used["heads"]  # the prior has one
        for name in used.keys() & {"sharpness", "scale"} if self.prior is None else ():
            scale(used[name], labels[name])
        signature: Any = "(…)"
        try:
            signature = inspect.signature(self.prior or attention_prior)
            signature.bind(None, **used)
        except (TypeError, ValueError) as error:
            # ValueError: some classes of Python have no signature
            raise ValueError(
                f"arguments and grid do not fit prior{signature}, got {shown(used)}:"
                f" {error}"
            ) from None
        return noise, given

    def cost(self, X: Any, y: Any) -> _bayes.ChainCost:
        """The cost of `fit` with these data, without fitting. The parameters are those
        of `fit`.

        The likelihood is timed for the first combination of the grid; the others are
        assumed to cost as much.
        """
        model = clone(self)
        tried, size = model._begin(X, y)
        count, wanted, (noise, arguments) = (
            len(tried),
            bool(self.grid or self.evidence),
            tried[0],
        )
        start = time.perf_counter()
        if arguments.get("heads") == inf:
            factors = model._infinite(model.X_, arguments)[0].factors()
            next(factors)
            planned = time.perf_counter() - start
            next(factors, None)
            again = (self.kernel_draws + _bayes.MAX_ERROR_DRAWS) * (
                time.perf_counter() - start - planned
            )
            return _bayes.ChainCost(count * (planned + again) * wanted, size, count)
        latent, _ = model._latent(model.X_, arguments)
        planned = time.perf_counter() - start
        each = _bayes.cost(
            latent,
            model._data(noise),
            self._schedule(),
            1 + (1 + self.runs / 2) * wanted,
        )
        return _bayes.ChainCost(
            count * (planned + each.seconds),
            max(each.bytes, size),
            count * each.likelihoods,
        )

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The posterior mean of the function at new examples (best in one call). Other
        parameters are those of `fit`.

        Parameters
        ----------
        return_std : bool
            Whether to return the standard deviations too.
        """
        mean, cov, _ = self._given(X)
        centre = mean.mean(axis=0)
        if not return_std:
            return centre + self.mean_
        each = np.diagonal(cov, axis1=1, axis2=2)
        return centre + self.mean_, np.sqrt(
            np.maximum(each.mean(axis=0) + mean.var(axis=0), 0.0)
        )

    def law(self, X: Any) -> Joint:
        """The joint law of the function at new examples, given the data."""
        mean, cov, origin = self._given(X)
        return Joint(mean + self.mean_, cov, origin)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draws of the function at new examples, jointly. Other parameters are those of
        `fit`.

        Parameters
        ----------
        n_samples : int
            The number of functions.
        random_state : int, numpy.random.RandomState or None
            The seed of the draws.
        """
        seed = int(check_random_state(random_state).randint(2**31))
        return np.asarray(self.law(X).rvs(n_samples, seed=seed)).T

    def _given(self, X: Any) -> tuple[Array, Array, Provenance]:
        """Mean and covariance of the function at new examples for each state of the
        posterior, and the provenance.
        """
        check_is_fitted(self, "states_")
        X = validate_data(self, X, allow_nd=True, reset=False, dtype=np.float64)
        if X.shape[1:] != self.shape_:
            raise ValueError(
                f"X of shape {X.shape} must be (examples,"
                f" {', '.join(map(str, self.shape_))}), as in fit"
            )
        more, rows = self._new_examples(as_tokens(X))
        data, whole = self._data(self.noise_), np.concatenate([self.X_, more])
        self._checked_size(len(whole), [(self.noise_, self.arguments_)])
        if self.arguments_.get("heads") == inf:
            heads, origin = self._infinite(whole, self.arguments_)
            mean, cov, error = heads.given(data, rows)
            return (
                mean,
                cov,
                replace(
                    origin, quadrature_error=combined(origin.quadrature_error, error)
                ),
            )
        large, origin = (
            self._latent(whole, self.arguments_)
            if len(more)
            else (self.latent_, self.origin_)
        )
        places = embedding(self.latent_, large)
        # more examples can change the pivots of a low-rank kernel, and so its normals
        if places is None:
            z = self._sampled(large).z
        else:
            z = np.random.default_rng(self.seed_).standard_normal(
                (len(self.states_), large.size)
            )
            z[:, places] = self.states_
        parts = large.over(
            z, lambda mean, columns: updated_by_columns(mean, columns, data, rows)
        )
        mean, cov = map(np.concatenate, zip(*parts, strict=True))
        return mean, cov, origin

    def _new_examples(self, tokens: Array) -> tuple[Array, npt.NDArray[np.intp]]:
        """The distinct examples that are not data, and the row of each example in the
        data and these.
        """
        at = {example.tobytes(): k for k, example in enumerate(self.X_)}
        new = {
            example.tobytes(): example
            for example in tokens
            if example.tobytes() not in at
        }
        at |= {key: len(self.X_) + k for k, key in enumerate(new)}
        rows = np.array([at[example.tobytes()] for example in tokens], dtype=np.intp)
        return np.array([*new.values()]).reshape(-1, *self.X_.shape[1:]), rows

    def _data(self, noise: float) -> Observations:
        return Observations(
            np.arange(len(self.y_)), self.y_, np.full(len(self.y_), noise), "fit"
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
        where = choose(self.backend, self.device)
        latent, origin = self._at(tokens, arguments).latent(
            self.workers, where, self.seed_
        )
        return latent, replace(
            origin, method=f"{origin.method}, given {len(self.y_)} examples"
        )

    def _infinite(
        self, tokens: Array, arguments: Mapping[str, Any]
    ) -> tuple[_bayes.InfiniteHeads, Provenance]:
        one = {name: value for name, value in arguments.items() if name != "heads"}
        head, origin = self._latent(tokens, one)
        method = f"infinitely many heads, given {len(self.y_)} examples"
        draws = 1 if head.plan.constant else self.kernel_draws
        return _bayes.InfiniteHeads(head, draws, self.seed_), replace(
            origin, method=method
        )

    def _evidence(self, noise: float, arguments: Mapping[str, Any]) -> Estimate:
        if arguments.get("heads") == inf:
            return self._infinite(self.X_, arguments)[0].evidence(self._data(noise))
        latent, origin = self._latent(self.X_, arguments)
        shifted = (
            self._at(self.X_, arguments).shifted(self.workers)
            if origin.quadrature_error > ROUNDED
            else []
        )
        how = self._schedule()._replace(
            particles=max(_bayes.MIN_PARTICLES, self.particles // 2)
        )
        return _bayes.evidence(
            latent,
            self._data(noise),
            how,
            self.runs,
            self.seed_,
            self.progress,
            shifted,
        )

    def _checked_size(self, count: int, tried: Sequence[Combination]) -> float:
        """The bytes that a plan for `count` examples needs; raises an error if memory
        is too small.
        """
        counts = [given.get("heads", 1) for _, given in tried]
        # infinitely many are planned as one
        heads = max(1.0 if count == inf else float(count) for count in counts)
        tokens, many = self.X_.shape[1], f" for heads={heads:.0f}" if heads > 1 else ""
        size = 8 * (COPIES[0] + COPIES[1] * heads) * float(count * tokens) ** 2
        what = (
            f"{count:,} examples of {tokens} tokens, whose kernel has"
            f" {count * tokens:,} rows{many},"
        )
        check_memory(
            size,
            what,
            f"take fewer examples or tokens{' or heads' if many else ''}, or predict in"
            " parts",
        )
        return size
