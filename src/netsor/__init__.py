"""netsor: the laws of wide neural networks with attention.

Write a network once, the way the paper writes it, and read it at any width.

Examples
--------
>>> n = ns.Width("n")
>>> x = ns.weight(n, n, batch=4) @ ns.gaussian(n)
>>> net = ns.Program(ns.nn.attention(ns.clip(x, 100), heads=2))
>>> net.check().verdict
'proved'
>>> print(f"{net[0].law(n=ns.inf).var():.4f}")
0.3920
"""

from . import _early_sigint as _early_sigint  # first: an interrupt may come while the rest is loaded

# isort: split
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:  # what type checkers and editors read; a test compares it with the table below
    from netsor_papers.literature import literature as literature

    from . import models as models
    from . import nn as nn
    from . import optim as optim
    from . import paper as paper
    from ._bayes import Posterior as Posterior
    from ._decorator import program as program
    from ._extrapolate import ExtrapolatedLaw as ExtrapolatedLaw
    from ._program import Program as Program
    from .activations import Function as Function
    from .engine import ExactError as ExactError
    from .engine import NoLimitError as NoLimitError
    from .engine import Plan as Plan
    from .language import *  # noqa: F403
    from .language._theorem_check import Point as Point
    from .language._theorem_check import Report as Report
    from .laws import Empirical as Empirical
    from .laws import Estimate as Estimate
    from .laws import HeadSum as HeadSum
    from .laws import Joint as Joint
    from .laws import Law as Law
    from .laws import LawError as LawError
    from .laws import Mixture as Mixture
    from .laws import distances as distances
    from .laws import kl as kl
    from .laws import kolmogorov as kolmogorov
    from .laws import load as load
    from .laws import paper_kl as paper_kl
    from .laws import plot as plot
    from .laws import sliced_wasserstein as sliced_wasserstein
    from .laws import total_variation as total_variation
    from .laws import wasserstein1 as wasserstein1
    from .nn import Attention as Attention
    from .nn import attention_std as attention_std
    from .studies._convergence import Rate as Rate
    from .studies._convergence import WidthNeeded as WidthNeeded
    from .studies._convergence import rate as rate
    from .studies._convergence import width_needed as width_needed
    from .studies.audit import audit as audit
    from .studies.coord_check import coord_check as coord_check
    from .studies.transfer import transfer as transfer
else:  # a name is loaded when it is first used, so that a command loads only what it needs
    _MODULES = ("models", "nn", "optim", "paper")
    _NAMES = {
        "._bayes": "Posterior",
        "._extrapolate": "ExtrapolatedLaw",
        "._program": "Program",
        "._decorator": "program",
        ".activations": "Function",
        ".engine": "ExactError NoLimitError Plan",
        ".language": """
            Scalar TraceError Value Vector Weight Width abs apply clip concat cos data dot erf gaussian gelu gelu_tanh
            grad grad_norm hyperparameter identity inf join layer_norm leaky_relu mean_dot nonlin normal ntk ones probe
            relu rms_norm rotary sigmoid silu sin softmax stack step tanh train weight
        """,
        ".language._theorem_check": "Point Report",
        ".laws": """
            Empirical Estimate HeadSum Joint Law LawError Mixture distances kl kolmogorov load paper_kl plot
            sliced_wasserstein total_variation wasserstein1
        """,
        ".nn": "Attention attention_std",
        ".studies._convergence": "Rate WidthNeeded rate width_needed",
        ".studies.audit": "audit",
        ".studies.coord_check": "coord_check",
        ".studies.transfer": "transfer",
        "netsor_papers.literature": "literature",
    }
    _WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
    __all__ = sorted([*_MODULES, *_WHERE])
    _OPTIONAL = ("AttentionRegressor", "torch")  # not in `import *`: they need scikit-learn and PyTorch
    _LOADING = RLock()  # Python's own locks fail where one thread loads a package and another a part of it

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

    def __getattr__(name: str) -> Any:
        """Load a public name, or raise an error that suggests one."""
        with _LOADING:
            if name in _MODULES or name == "torch":
                return import_module(f".{name}", __name__)
            if name in _WHERE:
                globals()[name] = value = getattr(import_module(_WHERE[name], __name__), name)
                return value  # and from now on Python finds it without asking here
            if name == "AttentionRegressor":
                try:
                    return import_module("._regressor", __name__).AttentionRegressor
                except ImportError as error:
                    needed = "ns.AttentionRegressor needs scikit-learn, pip install scikit-learn"
                    raise ImportError(f"{needed}: {error}") from error
        hint = ""
        if not name.startswith("_"):  # Python itself asks for names with an underscore
            import difflib  # seldom needed

            import numpy as np

            near = difflib.get_close_matches(name, [*__all__, *_OPTIONAL], 1, 0.75)
            hint = f"; did you mean ns.{near[0]}?" if near else ""
            if isinstance(getattr(np, name, None), np.ufunc):
                hint += f"; of coordinates write ns.nonlin(np.{name}, x), of scalars ns.apply(np.{name}, p)"
        raise AttributeError(f"netsor has no {name!r}{hint}")
