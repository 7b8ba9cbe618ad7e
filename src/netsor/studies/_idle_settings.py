"""Settings that cannot act on a model are errors: they would be ignored without a word.

A setting of a parametrisation file counts if it changes its starting point, so that
files that repeat the starting point, such as the content of a report, are valid for
every model. Exponents of the width act where the width changes, and those of the depth
where the depth changes: at the configuration's own sizes all parametrisations agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .._validate import ArgumentError
from ..models import Transformer
from ..models._training import absent_kinds
from ..optim import NAMED
from ._parametrisation import GROW_HEAD_DIM, STD_FIELDS, Parametrisation, Setting

WITH_EPS = [name for name, optimiser in NAMED.items() if "eps" in optimiser.takes]


@dataclass(frozen=True)
class Setup:
    """What decides whether a setting acts."""

    model: Transformer
    optimiser: str
    eps: float
    # the learning rate of each kind of weight; empty if all are positive
    rates: Mapping[str, float]
    grow: str
    # why nothing is compared with the promises of a file; empty if changes are
    no_promise: str


def reject_idle_settings(rules: Sequence[Parametrisation], setup: Setup) -> None:
    """Raise an error for the first file with settings that cannot act."""
    for rule in rules:
        keys_by_reason: dict[str, list[str]] = {}
        for setting in rule.settings:
            if reason := _reason(setting, setup):
                keys_by_reason.setdefault(reason, []).append(setting.key)
        if keys_by_reason:
            remedies = []
            for reason, keys in keys_by_reason.items():
                remedies.append(f"without {', '.join(keys)}, since {reason}")
            raise ArgumentError("parametrisation", rule.source, "; ".join(remedies))


def reject_idle_rates(kinds: Sequence[str], model: Transformer) -> None:
    """Raise an error for a learning rate of a kind of weight that the model does not
    have.
    """
    absent = absent_kinds(model)
    for kind in kinds:
        if kind in absent:
            raise ArgumentError(
                "lr",
                kind,
                f"for a kind of weight of {model.name}, which has {absent[kind]}",
            )


def _reason(setting: Setting, setup: Setup) -> str:
    """Why a setting cannot act, and the remedy; "" if it acts."""
    reasons_of_model = {
        "logits": _of_logits,
        "scores": _of_scores,
        "promise": _of_promise,
    }
    if setting.quantity in reasons_of_model:
        return reasons_of_model[setting.quantity](setting, setup)
    if not setting.kinds:
        return "every matrix has its own number: leave it out"
    reasons_of_kind: dict[str, Callable[[str, Setup], str]] = {
        "std": _of_std,
        "lr": _of_lr,
        "eps": _of_eps,
    }
    absent = absent_kinds(setup.model)
    reasons = []  # of each kind; a setting acts if it acts on one
    for kind in setting.kinds:
        if kind in absent:
            reason = f"{setup.model.name} has {absent[kind]}"
        else:
            reason = reasons_of_kind[setting.quantity](kind, setup)
        if not reason:
            return ""  # it acts on this kind
        reasons.append(reason)
    return reasons[0]


def _of_std(kind: str, setup: Setup) -> str:
    """Why a scaling of the std of this kind of weight cannot act; "" if it can."""
    name = f"std_{STD_FIELDS.get(kind, kind)}"
    if getattr(setup.model, name):
        return ""
    return (
        f"{setup.model.name} has {name}=0, and every multiple of it is 0: set {name}"
        " above 0"
    )


def _of_lr(kind: str, setup: Setup) -> str:
    """Why a scaling of its learning rate cannot act (it is 0); empty if it can."""
    if setup.rates.get(kind, 1.0):
        return ""
    return (
        f"the learning rate of {kind} is 0, and so is every multiple of it: set lr"
        " above 0"
    )


def _of_eps(kind: str, setup: Setup) -> str:
    """Why a scaling of eps cannot act (the optimiser has none, or it is 0); empty if it
    can.
    """
    if setup.optimiser not in WITH_EPS:
        return (
            f"{setup.optimiser} has no eps: leave it out, or take"
            f" {' or '.join(WITH_EPS)}"
        )
    if not setup.eps:
        return "eps is 0, and so is every multiple of it: set eps above 0, as 1e-8"
    return _of_lr(kind, setup)


def _of_logits(_: Setting, setup: Setup) -> str:
    """Why a multiplier of tied logits cannot act (they are not tied); empty if
    it can.
    """
    if setup.model.tied:
        return ""
    return (
        f"{setup.model.name} has tied=False, and its logits have weights of their own:"
        " set head.std"
    )


def _of_scores(setting: Setting, setup: Setup) -> str:
    """Why an exponent of the head dimension cannot act (that does not grow); empty if
    it can.
    """
    if setting.of != "head_dim" or setup.grow == GROW_HEAD_DIM:
        return ""
    return (
        "the dimension of a head does not grow: set scores.width, or grow to"
        f" {GROW_HEAD_DIM}"
    )


def _of_promise(_: Setting, setup: Setup) -> str:
    """Why a promise cannot act (nothing is compared with it); empty if it can."""
    if not setup.no_promise:
        return ""
    return (
        f"it is about changes against the width, and {setup.no_promise}: leave it out"
    )
