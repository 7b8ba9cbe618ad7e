"""The losses of a learning-rate sweep: one plan for each width, and one draw of it for each learning rate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._array_api import array_namespace
from ..._program import Program
from ..._validate import ArgumentError, numbers, one_of, whole
from ...engine import ExactError
from ...language import Scalar, Width, apply, hyperparameter, inf, train
from ...models import Transformer, read
from ...models._training import training
from ...optim import SGD, Adam, Muon, Optimiser
from ..coord_check._parametrisation import Parametrisation, scaled
from ..coord_check._parametrisation import parametrisation as _read_rule
from ._result import Sweep, Transfer

TOKENS = 4  # of a random batch
DIVERGED = 1e300  # the loss of a network that overflowed
RATES = {"sgd": 0.1, "muon": 0.02, "adam": 3e-3}  # the middle of the grid at the width of the model
GRID = 2.0 ** np.arange(-6, 7)  # times that
LR = "lr"

Build = Callable[[Any], Program]


def transfer(
    model: Any,
    *,
    widths: Sequence[float],
    steps: int = 4,
    lr: Sequence[float] | None = None,
    optimiser: str | Optimiser | Mapping[Any, Optimiser] = "sgd",
    parametrisation: Any = None,
    ids: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    weights: Callable[[Program], Any] | None = None,
    schedule: Callable[[int], float] | None = None,
    clip_norm: float | None = None,
    draws: int = 16,
    seed: int = 0,
    **sampling: Any,
) -> Transfer:
    """The loss after a few steps of training against the learning rate, at several widths; nothing is trained.

    Parameters
    ----------
    model : str, pathlib.Path, mapping, Transformer or callable
        What `ns.models.read` takes, or a function of the width that returns a `Program` whose output is the loss.
    widths : sequence of float
        The widths; of a function, `ns.inf` may be among them, and the function is then called with an `ns.Width`.
    steps : int
        The number of steps.
    lr : sequence of float, optional
        The learning rates. For a model they are those at its own width, which the parametrisation scales; for a
        function they multiply the learning rates of the optimiser. By default 13 of them, a factor of 2 apart.
    optimiser : str, Optimiser or mapping
        "sgd", "adam" or "muon" for a model: SGD, Adam and Muon with PyTorch's defaults, Muon without its adjustment of
        lr. For a function, what `ns.train` takes.
    parametrisation : str, pathlib.Path, mapping or sequence of these, optional
        Of a model, as in `ns.coord_check`; SP and µP unless given.
    ids, targets : sequence of int, optional
        The batch of a model, as in `ns.coord_check`; four random tokens unless given.
    weights : callable, optional
        Of a function: which parameters of its program move, as `ns.step` takes them; all matrices unless given.
    schedule, clip_norm : optional
        As in `ns.train`.
    draws : int
        Initialisations at each width. All learning rates see the same ones.
    seed : int
        The seed of the draws.
    **sampling
        `workers`, `backend`, `device` and others, as in `Program.draw`.

    Returns
    -------
    Transfer
        A `Sweep` for each parametrisation, with the best learning rate at each width, its exponent and a verdict.

    Examples
    --------
    >>> inputs, targets = ns.data([[1.0, 0.0], [0.6, 0.8]]), np.array([1.0, -1.0])
    >>> @ns.program
    ... def standard(n):
    ...     h = ns.relu(ns.weight(n, n) @ ns.relu(ns.weight(n, 2) @ inputs))
    ...     f = (ns.weight(1, n) @ h)[:, None]
    ...     return ((ns.mean_dot(f, ns.data([[1.0]]))[:, 0, 0] - targets) ** 2).mean()
    >>> found = ns.transfer(standard, widths=[32, 128, 512], lr=2.0 ** np.arange(-12, -1), optimiser=ns.optim.SGD(1.0))
    >>> found[0].verdict
    'shifts like n^-1.1'
    """
    many, taken = whole(draws, "draws", least=4), whole(steps, "steps")
    grid = None if lr is None else np.sort(numbers(lr, "transfer"))
    if grid is not None and (grid.ndim != 1 or len(grid) < 3 or grid[0] <= 0):
        raise ArgumentError("lr", lr, "three or more positive numbers")
    sizes = sorted(inf if width == inf else whole(width, "widths") for width in widths)
    if len(set(sizes)) < len(sizes) or len([n for n in sizes if n < inf]) < 2:
        raise ArgumentError("widths", widths, "two or more different ones that are finite")
    how = {"draws": many, "seed": seed, "progress": False, **sampling}
    own = callable(model) and not isinstance(model, Transformer)
    if own:
        if not isinstance(optimiser, Optimiser | Mapping):
            raise ArgumentError("optimiser", optimiser, "an object of ns.optim, or a dictionary of them")
        rates = GRID if grid is None else grid
        runs = {n: _of_program(model, n, optimiser, weights, taken, schedule, clip_norm) for n in sizes}
        name = getattr(model, "__name__", "program")
        return Transfer(name, taken, [_swept("program", runs, rates, how)])
    described = model if isinstance(model, Transformer) else read(model)
    one_of(optimiser, "optimiser", "transfer", tuple(RATES))
    assert isinstance(optimiser, str)
    given = parametrisation if isinstance(parametrisation, list | tuple) else [parametrisation or "sp", "mup"]
    given = given if isinstance(parametrisation, list | tuple) or parametrisation is None else given[:1]
    batch = _batch(described, ids, targets, seed)
    found = []
    for rule in (_read_rule(each, optimiser) for each in given):
        rates = RATES[optimiser] * GRID if grid is None else grid
        if inf in sizes:
            raise ArgumentError("widths", widths, f"finite for {described.name}; a function of the width may take inf")
        runs = {n: _of_model(described, int(n), rule, optimiser, batch, taken, schedule, clip_norm) for n in sizes}
        found.append(_swept(rule.name, runs, rates, how))
    return Transfer(described.name, taken, found)


def _batch(
    model: Transformer, ids: Sequence[int] | None, targets: Sequence[int] | None, seed: int
) -> tuple[list[int], list[int]]:
    """The ids, and a target for each: the next one unless given."""
    if ids is None:
        if targets is not None:
            raise ArgumentError("targets", targets, "left out without ids")
        ids = np.random.default_rng([seed, 1]).integers(0, model.vocabulary or 1, TOKENS + 1).tolist()
    every = [whole(i, "ids", least=0, most=(model.vocabulary or 1) - 1) for i in ids]
    if targets is None:
        return every[:-1], every[1:]
    wanted = [whole(i, "targets", least=0, most=(model.vocabulary or 1) - 1) for i in targets]
    if len(wanted) != len(every):
        raise ArgumentError("targets", targets, f"{len(every)}, one for each id")
    return every, wanted


Run = Callable[[float], Any]  # the losses of all draws for a learning rate, or why there are none


def _swept(name: str, runs: Mapping[float, Callable[[Mapping[str, Any]], Run]], rates: Any, how: Any) -> Sweep:
    """The losses at each width, (rates, draws)."""
    losses: dict[float, Any] = {}
    refused: dict[float, str] = {}
    for width, run in runs.items():
        try:
            at = run(how)
            losses[width] = np.array([at(float(rate)) for rate in rates])
        except ExactError as error:
            refused[width] = str(error)
    return Sweep(name, np.asarray(rates), losses, refused)


def _of_model(
    model: Transformer,
    width: int,
    rule: Parametrisation,
    kind: str,
    batch: tuple[list[int], list[int]],
    steps: int,
    schedule: Callable[[int], float] | None,
    clip_norm: float | None,
) -> Callable[[Mapping[str, Any]], Run]:
    """A transformer of this width; the learning rate is that at the width of the model."""

    def run(how: Mapping[str, Any]) -> Run:
        at = scaled(model, width, model.layers, rule, "heads")
        made = training(at, *batch)
        by: dict[Any, Optimiser] = {}
        for weight, part in made.kinds().items():
            by[weight] = _optimiser(kind, rule.scaling(part).lr.of(width / model.width, 1.0))
        logits = train(made.logits, made.loss, by, steps, schedule=_scaled(schedule), clip_norm=clip_norm)[-1]
        return _drawn(Program(_finite(made.loss_of(logits))), {**how, **at.widths()})

    return run


def _optimiser(kind: str, rate: float) -> Optimiser:
    if kind == "muon":
        return Muon(rate, 0.0, adjust_lr_fn=lambda fan_in, fan_out: 1.0)
    return SGD(rate) if kind == "sgd" else Adam(rate)


def _of_program(
    build: Build,
    width: float,
    optimiser: Optimiser | Mapping[Any, Optimiser],
    weights: Callable[[Program], Any] | None,
    steps: int,
    schedule: Callable[[int], float] | None,
    clip_norm: float | None,
) -> Callable[[Mapping[str, Any]], Run]:
    """A program of one's own; at infinite width every learning rate has a plan of its own."""

    def run(how: Mapping[str, Any]) -> Run:
        net = build(Width("n") if width == inf else int(width))
        loss = net.output if isinstance(net, Program) else net
        if not isinstance(loss, Scalar) or loss.shape:
            raise ArgumentError("model", build, f"a function whose program returns its loss, one scalar, not {loss!r}")
        moves = None if weights is None else weights(net)
        last = train(loss, loss, optimiser, steps, moves, schedule=_scaled(schedule), clip_norm=clip_norm)[-1]
        names = dict.fromkeys(net.widths, width)
        return _drawn(Program(last if width == inf else _finite(last)), {**how, **names})

    return run


def _scaled(schedule: Callable[[int], float] | None) -> Callable[[int], Any]:
    """The schedule times the learning rate of the sweep."""
    rate = hyperparameter(LR)
    return lambda t: rate if schedule is None else schedule(t) * rate


def _finite(loss: Scalar) -> Scalar:
    return apply(_replaced, loss, name="finite")


def _replaced(loss: Any) -> Any:
    xp = array_namespace(loss)
    return xp.where(xp.isfinite(loss), xp.clip(loss, None, DIVERGED), DIVERGED)


def _drawn(net: Program, how: Mapping[str, Any]) -> Run:
    def at(rate: float) -> Any:
        with warnings.catch_warnings():  # overflows, in threads that draw
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                return net.draw(**{**how, LR: rate})
            except ExactError:
                raise
            except ValueError:  # an overflow, or at infinite width expectations that do not tell a diverging loss
                return np.full(how["draws"], DIVERGED)

    return at
