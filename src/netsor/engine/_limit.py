"""Nonlinearities at infinite width: Gaussian expectations in place of sums over coordinates.

An output of a nonlinearity is kept as "f of Gaussian vectors" as long as only its products are asked for, which are
closed forms or two-dimensional integrals; functions of several arguments, and of each other, have values at
quasi-Monte Carlo nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import IDENTITY, Function
from ..language._value import Value, Vector
from ._coordinates import Coordinates, padded, transposed
from ._frame import Frame
from ._gaussian import expectation
from ._nodes import NODES, gaussian_nodes, mean_product
from ._plan import Group, Plan

Array = Any
Rows = tuple[Coordinates, Array]  # vectors (…, k, blocks, ·), with the means (…, k, blocks) of what f acts on


class Limit:
    """What the exact interpreter asks about nonlinear vectors at infinite width."""

    def __init__(self, plan: Plan, frames: Mapping[Group, Frame], asarray: Callable[[Array], Array]) -> None:
        self.plan, self.frames, self.asarray = plan, frames, asarray
        self.error = 0.0  # of quadrature, the largest

    def nonlin(self, f: Function, given: Sequence[tuple[Value, Coordinates]], numbers: Sequence[Array]) -> Coordinates:
        """φ(g¹, …; p_1, …) of vectors of infinite width."""
        sample = None
        if all(c.sample is not None for _, c in given):
            sample = f(*(c.sample[..., :1] for _, c in given), *numbers)
        _, first = given[0]
        if len(given) == 1 and not numbers and not first.nonlinear:
            return Coordinates(first.lead, None, sample, f=f)
        values = f(*(self.at_nodes(x, c) for x, c in given), *numbers)
        return Coordinates(values[..., :0], None, sample, nodes=values)

    def mean(self, value: Value, c: Coordinates) -> Array:
        """The means of the Gaussian vectors with these lead coordinates: along (1, …, 1), the first direction."""
        assert isinstance(value, Vector)
        has = np.zeros(value.size * self.plan.blocks_of(value))
        for group in self.plan.groups_of(value):
            has[group.positions[value].ravel()] = float(group.constant and not self.frames[group].compact)
        has = has.reshape(1, *value.shape, -1)
        return has * np.asarray(c.lead[..., 0]) if c.lead.shape[-1] else 0.0 * has

    def at_nodes(self, value: Value, c: Coordinates) -> Array:
        """The values of vectors at the nodes."""
        if c.nodes is not None:
            return c.nodes
        lead = np.asarray(c.lead)
        constant = {group.constant for group in self.plan.groups_of(value)}
        if len(constant) > 1:  # vectors with and without a mean: both kinds of frame, each where it belongs
            has = np.zeros(lead.shape[1:-1]).reshape(-1)
            for group in self.plan.groups_of(value):
                has[group.positions[value].ravel()] = float(group.constant)
            has = has.reshape(1, *lead.shape[1:-1], 1)
            nodes = has * _values(lead, True) + (1 - has) * _values(lead, False)
        else:
            nodes = _values(lead, constant.pop())
        nodes = self.asarray(nodes)
        return nodes if c.f is None else c.f(nodes)

    def gram(self, x: Rows, y: Rows) -> Array:
        """E[Z^{x_i} Z^{y_j}], the mean over the blocks, for rows (…, i, blocks, ·) and (…, j, blocks, ·)."""
        (a, mean_a), (b, mean_b) = x, y
        if a.nodes is not None or b.nodes is not None:
            p, q = (np.asarray(c.nodes) for c in (a, b))
            total, error = 0.0, 0.0
            for block in range(p.shape[-2]):
                part, e = mean_product(p[..., block, :], q[..., block, :])
                total, error = total + part / p.shape[-2], max(error, e)
            self.error = max(self.error, error)
            return self.asarray(total)
        width = max(a.lead.shape[-1], b.lead.shape[-1])
        u, v = (np.swapaxes(np.asarray(padded(c.lead, width)), -2, -3) for c in (a, b))  # (…, blocks, i, ·)
        mu, nu = (np.swapaxes(np.asarray(m), -1, -2) for m in (mean_a, mean_b))
        cov = u @ transposed(v) - mu[..., :, None] * nu[..., None, :]
        var_a = (u**2).sum(-1) - mu**2
        var_b = (v**2).sum(-1) - nu**2
        result, error = expectation(
            a.f or IDENTITY,
            b.f or IDENTITY,
            (mu[..., :, None], nu[..., None, :]),
            (np.maximum(var_a, 0.0)[..., :, None], cov, np.maximum(var_b, 0.0)[..., None, :]),
        )
        self.error = max(self.error, error)
        return self.asarray(result.mean(axis=-3))

    def joint_gram(self, parts: Sequence[tuple[Coordinates, Array, Array]]) -> Array:
        """The Gram matrix of several sets of rows (replicas, members, k, blocks, ·), each with which members it has."""
        grams = [[np.asarray(self.gram((a, m), (b, n))) * (p * q)[..., None] for b, n, q in parts] for a, m, p in parts]
        replicas = max(g.shape[0] for row in grams for g in row)
        members = max(g.shape[1] for row in grams for g in row)
        full = [[np.broadcast_to(g, (replicas, members, *g.shape[2:])) for g in row] for row in grams]
        return self.asarray(np.concatenate([np.concatenate(row, axis=-1) for row in full], axis=-2))

    def live_gram(self, group: Group, gathered: Sequence[Coordinates]) -> Array:
        """The Gram matrix of the vectors of a group still in use, (replicas, frames, k, k); (1, …, 1) comes last."""
        parts = []
        at_nodes = any(c.nodes is not None for c in gathered)
        for c in gathered:
            rows = c.each(lambda a: a[..., None, :])  # each frame is a block of its own
            if at_nodes and rows.nodes is None:
                nodes = _values(np.asarray(rows.lead), group.constant)
                rows = Coordinates(rows.lead, nodes=nodes if rows.f is None else rows.f(nodes))
            mean = rows.lead[..., 0] if group.constant and rows.lead.shape[-1] else 0.0 * np.sum(rows.lead, axis=-1)
            parts.append((rows, np.asarray(mean), np.ones((1, 1, 1))))
        if self.frames[group].constant is not None:
            one = np.ones((1, group.frames, 1, 1, 1))
            nodes = np.ones((1, group.frames, 1, 1, NODES)) if at_nodes else None
            parts.append((Coordinates(one, nodes=nodes), one[..., 0], np.ones((1, 1, 1))))
        return self.joint_gram(parts)


def _values(lead: Array, constant: bool) -> Array:
    sources = lead.shape[-1] - constant
    return lead @ gaussian_nodes(max(sources, 0), constant)
