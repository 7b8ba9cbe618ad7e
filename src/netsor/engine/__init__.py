"""The interpreters of a program: literal, and the compiler (passes, lowering, plan, run); Monte Carlo."""

from ._error import ExactError, NoLimitError, QuadratureWarning
from ._kept import Question
from ._literal import simulate
from ._plan import Plan
from ._sampler import conditional
from ._sampling import Sampling

__all__ = ["ExactError", "NoLimitError", "Plan", "QuadratureWarning", "Question", "Sampling", "conditional", "simulate"]
