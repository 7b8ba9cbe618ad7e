"""Maximal-update parametrisations of modules, derived by measurement.

`netsor.maximal_update` derives the rule. Here `_forward_graph` records the operations
of a module, `_measure` runs it at several widths and `_depth` at several depths,
`_emitted_file` writes the rule as plain PyTorch, and `_real_training` checks it by real
steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..._validate import ArgumentError, also_spelled, one_of, whole
from ...maximal_update._derive import (
    DRAWS,
    TOO_FEW,
    WIDTHS,
    derive,
    validated_depths,
    validated_splits,
    validated_widths,
)
from ...maximal_update._measurement import FEWEST_DRAWS
from ...maximal_update._own_optimiser import OwnOptimiser
from ...maximal_update._results import DerivedRule
from ...maximal_update._rules import ScalingRule
from ...reader._graph import UnsupportedError
from ._depth import TorchDepths
from ._measure import Graphs, TorchSubject
from ._optimisers import FAMILIES, Family
from ._own_updates import OwnUpdate, orthogonalised, own_updates
from ._rows import rows_unlike_others

__all__ = ["parametrise"]

CLASSES = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@also_spelled(optimizer="optimiser")
def parametrise(
    build: Callable[..., Any],
    *,
    optimiser: str | Callable[[Any], Any] = "adamw",
    widths: Sequence[int] = WIDTHS,
    depths: Sequence[int] | None = None,
    branch_power: float | None = None,
    batch: Any = None,
    split_sizes: Mapping[str, int | Callable[[int], Sequence[int]]] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> DerivedRule:
    """Derive how initialisation and learning rates must follow the width, so that every
    activation and every update is of order 1 (maximal updates, µP).

    The module is run at several widths, and every operation is measured: how large its
    result is, how much it responds to changes of its inputs in the direction of
    gradients, and how much the update of each weight changes it. The exponents follow
    from these numbers, not from shapes or names, and are measured again after they are
    applied, until nothing remains to change.

    Parameters
    ----------
    build : callable
        A function of the width that returns a module with logits. Everything that
        should grow must grow with it.
    optimiser : str or callable
        "adamw", "adam", "sgd", "lion", "sign", "muon" (with AdamW for all but
        matrices), "adamh" or "muonh" (matrices of a fixed Frobenius norm). Or a
        function of the module that returns its AdamW, Adam or SGD with your own groups,
        or an optimiser of any class that mixes Muon and Adam: then `rule.departures`
        lists what is not maximal in them and in the module. You can also write
        `optimizer`.
    widths : sequence of int
        Widths to measure, at least two. The smallest is the base of the exponents.
    depths : sequence of int, optional
        Numbers of layers to measure, at least two, to derive the exponents of the depth
        as well. `build` is then a function of the width and the depth. Widths are
        measured at the smallest depth, and depths at the smallest width.
    branch_power : float, optional
        The exponent of the depth that the branches of the residual stream get, from -1
        to -1/2. By default the one under which updates are largest: -1, or -1/2 if each
        branch is a linear function of its parameters.
    batch : tuple, optional
        (inputs, targets): tensors that the module takes, and the right class for each
        row of its logits. By default two sequences of eight random tokens, each the
        target of the one before.
    split_sizes : mapping, optional
        For "muon", "adamh" and "muonh": fused matrices that are optimised in parts, by
        names or patterns, such as {"*.c_attn.weight": 3}. A value is the number of
        equal parts, or a function of the width that returns the sizes.
    draws : int
        Initialisations at each width, at least 3.
    seed : int
        The first seed of PyTorch; initialisation k has seed + k.
    progress : callable, optional
        Called with a line of text at each stage.

    Returns
    -------
    rule : DerivedRule
        `rule.parameters` holds the exponents of each parameter, `rule.scales` the
        factors of outputs, and `rule.evidence` the measurements; `rule.depth` holds
        those at several depths, or None. Print the rule for the table; `rule.source()`
        is a file of plain PyTorch, and `rule.check()` tests it by real training.

    Examples
    --------
    >>> rule = ns.torch.parametrise(build, optimiser="adamw")  # doctest: +SKIP
    >>> print(rule)  # doctest: +SKIP
    >>> Path("mup.py").write_text(rule.source(), "utf-8")  # doctest: +SKIP
    """
    sizes = validated_widths(widths)
    whole(draws, "draws", least=FEWEST_DRAWS, why=TOO_FEW)
    if not callable(build) or isinstance(build, torch.nn.Module):
        raise ArgumentError(
            "build", type(build).__name__, "a function of the width, not a module"
        )
    layers = validated_depths(depths, branch_power)
    base = sizes[:1] if layers is None else (sizes[0], layers[0])
    family = _family(build, optimiser, base)
    subject = TorchSubject(
        build=build,
        family=family,
        batch=batch,
        seed=whole(seed, "seed", least=0),
        base_width=sizes[0],
        base_depth=None if layers is None else layers[0],
        split_sizes=validated_splits(split_sizes, family.is_mixed),
        make=None if isinstance(optimiser, str) else optimiser,
    )
    rows = rows_unlike_others(
        lambda width, k: subject.new(
            width, subject.base_depth, subject.seed + k, ScalingRule()
        ),
        sizes,
        draws,
    )
    if rows and subject.make is None:
        raise UnsupportedError(
            f"the initial numbers of {rows[0]} follow the width unlike the others, by"
            f" n^{-rows[0].exponent:g}: initialise all rows alike, or make them"
            " parameters of their own"
        )
    subject = replace(subject, unlike_rows=rows)
    _check_matrices(subject)
    return derive(
        subject,
        Graphs(subject),
        sizes,
        draws,
        own=_own_optimiser(subject, sizes),
        progress=progress,
        depths=None if layers is None else TorchDepths(subject, layers, 2 * draws),
        branch_power=branch_power,
    )


def _family(build: Callable[..., Any], optimiser: Any, size: tuple[int, ...]) -> Family:
    """The optimiser of a name, or that of the user, by its class."""
    if isinstance(optimiser, str) or not callable(optimiser):
        one_of(optimiser, "optimiser", "", tuple(FAMILIES))
        return FAMILIES[optimiser]
    module = build(*size)
    instance = optimiser(module)
    for name, of_torch in CLASSES.items():
        if type(instance) is of_torch:
            return FAMILIES[name]
    reason = ""
    if hasattr(instance, "param_groups") and hasattr(instance, "step"):
        updates = own_updates(optimiser, module)
        if orthogonalised(updates) and None not in updates.values():
            return FAMILIES["muon"]
        reason = _unlike_a_mixture(updates)
    raise ArgumentError(
        "optimiser",
        type(instance).__name__,
        "a name, or a function that returns torch.optim.AdamW, Adam or SGD, or a class"
        f" that mixes Muon and Adam{reason}",
    )


def _unlike_a_mixture(updates: Mapping[str, OwnUpdate | None]) -> str:
    """Why an optimiser is no mixture of Muon and Adam, in words for an error."""
    unknown = [name for name, update in updates.items() if update is None]
    if unknown:
        return f" (its first step of {unknown[0]} is that of neither)"
    return " (it orthogonalises no update: name lion, sign or adamw)"


def _check_matrices(subject: TorchSubject) -> None:
    """Reject a mixture in which Muon moves other parameters than those both of whose
    axes grow.
    """
    make = subject.make
    if make is None or not subject.family.is_mixed:
        return
    module = subject.build(*subject.base)
    moved_by_muon = orthogonalised(own_updates(make, module))
    matrices = {*subject.matrices_of_size(subject.base_width)}
    wrong = sorted(moved_by_muon ^ matrices)
    if not wrong:
        return
    name = wrong[0]
    remedy = f"with AdamW for {name}, which has an axis that does not grow"
    if name in matrices:
        remedy = f"with Muon for {name} too, as for all matrices that grow in both axes"
    raise ArgumentError("optimiser", type(make(module)).__name__, remedy)


def _own_optimiser(subject: TorchSubject, widths: Sequence[int]) -> OwnOptimiser:
    """How the settings of the optimiser of the user follow the width."""
    if subject.make is None:
        return OwnOptimiser()
    settings = []
    for width in (widths[0], widths[-1]):
        module = subject.new(width, subject.base_depth, subject.seed, ScalingRule())
        settings.append(subject.settings(module))
    optimiser = subject.make(module)
    decay = inspect.signature(type(optimiser)).parameters.get("weight_decay")
    default_decay = 0.0 if decay is None else decay.default
    return OwnOptimiser.of(settings, (widths[0], widths[-1]), default_decay)
