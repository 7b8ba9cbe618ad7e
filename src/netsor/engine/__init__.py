"""The two interpreters of a program: the reference, and the compiler (passes, lowering, plan, run) with its sampler."""

from ._exceptions import ExactError, NoLimitError
from ._plan import Plan
from ._plan_query import PlanQuery
from ._reference import simulate
from ._sampler import Sampling, sample_conditional_law

__all__ = ["ExactError", "NoLimitError", "Plan", "PlanQuery", "Sampling", "sample_conditional_law", "simulate"]
