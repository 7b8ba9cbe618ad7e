"""Scrambled Sobol points, those of `scipy.stats.qmc.Sobol`.

`scipy.stats` is not used for them: to import it takes longer than a first law, also in
a browser. The direction numbers are read from SciPy's file.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy

BITS = 30  # binary digits of a coordinate
MAX_DIMENSION = 21_201
# by Joe and Kuo
NUMBERS = Path(scipy.__file__).parent / "stats" / "_sobol_direction_numbers.npz"
Integers = npt.NDArray[np.uint32]


class Sobol:
    """Points in [0, 1)^dimension, whose scrambling (linear, with a digital shift) is
    drawn from `rng`.
    """

    def __init__(self, dimension: int, rng: np.random.Generator) -> None:
        """Draw the scrambling: a matrix of digits and a shift for each coordinate."""
        # Coordinates are integers of BITS binary digits, until `random` divides them.
        (rng,) = rng.spawn(1)  # as scipy does
        exponents = np.arange(BITS, dtype=np.uint32)
        powers = 2**exponents

        shift_digits = rng.integers(2, size=(dimension, BITS), dtype=np.uint32)
        self._shift: Integers = shift_digits @ powers  # (dimension,)

        # the digits of each coordinate are mixed by a random matrix mod 2; a lower
        # triangle keeps the leading digits, on which the balance of the set depends
        random_digits = rng.integers(2, size=(dimension, BITS, BITS), dtype=np.uint32)
        mixing = np.tril(random_digits, -1) + np.eye(BITS)

        # (dimension, BITS, digits), the leading digit first
        direction_numbers = _directions(dimension)
        digits = direction_numbers[..., None] >> exponents[::-1] & 1
        products = digits @ np.swapaxes(mixing, 1, 2)
        mixed_digits = products.astype(np.uint32) % 2
        self._vectors = (mixed_digits @ powers[::-1]).T  # (BITS, dimension)
        self._count = 0  # number of points so far

    def random(self, count: int) -> npt.NDArray[np.float64]:
        """The next points (count, dimension). Earlier ones must be a multiple of the
        power of 2 that holds `count`.
        """
        start = self._count
        levels = int(count - 1).bit_length()
        assert start % 2**levels == 0
        self._count += count

        # point i is the sum mod 2 of the vectors at the digits of the Gray code of i;
        # the code is linear, and reflected
        gray_code = start ^ (start >> 1)
        digits_of_one = [j for j in range(BITS) if gray_code >> j & 1]
        vectors = self._vectors[digits_of_one]
        unshifted = np.bitwise_xor.reduce(vectors, axis=0, initial=0)
        points = unshifted.astype(np.uint32)[None] ^ self._shift  # the first point

        # each level reflects the points so far, with one more digit
        for j in range(levels):
            reflected = points[::-1] ^ self._vectors[j]
            points = np.concatenate([points, reflected])
        return np.asarray(points[:count] * 2.0**-BITS)


@lru_cache
def _directions(dimension: int) -> Integers:
    """Direction numbers (dimension, BITS), by the recurrence of each dimension's
    primitive polynomial mod 2.
    """
    with np.load(NUMBERS) as table:
        polynomials = table["poly"][:dimension].astype(np.int64)
        initial_numbers = table["vinit"][:dimension].astype(np.int64)
    directions = np.ones((dimension, BITS), np.int64)
    for row in range(1, dimension):
        numbers = directions[row]
        polynomial = polynomials[row]  # its coefficients as binary digits
        degree = int(polynomial).bit_length() - 1
        numbers[:degree] = initial_numbers[row, :degree]
        for j in range(degree, BITS):
            numbers[j] = numbers[j - degree]
            for k in range(1, degree + 1):
                coefficient = polynomial >> (degree - k) & 1
                if coefficient:
                    numbers[j] ^= numbers[j - k] << k
    shifts = np.arange(BITS)[::-1]
    return (directions << shifts).astype(np.uint32)
