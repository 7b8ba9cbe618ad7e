"""Maximal updates (µP) of vit with adamw, derived by netsor.

Measured at widths 64, 128, 256 with 8 initialisations each: under these exponents the
update of every parameter changes what it writes by order 1 (exponents of the width
within ±0.10 of 0).

Usage:

    model = vit(width)
    initialise(model, base_width=64)     # new models only
    scale_outputs(model, base_width=64)  # always
    optimiser = torch.optim.AdamW(param_groups(model, lr=…, base_width=64))
"""

import re
from typing import NamedTuple

import torch
from torch.nn.utils import parametrize


class Rule(NamedTuple):
    """Exponents of width / base_width, and 0 of the depth."""

    std: tuple[float, float] = (0.0, 0.0)
    lr: tuple[float, float] = (0.0, 0.0)
    eps: tuple[float, float] = (0.0, 0.0)
    weight_decay: tuple[float, float] = (0.0, 0.0)


class Scale(NamedTuple):
    """A factor of the output of a submodule, or of rows of a parameter."""

    path: str
    power: tuple[float, float]
    start: float = 0.0
    stop: float = 1.0


class Rows(torch.nn.Module):
    """Multiplies rows of a parameter, from `start` to `stop` as shares of them."""

    def __init__(self, number, start, stop):
        super().__init__()
        self.number, self.start, self.stop = number, start, stop

    def forward(self, p):
        numbers = torch.ones(len(p), dtype=p.dtype, device=p.device)
        rows = slice(round(self.start * len(p)), round(self.stop * len(p)))
        numbers[rows] = self.number
        return p * numbers.reshape(-1, *[1] * (p.ndim - 1))


OPTIMISER = 'adamw'
BASE_WIDTH = 64  # at which the rule was derived
RULES = {
    'token': Rule(eps=(-1.5, 0)),
    'positions': Rule(eps=(-1.5, 0)),
    'patches.weight': Rule(eps=(-1, 0)),
    'patches.bias': Rule(eps=(-1, 0)),
    'blocks.*.self_attn.in_proj_weight': Rule(lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'blocks.*.self_attn.in_proj_bias': Rule(eps=(-1, 0)),
    'blocks.*.self_attn.out_proj.weight': Rule(lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'blocks.*.self_attn.out_proj.bias': Rule(eps=(-1, 0)),
    'blocks.*.linear1.weight': Rule(lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'blocks.*.linear1.bias': Rule(eps=(-1, 0)),
    'blocks.*.linear2.weight': Rule(lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'blocks.*.linear2.bias': Rule(eps=(-1, 0)),
    'blocks.*.norm1.weight': Rule(eps=(-1, 0)),
    'blocks.*.norm1.bias': Rule(eps=(-1, 0)),
    'blocks.*.norm2.weight': Rule(eps=(-1, 0)),
    'blocks.*.norm2.bias': Rule(eps=(-1, 0)),
    'norm.weight': Rule(eps=(-1, 0)),
    'norm.bias': Rule(eps=(-1, 0)),
    'head.weight': Rule(std=(-0.5, 0), lr=(-1, 0), weight_decay=(1, 0)),
    'head.bias': Rule(),
}
SCALES = (
    Scale('blocks.*.self_attn.in_proj_bias', (-0.5, 0), 0.0, 0.3333333333333333),  # scores
    Scale('blocks.*.self_attn.in_proj_weight', (-0.5, 0), 0.0, 0.3333333333333333),  # scores
)


def width_of(model):
    """The width of a model."""
    return model.get_parameter('token').shape[2]


def patterns_of(name):
    """A path, and the same with * for the number of a layer, and for all numbers."""
    number = r"(?<=\.)\d+(?=\.|$)"
    return name, re.sub(number, "*", name, count=1), re.sub(number, "*", name)


def original_name(name):
    """The name of a parameter that Rows multiplies, and of every other one."""
    if "parametrizations." in name:
        name = name.replace("parametrizations.", "").removesuffix(".original")
    return name


def factor(power, model, base_width):
    """A power of the width, relative to the base."""
    width, depth = power
    scale = (width_of(model) / base_width) ** width
    return scale


def rule_of(name):
    """The exponents of a parameter, by its name or its pattern."""
    for pattern in patterns_of(original_name(name)):
        if pattern in RULES:
            return RULES[pattern]
    raise KeyError(f"no rule for the parameter {name}: derive the rules again")


def initialise(model, base_width):
    """Rescale the initial numbers of a new model, in place. Call it once, directly
    after the model is constructed, and not after loading a checkpoint.
    """
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(factor(rule_of(name).std, model, base_width))


def scale_outputs(model, base_width):
    """Multiply outputs of submodules and rows of parameters. Call it for every model, also
    before a checkpoint is loaded.
    """
    for scale in SCALES:
        number = factor(scale.power, model, base_width)
        for path, submodule in model.named_modules():
            if scale.path in patterns_of(path):
                hook = _times(number, scale.start, scale.stop)
                submodule.register_forward_hook(hook)
        for name, _ in list(model.named_parameters()):
            if scale.path in patterns_of(name):
                path, _, last = name.rpartition(".")
                rows = Rows(number, scale.start, scale.stop)
                owner = model.get_submodule(path)
                parametrize.register_parametrization(owner, last, rows)


def _times(number, start, stop):
    """A hook that multiplies entries of the last axis of an output."""

    def hook(module, args, output):
        first = output[0] if isinstance(output, tuple) else output
        if (start, stop) == (0.0, 1.0):
            scaled = first * number
        else:
            count = first.shape[-1]
            numbers = torch.ones(count, dtype=first.dtype, device=first.device)
            numbers[round(start * count) : round(stop * count)] = number
            scaled = first * numbers
        return (scaled, *output[1:]) if isinstance(output, tuple) else scaled

    return hook


def param_groups(
    model,
    lr,
    base_width,
    weight_decay=0.0,
    eps=1e-8,
):
    """The parameter groups of the optimiser; all numbers are those at base_width.
    Weight decay is for parameters with two axes or more.
    """
    groups = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        rule, decay = rule_of(name), weight_decay if p.ndim >= 2 else 0.0
        group = groups.setdefault((rule, decay), {"params": []})
        group["params"].append(p)
        group["lr"] = lr * factor(rule.lr, model, base_width)
        group["eps"] = eps * factor(rule.eps, model, base_width)
        decay *= factor(rule.weight_decay, model, base_width)
        group["weight_decay"] = decay
    return list(groups.values())
