"""The memory of a device that a plan takes: more than its arrays.

The estimates count the arrays that are alive at each step, and add what functions,
eigenvalues and the libraries take. These additions were fitted to the peaks of plans of
128 to 8,192 tokens, with PyTorch in single precision on one H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ...functions.activations import Function
from ...language.theorem._check_function import needs_spectrum
from ._instructions import Group
from ._ir import Register, Step
from ._plan import Plan

# Of a function of the program: the arrays of the size of its largest argument or result
# that it holds while it is computed, beside these.
ARRAYS_IN_FUNCTION = 2
# Eigenvalues are found in double precision, while later steps are computed: a copy of
# the matrix and the workspace of the library, in numbers of double precision.
NUMBERS_FOR_SPECTRUM = 3
DOUBLE_BYTES = 8
# of a CUDA context and the libraries
CONTEXT_BYTES = 2.0**29


class DeviceMemory(NamedTuple):
    """The bytes that a plan takes on a device."""

    replica: float  # for each replica
    shared: float  # for all together: constants, indices, and libraries


@lru_cache(maxsize=8)
def device_memory(plan: Plan, itemsize: int) -> DeviceMemory:
    """About the memory of a plan on a device, with so many bytes per number."""
    stored = 0  # the numbers of a replica that a later step reads
    peak = 0
    spectrum = 0  # entries of the largest matrices whose eigenvalues are computed
    constants: dict[Register, int] = {}
    index_bytes: dict[int, int] = {}  # by the id of an array, which steps may share
    for step, live in zip(plan.steps, plan.live, strict=True):
        constants |= {arg: arg.size for arg in step.args if arg.value is not None}
        for array in _arrays(step.params):
            index_bytes[id(array)] = array.size * DOUBLE_BYTES
        stored += step.out.size
        peak = max(peak, stored + _inside(step))
        stored -= sum(register.size for register in live.dead)
        if step.kind == "apply" and needs_spectrum(step.params["f"]):
            spectrum = max(spectrum, *(arg.size for arg in step.args))
    spectrum_bytes = NUMBERS_FOR_SPECTRUM * DOUBLE_BYTES * spectrum
    constant_bytes = itemsize * sum(constants.values())
    return DeviceMemory(
        replica=float(itemsize * peak + spectrum_bytes),
        shared=constant_bytes + sum(index_bytes.values()) + CONTEXT_BYTES,
    )


def _inside(step: Step) -> int:
    """The numbers that a step holds while it is computed, beside its arguments and its
    result.
    """
    if step.instruction.group is not Group.FUNCTION:
        return step.temporary_numbers
    sizes = [arg.size for arg in step.args if arg.value is None]
    return ARRAYS_IN_FUNCTION * max([step.out.size, *sizes])


def _arrays(parameter: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The arrays in a parameter of a step: positions, and those that functions hold."""
    match parameter:
        case np.ndarray():
            yield parameter
        case dict():
            for entry in parameter.values():
                yield from _arrays(entry)
        case Function():
            yield from _arrays(parameter.f)
        case partial():
            yield from _arrays(parameter.keywords)
