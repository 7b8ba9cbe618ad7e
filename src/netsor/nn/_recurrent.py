"""Recurrent token mixers: linear attention, retention, Mamba-2, the gated delta rule.

In the models these layers update a matrix of states, token by token. Unrolled, every
output is a combination y_t = Σ_{s ≤ t} c_ts v_s of the values. The coefficients are
functions of scalars: dots of queries and keys, and decays, steps and gates, which are
readouts ⟨w, x_t⟩ of the tokens. So each layer is a program with dots, like attention
with another function instead of softmax. All are causal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._validate import SCALE, as_number, numbers, one_of, real, scale, whole
from ..functions.recurrence import DECAYS, SOFTPLUS, UNIT_LOWER_INVERSE
from ..language import (
    Scalar,
    TraceError,
    Vector,
    Width,
    concat,
    data,
    dot,
    erf,
    gaussian,
    mean_dot,
    relu,
    rms_norm,
    sigmoid,
    silu,
    weight,
)
from ..language.values._scalar import ScalarLike, applied, as_scalar
from ..language.values._vector import as_vector
from ..language.values._width import as_width
from ._block import affine, call_layer, call_optional, scales, width_or
from ._heads import Heads, Rotary

Layer = Callable[[Vector], Vector]
MAX_KERNEL = 64  # taps of a convolution: each is a vector of weights


def linear_attention(
    x: Vector,
    heads: int,
    head_dim: Width | int | None = None,
    *,
    value_dim: Width | int | None = None,
    groups: int | None = None,
    feature_map: Layer | None = None,
    normalize: bool = False,
    eps: float = 1e-10,
    rotary: Rotary | None = None,
    conv: int | Layer | None = None,
    norm: Layer | None = None,
    gate: Layer | None = None,
    scaling: str | float = "sqrt",
    sigma_q: float | Scalar = 1.0,
    sigma_k: float | Scalar = 1.0,
    sigma_v: float | Scalar = 1.0,
    sigma_gate: float | Scalar = 1.0,
    sigma_o: float | Scalar = 1.0,
    sigma_b: float = 0.0,
) -> Vector:
    """Causal linear attention over the tokens along the last axis of x.

    S_t = S_{t−1} + v_t φ(k_t)^T, y_t = S_t φ(q_t), in each head. Unrolled, y_t =
    Σ_{s ≤ t} p_ts v_s with p_ts = d^(−1/2) ⟨φ(q_t), φ(k_s)⟩.

    Parameters
    ----------
    x : Vector
        Tokens, (…, tokens).
    heads : int
        The number of heads.
    head_dim : Width or int, optional
        d, the width of queries and keys; by default that of x.
    value_dim : Width or int, optional
        The width of values; by default `head_dim`.
    groups : int, optional
        The number of key and value heads, each shared by heads/groups consecutive query
        heads.
    feature_map : callable, optional
        φ, a function of vectors; by default the identity. If φ(q) and φ(k) have means
        other than 0, use `scaling="linear"`, or "none" with an integer `head_dim`.
    normalize : bool
        Divide by Σ_s p_ts + eps. Use it with a positive feature map.
    eps : float
        Added to the normaliser.
    rotary : Rotary, optional
        Positions of queries and keys, before the feature map.
    conv : int or callable, optional
        Applied to queries, keys and values. An integer K stands for
        `ns.silu(ns.nn.depthwise_conv(u, K, head_axes=1))`.
    norm : callable, optional
        A norm of the output of each head, such as `ns.rms_norm`.
    gate : callable, optional
        An activation, such as `ns.silu`: outputs of heads are multiplied by gate(W x),
        after `norm`.
    scaling : str or float
        "sqrt" divides ⟨q, k⟩ by √d, "linear" by d, "none" leaves it; a number c
        multiplies d^(−1/2) ⟨q, k⟩.
    sigma_q, sigma_k, sigma_v, sigma_gate, sigma_o : float or Scalar
        Standard deviations of the matrices of queries, keys, values, the gate and the
        output, as `std` of `ns.weight`.
    sigma_b : float
        The standard deviation of the entries of all biases.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> y = ns.nn.linear_attention(ns.tanh(ns.gaussian(n, 4)), heads=2)
    >>> ns.Program(y).check().verdict
    'proved'
    """
    operation = "linear_attention"
    layer = _Mixer(operation, x, heads, groups)
    width = width_or(x.width, head_dim, operation, "head_dim")
    values_width = width_or(width, value_dim, operation, "value_dim")
    sigma = scales(
        operation,
        sigma_q=sigma_q,
        sigma_k=sigma_k,
        sigma_v=sigma_v,
        sigma_gate=sigma_gate,
        sigma_o=sigma_o,
        sigma_b=sigma_b,
    )
    normalize = one_of(normalize, "normalize", operation, (True, False))
    eps = real(eps, "eps", operation, least=0, most=SCALE)
    q = layer.projected(width, layer.heads, sigma.q, sigma.b, name="W^Q")
    k = layer.projected(width, layer.groups, sigma.k, sigma.b, name="W^K")
    v = layer.projected(values_width, layer.groups, sigma.v, sigma.b, name="W^V")
    q = layer.convolved(q, conv)
    k = layer.convolved(k, conv)
    v = layer.convolved(v, conv)
    q = layer.rotated(q, rotary)
    k = layer.rotated(k, rotary)
    q = call_optional(feature_map, q, "feature_map", operation)
    k = call_optional(feature_map, k, "feature_map", operation)
    scores = layer.scores(q, layer.repeated(k), scaling, "head_dim")
    coefficients = scores * np.tri(layer.tokens)
    if normalize:
        sums = coefficients.sum(-1)
        coefficients = coefficients / (sums + eps)[..., None]
    y = coefficients @ layer.repeated(v)
    y = call_optional(norm, y, "norm", operation)
    y = layer.gated(y, gate, sigma.gate, sigma.b)
    return layer.output(y, x.width, sigma.o, sigma.b)


def retention(
    x: Vector,
    heads: int,
    head_dim: Width | int | None = None,
    *,
    value_dim: Width | int | None = None,
    decay: npt.ArrayLike | None = None,
    rotary: Rotary | None = None,
    norm: Layer | None = None,
    gate: Layer | None = None,
    scaling: str | float = "sqrt",
    sigma_q: float | Scalar = 1.0,
    sigma_k: float | Scalar = 1.0,
    sigma_v: float | Scalar = 1.0,
    sigma_gate: float | Scalar = 1.0,
    sigma_o: float | Scalar = 1.0,
    sigma_b: float = 0.0,
) -> Vector:
    """Retention (RetNet): linear attention whose state decays at a fixed rate.

    S_t = γ S_{t−1} + v_t k_t^T, y_t = S_t q_t. Unrolled, y_t = Σ_{s ≤ t} γ^(t−s) p_ts
    v_s with p_ts = d^(−1/2) ⟨q_t, k_s⟩. RetNet itself has `rotary=ns.nn.Rotary()`,
    `norm=ns.rms_norm`, `gate=ns.silu` and `value_dim=2 * head_dim`. The other
    parameters are those of `linear_attention`.

    Parameters
    ----------
    decay : float or array_like, optional
        γ from 0 to 1: one number, or one for each head. By default 1 − 2^(−5−a) in head
        a = 0, 1, …, as in RetNet.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> y = ns.nn.retention(ns.tanh(ns.gaussian(n, 4)), heads=2, decay=0.9)
    >>> ns.Program(y).check().verdict
    'proved'
    """
    operation = "retention"
    layer = _Mixer(operation, x, heads)
    width = width_or(x.width, head_dim, operation, "head_dim")
    values_width = width_or(width, value_dim, operation, "value_dim")
    sigma = scales(
        operation,
        sigma_q=sigma_q,
        sigma_k=sigma_k,
        sigma_v=sigma_v,
        sigma_gate=sigma_gate,
        sigma_o=sigma_o,
        sigma_b=sigma_b,
    )
    if decay is None:
        gammas = 1.0 - 2.0 ** (-5.0 - np.arange(layer.heads))
    else:
        gammas = layer.numbers_per_head(decay, "decay")
        if not ((gammas >= 0) & (gammas <= 1)).all():
            raise TraceError(operation, "decay", decay, "numbers from 0 to 1")
    q = layer.projected(width, layer.heads, sigma.q, sigma.b, name="W^Q")
    k = layer.projected(width, layer.heads, sigma.k, sigma.b, name="W^K")
    v = layer.projected(values_width, layer.heads, sigma.v, sigma.b, name="W^V")
    q = layer.rotated(q, rotary)
    k = layer.rotated(k, rotary)
    scores = layer.scores(q, k, scaling, "head_dim")
    y = (scores * layer.powers(gammas)) @ v
    y = call_optional(norm, y, "norm", operation)
    y = layer.gated(y, gate, sigma.gate, sigma.b)
    return layer.output(y, x.width, sigma.o, sigma.b)


def mamba2(
    x: Vector,
    heads: int,
    head_dim: Width | int,
    state_dim: Width | int,
    *,
    groups: int = 1,
    rates: ScalarLike | None = None,
    dt_bias: ScalarLike = 0.0,
    dt_limits: tuple[float, float] | None = None,
    skip: ScalarLike | None = None,
    conv: int | Layer | None = None,
    norm: Layer | None = None,
    gate: Layer | None = None,
    scaling: str | float = "none",
    sigma_q: float | Scalar = 1.0,
    sigma_k: float | Scalar = 1.0,
    sigma_v: float | Scalar = 1.0,
    sigma_dt: float | Scalar = 1.0,
    sigma_gate: float | Scalar = 1.0,
    sigma_o: float | Scalar = 1.0,
    sigma_b: float = 0.0,
) -> Vector:
    """Mamba-2, a state-space layer whose states decay by a scalar in each head.

    S_t = e^(−a Δ_t) S_{t−1} + Δ_t v_t B_t^T, y_t = S_t C_t + D v_t, with steps Δ_t =
    softplus(⟨w, x_t⟩ + dt_bias). Unrolled, y_t = Σ_{s ≤ t} ⟨C_t, B_s⟩
    e^(−a (Δ_{s+1} + … + Δ_t)) Δ_s v_s + D v_t. C are the queries, B the keys and v the
    values, `x` in the code of Mamba-2. Mamba-2 itself has `conv=4`, `gate=ns.silu`,
    `norm=ns.rms_norm`, `skip=1.0`. The other parameters are those of
    `linear_attention`.

    Parameters
    ----------
    head_dim : Width or int
        The width of the values of a head.
    state_dim : Width or int
        The dimension N of B and C.
    groups : int
        The number of B and C, each shared by heads/groups consecutive heads.
    rates : float, array_like or Scalar, optional
        a = −A = exp(A_log), one positive number or one for each head. By default 1, 2,
        …, heads, as in Mamba-2. A Scalar may be random.
    dt_bias : float, array_like or Scalar
        One number or one for each head. A Scalar may be random.
    dt_limits : tuple of float, optional
        Steps are clipped to this range; "time_step_limit" of Mamba-2.
    skip : float, array_like or Scalar, optional
        D, one number or one for each head; none by default.
    conv : int or callable, optional
        As in `linear_attention`, for B, C and v.
    norm : callable, optional
        A norm of the outputs of all heads of a group together, after the gate.
    gate : callable, optional
        As in `linear_attention`, but before `norm`.
    scaling : str or float
        As in `linear_attention`; "none", the default, is the plain ⟨C, B⟩ of Mamba-2
        and needs an integer `state_dim`.
    sigma_q, sigma_k, sigma_v, sigma_dt, sigma_gate, sigma_o : float or Scalar
        Standard deviations of the matrices of C, B, v, Δ, the gate and the output: the
        entries of w are N(0, sigma_dt²/n).

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.tanh(ns.gaussian(n, 4))
    >>> y = ns.nn.mamba2(x, heads=4, head_dim=n, state_dim=16, groups=2)
    >>> ns.Program(y).law(n=256, draws=100).status
    'exact'
    """
    operation = "mamba2"
    layer = _Mixer(operation, x, heads, groups)
    values_width = as_width(head_dim, operation, "head_dim")
    state_width = as_width(state_dim, operation, "state_dim")
    sigma = scales(
        operation,
        sigma_q=sigma_q,
        sigma_k=sigma_k,
        sigma_v=sigma_v,
        sigma_dt=sigma_dt,
        sigma_gate=sigma_gate,
        sigma_o=sigma_o,
        sigma_b=sigma_b,
    )
    if rates is None:
        rates = np.arange(1.0, layer.heads + 1)
    v = layer.projected(values_width, layer.heads, sigma.v, sigma.b, name="W^V")
    b = layer.projected(state_width, layer.groups, sigma.k, sigma.b, name="W^B")
    c = layer.projected(state_width, layer.groups, sigma.q, sigma.b, name="W^C")
    v = layer.convolved(v, conv)
    b = layer.convolved(b, conv)
    c = layer.convolved(c, conv)
    steps = layer.steps(sigma.dt, dt_bias)
    if dt_limits is not None:
        steps = _clipped(steps, dt_limits, operation)
    decay = layer.decays(steps, rates)
    scores = layer.repeated(layer.scores(c, b, scaling, "state_dim"))
    step_of_value = steps[..., None, :]
    y = (scores * decay * step_of_value) @ v
    if skip is not None:
        y = y + layer.per_head(skip, "skip") * v
    y = layer.gated(y, gate, sigma.gate, sigma.b)
    # (heads, …, tokens) to (groups, heads of a group, …, tokens), then one vector each
    heads_by_group = y.reshape(layer.groups, -1, *y.shape[1:])
    y = concat(heads_by_group, axis=1)
    y = call_optional(norm, y, "norm", operation)
    return layer.output(y, x.width, sigma.o, sigma.b)


def gated_delta(
    x: Vector,
    heads: int,
    head_dim: Width | int,
    *,
    value_dim: Width | int | None = None,
    groups: int | None = None,
    rates: ScalarLike = 1.0,
    dt_bias: ScalarLike = 0.0,
    beta_max: float = 1.0,
    qk_norm: Layer | None = rms_norm,
    conv: int | Layer | None = None,
    norm: Layer | None = None,
    gate: Layer | None = None,
    scaling: str | float = "sqrt",
    sigma_q: float | Scalar = 1.0,
    sigma_k: float | Scalar = 1.0,
    sigma_v: float | Scalar = 1.0,
    sigma_dt: float | Scalar = 1.0,
    sigma_beta: float | Scalar = 1.0,
    sigma_gate: float | Scalar = 1.0,
    sigma_o: float | Scalar = 1.0,
    sigma_b: float = 0.0,
) -> Vector:
    """The gated delta rule (Gated DeltaNet, the linear layers of Qwen3-Next).

    S_t = α_t S_{t−1} (I − β_t k_t k_t^T) + β_t v_t k_t^T, y_t = d^(−1/2) S_t q_t, with
    unit vectors q and k, β_t = sigmoid(⟨u, x_t⟩) and α_t = e^(−a Δ_t), where Δ_t =
    softplus(⟨w, x_t⟩ + dt_bias). `rates=0` is DeltaNet, without decay. Qwen3-Next
    itself has `conv=4`, `gate=ns.silu`, `norm=ns.rms_norm` and `dt_bias=1.0`. The other
    parameters are those of `mamba2`.

    Unrolled, y_t = Σ_{s ≤ t} c_ts v_s with c = d^(−1/2) (D ∘ Q K^T) (I + L)^(−1)
    diag(β), where D_ts = α_{s+1} ⋯ α_t for s ≤ t, and L_ts = β_t D_ts ⟨k_t, k_s⟩ for s
    < t.

    Parameters
    ----------
    head_dim : Width or int
        d, the width of queries and keys.
    value_dim : Width or int, optional
        The width of values; by default `head_dim`.
    groups : int, optional
        The number of query and key heads, each shared by heads/groups consecutive value
        heads; by default `heads`.
    rates : float, array_like or Scalar
        a = exp(A_log), one positive number or one for each head. A Scalar may be
        random.
    beta_max : float
        β_t is beta_max · sigmoid(…); 2 allows negative eigenvalues of the transition.
    qk_norm : callable, optional
        Queries and keys are qk_norm(W x)/√d. With `ns.rms_norm`, the default, they are
        unit vectors; an `eps` added to |k|² is `ns.rms_norm(u, eps/d)`.
    norm : callable, optional
        A norm of the output of each head, before the gate.
    gate : callable, optional
        As in `linear_attention`.
    scaling : str or float
        A factor of the output that replaces d^(−1/2); "sqrt", the default, needs an
        integer `head_dim`.
    sigma_dt, sigma_beta : float or Scalar
        The entries of w and u are N(0, sigma_dt²/n) and N(0, sigma_beta²/n).

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.tanh(ns.gaussian(n, 4))
    >>> y = ns.nn.gated_delta(x, heads=2, head_dim=8, value_dim=n)
    >>> ns.Program(y).law(n=256, draws=100).status
    'exact'
    """
    operation = "gated_delta"
    layer = _Mixer(operation, x, heads, groups)
    width = as_width(head_dim, operation, "head_dim")
    values_width = width_or(width, value_dim, operation, "value_dim")
    sigma = scales(
        operation,
        sigma_q=sigma_q,
        sigma_k=sigma_k,
        sigma_v=sigma_v,
        sigma_gate=sigma_gate,
        sigma_o=sigma_o,
        sigma_b=sigma_b,
        sigma_dt=sigma_dt,
        sigma_beta=sigma_beta,
    )
    beta_max = real(beta_max, "beta_max", operation, above=0, most=SCALE)
    if isinstance(scaling, str) and scaling == "sqrt":
        factor = layer.integer_dimension(width, "head_dim") ** -0.5
    elif as_number(scaling) is None:
        raise TraceError(operation, "scaling", scaling, "'sqrt' or a number")
    else:
        factor = real(scaling, "scaling", operation)
    q = layer.projected(width, layer.groups, sigma.q, sigma.b, name="W^Q")
    k = layer.projected(width, layer.groups, sigma.k, sigma.b, name="W^K")
    v = layer.projected(values_width, layer.heads, sigma.v, sigma.b, name="W^V")
    q = layer.convolved(q, conv)
    k = layer.convolved(k, conv)
    v = layer.convolved(v, conv)
    q = call_optional(qk_norm, q, "qk_norm", operation)
    k = call_optional(qk_norm, k, "qk_norm", operation)
    beta = beta_max * sigmoid(layer.readout(sigma.beta, "w^β"))
    steps = layer.steps(sigma.dt, dt_bias)
    decay = layer.decays(steps, rates)
    # With the rows k_t of K and q_t of Q, and decays D: the states are made of the
    # vectors u = (I + L)^(−1) (β v), L the part of β (D ⊙ K K^T) below the diagonal,
    # and y = (D ⊙ Q K^T) u.
    queries_on_keys = layer.repeated(mean_dot(q, k))  # ⟨q/√d, k/√d⟩
    keys_on_keys = layer.repeated(mean_dot(k, k))
    lower = beta[..., :, None] * (decay * keys_on_keys)
    inverse = applied(UNIT_LOWER_INVERSE, (lower,), lower.shape, axes=2)
    coefficients = factor * ((decay * queries_on_keys) @ inverse)
    beta_of_value = beta[..., None, :]
    y = (coefficients * beta_of_value) @ v
    y = call_optional(norm, y, "norm", operation)
    y = layer.gated(y, gate, sigma.gate, sigma.b)
    return layer.output(y, x.width, sigma.o, sigma.b)


def depthwise_conv(
    x: Vector,
    kernel: int,
    *,
    sigma: float = 1.0,
    sigma_b: float = 0.0,
    entries: str = "normal",
    head_axes: int = 0,
) -> Vector:
    """A causal depthwise convolution over tokens, y_t = Σ_{k < kernel} w_k ⊙ x_{t−k}.

    Tokens before the first are 0. It is `nn.Conv1d(channels, channels, kernel,
    groups=channels, padding=kernel − 1)` without the last outputs.

    Parameters
    ----------
    x : Vector
        Tokens, (…, tokens).
    kernel : int
        The number of taps w_k.
    sigma : float
        The entries of taps have the variance sigma²/kernel.
    sigma_b : float
        The standard deviation of the entries of the bias. PyTorch's default is
        `sigma=3**-0.5, sigma_b=(3 * kernel)**-0.5, entries="uniform"`.
    entries : str
        The distribution of the entries: "normal" or "uniform".
    head_axes : int
        The first axes of x, such as heads, that have their own taps and biases.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.silu(ns.nn.depthwise_conv(ns.gaussian(n, 6), kernel=4))
    >>> x.shape
    (6,)
    """
    operation = "depthwise_conv"
    x = _tokens(x, operation)
    kernel = whole(kernel, "kernel", operation, most=MAX_KERNEL)
    sigma = scale(sigma, "sigma", operation)
    sigma_b = scale(sigma_b, "sigma_b", operation)
    entries = one_of(entries, "entries", operation, ("normal", "uniform"))
    head_axes = whole(head_axes, "head_axes", operation, least=0, most=x.ndim - 1)
    heads = x.shape[:head_axes]
    shared_axes = (1,) * (x.ndim - 1 - head_axes)

    def parameters(count: int, std: float, name: str) -> Vector:
        """`count` random vectors for each head, (*heads, 1, …, 1, count)."""
        if entries == "normal":
            vectors = gaussian(x.width, (*heads, count), cov=std**2, name=name)
        else:
            # 2 Φ(z) − 1 = erf(z/√2) is uniform from −1 to 1
            z = gaussian(x.width, (*heads, count), cov=0.5, name=name)
            vectors = 3**0.5 * std * erf(z)
        return vectors.reshape(*heads, *shared_axes, count)

    tokens = x.shape[-1]
    taps = parameters(kernel, sigma * kernel**-0.5, "tap")
    y = taps[..., :1] * x
    for lag in range(1, min(kernel, tokens)):
        delayed = np.eye(tokens, k=-lag) @ x  # token t is x_{t−lag}
        y = y + taps[..., lag : lag + 1] * delayed
    if sigma_b:
        y = y + parameters(1, sigma_b, "b")
    return y


def _tokens(x: Vector, operation: str) -> Vector:
    """Check that x is vectors with an axis of tokens, (…, tokens)."""
    x = as_vector(x, operation, "x")
    if x.ndim == 0:
        raise TraceError(operation, "x", x, "vectors with an axis of tokens")
    return x


def _clipped(steps: Scalar, limits: Any, operation: str) -> Scalar:
    """Steps clipped to `limits`, a pair (least, most) whose second may be infinite."""
    least = most = None
    if isinstance(limits, tuple | list) and len(limits) == 2:
        least = as_number(limits[0])
        most = as_number(limits[1])
    if least is None or most is None or not 0 <= least < most:
        allowed = "two numbers (least, most) with 0 <= least < most"
        raise TraceError(operation, "dt_limits", limits, allowed)
    clipped = steps
    if least > 0:
        clipped = least + relu(clipped - least)
    if most < math.inf:
        clipped = most - relu(most - clipped)
    return clipped


class _Mixer(Heads):
    """What the layers of this file share: their tokens, heads, and arguments per head.

    Heads are the first axis: scalars of tokens have the shape (heads, …, tokens), and
    scores and coefficients (heads, …, tokens, tokens).
    """

    def __init__(
        self, operation: str, x: Vector, heads: int, groups: int | None = None
    ) -> None:
        self.x = _tokens(x, operation)
        self.tokens = x.shape[-1]
        super().__init__(operation, heads, groups)

    # Vectors

    def projected(
        self,
        width: Width,
        matrices: int,
        sigma: float | Scalar,
        sigma_b: float,
        name: str,
    ) -> Vector:
        """W x + b for each head or group, (matrices, …, tokens), of the given width."""
        return affine(
            self.x, width, sigma_w=sigma, sigma_b=sigma_b, batch=matrices, name=name
        )

    def convolved(self, u: Vector, conv: int | Layer | None) -> Vector:
        """Queries, keys or values u after a convolution over tokens, if any.

        `conv` is the user's layer, or the number of taps of a convolution before SiLU.
        """
        if conv is None:
            return u
        if callable(conv):
            return call_layer(conv, u, "conv", self.operation)
        taps = whole(conv, "conv", self.operation, most=MAX_KERNEL)
        return silu(depthwise_conv(u, taps, head_axes=1))

    def gated(
        self, y: Vector, gate: Layer | None, sigma: float | Scalar, sigma_b: float
    ) -> Vector:
        """y ⊙ gate(W x), with one matrix for each head; y if there is no gate."""
        if gate is None:
            return y
        z = self.projected(y.width, self.heads, sigma, sigma_b, name="W^G")
        return call_layer(gate, z, "gate", self.operation) * y

    # Scalars

    def numbers_per_head(
        self, value: npt.ArrayLike, name: str
    ) -> npt.NDArray[np.float64]:
        """One number, or one for each head, as an array (heads,)."""
        array = numbers(value, self.operation, name)
        if array.shape not in ((), (self.heads,)):
            allowed = f"one number, or one for each of {self.heads} heads"
            raise TraceError(self.operation, name, value, allowed)
        return np.broadcast_to(array, self.heads)

    def per_head(self, value: ScalarLike, name: str) -> Scalar:
        """One number for each head, (heads, 1, …, 1): it multiplies (heads, …, tokens).

        `value` is a number, an array (heads,), or a Scalar of shape () or (heads,).
        """
        if isinstance(value, Scalar):
            if value.shape not in ((), (self.heads,)):
                allowed = f"a Scalar of shape () or ({self.heads},)"
                raise TraceError(self.operation, name, value, allowed)
            scalars = value.broadcast_to((self.heads,))
        else:
            array = self.numbers_per_head(value, name)
            scalars = as_scalar(array, self.operation, name)
        return scalars.reshape(self.heads, *(1,) * self.x.ndim)

    def powers(self, gammas: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """γ^(t−s) for s ≤ t, else 0, with γ of each head: (heads, 1, …, 1, T, T)."""
        positions = np.arange(self.tokens)
        distance = np.subtract.outer(positions, positions)  # t − s
        distance = np.maximum(distance, 0)
        powers = gammas[:, None, None] ** distance  # 0^0 = 1
        powers = powers * np.tri(self.tokens)  # 0 for s > t
        batch_axes = (1,) * (self.x.ndim - 1)
        return powers.reshape(self.heads, *batch_axes, self.tokens, self.tokens)

    def readout(self, sigma: float | Scalar, name: str) -> Scalar:
        """⟨w, x_t⟩ for a vector w of each head, (heads, …, tokens).

        w is a matrix with one row, so that ⟨w, x_t⟩ is a vector in R^1.
        """
        row = weight(1, self.x.width, self.heads, sigma, name=name)
        products = row @ self.x  # vectors of one coordinate
        unit_vector = data([[1.0]])
        return dot(unit_vector, products)[..., 0, :]

    def steps(self, sigma: float | Scalar, bias: ScalarLike) -> Scalar:
        """softplus(⟨w, x_t⟩ + bias), with entries N(0, σ²/n) of w."""
        z = self.readout(sigma, "w^Δ") + self.per_head(bias, "dt_bias")
        return applied(SOFTPLUS, (z,), z.shape)

    def decays(self, steps: Scalar, rates: ScalarLike) -> Scalar:
        """e^(−a (Δ_{s+1} + … + Δ_t)) for s ≤ t, else 0: (heads, …, tokens, tokens).

        If all rates a are the number 0 there is no decay: (tokens, tokens) is enough.
        """
        if not isinstance(rates, Scalar):
            array = self.numbers_per_head(rates, "rates")
            if (array < 0).any():
                allowed = "numbers that are not negative: rates are -A = exp(A_log)"
                raise TraceError(self.operation, "rates", rates, allowed)
            if not array.any():
                return as_scalar(np.tri(self.tokens), self.operation)
        exponents = self.per_head(rates, "rates") * steps
        return applied(DECAYS, (exponents,), (*exponents.shape, self.tokens), axes=1)
