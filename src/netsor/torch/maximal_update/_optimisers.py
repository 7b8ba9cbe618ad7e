"""Optimisers whose learning rates are derived, with what their updates need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Groups = list[dict[str, Any]]
Make = Callable[[Groups], Any]
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
            beta_of_direction, beta_of_average = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                average = state["average"]
                direction = torch.lerp(p.grad, average, beta_of_direction).sign_()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(direction, alpha=group["lr"])
                average.lerp_(p.grad, 1 - beta_of_average)


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


class Matrices(torch.optim.Optimizer):  # type: ignore[misc]
    """Muon, or optimisers that keep the Frobenius norm of each matrix (AdamH, MuonH).

    The direction is that of Adam, or the orthogonal factor of Muon's momentum. With
    `is_sphere` a step moves by the learning rate times the norm of the matrix, in this
    direction, and scales the matrix back to its norm. Weight decay is decoupled: it
    comes before the step, along the matrix, so that to first order the fixed norm takes
    it back. `split` has the sizes of parts of a fused matrix, along its first axis:
    each part is its own matrix.
    """

    def __init__(self, params: Any, *, direction: str, is_sphere: bool):
        defaults = {"lr": 1.0, "split": None, "weight_decay": 0.0}
        super().__init__(params, defaults)
        self.direction = {"muon": _orthogonal, "adam": _of_adam}[direction]
        self.is_sphere = is_sphere

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    sizes = group["split"] or [len(p)]
                    self._move(p, group["lr"], sizes, group["weight_decay"])

    def _move(self, p: Any, lr: float, sizes: Sequence[int], decay: float) -> None:
        """Move the parts of a parameter, which have these numbers of rows."""
        state = self.state[p]
        state["step"] = state.get("step", 0) + 1
        parts = zip(p.split(sizes), p.grad.split(sizes), strict=True)
        for k, (part, gradient) in enumerate(parts):
            state_of_part = state.setdefault(k, {"norm": part.norm()})
            direction = self.direction(gradient, state_of_part, state["step"])
            part.mul_(1 - lr * decay)
            if not self.is_sphere:
                part.sub_(direction, alpha=lr)
                continue
            norm = state_of_part["norm"]
            size = norm / (direction.norm() + TINY_EPS)
            part.sub_(direction * size, alpha=lr)
            part.mul_(norm / (part.norm() + TINY_EPS))


def _of_adam(gradient: Any, state: dict[str, Any], step: int) -> Any:
    """Adam's direction, with its usual betas 0.9 and 0.999."""
    mean = state.setdefault("mean", torch.zeros_like(gradient))
    mean_square = state.setdefault("mean_square", torch.zeros_like(gradient))
    mean.lerp_(gradient, 1 - 0.9)
    mean_square.lerp_(gradient.square(), 1 - 0.999)
    unbiased_mean = mean / (1 - 0.9**step)
    unbiased_mean_square = mean_square / (1 - 0.999**step)
    return unbiased_mean / (unbiased_mean_square.sqrt() + TINY_EPS)


def _orthogonal(gradient: Any, state: dict[str, Any], step: int) -> Any:
    """The orthogonal factor of Nesterov's momentum, times √(rows/columns) if tall.

    It is U Vᵀ of the singular value decomposition U S Vᵀ.
    """
    momentum = state.setdefault("momentum", torch.zeros_like(gradient))
    momentum.lerp_(gradient, 1 - 0.95)
    nesterov = gradient.lerp(momentum, 0.95)
    u, _, v_transposed = torch.linalg.svd(nesterov, full_matrices=False)
    rows, columns = gradient.shape
    return u @ v_transposed * math.sqrt(max(1.0, rows / columns))


class WithAdamW:
    """An optimiser of matrices, and AdamW for the other parameters."""

    def __init__(self, matrices: Any, others: Any) -> None:
        self.parts = [x for x in (matrices, others) if x is not None]

    @property
    def param_groups(self) -> Groups:
        """The groups of both."""
        return [group for part in self.parts for group in part.param_groups]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """One step of both."""
        for part in self.parts:
            part.step()


