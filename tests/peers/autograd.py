"""The language read by PyTorch: one rule an operation, forwards alone, so that autograd
differentiates it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.internals import (
    Operation,
    Rotate,
    ScaledGradient,
    Value,
    Vector,
    _Literal,
    _scalar,
    activations,
    base,
    rsqrt,
    topological_order,
)
from tests.internals import _operation as ops

from ..gradient_cases import plane, products
from ..gradients import _bent, _unit

Tensor = torch.Tensor


class Reading:
    """Values as tensors, from the initial vectors, random scalars and matrices of a
    literal draw of one replica.

    `made` are the tensors by value, `normals` the N(0, 1) variables behind matrices by
    source and member.
    """

    def __init__(self, literal: _Literal, outputs: list[Value]) -> None:
        self.literal, self.widths = literal, literal.widths
        self.normals = {key: leaf(array[0]) for key, array in literal.matrices.items()}
        self.made: dict[Value, Tensor] = {}
        for value in topological_order(outputs):
            self.made[value] = TORCH[type(value.op)](self, value.op, value)

    def lined(self, value: Value, ndim: int) -> Tensor:
        """A tensor with axes of size 1 in front, so that it broadcasts."""
        tensor = self.made[value]
        return tensor.reshape((1,) * (ndim - value.ndim) + tensor.shape)

    def width(self, value: Vector) -> int:
        return int(value.width.bind(self.widths))


def leaf(array: Any) -> Tensor:
    return torch.tensor(np.asarray(array), requires_grad=True)


def fixed(array: Any) -> Tensor:
    return torch.tensor(np.asarray(array, dtype=np.float64))


def _matmul(run: Reading, op: ops.MatMul, value: Vector) -> Tensor:
    weight = op.weight
    scale = weight.std / float(weight.fan.bind(run.widths)) ** 0.5
    members = [run.normals[weight.source, k] for k in weight.members.ravel().tolist()]
    w = scale * torch.stack([m.mT if weight.transposed else m for m in members])
    x = run.made[op.x].reshape(len(members) if op.each else 1, -1, w.shape[-1])
    return torch.einsum("boi,bki->bko", w, x.expand(len(members), -1, -1)).reshape(
        *value.shape, -1
    )


def _masked(p: Tensor, allowed: Tensor | None = None) -> Tensor:
    return torch.softmax(
        p if allowed is None else p.masked_fill(allowed == 0, -torch.inf), dim=-1
    )


FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    base(activations.IDENTITY): lambda x: x,
    base(activations.RELU): F.relu,
    base(activations.ABS): torch.abs,
    base(activations.ERF): torch.erf,
    base(activations.TANH): torch.tanh,
    base(activations.SIGMOID): torch.sigmoid,
    base(activations.GELU): F.gelu,
    base(activations.GELU_TANH): lambda x: F.gelu(x, approximate="tanh"),
    base(activations.SILU): F.silu,
    base(activations.SIN): torch.sin,
    base(activations.COS): torch.cos,
    base(activations.leaky_relu(0.5)): lambda x, slope: F.leaky_relu(x, slope),
    base(activations.clip(1.0)): lambda x, bound: torch.clamp(x, -bound, bound),
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.matmul: torch.matmul,
    base(_scalar.INVERSE): torch.reciprocal,
    base(_scalar.SUM): lambda p: p.sum(-1),
    base(_scalar.MEAN): lambda p: p.mean(-1),
    base(_scalar.power(2.0)): torch.pow,
    activations.row_softmax: _masked,
    rsqrt: lambda x, eps: torch.rsqrt(x + eps),
    np.sqrt: torch.sqrt,
    np.exp: torch.exp,
    np.log: torch.log,
    np.tanh: torch.tanh,
    np.sin: torch.sin,
    np.cos: torch.cos,
    np.absolute: torch.abs,
    np.square: torch.square,
    np.reciprocal: torch.reciprocal,
    _bent: lambda x, y, p: torch.sin(x) * y + x * torch.tanh(p),
    plane: lambda x, p: 2.0 * x - 3.0 * p,
    products: lambda p, q: p @ q.mT,
    _unit: lambda p: p / (1.0 + (p * p).sum(-1, keepdim=True)).sqrt(),
}


def _named(f: activations.Function) -> Callable[..., Tensor]:
    known = FUNCTIONS[base(f)]
    return lambda *arguments: known(*arguments, *f.parameters)


def _nonlin(run: Reading, op: ops.Nonlin, value: Vector) -> Tensor:
    vectors = [run.lined(v, value.ndim) for v in op.vectors]
    return _named(op.f)(
        *vectors, *(run.lined(p, value.ndim)[..., None] for p in op.scalars)
    )


def _apply(run: Reading, op: ops.Apply, value: Value) -> Tensor:
    made = _named(op.f)(*(run.lined(p, op.leading + op.axes) for p in op.scalars))
    return made.expand(value.shape)


def _rotate(run: Reading, op: Rotate, value: Vector) -> Tensor:
    """Pairs of coordinates as complex numbers, times e^(i angle)."""
    x, angles = run.made[op.x], fixed(op.angles(run.width(value)))
    half = angles.shape[-1]
    turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], dim=-1)


def _dot(run: Reading, op: ops.Dot, value: Value) -> Tensor:
    x, y = run.lined(op.x, value.ndim - 1), run.lined(op.y, value.ndim - 1)
    return (x @ y.mT) / float(run.width(op.x)) ** op.power


def _split(run: Reading, op: ops.Split, value: Vector) -> Tensor:
    x = run.made[op.x]
    return x.reshape(*x.shape[:-1], op.count, -1).movedim(-2, op.axis)


def _take(run: Reading, op: ops.Take, value: Value) -> Tensor:
    x = run.made[op.x]
    return x.reshape(op.x.size, *x.shape[op.x.ndim :])[torch.tensor(op.flat)]


def _scaled_gradient(run: Reading, op: ScaledGradient, value: Value) -> Tensor:
    """The same numbers: a part of them is detached, so that no gradient passes it."""
    x, factors = run.made[op.x], fixed(op.factors)
    if isinstance(value, Vector):
        factors = factors[..., None]
    return factors * x + ((1.0 - factors) * x).detach()


TORCH: dict[type[Operation], Callable[[Reading, Any, Any], Tensor]] = {
    ops.Gaussian: lambda run, op, value: leaf(run.literal.drawn[value][0]),
    ops.Normal: lambda run, op, value: leaf(run.literal.drawn[value][0]),
    ops.Data: lambda run, op, value: leaf(op.vectors),
    ops.Constant: lambda run, op, value: fixed(op.numbers),
    ops.Root: lambda run, op, value: fixed(op.of(run.widths)),
    ops.MatMul: _matmul,
    ops.Nonlin: _nonlin,
    ops.Add: lambda run, op, value: (
        run.lined(op.x, value.ndim) + run.lined(op.y, value.ndim)
    ),
    ops.Scale: lambda run, op, value: (
        run.lined(op.c, value.ndim)[..., None] * run.lined(op.x, value.ndim)
    ),
    ops.Mix: lambda run, op, value: (
        run.lined(op.a, value.ndim + 1) @ run.lined(op.x, value.ndim)
    ),
    ops.Concat: lambda run, op, value: run.made[op.x].movedim(op.axis, -2).flatten(-2),
    ops.Split: _split,
    ops.Dot: _dot,
    ops.Apply: _apply,
    ops.Take: _take,
    ops.Join: lambda run, op, value: torch.cat([run.made[part] for part in op.parts]),
    Rotate: _rotate,
    ScaledGradient: _scaled_gradient,
}
