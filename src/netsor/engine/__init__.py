"""The two interpreters of a program: the reference, and the compiler (passes, lowering, plan, run) with its sampler."""

from ._exceptions import ExactError, NoLimitError
from ._plan import Plan
from ._reference import simulate
from ._sampler import Sampling, sample_conditional_law
from .lower import PlanQuery

__all__ = ["ExactError", "NoLimitError", "Plan", "PlanQuery", "Sampling", "sample_conditional_law", "simulate"]
