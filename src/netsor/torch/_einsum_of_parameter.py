"""`einsum` with a parameter whose axes torch cannot flatten without a copy.

Torch writes an `einsum` as one product of matrices, for which it flattens axes. In
"btd,edh->bteh" the hidden axes of all experts become the columns of one matrix, and no
strides describe it as a view of the parameter (e, d, h). The same numbers are products
with the matrix of each expert.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from ..reader._axes import Refusal
from ..reader._einsum import Equation
from ..reader._graph import Node, shape_of
from ..reader._operations import viewed


def split_of_parameter(node: Node) -> Callable[..., Any] | None:
    """The function that computes an `einsum` with the entries of a parameter along one
    axis, one after the other; None if torch's own way is a product with a matrix.
    """
    text, operands = node.args[:2]
    try:
        equation = Equation.read(text)
    except Refusal:
        return None
    parameters = [k for k, x in enumerate(operands) if viewed(x).op == "placeholder"]
    if len(parameters) != 1 or not equation.summed:
        return None
    (position,) = parameters
    letter = _letter_to_split(equation, position, operands[position])
    if letter is None:
        return None
    return partial(_split, equation=equation, position=position, letter=letter)


def _letter_to_split(equation: Equation, position: int, w: Node) -> str | None:
    """The first of several axes of a parameter that only the result has, if they do not
    lie next to each other in memory; `position` is that of the parameter.
    """
    letters = equation.x
    other_letters = equation.y
    if position == 1:
        letters, other_letters = other_letters, letters
    free = [a for a in equation.result if a in letters and a not in other_letters]
    sizes = dict(zip(letters, shape_of(w), strict=True))
    strides = dict(zip(letters, w.meta["val"].stride(), strict=True))
    for axis, next_axis in pairwise(free):
        if strides[axis] != strides[next_axis] * sizes[next_axis]:
            return free[0]
    return None


def _split(
    text: str,
    operands: Any,
    equation: Equation,
    position: int,
    letter: str,
    **options: Any,
) -> Any:
    """The sums with each entry of the parameter along an axis, stacked.

    `position` is that of the parameter, and `letter` names the axis.
    """
    letters = equation.y if position == 1 else equation.x
    terms = f"{equation.x},{equation.y}->{equation.result}"
    without_axis = terms.replace(letter, "")
    sums = []
    for entry in operands[position].unbind(letters.index(letter)):
        operands_of_entry = [*operands]
        operands_of_entry[position] = entry
        sums.append(torch.einsum(without_axis, operands_of_entry))
    return torch.stack(sums, equation.result.index(letter))
