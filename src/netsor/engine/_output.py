"""One coordinate of the outputs, given all that was drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..language._value import Scalar, Vector
from ._coordinates import padded, scattered, side_by_side
from ._exact import Exact

Array = Any


def result(run: Exact) -> tuple[Array, Array]:
    """For all outputs, side by side: mean and coefficients, so that a coordinate is mean + coefficients · N(0, I).

    Sources that were never drawn are the Gaussian part (Rao–Blackwell); scalars have none.
    """
    means, coefficients = [], []
    for output in run.plan.outputs:
        if isinstance(output, Scalar):
            drawn = np.asarray(run.scalars[output])
            means.append(drawn.reshape(drawn.shape[0], output.size))
            coefficients.append(np.zeros((1, output.size, 0)))
            continue
        assert isinstance(output, Vector)
        c = run.vectors[output]
        mean, gaussian = np.zeros((1, output.size)), np.zeros((1, output.size, 0))
        if c.sample is not None:
            sample = np.asarray(c.sample)[..., 0, :]  # of the first block
            mean = sample[..., 0].reshape(sample.shape[0], output.size)
            gaussian = sample[..., 1:].reshape(sample.shape[0], output.size, sample.shape[-1] - 1)
        if not math.isinf(run.plan.width_of(output)) and c.lead.shape[-1]:
            mean = mean + _first_coordinate(run, output, np.asarray(c.lead))
        means.append(mean)
        coefficients.append(gaussian)
    width = max(c.shape[-1] for c in coefficients)
    return side_by_side(means), side_by_side([padded(c, width) for c in coefficients])


def _first_coordinate(run: Exact, output: Vector, lead: Array) -> Array:
    """The first coordinate of vectors whose coordinates in a frame are known, by the orientation of the frame."""
    shape = (*output.shape, run.plan.blocks_of(output))
    parts = []
    for number, group in enumerate(run.plan.groups):
        if output in group.positions:
            stream = len(run.plan.origin) + number
            oriented = run.frames[group].orientation(stream)
            count = group.positions[output].shape[1]
            parts.append((group.positions[output], np.repeat(oriented[:, :, None], count, axis=2)))
    o = scattered(parts)
    o = o.reshape(o.shape[0], *shape, o.shape[-1])
    width = max(o.shape[-1], lead.shape[-1])
    first = np.sum(padded(lead, width)[..., 0, :] * padded(o, width)[..., 0, :], axis=-1)
    return np.reshape(first, (first.shape[0], output.size))
