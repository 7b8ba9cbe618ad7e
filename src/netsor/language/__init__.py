"""The language: values, operations, tracing, the checker, the printer. Nothing in it
depends on sampling.
"""

from .._validate import TraceError
from ._activation import (
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
from ._apply import apply, nonlin
from ._array import Value
from ._grad import grad
from ._parameters import Weight, data, gaussian, hyperparameter, normal, weight
from ._probe import probe
from ._rotary import rotary
from ._scalar import Scalar
from ._score import concat, dot, join, layer_norm, mean_dot, rms_norm, stack
from ._softmax import softmax
from ._step import step, train
from ._stop_gradient import stop_gradient
from ._tangent_kernel import grad_norm, ntk
from ._vector import Vector, ones
from ._width import Width, inf
