"""PyTorch modules at initialisation: programs, laws of parameters, checks of weights.

A module goes through these files: `_fresh_modules` and `_parameters` read the laws of
its parameters, `_capture` records its graph, `_program` reads the graph as a program by
the axis rule of `reader/`, which also finds its blocks, and `_network` and
`_check_init` are what studies and users do with them. `_reference`, `_weights` and
`_parameter_tests` are the declared initialisation, the real numbers, and their
comparison. `_from_config` begins with a configuration of transformers.
`maximal_update/` runs the module itself, and derives how its learning rates and its
initialisation must follow the width.

Examples
--------
>>> net = ns.torch.program(build, ids)  # doctest: +SKIP
>>> net.law(draws=1000).std(), [probe.name for probe in net.probes]  # doctest: +SKIP
>>> print(ns.torch.parameters(build))  # doctest: +SKIP
>>> print(ns.torch.check_init(build, ids, reference="config.json"))  # doctest: +SKIP
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"ns.torch needs PyTorch: pip install torch ({error})") from error

from ..checks._findings import InitFinding
from ..checks._init_check import InitCheck
from ..checks._run_check import RunCheck, RunFinding, RunLaw, RunPower
from ..maximal_update._results import DerivedRule
from ..maximal_update._rules import ParameterRule
from ..reader._declared_laws import constant
from ..reader._graph import UnsupportedError
from ..reader._laws import Parameter, Parameters
from ._check_init import check_init
from ._check_run import check_run, run_law
from ._network import network
from ._parameters import parameters
from ._program import program
from ._recorder import Recorder
from ._run_batches import read_batches
from ._run_proposal import RunProposal, propose_batch
from .maximal_update import parametrise

__all__ = [
    "DerivedRule",
    "InitCheck",
    "InitFinding",
    "Parameter",
    "ParameterRule",
    "Parameters",
    "Recorder",
    "RunCheck",
    "RunFinding",
    "RunLaw",
    "RunPower",
    "RunProposal",
    "UnsupportedError",
    "check_init",
    "check_run",
    "constant",
    "network",
    "parameters",
    "parametrise",
    "program",
    "propose_batch",
    "read_batches",
    "run_law",
]
