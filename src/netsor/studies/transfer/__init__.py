"""Loss after a few steps against the learning rate, at several widths: does the best
learning rate transfer?

The learning rate is a hyperparameter of the program: all rates of a sweep share a plan
and its random numbers. At infinite width Gaussian expectations depend on the rate, and
each has its own plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from ..._validate import ArgumentError, Rng, also_spelled
from ...models import Transformer
from ...optim import Optimiser
from ...programs._program import Program
from ...runtime._parallel import Progress
from .._training import is_function, makes_jax_model_of_width, subject_of
from ._results import Curve, Optimum, Sweep, Transfer
from ._sweep import DRAWS, STEPS, Request, TransferStudy

__all__ = ["Curve", "Optimum", "Sweep", "Transfer", "transfer"]


@also_spelled(optimizer="optimiser", parametrization="parametrisation")
def transfer(
    model: (
        str | Path | Mapping[str, Any] | Transformer | Callable[[Any], Program] | Any
    ),
    *,
    widths: Sequence[float] | None = None,
    steps: int = STEPS,
    lr: Sequence[float] | None = None,
    optimiser: str | Optimiser | Mapping[Any, Optimiser] = "sgd",
    eps: float = 0.0,
    parametrisation: str | Path | Mapping[str, Any] | Sequence[Any] | None = None,
    ids: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    tokens: int | None = None,
    batch: Any = None,
    weights: Callable[[Program], Any] | None = None,
    schedule: Callable[[int], float] | None = None,
    clip_norm: float | None = None,
    draws: int = DRAWS,
    grow: str = "heads",
    vectors: Sequence[str] = (),
    seed: int = 0,
    rng: Rng = None,
    workers: int | None = None,
    out: str | Path | None = None,
    backend: str = "numpy",
    device: str | None = None,
    precision: str = "float64",
    executor: Executor | None = None,
    progress: Progress = True,
) -> Transfer:
    """Compute the loss after a few training steps against the learning rate, at several
    widths.

    Other parameters are those of `coord_check`.

    Parameters
    ----------
    model : str, pathlib.Path, mapping, Transformer, configuration or callable
        Anything that `ns.models.read` takes, or a `Transformer`; or a function of the
        width that returns a `Program` whose output is the loss, or a PyTorch module
        with logits. A module is trained in PyTorch.
    widths : sequence of float, optional
        Of the stream; 64, 256 and 1024 by default. With a function you may also pass
        `inf`; it then receives an `ns.Width`.
    lr : sequence of float, optional
        Three learning rates or more. For a model they are those at its own width, which
        the parametrisation scales; for a function they multiply those of the optimiser.
        By default each width has its own grid of seven, a factor of 2 apart; four more
        are added at an end until the best one is well inside.
    optimiser : str, Optimiser or mapping
        "sgd", "muon", "adam" or "lion", as in `ns.coord_check` over several steps. For
        a function also what `ns.train` takes; a name then has the learning rate 1. For
        a PyTorch module what `ns.torch.parametrise` takes, or a function of the module
        that returns its optimiser, whose learning rates `lr` multiplies. You can also
        write `optimizer` and `parametrization`.
    eps : float
        ε of Adam, if `optimiser` is its name. For a model it is that at its own width,
        which the parametrisation scales.
    parametrisation : str, pathlib.Path, mapping or sequence of these, optional
        As in `coord_check`. For a PyTorch module "sp" (it is left as it is, with one
        learning rate), what `ns.torch.parametrise` returns, or a file that `netsor
        parametrise` wrote; "sp" by default.
    batch : tuple, optional
        For a PyTorch module: (inputs, targets), as in `ns.torch.parametrise`.
    weights : callable, optional
        For a function: which parameters of its program to train, as in `ns.step`; by
        default all matrices.
    schedule : callable, optional
        A function of the step 0, 1, … that multiplies the learning rates, as in
        `ns.train`.
    clip_norm : float, optional
        The largest norm of the gradient, as in `ns.train`.
    draws : int
        Initialisations at each width. All learning rates see the same ones.

    Returns
    -------
    transfer : Transfer
        One `Sweep` for each parametrisation, by position or name. `best(width)` is its
        best learning rate with a 99 % interval, and `verdict` says whether it moves
        with the width. Print it for the table; `save(folder)` writes the report.

    Examples
    --------
    >>> inputs, targets = ns.data([[1.0, 0.0], [0.6, 0.8]]), np.array([1.0, -1.0])
    >>> @ns.program
    ... def standard(n):
    ...     h = ns.relu(ns.weight(n, n) @ ns.relu(ns.weight(n, 2) @ inputs))
    ...     f = (ns.weight(1, n) @ h)[:, None]
    ...     return ((ns.mean_dot(f, ns.data([[1.0]]))[:, 0, 0] - targets) ** 2).mean()
    >>> rates = 2.0 ** np.arange(-12, -1)
    >>> found = ns.transfer(standard, widths=[32, 128, 512], lr=rates)
    >>> found[0].verdict
    'shifts like n^-1.0'
    >>> print(found[0].best(512))  # with a 99 % interval
    0.0067 (0.0047, 0.0095)
    """
    options = {**locals()}
    for name in ("executor", "model", "parametrisation", "optimiser", "batch"):
        del options[name]
    framework = framework_of(model, widths)
    if framework:
        from ._modules import library_of, module_study

        study = module_study(
            model,
            optimiser,
            parametrisation,
            batch=batch,
            library=library_of(framework),
            **options,
        )
        return study.run(executor)
    if batch is not None:
        raise ArgumentError(
            "batch",
            type(batch).__name__,
            "left out: it is for a PyTorch module or a JAX model",
        )
    options["optimiser"] = optimiser
    return TransferStudy(
        Request.of(*subject_of(model, parametrisation, optimiser), **options)
    ).run(executor)


def framework_of(model: Any, widths: Sequence[float] | None) -> str:
    """Whether a function of the width makes modules of "PyTorch" or models of "JAX";
    "" for other functions.
    """
    if not is_function(model):
        return ""
    integers = [n for n in widths or Request.default_widths if isinstance(n, int)]
    width = integers[0] if integers else 0
    if makes_jax_model_of_width(model, width):
        return "JAX"
    if "torch" not in sys.modules:  # no module without torch
        return ""
    from ...torch._network import makes_module

    return "PyTorch" if makes_module(model, width) else ""
