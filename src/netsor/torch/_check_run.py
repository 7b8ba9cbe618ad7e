"""A check of the first steps of a training run of a PyTorch module.

`_run_loop` trains fresh modules, and `_run_hypotheses` has the mistakes that a loop can
make. The law of the log, and its comparison, are those of `netsor.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._validate import ArgumentError, also_spelled, whole
from ..checks._run_arguments import law_options, loop_sizes
from ..checks._run_check import TOLERANCE, RunCheck, RunLaw, law_of_loop
from ..checks._run_logs import rows_of
from ._run_batches import Batch, as_batches, micro_batches
from ._run_hypotheses import possible_mistakes
from ._run_loop import Loop, new_module_on, seeded


@also_spelled(optimizer="optimiser", initialization="initialisation")
def run_law(
    build: Callable[[], Any],
    optimiser: Callable[[Any], Any],
    batches: Any,
    *,
    steps: int = 5,
    accumulation: int = 1,
    clip: float | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    tokens: int | None = None,
    sequences: int | None = None,
    initialisations: int | None = None,
    level: float = 1e-3,
    tolerance: float = TOLERANCE,
    device: Any = None,
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
    >>> law = ns.torch.run_law(build, adamw, batch)  # doctest: +SKIP
    >>> print(law.check("run.csv"))  # doctest: +SKIP
    """
    options = law_options(level, tolerance, seed)
    loop = loop_of(
        build,
        optimiser,
        batches,
        steps=steps,
        accumulation=accumulation,
        clip=clip,
        loss=loss,
        tokens=tokens,
        sequences=sequences,
        device=device,
    )
    with seeded(0, loop.device):
        name = type(new_module_on(build, loop.device)).__name__
    return law_of_loop(
        loop,
        name,
        initialisations=initialisations,
        level=options.level,
        tolerance=options.tolerance,
        seed=options.seed,
        progress=progress,
    )


@also_spelled(optimizer="optimiser")
def check_run(
    build: Callable[[], Any],
    optimiser: Callable[[Any], Any],
    batches: Any,
    *,
    log: Any,
    columns: Mapping[str, str] | None = None,
    first_step: int | None = None,
    hypotheses: bool = True,
    **options: Any,
) -> RunCheck:
    """Check the first steps of a training run: does its log look as it should?

    netsor trains fresh modules of `build` for the same steps on the same batches. They
    give bands for the loss and for the norms of gradients and updates at each step.
    Each band is a prediction interval for one new run. If a logged number leaves its
    band, the check also trains with common mistakes, such as gradients that are summed
    instead of averaged over accumulation steps, and names those that explain the whole
    log.

    Parameters
    ----------
    build : callable
        A function that returns a new module with its own random initialisation.
    optimiser : callable
        A function of the module that returns its torch optimiser, a list of several,
        or optimisers and schedules. Also spelled `optimizer`.
    batches : torch.Tensor, tuple, mapping or list
        The inputs of the module: a tensor of ids, a tuple of inputs, or inputs by name.
        A list holds the batches of the passes, in order; one batch is used at every
        step. If the module returns logits, the loss compares them with the labels that
        the module does not take itself, or else with the next tokens.
    log : str, pathlib.Path, list or mapping
        The log: a .csv or .jsonl file, a trainer_state.json, a file of events of
        TensorBoard, or rows by step.
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
        The total gradient norm that gradients are clipped to.
    loss : callable, optional
        A function of the module's output and the batch that returns the loss.
    tokens, sequences : int, optional
        Use only the first tokens and sequences of each batch.
    initialisations : int, optional
        The number of healthy runs; if None, enough to make the bands at most 1.5 times
        as wide as those of a known normal law.
    level : float
        The probability with which a healthy run is flagged.
    tolerance : float
        The relative difference between devices and kernels that is also allowed;
        0.01 for a run in bfloat16.
    device : str or torch.device, optional
        Where to train; a GPU, if there is one.
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
    >>> def adamw(model):
    ...     return torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> print(ns.torch.check_run(build, adamw, batch, log="run.csv"))  # doctest: +SKIP
    """
    rows_of(log)  # a log that cannot be read raises its error before the training
    law = run_law(build, optimiser, batches, **options)
    return law.check(log, columns=columns, first_step=first_step, hypotheses=hypotheses)


def loop_of(
    build: Callable[[], Any],
    optimiser: Callable[[Any], Any],
    batches: Any,
    *,
    steps: int,
    accumulation: int,
    clip: float | None,
    loss: Callable[[Any, Any], Any] | None,
    tokens: int | None,
    sequences: int | None,
    device: Any,
) -> Loop:
    """The healthy loop of checked arguments."""
    if not callable(build) or isinstance(build, torch.nn.Module):
        raise ArgumentError("build", build, "a function that returns a new module")
    if not callable(optimiser):
        raise ArgumentError(
            "optimiser",
            optimiser,
            "a function of the module that returns its optimiser",
        )
    sizes = loop_sizes(steps, accumulation, clip)
    place = _device(device)
    with seeded(0, place):
        module = new_module_on(build, place)
    entries = as_batches(batches, module)
    _refuse_large_ids(entries, module)
    if tokens is not None or sequences is not None:
        tokens = None if tokens is None else whole(tokens, "tokens", least=2)
        sequences = None if sequences is None else whole(sequences, "sequences")
        entries = [entry.cut(sequences, tokens) for entry in entries]
    entries = micro_batches(entries, sizes.accumulation)
    sizes.check_batch_count(len(entries), batches)
    used = sizes.passes + sizes.accumulation  # one step more, for a late log
    return Loop(
        build=build,
        optimiser=optimiser,
        batches=entries[:used],
        steps=sizes.steps,
        accumulation=sizes.accumulation,
        clip=sizes.clip,
        loss=loss,
        device=place,
        possible_mistakes=possible_mistakes,
    )


def _refuse_large_ids(batches: Sequence[Batch], module: Any) -> None:
    """Reject ids that have no row in any embedding: on a GPU, they end the process."""
    rows = [
        part.num_embeddings
        for part in module.modules()
        if isinstance(part, torch.nn.Embedding)
    ]
    ids = [batch.ids for batch in batches if batch.ids is not None]
    largest = max((int(each.max()) for each in ids if each.numel()), default=0)
    if rows and largest >= max(rows):
        raise ArgumentError(
            "batches",
            largest,
            f"ids below {max(rows)}: {type(module).__name__} has no larger embedding",
        )


def _device(device: Any) -> Any:
    """The device; a GPU by default, if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ArgumentError(
            "device", device, f"a device of this machine: {reason}"
        ) from None
    return place
