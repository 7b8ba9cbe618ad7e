"""Programs of PyTorch modules with the numbers of one module, for comparison with what
this module computes.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import torch

import netsor as ns
from tests.internals import ParameterDraws as Draws
from tests.internals import _reader

from ..engine.differences import drawn


def given_numbers(draws, module):
    """The numbers of a module for the random objects of its program.

    `drawn` takes them instead of draws.
    """
    named = {name: p.detach().double().numpy() for name, p in module.named_parameters()}
    numbers = {}
    for name, drawn_matrices in draws._matrices.items():
        for part, drawn_matrix in drawn_matrices.items():
            matrix, entries = drawn_matrix.weight, part.entries(named[name])
            if not drawn_matrix.as_part:
                entries = entries.T
            scale = matrix.std / np.sqrt(matrix.in_width.factor)
            # a matrix that starts at 0 has any N(0, 1) variables
            numbers[matrix.source, 0] = entries / scale if scale else entries
    for name, drawn_columns in draws._columns.items():
        for span, columns in drawn_columns.items():
            part = named[name].ravel()[span.start : span.start + span.size]
            shape = (columns.length, -1) if columns.row_major else (-1, columns.length)
            part = part.reshape(shape)
            part = part.T if columns.row_major else part
            part = part[list(columns.index_of_row)]
            for vectors in columns.drawn:
                numbers[vectors] = part[: len(vectors)]
                part = part[len(vectors) :]
    for name, table in draws._embeddings.items():
        numbers[table.vectors] = named[name][table.known]
    for name, known in draws._rows.items():
        rows = known.of_storage(named[name])
        for vectors in known.drawn:
            numbers[vectors] = rows[: len(vectors)]
            rows = rows[len(vectors) :]
    for base, twin in draws.twins.items():
        name, rows = draws._rows_of_vectors[base]
        numbers[twin] = named[name][rows]
    return numbers


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
