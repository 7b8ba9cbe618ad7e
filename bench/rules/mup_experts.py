"""Maximal updates (µP) of experts with adamw, derived by netsor.

Measured at widths 64, 128, 256 with 8 initialisations each: under these exponents the
update of every parameter changes what it writes by order 1 (exponents of the width
within ±0.11 of 0).

Usage:

    model = experts(width)
    initialise(model, base_width=64)     # new models only
    scale_outputs(model, base_width=64)  # always
    optimiser = torch.optim.AdamW(param_groups(model, lr=…, base_width=64))
"""

import re
from typing import NamedTuple

import torch


class Rule(NamedTuple):
    """Exponents of width / base_width, and 0 of the depth."""

    std: tuple[float, float] = (0.0, 0.0)
    lr: tuple[float, float] = (0.0, 0.0)
    eps: tuple[float, float] = (0.0, 0.0)
    weight_decay: tuple[float, float] = (0.0, 0.0)


class Scale(NamedTuple):
    """A factor of the output of a submodule, or of a part of its last axis."""

    path: str
    power: tuple[float, float]
    start: float = 0.0
    stop: float = 1.0


OPTIMISER = 'adamw'
BASE_WIDTH = 64  # at which the rule was derived
RULES = {
    'embed_tokens.weight': Rule(eps=(-1, 0)),
    'layers.*.input_norm.weight': Rule(eps=(-1, 0)),
    'layers.*.mixer.q_proj.weight': Rule(std=(-0.5, 0), lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'layers.*.mixer.k_proj.weight': Rule(std=(-0.5, 0), lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'layers.*.mixer.v_proj.weight': Rule(std=(-0.5, 0), lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'layers.*.mixer.o_proj.weight': Rule(std=(-0.5, 0), lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'layers.*.mixer.q_norm.weight': Rule(eps=(-0.5, 0)),
    'layers.*.mixer.k_norm.weight': Rule(eps=(-0.5, 0)),
    'layers.*.post_norm.weight': Rule(eps=(-1, 0)),
    'layers.*.mlp.gate.weight': Rule(std=(-1, 0), lr=(-1, 0), eps=(-0.5, 0), weight_decay=(1, 0)),
    'layers.*.mlp.experts.*.gate_proj.weight': Rule(std=(-0.5, 0), lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'layers.*.mlp.experts.*.up_proj.weight': Rule(std=(-0.5, 0), lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'layers.*.mlp.experts.*.down_proj.weight': Rule(std=(-0.5, 0), lr=(-1, 0), eps=(-1, 0), weight_decay=(1, 0)),
    'norm.weight': Rule(eps=(-1, 0)),
    'lm_head.weight': Rule(std=(-1, 0), lr=(-1, 0), weight_decay=(1, 0)),
}
SCALES = (
)


def width_of(model):
    """The width of a model."""
    return model.get_parameter('embed_tokens.weight').shape[1]


def patterns_of(name):
    """A path, and the same with * for the number of a layer, and for all numbers."""
    number = r"(?<=\.)\d+(?=\.|$)"
    return name, re.sub(number, "*", name, count=1), re.sub(number, "*", name)


def factor(power, model, base_width):
    """A power of the width, relative to the base."""
    width, depth = power
    scale = (width_of(model) / base_width) ** width
    return scale


def rule_of(name):
    """The exponents of a parameter, by its name or its pattern."""
    for pattern in patterns_of(name):
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
    """Multiply outputs of submodules, by forward hooks. Call it for every model, also
    before a checkpoint is loaded.
    """
    for scale in SCALES:
        number = factor(scale.power, model, base_width)
        for path, submodule in model.named_modules():
            if scale.path in patterns_of(path):
                hook = _times(number, scale.start, scale.stop)
                submodule.register_forward_hook(hook)


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
