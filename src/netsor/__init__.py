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

from typing import TYPE_CHECKING, Any

from . import _start as _start  # first: an interrupt may come while the rest is loaded
from . import models, nn
from ._bayes import Posterior
from ._program import Program, program
from .activations import Function
from .engine import ExactError, NoLimitError, Plan
from .language import (
    Scalar,
    TraceError,
    Value,
    Vector,
    Weight,
    Width,
    abs,
    apply,
    clip,
    concat,
    cos,
    data,
    dot,
    erf,
    gaussian,
    gelu,
    gelu_tanh,
    grad,
    grad_norm,
    identity,
    inf,
    join,
    layer_norm,
    leaky_relu,
    mean_dot,
    nonlin,
    normal,
    ntk,
    ones,
    probe,
    relu,
    rms_norm,
    rotary,
    sigmoid,
    silu,
    sin,
    softmax,
    stack,
    step,
    tanh,
    weight,
)
from .language._report import Point, Report
from .laws import (
    Empirical,
    Estimate,
    HeadSum,
    Joint,
    Law,
    LawError,
    Mixture,
    distances,
    kl,
    kolmogorov,
    load,
    paper_kl,
    plot,
    sliced_wasserstein,
    total_variation,
    wasserstein1,
)
from .nn import Attention, attention_std
from .studies import paper
from .studies._rate import Rate, rate
from .studies.audit import audit
from .studies.coord_check import coord_check
from .studies.literature import literature

__version__ = "0.2.0"


if not TYPE_CHECKING:  # or a type checker would take every name for one of ours

    def __getattr__(name: str) -> Any:
        """What needs scikit-learn is loaded when it is asked for; what is not here is an error that says what is."""
        if name == "AttentionRegressor":
            try:
                from ._regressor import AttentionRegressor
            except ImportError as error:
                raise ImportError(
                    f"ns.AttentionRegressor needs scikit-learn: pip install 'netsor[sklearn]' ({error})"
                ) from error
            return AttentionRegressor
        import difflib  # seldom needed

        import numpy as np

        near = difflib.get_close_matches(name, __all__, 1, 0.75)
        hint = f"; did you mean ns.{near[0]}?" if near else ""
        if isinstance(getattr(np, name, None), np.ufunc):
            hint += f"; of coordinates write ns.nonlin(np.{name}, x), of scalars ns.apply(np.{name}, p)"
        raise AttributeError(f"netsor has no {name!r}{hint}")


__all__ = [
    "Attention",
    "Empirical",
    "Estimate",
    "ExactError",
    "Function",
    "HeadSum",
    "Joint",
    "Law",
    "LawError",
    "Mixture",
    "NoLimitError",
    "Plan",
    "Point",
    "Posterior",
    "Program",
    "Rate",
    "Report",
    "Scalar",
    "TraceError",
    "Value",
    "Vector",
    "Weight",
    "Width",
    "abs",
    "apply",
    "attention_std",
    "audit",
    "clip",
    "concat",
    "coord_check",
    "cos",
    "data",
    "distances",
    "dot",
    "erf",
    "gaussian",
    "gelu",
    "gelu_tanh",
    "grad",
    "grad_norm",
    "identity",
    "inf",
    "join",
    "kl",
    "kolmogorov",
    "layer_norm",
    "leaky_relu",
    "literature",
    "load",
    "mean_dot",
    "models",
    "nn",
    "nonlin",
    "normal",
    "ntk",
    "ones",
    "paper",
    "paper_kl",
    "plot",
    "probe",
    "program",
    "rate",
    "relu",
    "rms_norm",
    "rotary",
    "sigmoid",
    "silu",
    "sin",
    "sliced_wasserstein",
    "softmax",
    "stack",
    "step",
    "tanh",
    "total_variation",
    "wasserstein1",
    "weight",
]
