"""Seconds per elementary operation on each kind of device. Lowering uses them to choose
the cheaper exact method.

They are fixed, measured values, so a program has the same plan on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# sample a matrix if it costs less than this factor times the directions or factors it
# replaces
PREFERENCE = 1.0
# a matrix with fewer inputs is never sampled: it then has the same sources at every
# width
FEWEST = 64


@dataclass(frozen=True)
class Prices:
    """Seconds per number of each kind, for one replica among many computed together."""

    place: str
    normal: float
    chi: float
    entry: float  # an entry of a result
    function: float  # an entry that a function reads or returns
    product: float  # a multiplication in a matrix product
    # an entry of a triangular factor, in addition to its multiplications
    factor_entry: float = 0.0
    # the same per row: rows are computed one after the other, for all matrices at once
    factor_row: float = 0.0
    # whether each replica can draw a different number of values: see
    # `_relu_sign_patterns`
    ragged: bool = False

    def factor(self, matrices: float, rows: float, columns: float) -> float:
        """The Gram matrix of rows and its triangular factor."""
        entries = rows**2 * ((columns + rows) * self.product + self.factor_entry)
        return matrices * (entries + rows * self.factor_row)


# One core of an x86 processor.
CPU = Prices(
    "one core",
    normal=9e-9,
    chi=3e-8,
    entry=1.5e-9,
    function=1.5e-8,
    product=2e-10,
    factor_entry=5e-8,
)
NUMPY = replace(CPU, ragged=True)
# PyTorch on one H200 in single precision. Normals and products were measured on a
# network with all weights sampled. The prices of χ and of factor rows are set so that
# bench/gpu.py uses nearly its faster method at 64 to 1,024 tokens.
ACCELERATOR = Prices(
    "an accelerator",
    normal=6.3e-12,
    chi=1e-8,
    entry=7e-11,
    function=2.8e-11,
    product=3.6e-14,
    factor_row=3e-8,
)


def prices_on(kind: str) -> Prices:
    """The prices on a device of this kind, cpu or cuda, which need not be present."""
    return CPU if kind == "cpu" else ACCELERATOR
