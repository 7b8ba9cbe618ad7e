"""Powers of the width and of the depth, as rules and factors of outputs have them."""

from typing import NamedTuple


class Power(NamedTuple):
    """Exponents of the width and of the depth."""

    width: float = 0.0
    depth: float = 0.0

    def of(self, width: float, depth: float) -> float:
        """The factor at these ratios to the base."""
        return float(width**self.width * depth**self.depth)
