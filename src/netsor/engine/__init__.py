"""The interpreters of a program, and Monte Carlo: seeds, chunks, executors."""

from ._error import ExactError
from ._law import conditional
from ._literal import simulate

__all__ = ["ExactError", "conditional", "simulate"]
