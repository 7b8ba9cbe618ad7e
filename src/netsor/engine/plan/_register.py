"""Registers: the arrays that the steps of a plan read and write."""

from __future__ import annotations

import math

import numpy as np

from ..._array_api import Array
from ..._validate import Shape


class Register:
    """An array of a plan: its shape in one replica, and its value if that is known.

    A plan computes many replicas at once, so the array of a register has the shape
    (replicas, *shape), or (1, *shape) if all replicas share it. Two registers are equal
    only if they are the same object: they are the names of arrays, not their contents.

    Parameters
    ----------
    shape : tuple of int
        The shape in one replica.
    value : array or None
        The numbers (1, *shape) if all replicas share them and they are known when the
        plan is made; None for the result of a step.
    hyperparameter : str or None
        The name of the hyperparameter that this number stands for. Its value is then a
        placeholder, which `Plan.bind` replaces and constant folding skips.

    Attributes
    ----------
    varies : bool
        Whether the numbers differ between replicas, or between runs of the plan.
    size : int
        The number of entries in one replica.
    shifts : bool
        Whether it is a constant computed from Gaussian expectations, which differs in
        a shifted plan.

    Examples
    --------
    >>> from netsor.engine.plan._register import Register
    >>> drawn = Register((3, 4))
    >>> drawn.varies, drawn.size
    (True, 12)
    >>> Register((3, 4), np.zeros((1, 3, 4))).varies
    False
    """

    def __init__(
        self,
        shape: Shape,
        value: Array | None = None,
        hyperparameter: str | None = None,
    ) -> None:
        self.shape = shape
        self.value = value
        self.hyperparameter = hyperparameter
        self.varies = value is None or hyperparameter is not None
        self.size = math.prod(shape)
        self.shifts = False

    def __repr__(self) -> str:
        origin = self.hyperparameter
        if origin is None:
            origin = "result" if self.value is None else "constant"
        return f"<Register: {origin} of shape {self.shape}>"

    def identity_start(self) -> int | None:
        """The first column of the identity block that a constant consists of.

        The constant is (0, I, 0) with any number of zero columns on both sides; None
        if it has another form. For example, [[0, 1, 0], [0, 0, 1]] starts at column 1.
        """
        rows, columns = self.shape[-2:]
        if self.value is None or rows > columns:
            return None
        first_row = self.value.reshape(-1, rows, columns)[0, 0]
        start = int(first_row.argmax())
        if start + rows > columns:
            return None
        if not (self.value == np.eye(rows, columns, start)).all():
            return None
        return start


def hyperparameter_register(name: str, number: float) -> Register:
    """The register of a hyperparameter with a value, which no step may overwrite."""
    value = np.full(1, number)
    value.flags.writeable = False
    return Register((), value, name)
