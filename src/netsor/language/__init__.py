"""The language: values, operations, tracing, the checker, the printer. Nothing in it
depends on sampling.
"""

from .._validate import TraceError
from .autodiff._grad import grad
from .autodiff._step import step, train
from .autodiff._tangent_kernel import grad_norm, ntk
from .operations._activation import (
    abs,
    clip,
    cos,
    erf,
    gelu,
    gelu_tanh,
    identity,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    sin,
    tanh,
)
from .operations._apply import apply, nonlin
from .operations._rotary import rotary
from .operations._score import concat, dot, join, layer_norm, mean_dot, rms_norm, stack
from .operations._softmax import softmax
from .operations._stop_gradient import stop_gradient
from .values._array import Value
from .values._parameters import Weight, data, gaussian, hyperparameter, normal, weight
from .values._probe import probe
from .values._scalar import Scalar
from .values._vector import Vector, ones
from .values._width import Width, inf