def _mixed(of_matrices: Make, of_others: Make) -> Make:
    """What makes an optimiser for matrices and one for the other parameters.

    Groups say with "is_matrix" which of them have them.
    """

    def make(groups: Groups) -> WithAdamW:
        """Both optimisers."""
        matrices = [group for group in groups if group.get("is_matrix")]
        others = [group for group in groups if not group.get("is_matrix")]
        return WithAdamW(
            of_matrices(matrices) if matrices else None,
            of_others(others) if others else None,
        )

    return make


@dataclass(frozen=True)
class Family:
    """An optimiser, by what a derived rule has to know about it."""

    name: str
    words: str  # in reports
    make: Make  # for measurements: without decay, with a tiny eps
    make_real: Make  # as people train
    has_eps: bool = False
    # Whether matrices have an optimiser of their own: parameters both of whose axes
    # grow with the width.
    is_mixed: bool = False
    # Whether matrices keep their norm. Weight decay is along a matrix, so that the norm
    # takes it back: to first order it changes nothing.
    is_sphere: bool = False
    is_orthogonal: bool = False  # whether updates of matrices are, as in Muon
    decays_gradient: bool = False  # whether Adam divides weight decay, too


def _tiny_adamw(groups: Groups) -> Any:
    return torch.optim.AdamW(groups, lr=1.0, eps=TINY_EPS, weight_decay=0.0)


def _adamw(groups: Groups) -> Any:
    return torch.optim.AdamW(groups, lr=1.0, weight_decay=0.0)


def _adam(groups: Groups) -> Any:
    return torch.optim.Adam(groups, lr=1.0)


def _sgd(groups: Groups) -> Any:
    return torch.optim.SGD(groups, lr=1.0)


def _muon(groups: Groups) -> Any:
    return Matrices(groups, direction="muon", is_sphere=False)


def _muonh(groups: Groups) -> Any:
    return Matrices(groups, direction="muon", is_sphere=True)


def _adamh(groups: Groups) -> Any:
    return Matrices(groups, direction="adam", is_sphere=True)


def _torch_muon(groups: Groups) -> Any:
    """PyTorch's Muon; without it, or for parts of matrices, the one here."""
    has_parts = any(group.get("split") for group in groups)
    if has_parts or not hasattr(torch.optim, "Muon"):
        return _muon(groups)
    return torch.optim.Muon(groups, lr=1.0, weight_decay=0.0)


FAMILIES: Mapping[str, Family] = {
    "adamw": Family("adamw", "AdamW", _tiny_adamw, _adamw, has_eps=True),
    "adam": Family(
        "adam", "Adam", _tiny_adamw, _adam, has_eps=True, decays_gradient=True
    ),
    "sgd": Family("sgd", "SGD", _sgd, _sgd),
    "lion": Family("lion", "Lion", Lion, Lion),
    "sign": Family("sign", "sign descent", SignDescent, SignDescent),
    "muon": Family(
        "muon",
        "Muon and AdamW",
        _mixed(_muon, _tiny_adamw),
        _mixed(_torch_muon, _adamw),
        has_eps=True,
        is_mixed=True,
        is_orthogonal=True,
    ),
    "adamh": Family(
        "adamh",
        "AdamH and AdamW",
        _mixed(_adamh, _tiny_adamw),
        _mixed(_adamh, _adamw),
        has_eps=True,
        is_mixed=True,
        is_sphere=True,
    ),
    "muonh": Family(
        "muonh",
        "MuonH and AdamW",
        _mixed(_muonh, _tiny_adamw),
        _mixed(_muonh, _adamw),
        has_eps=True,
        is_mixed=True,
        is_sphere=True,
        is_orthogonal=True,
    ),
}
