"""Two ways to evaluate a program: the reference interpreter, and the compiler (passes,
lowering, plan) and sampler.
"""

from ._exceptions import ExactError, NoLimitError
from ._plan import Plan
from ._plan_query import PlanQuery
from ._reference import simulate
from ._sampler import Sampling, sample_conditional_law

__all__ = [
    "ExactError",
    "NoLimitError",
    "Plan",
    "PlanQuery",
    "Sampling",
    "sample_conditional_law",
    "simulate",
]
