"""Fresh samples of the initialisation of a module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

Module = Any


def drawn(module: Module | Callable[[], Module], samples: int, seed: int) -> tuple[Module, dict[str, list[Any]]]:
    """A module, and so many samples of each parameter, on the CPU."""
    found: dict[str, list[Any]] = {}
    made = module
    with torch.random.fork_rng(devices=[]):
        for k in range(samples):
            torch.manual_seed(seed + k)
            made = fresh(module)
            for name, p in made.named_parameters():
                if p.device.type == "meta":
                    raise ValueError(
                        f"{name} is on the meta device and has no numbers: pass a factory, or declare its law"
                    )
                found.setdefault(name, []).append(p.detach().to("cpu", torch.float32, copy=True))
    return made, found


def fresh(module: Module | Callable[[], Module]) -> Module:
    """A module with new parameters."""
    if not isinstance(module, torch.nn.Module):
        made = module()
        if not isinstance(made, torch.nn.Module):
            raise TypeError(f"module={module!r} must be a torch.nn.Module or a function that returns one")
        return made
    made = copy.deepcopy(module)
    again(made)
    return made


def again(module: Module) -> None:
    """Initialise every parameter anew, by `init_weights`, or by `reset_parameters` and `_init_weights` of the parts."""
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for part in module.modules():
        part.__dict__.pop("_is_hf_initialized", None)
        for p in part.parameters(recurse=False):
            p.__dict__.pop("_is_hf_initialized", None)
    with torch.no_grad():
        for part in module.modules():
            for method in ("reset_parameters", "_reset_parameters"):
                if callable(getattr(part, method, None)):
                    getattr(part, method)()
        if callable(getattr(module, "init_weights", None)):
            module.init_weights()
        elif callable(getattr(module, "_init_weights", None)):
            module.apply(module._init_weights)
    for name, p in module.named_parameters():
        if p.numel() > 1 and bool((p != p.reshape(-1)[0]).any()) and torch.equal(p, before[name]):
            raise ValueError(f"{name} was not initialised anew: pass a function that makes the module, not the module")
