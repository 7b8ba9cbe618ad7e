"""netsor: the laws of wide neural networks with attention.

Write a network once, the way the paper writes it, and read it at any width.
"""

from . import nn
from ._program import Program, program
from .activations import Function
from .engine import ExactError
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
    identity,
    inf,
    join,
    layer_norm,
    leaky_relu,
    mean_dot,
    nonlin,
    ones,
    relu,
    rms_norm,
    sigmoid,
    silu,
    sin,
    softmax,
    stack,
    tanh,
    weight,
)
from .language._check import Point, Report
from .laws import Estimate, Law, Mixture

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "ExactError",
    "Function",
    "Law",
    "Mixture",
    "Point",
    "Program",
    "Report",
    "Scalar",
    "TraceError",
    "Value",
    "Vector",
    "Weight",
    "Width",
    "abs",
    "apply",
    "clip",
    "concat",
    "cos",
    "data",
    "dot",
    "erf",
    "gaussian",
    "gelu",
    "identity",
    "inf",
    "join",
    "layer_norm",
    "leaky_relu",
    "mean_dot",
    "nn",
    "nonlin",
    "ones",
    "program",
    "relu",
    "rms_norm",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "stack",
    "tanh",
    "weight",
]
