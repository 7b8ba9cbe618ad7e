"""Programs of PyTorch modules with the numbers of one module, for comparison with what
this module computes.
"""

from __future__ import annotations

from unittest import mock

import torch

import netsor as ns
from tests.internals import ParameterDraws as Draws
from tests.internals import _reader

from ..engine.differences import drawn
from .given_numbers import numbers_for


def given_numbers(draws, module):
    """The numbers of a module for the random objects of its program.

    `drawn` takes them instead of draws.
    """
    named = {
        name: p.detach().double().numpy()
        for name, p in (*module.named_parameters(), *module.named_buffers())
    }
    return numbers_for(draws, named)


@torch.no_grad()
def outputs(build, args, seed=5):
    """Pairs of outputs: of a module in double precision, and of its program.

    Both are arrays, computed with the same numbers. Coordinates are along the last axis
    of both.
    """
    created = []

    def record(*arguments, **options):
        created.append(Draws(*arguments, **options))
        return created[-1]

    with mock.patch.object(_reader, "Draws", record):
        net = ns.torch.program(build, args)
    torch.manual_seed(seed)
    module = build().eval()
    try:
        module.double()
        real = module(*(x.double() if x.is_floating_point() else x for x in args))
    except RuntimeError:  # it makes tensors of single precision itself
        real = module.float()(*args)
    literal = drawn(list(net.outputs), {}, given_numbers(created[0], module))
    real = real if isinstance(real, tuple) else (real,)
    return [
        (x.numpy(), literal.drawn[value][0])
        for x, value in zip(real, net.outputs, strict=True)
    ]
