"""The interpreters of a program, and Monte Carlo: seeds, chunks, executors."""

from ._literal import simulate

__all__ = ["simulate"]
