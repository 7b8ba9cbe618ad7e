"""What steps in a training loop: optimisers and their schedules.

A user's function returns one optimiser, or several, such as Muon for matrices and AdamW
for the rest, and perhaps schedules, in the forms that Lightning allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._validate import ArgumentError, shown

ALLOWED = (
    "a function of the module that returns a torch.optim.Optimizer, a list of them, or"
    " optimisers and their schedules"
)


@dataclass(frozen=True)
class Setup:
    """Optimisers that step together, and their schedules.

    Attributes
    ----------
    optimisers : tuple of torch.optim.Optimizer
        They step in this order.
    schedules : tuple
        They step after the optimisers; empty if learning rates are constant.
    """

    optimisers: tuple[Any, ...]
    schedules: tuple[Any, ...] = ()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimisers, in order."""
        return [
            group for optimiser in self.optimisers for group in optimiser.param_groups
        ]

    def step(self) -> None:
        """Update the parameters."""
        for optimiser in self.optimisers:
            optimiser.step()

    def zero_grad(self) -> None:
        """Forget the gradients of the parameters that the optimisers hold."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)

    def step_schedules(self) -> None:
        """Change the learning rates."""
        for schedule in self.schedules:
            schedule.step()

    def set_rates(self, rates: list[Any]) -> None:
        """Set the learning rates of all groups."""
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


def setup_of(make: Callable[[Any], Any], module: Any) -> Setup:
    """What the user's function returns, in the forms of PyTorch and Lightning."""
    result = make(module)
    if isinstance(result, Setup):
        return result
    optimisers = []
    schedules = []
    for x in _parts(result):
        if isinstance(x, torch.optim.Optimizer):
            optimisers.append(x)
        else:
            schedules.append(x)
    has_closure = any(isinstance(x, torch.optim.LBFGS) for x in optimisers)
    can_step = all(callable(getattr(x, "step", None)) for x in schedules)
    if not optimisers or has_closure or not can_step:
        raise ArgumentError("optimiser", make, f"{ALLOWED}, not {shown(result)}")
    return Setup(tuple(optimisers), tuple(schedules))


def _parts(result: Any) -> Iterator[Any]:
    """Optimisers and schedules in nested lists and in the mappings of Lightning."""
    if isinstance(result, Mapping):
        for name in ("optimizer", "lr_scheduler", "scheduler"):
            yield from _parts(result.get(name))
    elif isinstance(result, list | tuple):
        for entry in result:
            yield from _parts(entry)
    elif result is not None:
        yield result


def groups_of(param_groups: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The parameters of each group by its name or number; empty if there is one."""
    if len(param_groups) < 2:
        return {}
    groups: dict[str, list[Any]] = {}
    for k, group in enumerate(param_groups):
        name = str(group.get("name", k))
        if name in groups:  # of another optimiser
            name = str(k)
        groups[name] = list(group["params"])
    return groups


def held_groups(setup: Setup) -> dict[str, list[Any]]:
    """The same of the groups that have parameters."""
    return groups_of([group for group in setup.param_groups if group["params"]])
