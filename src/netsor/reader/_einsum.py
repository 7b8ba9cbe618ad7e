"""`einsum` of two tensors as one product along one axis.

Torch's own decomposition flattens several axes into one, which would mix coordinates
with indices. Here only the axes of one matrix product are moved together. All others
are axes of a batch, along which the two operands broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _arithmetic as arithmetic
from ._arithmetic import Call, Tensor, numbers
from ._axes import Vectors, refuse_if
from ._layout import Permute, Rearrangement, Reshape


class Equation(NamedTuple):
    """An equation of `einsum` for two operands: one letter for each axis."""

    first: str
    second: str
    result: str

    @classmethod
    def read(cls, text: str) -> Equation:
        """The equation, as in "bik,bkj->bij"."""
        operands, _, result = text.replace(" ", "").partition("->")
        letters = operands.split(",")
        is_plain = len(letters) == 2 and "->" in text and "." not in text
        repeats = any(len(set(axes)) < len(axes) for axes in (*letters, result))
        refuse_if(not is_plain or repeats, f"einsum {text!r}: write it as products")
        return cls(letters[0], letters[1], result)

    @property
    def summed(self) -> list[str]:
        """The letters of both operands that the result has not."""
        both = [letter for letter in self.first if letter in self.second]
        return [letter for letter in both if letter not in self.result]

    @property
    def is_product_of_matrices(self) -> bool:
        """Whether each operand has at most one axis that the other has not."""
        own = set(self.first) ^ set(self.second)
        counts = [len(own & set(axes)) for axes in (self.first, self.second)]
        return max(counts) <= 1


def einsum(call: Call, text: str, operands: Sequence[Tensor]) -> Tensor:
    """The sum of products of two tensors that an equation describes."""
    equation = Equation.read(text)
    x, y = (call.settled(operand) for operand in operands)
    missing = (set(equation.first) ^ set(equation.second)) - set(equation.result)
    refuse_if(
        missing, f"einsum {text!r} sums over an axis of one operand: sum it first"
    )
    if len(equation.summed) == 1:
        return _matrix_product(call, equation, x, y)
    order = equation.result + "".join(equation.summed)
    x = _in_order(x, equation.first, order)
    y = _in_order(y, equation.second, order)
    product = arithmetic.multiply(call, x, y)
    if not equation.summed:
        return product
    axes = list(range(len(equation.result), len(order)))
    return arithmetic.total(call, product, axes)


def _matrix_product(call: Call, equation: Equation, x: Tensor, y: Tensor) -> Tensor:
    """The sum over one letter."""
    (summed,) = equation.summed
    row = _letter_of_matrix(x, equation.first, equation.second)
    column = _letter_of_matrix(y, equation.second, equation.first)
    batch = [letter for letter in equation.result if letter not in (row, column)]
    # " " stands for an axis of one entry
    x = _in_order(x, equation.first, [*batch, row, summed])
    y = _in_order(y, equation.second, [*batch, summed, column])
    sizes = [*call.shape]
    size_of = dict(zip(equation.result, sizes, strict=True))
    axes = [*batch, row, column]
    whole = call._replace(shapes=[tuple(size_of.get(letter, 1) for letter in axes)])
    product = arithmetic.matmul(whole, x, y)
    kept = [letter for letter in axes if letter != " "]
    product = _viewed(product, Reshape(tuple(size_of[letter] for letter in kept)))
    order = tuple(kept.index(letter) for letter in equation.result)
    return _viewed(product, Permute(order))


def _letter_of_matrix(x: Tensor, letters: str, others: str) -> str:
    """The axis of an operand that is one of the matrix product: that of coordinates.

    " " if the operand has no axis that the other has not.
    """
    free = [letter for letter in letters if letter not in others]
    if isinstance(x, Vectors) and letters[x.axis] in free:
        return letters[x.axis]
    return free[0] if free else " "


def _in_order(x: Tensor, letters: str, order: Sequence[str]) -> Tensor:
    """A tensor with its axes in the order of some letters; others have one entry."""
    axes = tuple(letters.index(letter) for letter in order if letter in letters)
    x = _viewed(x, Permute(axes))
    sizes = iter(x.shape)
    shape = tuple(next(sizes) if letter in letters else 1 for letter in order)
    return _viewed(x, Reshape(shape))


def _viewed(x: Any, rearrangement: Rearrangement) -> Any:
    """A tensor, random or given, rearranged."""
    if arithmetic.is_random(x):
        return x.viewed(rearrangement)
    return rearrangement.of_array(numbers(x))
