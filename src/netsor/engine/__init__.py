"""Two ways to evaluate a program: the reference interpreter, and the compiler (passes,
lowering, plan) and sampler.
"""

from ._exceptions import ExactError, NoLimitError
from .plan._plan import Plan
from .plan._plan_query import PlanQuery
from .reference import simulate
from .run._sampler import Sampling, sample_conditional_law

__all__ = [
    "ExactError",
    "NoLimitError",
    "Plan",
    "PlanQuery",
    "Sampling",
    "sample_conditional_law",
    "simulate",
]
