"""A coordinate check without training: the law of the changes after an optimiser step,
at every width.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ..._validate import ArgumentError, Rng, also_spelled
from ...models import Transformer
from ...optim import NAMED
from ...programs._program import Program
from ...runtime._parallel import Progress
from .._parametrisation import Parametrisation
from .._study import Run
from .._training import (
    TrainingStudy,
    checked_vectors,
    is_function,
    makes_jax_model_of_width,
    subject_of,
)
from ._request import CHANGE, DRAWS, SIZE, CheckCase, CheckTask, Entry, Request
from ._results import Check, CoordCheck

__all__ = ["coord_check"]

# steps by the optimisers of derived rules; those of several optimisers have no step
OF_RULES = {"adamw": "adam", "adam": "adam", "sgd": "sgd", "lion": "lion"}
SIZE_RTOL = 1e-5  # of a size: square roots of rounding errors of squares are below it


@also_spelled(optimizer="optimiser", parametrization="parametrisation")
def coord_check(
    model: (
        str | Path | Mapping[str, Any] | Transformer | Callable[[Any], Program] | Any
    ),
    *,
    widths: Sequence[float] | None = None,
    depths: Sequence[int] | None = None,
    optimiser: str | Callable[[Any], Any] = "sgd",
    steps: int = 1,
    lr: Any = None,
    eps: float | Callable[[float, float], float] = 0.0,
    parametrisation: str | Path | Mapping[str, Any] | Sequence[Any] | None = None,
    ids: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    tokens: int | None = None,
    draws: int | None = None,
    grow: str = "heads",
    vectors: Sequence[str] = (),
    promise: Mapping[str, float] | None = None,
    tolerance: float = 0.1,
    seed: int = 0,
    rng: Rng = None,
    workers: int | None = None,
    out: str | Path | None = None,
    backend: str = "numpy",
    device: str | None = None,
    precision: str = "float64",
    executor: Executor | None = None,
    progress: Progress = True,
) -> CoordCheck:
    """Compute how much one training step changes each activation, at several widths,
    without training.

    Other parameters are those of `audit`.

    Parameters
    ----------
    model : str, pathlib.Path, mapping, Transformer, configuration or callable
        Anything that `ns.models.read` takes, or a `Transformer`; or a function of the
        width that returns a PyTorch module with logits, or a `Program` whose output is
        the loss and which names what to measure with `ns.probe`.
    widths : sequence of float, optional
        Of the stream; 256, 1024 and 4096 by default. With a function you may also pass
        `inf`; it then receives an `ns.Width`.
    depths : sequence of int, optional
        Numbers of blocks, for exponents of the depth; with one width, by default the
        model's.
    optimiser : str or callable
        "sgd", "muon", "adam" or "lion". For a PyTorch module also a function of it that
        returns its optimiser (SGD, Adam, AdamW or Muon of `torch.optim`) with the
        learning rates. For a JAX model also an optimiser of optax, or a function of the
        parameters that returns it. You can also write `optimizer` and
        `parametrization`.
    steps : int
        The number of steps; changes are those over all of them, and a table lists the
        exponents after each. From the second on, Muon and Lion have momentum and Adam
        both moments, with the defaults of `ns.optim`.
    lr : float, mapping or callable, optional
        The learning rate at the width and depth of the model, or a dict of them by kind
        of weight. For a function, what `ns.step` takes: a number, a function of (in,
        out), or a dict by weights or names.
    eps : float or callable
        ε of Adam at the width and depth of the model. For a function, a number or a
        function of (in, out).
    parametrisation : str, pathlib.Path, mapping or sequence of these, optional
        How standard deviations and learning rates follow width and depth: "sp", "mup",
        "ntk", "mean-field", "fixed", a JSON or TOML file, its content, or a list of
        these. SP and µP by default. For a function that returns a PyTorch module: what
        `ns.torch.parametrise` returns, or its TOML file, or its Python file, which is
        executed, for "adamw", "adam", "sgd" or "lion"; `lr` is then the rate at the
        base of the rule.
    ids : sequence of int, optional
        The tokens of the batch, by default random ones. Unless you give `targets`, the
        target of each token is the next one.
    targets : sequence of int, optional
        An id for each of `ids`.
    tokens : int, optional
        The number of tokens of a random batch, by default 4. The cost of a draw grows
        with its square.
    draws : int, optional
        Initialisations at each width, by default 32.
    grow : str
        What grows with the width: the number of "heads", which keep their dimension, or
        "head-dim".
    vectors : sequence of str
        Vectors of a model to train too: "bias" (every matrix of a block and every layer
        norm then has one, from 0), "gain" (of norms), or both. They have the learning
        rate of embeddings. For a PyTorch module these are its own biases and gains,
        with the learning rates of its optimiser.
    promise : mapping of str to float, optional
        The exponents to hold a function to, by default {"features": 0, "logits": 0}.
    tolerance : float
        How far an exponent may be from the promise.
    precision : str
        "float64" or "float32".

    Returns
    -------
    check : CoordCheck
        One `Check` for each parametrisation, by position or name.
        `check[0][size].exponent` is the power of the width that this size grows like,
        an `Estimate`; `verdicts` compare it with what the parametrisation promises.
        Print it for the table; `save(folder)` writes the report.

    Examples
    --------
    >>> @ns.program
    ... def perceptron(n):
    ...     x = ns.data([[1.0, 0.0], [0.6, 0.8]])
    ...     h = ns.probe("hidden", ns.tanh(ns.weight(n, 2, name="in") @ x))
    ...     h = ns.probe("hidden", ns.tanh(ns.weight(n, n, name="matrix") @ h))
    ...     head = ns.weight(n, 1, name="head") @ ns.data([1.0])
    ...     f = ns.mean_dot(h, head)  # 1/n, as maximal updates have it
    ...     return ((f - [1.0, -1.0]) ** 2).mean()
    >>> fan_out = lambda fan_in, fan_out: fan_out
    >>> rates = {"in": fan_out, "matrix": 1.0, "head": fan_out}
    >>> found = ns.coord_check(perceptron, widths=[64, 256], lr=rates, draws=8)
    >>> print(f"{abs(found[0]['hidden'].exponent.value):.0f}")
    0
    """
    options = {**locals()}  # those of the request have the same names
    del options["executor"], options["model"], options["parametrisation"]
    if is_function(model):
        trained = of_module(
            model,
            widths=widths,
            optimiser=optimiser,
            lr=lr,
            ids=ids,
            steps=steps,
            parametrisation=parametrisation,
            vectors=vectors,
        )
        model = trained.build
        parametrisation = trained.parametrisation
        options |= {
            "optimiser": trained.optimiser,
            "lr": trained.lr,
            "ids": trained.ids,
            "vectors": trained.vectors,
            "trainable": trained.trainable,
            "trains_vectors": bool(vectors),
        }
    if draws is None:
        options["draws"] = DRAWS
    subject = subject_of(model, parametrisation, options["optimiser"])
    return CoordCheckStudy(Request.of(*subject, **options)).run(executor)


class TrainedFunction(NamedTuple):
    """A function of the width that makes programs, and how these are trained."""

    build: Any
    optimiser: Any
    lr: Any
    ids: Sequence[int] | None
    parametrisation: Any = None  # None: it is in the function
    vectors: Sequence[str] = ()  # empty: they are in the function
    trainable: tuple[str, ...] = ()  # the parameters of a PyTorch module, by name


def of_module(
    build: Any,
    widths: Sequence[float] | None,
    optimiser: Any,
    lr: Any,
    ids: Sequence[int] | None,
    steps: int,
    parametrisation: Any = None,
    vectors: Sequence[str] = (),
) -> TrainedFunction:
    """How to train what a function of the width makes.

    For programs these are the arguments, unchanged. A function of PyTorch modules or
    JAX models becomes one of their programs, which have the ids, and an optimiser of
    PyTorch or optax becomes one of `ns.step`.
    """
    unchanged = TrainedFunction(
        build=build,
        optimiser=optimiser,
        lr=lr,
        ids=ids,
        parametrisation=parametrisation,
        vectors=vectors,
    )
    integers = [n for n in widths or Request.default_widths if isinstance(n, int)]
    width = integers[0] if integers else 0
    if makes_jax_model_of_width(build, width):
        if vectors:
            raise ArgumentError(
                "vectors",
                list(vectors),
                "left out: only matrices of JAX models are trained",
            )
        if parametrisation is not None:
            raise ArgumentError(
                "parametrisation",
                parametrisation,
                "left out for a JAX model: give the optimiser of the rule's file",
            )
        return _of_jax_model(
            build, width=width, optimiser=optimiser, lr=lr, ids=ids, steps=steps
        )
    if "torch" not in sys.modules:  # no module without torch
        return unchanged
    from ...torch._network import makes_module

    if not makes_module(build, width):
        return unchanged
    if parametrisation is not None:
        trained = _under_rule(
            build,
            width=width,
            optimiser=optimiser,
            lr=lr,
            ids=ids,
            parametrisation=parametrisation,
            vectors=checked_vectors(vectors),
        )
    else:
        trained = _of_torch_module(
            build,
            width=width,
            optimiser=optimiser,
            lr=lr,
            ids=ids,
            steps=steps,
            vectors=vectors,
        )
    parameters = build(width).named_parameters()
    trainable = tuple(name for name, p in parameters if p.requires_grad)
    return trained._replace(trainable=trainable)


def _of_torch_module(
    build: Any,
    width: int,
    optimiser: Any,
    lr: Any,
    ids: Sequence[int] | None,
    steps: int,
    vectors: Sequence[str],
) -> TrainedFunction:
    """How to train PyTorch modules with the optimiser that they have or are given."""
    from ...torch._network import training

    if lr is not None and not isinstance(optimiser, str):
        raise ArgumentError(
            "lr", lr, "left out: the module's optimiser sets the learning rates"
        )
    if steps != 1 and not isinstance(optimiser, str):
        raise ArgumentError(
            "steps",
            steps,
            "1 with an optimiser of PyTorch; for more name one: optimiser='adam'",
        )
    if lr is None and optimiser in NAMED:
        lr = NAMED[optimiser].lr
    program_of, step = training(
        build,
        width=width,
        optimiser=optimiser,
        lr=lr,
        ids=ids,
        vectors=checked_vectors(vectors),
    )
    if vectors and NAMED[step].kind.matrices_only:
        raise ArgumentError(
            "vectors", list(vectors), f"left out: {step} moves matrices alone"
        )
    lr = 0.0 if lr is None else lr
    return TrainedFunction(program_of, optimiser=step, lr=lr, ids=None)


def _under_rule(
    build: Any,
    width: int,
    optimiser: Any,
    lr: Any,
    ids: Sequence[int] | None,
    parametrisation: Any,
    vectors: Sequence[str],
) -> TrainedFunction:
    """How to train PyTorch modules under a rule of `ns.torch.parametrise`."""
    from ...torch._network import training_of_rule
    from ...torch.maximal_update._rule_functions import rule_functions

    if optimiser not in OF_RULES:
        raise ArgumentError(
            "optimiser",
            optimiser,
            f"one of {', '.join(OF_RULES)} with the parametrisation of a module",
        )
    functions = rule_functions(parametrisation, optimiser, width)
    step = OF_RULES[optimiser]
    rate = NAMED[step].lr if lr is None else lr
    if not isinstance(rate, int | float):
        raise ArgumentError("lr", rate, "a number, the rate at the base of the rule")
    program_of = training_of_rule(build, functions, float(rate), ids, vectors)
    return TrainedFunction(program_of, optimiser=step, lr=0.0, ids=None)


def _of_jax_model(
    build: Any,
    width: int,
    optimiser: Any,
    lr: Any,
    ids: Sequence[int] | None,
    steps: int,
) -> TrainedFunction:
    """How to train what a function of the width makes with JAX."""
    from ...jax._training import training, training_by_optax

    if not isinstance(optimiser, str):
        if lr is not None:
            raise ArgumentError(
                "lr", lr, "left out: the optimiser of a model sets the learning rates"
            )
        if steps != 1:
            raise ArgumentError(
                "steps",
                steps,
                "1 with an optimiser of optax; for more name one: optimiser='adam'",
            )
        program_of, kind = training_by_optax(build, width, optimiser, ids)
        return TrainedFunction(program_of, optimiser=kind, lr=0.0, ids=None)
    if lr is None:
        lr = NAMED[optimiser].lr if optimiser in NAMED else 0.0
    return TrainedFunction(training(build, ids), optimiser=optimiser, lr=lr, ids=None)


@dataclass(frozen=True)
class CoordCheckStudy(TrainingStudy[CoordCheck]):
    """A coordinate check, of one parametrisation or several."""

    request: Request
    task_type = CheckTask

    def result(self, run: Run) -> CoordCheck:
        """A check of each parametrisation."""
        run.wait()
        checks = [self._check_of(rule, run) for rule in self.request.checks]
        return CoordCheck(self.request, checks, *self.spent(run))

    def _check_of(self, rule: Parametrisation, run: Run) -> Check:
        """The check of one parametrisation."""
        request = self.request
        cases = request.cases(rule)
        finite = [case for case in cases if math.isfinite(case.width)]
        sizes_at = []  # at each width or depth
        for case in finite:
            sizes = self._sizes(case, run)
            if request.axis == "depth":
                sizes = _select_depths(sizes, case.model.layers)
            sizes_at.append(sizes)
        draws = {}
        for entry in sizes_at[0]:
            draws[entry] = [sizes[entry] for sizes in sizes_at]
        last = cases[-1]  # infinite width, if it was requested
        if last in finite:
            return Check(request, rule, draws, refused=last.refused)
        limit = {} if last.empty else _without_rounding(self._sizes(last, run))
        return Check(
            request,
            rule,
            draws,
            limit,
            refused=last.refused,
            errors=last.errors if limit else {},
        )

    def _sizes(self, case: CheckCase, run: Run) -> dict[Entry, Floats]:
        """The draws (replicas,) at one width: √(mean square) of each entry, and
        |loss|.
        """
        # (draws, entries) of each task
        numbers_of_tasks = [run[task]["numbers"] for task in self.tasks_of(case)]
        columns = np.concatenate(numbers_of_tasks).T
        sizes: dict[Entry, Floats] = {}
        for entry, numbers in zip(case.entries, columns, strict=True):
            if entry.name == "loss":
                sizes[entry] = np.abs(numbers)
            else:
                sizes[entry] = np.sqrt(np.maximum(numbers, 0.0))
        return sizes


def _without_rounding(sizes: dict[Entry, Floats]) -> dict[Entry, Floats]:
    """The same sizes, without rounding errors.

    Changes below SIZE_RTOL of the size before the step become 0.
    """
    rounded = dict(sizes)
    for entry, size in sizes.items():
        before = sizes.get(entry._replace(what=SIZE, step=None))
        if entry.what == CHANGE and before is not None:
            rounded[entry] = np.where(size > SIZE_RTOL * before, size, 0.0)
    return rounded


def _select_depths(sizes: dict[Entry, Floats], depth: int) -> dict[Entry, Floats]:
    """The first, middle and last block of a network as blocks 1, 2 and 3, to compare
    networks of several depths.

    For example, of a network of depth 8 blocks 1, 4 and 8 are kept. What is outside of
    blocks stays.
    """
    blocks = (1, (depth + 1) // 2, depth)
    selected: dict[Entry, Floats] = {}
    for entry in sizes:
        if entry.block is None:
            selected[entry] = sizes[entry]
        elif entry.block == 1:  # every quantity once: it is in all blocks
            for k, block in enumerate(blocks, 1):
                size = sizes[entry._replace(block=block)]
                selected[entry._replace(block=k)] = size
    return selected
