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

# stands for an axis of one entry, among the letters of axes
ONE_ENTRY = " "


class Equation(NamedTuple):
    """An equation of `einsum` for two operands: one letter for each axis.

    For example, "bik,bkj->bij" has the letters `x` = "bik", `y` = "bkj" and
    `result` = "bij".
    """

    x: str
    y: str
    result: str

    @classmethod
    def read(cls, text: str) -> Equation:
        """The equation, as in "bik,bkj->bij"."""
        operands, _, result = text.replace(" ", "").partition("->")
        letters = operands.split(",")
        is_plain = len(letters) == 2 and "->" in text and "." not in text
        has_repeats = False  # as in "ii->i"
        for axes in (*letters, result):
            if len(set(axes)) < len(axes):
                has_repeats = True
        refuse_if(
            not is_plain or has_repeats,
            f"einsum {text!r}: write it as products",
        )
        return cls(x=letters[0], y=letters[1], result=result)

    @property
    def summed(self) -> list[str]:
        """The letters of both operands that the result does not have."""
        common = [letter for letter in self.x if letter in self.y]
        return [letter for letter in common if letter not in self.result]

    @property
    def is_product_of_matrices(self) -> bool:
        """Whether each operand has at most one axis that the other does not have."""
        only_x = set(self.x) - set(self.y)
        only_y = set(self.y) - set(self.x)
        return len(only_x) <= 1 and len(only_y) <= 1


def einsum(call: Call, text: str, operands: Sequence[Tensor]) -> Tensor:
    """The sum of products of two tensors that an equation describes."""
    equation = Equation.read(text)
    first, second = operands
    x = call.settled(first)
    y = call.settled(second)
    letters_of_one_operand = set(equation.x) ^ set(equation.y)
    refuse_if(
        letters_of_one_operand - set(equation.result),
        f"einsum {text!r} sums over an axis of one operand: sum it first",
    )
    if len(equation.summed) == 1:
        return _matrix_product(call, equation, x, y)

    # the product entry by entry, summed over the last axes
    order = [*equation.result, *equation.summed]
    x = _in_order(x, equation.x, order)
    y = _in_order(y, equation.y, order)
    product = arithmetic.multiply(call, x, y)
    if not equation.summed:
        return product
    summed_axes = list(range(len(equation.result), len(order)))
    return arithmetic.total(call, product, summed_axes)


def _matrix_product(call: Call, equation: Equation, x: Tensor, y: Tensor) -> Tensor:
    """The sum of products over one letter, as a product of matrices."""
    # x has the axes (batch, row, summed) and y has (batch, summed, column)
    (summed,) = equation.summed
    row = _letter_of_matrix(x, letters=equation.x, other_letters=equation.y)
    column = _letter_of_matrix(y, letters=equation.y, other_letters=equation.x)
    batch = [letter for letter in equation.result if letter not in (row, column)]
    x = _in_order(x, equation.x, [*batch, row, summed])
    y = _in_order(y, equation.y, [*batch, summed, column])

    size_of = dict(zip(equation.result, call.shape, strict=True))
    letters = [*batch, row, column]
    shape = [size_of.get(letter, 1) for letter in letters]
    product = arithmetic.matmul(call.returning(shape), x, y)

    # drop the axes of one entry, and take those of the result in its order
    letters = [letter for letter in letters if letter != ONE_ENTRY]
    product = _viewed(product, Reshape(tuple(size_of[letter] for letter in letters)))
    order = tuple(letters.index(letter) for letter in equation.result)
    return _viewed(product, Permute(order))


def _letter_of_matrix(x: Tensor, letters: str, other_letters: str) -> str:
    """The letter of an operand that is the row or the column of the matrix product.

    It is a letter that the other operand does not have: that of the coordinates of
    vectors if possible. An operand without such a letter gets an axis of one entry.
    """
    free = [letter for letter in letters if letter not in other_letters]
    if isinstance(x, Vectors):
        coordinates = letters[x.axis]
        if coordinates in free:
            return coordinates
    return free[0] if free else ONE_ENTRY


def _in_order(x: Tensor, letters: str, order: Sequence[str]) -> Tensor:
    """A tensor with the axes of `letters`, as one with the axes of `order`.

    Letters of `order` that the tensor does not have become axes of one entry.
    """
    common = [letter for letter in order if letter in letters]
    axes = tuple(letters.index(letter) for letter in common)
    x = _viewed(x, Permute(axes))
    sizes = dict(zip(common, x.shape, strict=True))
    shape = tuple(sizes.get(letter, 1) for letter in order)
    return _viewed(x, Reshape(shape))


def _viewed(x: Any, rearrangement: Rearrangement) -> Any:
    """A tensor, random or fixed, rearranged."""
    if arithmetic.is_random(x):
        return x.viewed(rearrangement)
    return rearrangement.of_array(numbers(x))
