"""The interpreters of a program: literal, and the compiler (passes, lowering, plan, run); Monte Carlo."""

from ._error import ExactError, NoLimitError, QuadratureWarning
from ._plan import Plan
from ._plan_cache import PlanQuery
from ._reference import simulate
from ._sampler import sample_conditional_law
from ._sampling_options import Sampling

__all__ = [
    "ExactError",
    "NoLimitError",
    "Plan",
    "PlanQuery",
    "QuadratureWarning",
    "Sampling",
    "sample_conditional_law",
    "simulate",
]
