"""JAX models at initialisation: programs and laws of parameters.

A model goes through these files: `_models` says how it is initialised and called,
`_initialisers` reads the laws of its parameters from the jaxpr of its initialisation,
`_capture` records the jaxpr of the call as a graph, `_patterns` joins equations, and
`_program` reads the graph by the axis rule of `reader/` and the table in `_primitives`.
`maximal_update/` derives how learning rates and initialisation must follow the width.

Examples
--------
>>> net = ns.jax.program(build, ids)  # doctest: +SKIP
>>> net.law(draws=1000).std()  # doctest: +SKIP
>>> print(ns.jax.parameters(build))  # doctest: +SKIP
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"ns.jax needs JAX: pip install jax ({error})") from error

from ..checks._findings import InitFinding
from ..checks._init_check import InitCheck
from ..checks._run_check import RunCheck, RunFinding, RunLaw, RunPower
from ..maximal_update._results import DerivedRule
from ..maximal_update._rules import ParameterRule
from ..reader._graph import UnsupportedError
from ..reader._laws import Parameter, Parameters
from ._check_init import check_init
from ._check_run import check_run, read_batches, run_law
from ._network import network
from ._parameters import parameters
from ._program import program
from .maximal_update import parametrise

__all__ = [
    "DerivedRule",
    "InitCheck",
    "InitFinding",
    "Parameter",
    "ParameterRule",
    "Parameters",
    "RunCheck",
    "RunFinding",
    "RunLaw",
    "RunPower",
    "UnsupportedError",
    "check_init",
    "check_run",
    "network",
    "parameters",
    "parametrise",
    "program",
    "read_batches",
    "run_law",
]
