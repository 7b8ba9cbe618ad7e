"""A check of the first steps of a training run of a JAX model, with optax.

`_run_loop` trains fresh models. The law of the log, and its comparison, are those of
`netsor.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._validate import ArgumentError, also_spelled, shown
from ..checks._run_arguments import (
    law_options,
    loop_sizes,
    malformed_file,
    rows_of_each_pass,
    unreadable_file,
)
from ..checks._run_check import TOLERANCE, RunCheck, RunLaw, law_of_loop
from ._models import Functions, batched, functions_of
from ._optax import transformation_of
from ._run_loop import Batch, Loop, kind_of, next_tokens, parted

BATCHES = "an array of ids, a tuple of inputs, or a list of such batches"


@also_spelled(optimizer="optimiser", initialization="initialisation")
def run_law(
    model: Any,
    optimiser: Any,
    batches: Any,
    *,
    steps: int = 5,
    accumulation: int = 1,
    clip: float | None = None,
    init: Callable[[Any], Any] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    initialisations: int | None = None,
    level: float = 1e-3,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    progress: bool = True,
) -> RunLaw:
    """The law of the log of a training run, to check several logs against.

    The parameters are those of `check_run`.

    Returns
    -------
    RunLaw
        The numbers of healthy runs, with a method `check`.

    Examples
    --------
    >>> law = ns.jax.run_law(build, optax.adamw(1e-3), ids)  # doctest: +SKIP
    >>> print(law.check("run.csv"))  # doctest: +SKIP
    """
    options = law_options(level, tolerance, seed)
    sizes = loop_sizes(steps, accumulation, clip)
    entries = [_entry(batch) for batch in _as_list(batches)]
    functions = _functions(model, init, entries[0])
    passes = [_batch(functions, entry, loss) for entry in entries]
    passes = _micro_batches(passes, sizes.accumulation)
    sizes.check_batch_count(len(passes), batches)
    loop = Loop(
        functions=functions,
        optimiser=transformation_of(optimiser, _zeros(functions)),
        batches=passes,
        steps=sizes.steps,
        accumulation=sizes.accumulation,
        clip=sizes.clip,
        loss=loss,
    )
    return law_of_loop(
        loop,
        functions.name,
        initialisations=initialisations,
        level=options.level,
        tolerance=options.tolerance,
        seed=options.seed,
        progress=progress,
    )


def _zeros(functions: Functions) -> Any:
    """Zeros in the place of the parameters that are trained."""
    assert functions.init is not None
    tree = jax.eval_shape(functions.init, jax.random.key(0))
    moving = parted(tree, kind_of(tree)).moving
    return jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), moving)


@also_spelled(optimizer="optimiser")
def check_run(
    model: Any,
    optimiser: Any,
    batches: Any,
    *,
    log: Any,
    columns: Mapping[str, str] | None = None,
    first_step: int | None = None,
    hypotheses: bool = True,
    **options: Any,
) -> RunCheck:
    """Check the first steps of a training run: does its log look as it should?

    Fresh models are trained for the same steps on the same batches. They give bands for
    the loss and for the norms of gradients and updates at each step. If a logged number
    leaves its band, the check also trains with common mistakes, and names those that
    explain the whole log.

    Parameters
    ----------
    model : callable, flax.linen.Module or tuple
        A function of a key that makes a model of Flax NNX or Equinox, a module of
        Linen, a pair (init, apply), or a function of parameters and a batch; the last
        with `init`. It returns logits or the loss. Models of Flax NNX and Equinox run
        in evaluation mode: give a function with the loss to train with dropout.
    optimiser : optax.GradientTransformation or callable
        Any optimiser of optax, with its schedule, chain and `multi_transform`, or a
        function of nothing, or of the parameters, that returns it. Also spelled
        `optimizer`.
    batches : array, tuple or list
        Ids (sequences, tokens), a tuple of inputs, or of inputs and labels. A list
        holds the batches of the passes, in order; one batch is used at every step.
        Without labels each token predicts the next one; negative labels are ignored.
    log : str, pathlib.Path, list or mapping
        The log: a .csv or .jsonl file, a file of events of TensorBoard, or rows by
        step.
    columns : mapping of str to str, optional
        The column of a quantity, such as {"grad_norm": "gnorm"}; common names are
        known.
    first_step : int, optional
        The number of the first step in the log; if None, the lowest one, which must be
        0 or 1.
    hypotheses : bool
        Whether to look for a mistake that explains the log.
    steps : int
        The last step; steps are counted from 0.
    accumulation : int
        The number of passes whose mean gradient is one step.
    clip : float, optional
        The total gradient norm that gradients are clipped to before the optimiser; a
        chain with `optax.clip_by_global_norm` clips by itself.
    init : callable, optional
        A function of a key that draws the parameters of a function.
    loss : callable, optional
        A function of the model's output and the inputs that returns the loss.
    initialisations : int, optional
        The number of healthy runs; if None, enough to make the bands at most 1.5 times
        as wide as those of a known normal law.
    level : float
        The probability with which a healthy run is flagged.
    tolerance : float
        The relative difference between devices that is also allowed; 0.01 for a run
        in bfloat16.
    seed : int
        The seed of the healthy runs.
    progress : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    RunCheck
        The verdict, the numbers outside their bands, and what explains them.

    Examples
    --------
    >>> optimiser = optax.chain(
    ...     optax.clip_by_global_norm(1.0), optax.adamw(1e-3)
    ... )  # doctest: +SKIP
    >>> print(ns.jax.check_run(build, optimiser, ids, log="run.csv"))  # doctest: +SKIP
    """
    law = run_law(model, optimiser, batches, **options)
    return law.check(log, columns=columns, first_step=first_step, hypotheses=hypotheses)


def read_batches(paths: Sequence[str | Path]) -> list[Any]:
    """The batches in files; reading them executes nothing.

    Parameters
    ----------
    paths : sequence of str or pathlib.Path
        A .npy file of ids, or a .npz file of inputs in order, and then labels, for each
        batch.
    """
    return [_read(Path(path)) for path in paths]


def _read(path: Path) -> Any:
    """The content of one file, which executes nothing."""
    if path.suffix not in (".npy", ".npz"):
        raise ArgumentError("batch", str(path), "a .npy or .npz file")
    try:
        content = np.load(path, allow_pickle=False)
        if path.suffix == ".npy":
            return content
        with content:
            return tuple(content[name] for name in content.files)
    except OSError as error:
        raise unreadable_file(path, error) from None
    except Exception as error:  # of a format
        raise malformed_file(path, "arrays", error) from None


def cut(batch: Any, sequences: int | None, tokens: int | None) -> Any:
    """The first sequences of a batch, and the first tokens of each.

    A batch is an array (sequences, tokens), or a tuple of such arrays. None: all.
    """
    if not isinstance(batch, tuple):
        return _cut_array(batch, sequences, tokens)
    return tuple(_cut_array(x, sequences, tokens) for x in batch)


def _cut_array(x: Any, sequences: int | None, tokens: int | None) -> Any:
    """One array of a batch, cut; an array without tokens has labels of sequences."""
    return x[:sequences, :tokens] if x.ndim > 1 else x[:sequences]


def _as_list(batches: Any) -> Sequence[Any]:
    """The batches of an argument."""
    entries = batches if isinstance(batches, list) else [batches]
    if not entries:
        raise ArgumentError("batches", batches, BATCHES)
    return entries


def _entry(batch: Any) -> tuple[Any, ...]:
    """The arrays of one batch."""
    arrays = batch if isinstance(batch, tuple) else (batch,)
    if not arrays or not all(hasattr(x, "shape") for x in arrays):
        raise ArgumentError("batches", batch, BATCHES)
    return tuple(np.asarray(x) for x in arrays)


def _functions(model: Any, init: Any, entry: tuple[Any, ...]) -> Functions:
    """A model as two functions; its parameters are drawn by a key."""
    first_input = entry[:1]
    inputs = first_input if init is None else (init, *first_input)
    functions, _ = functions_of(model, inputs)
    if functions.init is None:
        raise ArgumentError(
            "init",
            None,
            "a function of a key that draws the parameters: a check trains fresh ones",
        )
    return batched(model, functions)


def _batch(functions: Functions, entry: tuple[Any, ...], loss: Any) -> Batch:
    """One batch: all of it is what the model takes, or its last part is labels.

    The model is tried with all arrays of the batch, then with one fewer, and so on.
    """
    assert functions.init is not None
    tree = jax.eval_shape(functions.init, jax.random.key(0))
    problem = ""  # the first one: that of most arrays
    for count in range(len(entry), 0, -1):
        inputs = entry[:count]
        try:
            outputs = jax.eval_shape(functions.apply, tree, *inputs)
        except Exception as error:  # of the user's code, for inputs that it rejects
            problem = problem or " ".join(str(error).split())[:200]
            continue
        shape = getattr(outputs, "shape", None)
        has_own_loss = shape == ()
        if loss is not None or has_own_loss:
            return Batch(inputs, None)
        labels = entry[count] if count < len(entry) else next_tokens(entry[0])
        if shape is not None and shape[:-1] == labels.shape:
            return Batch(inputs, labels)
        problem = problem or (
            f"it returned {shown(outputs)}, and the labels have the shape"
            f" {labels.shape}: pass loss=, a function of the output and the inputs"
        )
    raise ArgumentError("batches", tuple(x.shape for x in entry), f"read: {problem}")


def _micro_batches(batches: list[Batch], accumulation: int) -> list[Batch]:
    """The batches of single passes: one batch is divided into `accumulation` parts."""
    if len(batches) > 1 or accumulation == 1:
        return batches
    (batch,) = batches
    micro_batches = []
    for rows in rows_of_each_pass(batch.inputs[0].shape[0], accumulation):
        inputs = tuple(x[rows] for x in batch.inputs)
        labels = None if batch.labels is None else batch.labels[rows]
        micro_batches.append(Batch(inputs, labels))
    return micro_batches
