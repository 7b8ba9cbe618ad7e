"""What an optimiser of the user does to each parameter, seen in one step.

Classes that mix Muon and AdamW tell them apart by keys of groups, by shapes or by
names, and scale Muon's updates by different factors. Their step from zeros, along known
gradients, shows both.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ._parameter_names import parameters_of

SMALLEST = 0.1  # of the singular values of the gradients; the largest is 1
# Muon's iteration makes singular values from 0.7 to 1.2 of these.
LEAST_OF_ORTHOGONAL = 0.5  # the smallest singular value of an update over the largest
LEAST_OF_SIGNS = 0.95  # the same for entries: an eps makes small ones smaller


class OwnUpdate(NamedTuple):
    """The update of a parameter in the first step."""

    is_orthogonal: bool
    # of Adam: the size of its entries; of Muon: that of its singular values, over the
    # factor √(rows/columns) that tall matrices have here
    rate: float


def own_updates(make: Callable[[Any], Any], module: Any) -> dict[str, OwnUpdate | None]:
    """The updates by name; None: neither those of Adam nor those of Muon.

    Parameters that the optimiser does not have are left out.
    """
    trained = copy.deepcopy(module)
    optimiser = make(trained)
    moving = {id(p) for group in optimiser.param_groups for p in group["params"]}
    generator = torch.Generator().manual_seed(0)
    gradients = {}
    for name, p in parameters_of(trained).items():
        with torch.no_grad():
            p.zero_()  # so that a weight decay does nothing
        p.grad = _gradient(p, generator)
        if id(p) in moving:
            gradients[name] = p.grad.clone()
    optimiser.step()
    return {
        name: _update(p.detach(), gradients[name])
        for name, p in parameters_of(trained).items()
        if name in gradients
    }


def orthogonalised(updates: Mapping[str, OwnUpdate | None]) -> set[str]:
    """The parameters with orthogonal updates."""
    return {name for name, x in updates.items() if x is not None and x.is_orthogonal}


def _gradient(p: Any, generator: torch.Generator) -> Any:
    """A gradient with known singular values; random numbers for vectors."""
    noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
    if p.ndim < 2:
        return noise.sign() * (1 + noise.abs())
    left, values, right = torch.linalg.svd(noise.flatten(1), full_matrices=False)
    values = torch.logspace(0, math.log10(SMALLEST), len(values), dtype=p.dtype)
    return (left @ torch.diag(values) @ right).reshape(p.shape)


def _update(change: Any, gradient: Any) -> OwnUpdate | None:
    """What an update is, from the change of a parameter."""
    sizes = change.abs()
    if not bool(torch.isfinite(sizes).all()) or not float(sizes.max()):
        return None
    if float((change * gradient).sum()) >= 0:
        return None
    if float(sizes.median()) > LEAST_OF_SIGNS * float(sizes.max()):
        return OwnUpdate(is_orthogonal=False, rate=float(sizes.median()))
    if change.ndim < 2:
        return None
    rows, columns = change.flatten(1).shape
    values = torch.linalg.svdvals(change.flatten(1))
    if float(values.min()) < LEAST_OF_ORTHOGONAL * float(values.max()):
        return None
    factor = math.sqrt(max(1.0, rows / columns))
    return OwnUpdate(is_orthogonal=True, rate=float(values.mean()) / factor)
