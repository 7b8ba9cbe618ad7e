"""Optimisers whose learning rates are derived, with what their updates need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Groups = list[dict[str, Any]]
TINY_EPS = 1e-12  # of a measurement: below all gradients, above their rounding errors


class Lion(torch.optim.Optimizer):  # type: ignore[misc]  # torch has no types here
    """Lion (Chen et al. 2023), with decoupled weight decay."""

    def __init__(self, params: Any, lr: float = 1e-4, weight_decay: float = 0.0):
        defaults = {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """One step: the sign of a mean of the gradient and its moving average."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                mean = state["mean"]
                direction = torch.lerp(p.grad, mean, first).sign_()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(direction, alpha=group["lr"])
                mean.lerp_(p.grad, 1 - second)


class SignDescent(torch.optim.Optimizer):  # type: ignore[misc]
    """The sign of the gradient, times the learning rate."""

    def __init__(self, params: Any, lr: float = 1e-4, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(p.grad.sign(), alpha=group["lr"])


@dataclass(frozen=True)
class Family:
    """An optimiser, by what a derived rule has to know about it."""

    name: str
    words: str  # in reports
    make: Callable[[Groups], Any]  # for measurements: without decay, with a tiny eps
    make_real: Callable[[Groups], Any]  # as people train
    has_eps: bool = False


def _tiny_adamw(groups: Groups) -> Any:
    return torch.optim.AdamW(groups, lr=1.0, eps=TINY_EPS, weight_decay=0.0)


def _adamw(groups: Groups) -> Any:
    return torch.optim.AdamW(groups, lr=1.0, weight_decay=0.0)


def _adam(groups: Groups) -> Any:
    return torch.optim.Adam(groups, lr=1.0)


FAMILIES: Mapping[str, Family] = {
    "adamw": Family("adamw", "AdamW", _tiny_adamw, _adamw, has_eps=True),
    "adam": Family("adam", "Adam", _tiny_adamw, _adam, has_eps=True),
    "lion": Family("lion", "Lion", Lion, Lion),
    "sign": Family("sign", "sign descent", SignDescent, SignDescent),
}
