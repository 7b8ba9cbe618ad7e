"""Optimisers of optax whose learning rates are derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..._validate import ArgumentError

TINY_EPS = 1e-12  # of a measurement: below all gradients, above their rounding errors


def optax_library() -> Any:
    """The library optax, or an error that says how to install it."""
    try:
        import optax
        import optax.contrib
    except ImportError as error:
        raise ArgumentError(
            "optimiser", "optax", f"installed: pip install optax ({error})"
        ) from None
    return optax


def _adamw(optax: Any, lr: Any) -> Any:
    return optax.adamw(lr, weight_decay=0.0)


@dataclass(frozen=True)
class OptaxFamily:
    """An optimiser, by what a derived rule has to know about it."""

    name: str
    words: str  # in reports
    # its directions, of which a step subtracts a multiple
    direction: Callable[[Any], Any]
    # what makes it, as code of a written file; of the optimiser of a user, ""
    code: str
    has_eps: bool = False
    # Whether matrices have an optimiser of their own: parameters both of whose axes
    # grow with the width.
    is_mixed: bool = False
    is_sphere: bool = False  # no optimiser of optax keeps the norm of a matrix
    is_orthogonal: bool = False  # whether updates of matrices are, as in Muon
    decays_gradient: bool = False  # whether Adam divides weight decay, too

    def make(self, optax: Any, lr: Any, matrices: Any = None) -> Any:
        """The optimiser as people train, with one learning rate for all parameters."""
        if self.is_mixed:
            transforms = {"matrix": optax.contrib.muon(lr), "other": _adamw(optax, lr)}
            return optax.multi_transform(transforms, matrices)
        makes: Mapping[str, Callable[[Any, Any], Any]] = {
            "adamw": _adamw,
            "adam": lambda optax, lr: optax.adam(lr),
            "sgd": lambda optax, lr: optax.sgd(lr),
            "lion": lambda optax, lr: optax.lion(lr, weight_decay=0.0),
            "sign": lambda optax, lr: optax.sign_sgd(lr),
        }
        return makes[self.name](optax, lr)


def _tiny_adam(optax: Any) -> Any:
    return optax.scale_by_adam(eps=TINY_EPS)


FAMILIES: Mapping[str, OptaxFamily] = {
    "adamw": OptaxFamily(
        "adamw",
        "AdamW",
        _tiny_adam,
        "optax.adamw(rate, eps=eps_of_rule, weight_decay=decay)",
        has_eps=True,
    ),
    "adam": OptaxFamily(
        "adam",
        "Adam",
        _tiny_adam,
        "optax.chain(\n"
        "            optax.add_decayed_weights(decay),\n"
        "            optax.adam(rate, eps=eps_of_rule),\n"
        "        )",
        has_eps=True,
        decays_gradient=True,
    ),
    "sgd": OptaxFamily(
        "sgd",
        "SGD",
        lambda optax: optax.identity(),
        "optax.chain(\n"
        "            optax.add_decayed_weights(decay),\n"
        "            optax.sgd(rate),\n"
        "        )",
    ),
    "lion": OptaxFamily(
        "lion",
        "Lion",
        lambda optax: optax.scale_by_lion(),
        "optax.lion(rate, weight_decay=decay)",
    ),
    "sign": OptaxFamily(
        "sign",
        "sign descent",
        lambda optax: optax.scale_by_sign(),
        "optax.chain(\n"
        "            optax.scale_by_sign(),\n"
        "            optax.add_decayed_weights(decay),\n"
        "            optax.scale_by_learning_rate(rate),\n"
        "        )",
    ),
    "muon": OptaxFamily(
        "muon",
        "Muon and AdamW",
        _tiny_adam,
        "optax.adamw(rate, eps=eps_of_rule, weight_decay=decay)",
        has_eps=True,
        is_mixed=True,
        is_orthogonal=True,
    ),
}
# of the optimiser that a user gives: its updates are measured as they are
OWN = OptaxFamily("own", "optimiser", lambda optax: optax.identity(), "")
