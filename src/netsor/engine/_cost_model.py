"""Seconds of elementary work on each kind of device, by which lowering chooses the cheaper of two exact methods.

They were measured once and never change with the machine, so a program has the same plan on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PREFERENCE = 1.0  # times the seconds of directions or factors, above which matrices are not drawn in their place
FEWEST = 64  # inputs of a matrix below which it is not: their number is that of the sources at every width


@dataclass(frozen=True)
class Prices:
    """Seconds for one number of each kind, of one replica among many that are computed together."""

    place: str
    normal: float
    chi: float
    entry: float  # that is made
    function: float  # an entry that a function reads or makes
    product: float  # a multiplication of a matrix product
    factor_entry: float = 0.0  # of a triangular factor, in addition to its multiplications
    factor_row: float = 0.0  # the same for each row: rows come one after the other, however many matrices there are
    ragged: bool = False  # whether each replica can draw its own amount of numbers: see `lower._relu_sign_patterns`

    def factor(self, matrices: float, rows: float, columns: float) -> float:
        """Products of rows with each other, and the triangular factor of these."""
        entries = rows**2 * ((columns + rows) * self.product + self.factor_entry)
        return matrices * (entries + rows * self.factor_row)


# One core of an x86 processor.
CPU = Prices("one core", normal=9e-9, chi=3e-8, entry=1.5e-9, function=1.5e-8, product=2e-10, factor_entry=5e-8)
NUMPY = replace(CPU, ragged=True)
# PyTorch on one H200 in single precision. Normals and products were measured on the network with every weight drawn.
# The prices of χ and of rows of factors keep the stack of bench/gpu.py near its faster method at 64 to 1,024 tokens.
ACCELERATOR = Prices(
    "an accelerator", normal=6.3e-12, chi=1e-8, entry=7e-11, function=2.8e-11, product=3.6e-14, factor_row=3e-8
)


def prices_on(backend: str, kind: str) -> Prices:
    """The prices of a backend on a device of this kind, whether there is one here or not."""
    return NUMPY if backend == "numpy" else CPU if kind == "cpu" else ACCELERATOR
