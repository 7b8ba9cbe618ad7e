"""A matrix after steps of an optimiser acts as the matrix before, and a mix of vectors that are there.

Identity (theory, "One step of an optimiser"): with G = Σ_i l_i r_i^T over the uses of W, W' = (1 − ηλ) W − η G acts as
W' x = (1 − ηλ) W x − η Σ_i ⟨r_i, x⟩ l_i, and W'^T v = (1 − ηλ) W^T v − η Σ_i ⟨l_i, v⟩ r_i.

At infinite width all powers of widths in a coefficient are counted together: with ⟨r_i, x⟩/n of order 1, what is left
must be of order 1, or of order n^(−1/2), which a score may see. What grows is refused.

After this pass no step is left, which lowering relies on: it cannot be switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...language._join import join
from ...language._move import Part, Rule, Shifted, Stepped, begun
from ...language._operation import MatMul
from ...language._score import mean_dot
from ...language._uses import pooled
from ...language._value import Value, Vector, constant, mix
from ._orders import Order, order_of
from ._rewrite import Context, rewritten


def stepped(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program without steps."""
    made: dict[object, Vector] = {}  # W x, however often it is asked for

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case MatMul():
                made.setdefault(_key(new.op), new)  # type: ignore[arg-type]
            case Stepped() as op:
                return _Matrices(new, op, context, made).act()
            case Shifted() as op:
                return _shifted(new, op, context)
        return new

    return rewritten(outputs, context, change)


def _key(op: MatMul | Stepped) -> object:
    w = op.weight
    return w.source, w.members.shape, w.members.tobytes(), w.transposed, w.fan, op.each, op.x


class _Uses(NamedTuple):
    """The uses of some matrices in one step: l (matrices, K), r (1 or matrices, K), and for each what it is of G."""

    left: Vector
    right: Vector
    parts: tuple[tuple[Part, int], ...]  # and how many uses


class _Matrices:
    """The matrices of one operation, which acts on x (1 or matrices, vectors)."""

    def __init__(self, value: Value, op: Stepped, context: Context, made: dict[object, Vector]) -> None:
        self.value, self.op, self.context, self.made = value, op, context, made
        self.members = op.weight.members.ravel().tolist()
        self.x = op.x.reshape(len(self.members) if op.each else 1, -1)

    def act(self) -> Vector:
        """W' x."""
        op, weight = self.op, self.op.weight
        acted = self.made.get(_key(op))
        if acted is None:
            acted = self.made[_key(op)] = weight.each(op.x) if op.each else weight @ op.x
        y = acted.reshape(len(self.members), -1)
        for number, rule in enumerate(op.steps):
            y = self._after(y, number, rule)
        return y.reshape(*self.value.shape)

    def _after(self, y: Vector, number: int, rule: Rule) -> Vector:
        """After one more step, those matrices together that have the same uses."""
        classes: dict[tuple[int, ...], list[int]] = {}
        for k, member in enumerate(self.members):
            own = tuple(i for i, p in enumerate(self.op.parts) if p.step == number and member in p.members)
            classes.setdefault(own, []).append(k)
        found, order = [], []
        for which, at in classes.items():
            order += at
            before = y if len(classes) == 1 else y[at]
            found.append(self._moved(before, at, which, rule) if which else before)
        return found[0] if len(found) == 1 else join(found)[np.argsort(order)]

    def _moved(self, y: Vector, at: Sequence[int], which: Sequence[int], rule: Rule) -> Vector:
        x = self.x if len(at) == len(self.members) or len(self.x) == 1 else self.x[at]
        made = self._decayed(y, rule)
        for order, change in CHANGES[rule.optimiser](self, x, self._uses(at, which), rule):
            made = made + order.times(change)
        return made

    def _decayed(self, y: Vector, rule: Rule) -> Vector:
        if not rule.weight_decay:
            return y
        order = self.order(lambda widths: -rule.weight_decay * rule.of(rule.lr, widths))
        return y + order.times(y) if order.number else y

    def _uses(self, at: Sequence[int], which: Sequence[int]) -> _Uses:
        lefts, rights, parts = [], [], []
        for i in which:
            part = self.op.parts[i]
            rows = [part.members.index(self.members[k]) for k in at]
            whole = rows == list(range(len(part.members)))
            left, right = (v if whole or len(v) == 1 else v[rows] for v in (self.op.left[i], self.op.right[i]))
            lefts.append(left)
            rights.append(right)
            parts.append((part, left.shape[1]))
        return _Uses(pooled(lefts), pooled(rights), tuple(parts))

    def order(self, rate: Callable[[Mapping[str, float]], float]) -> Order:
        """A number that depends on the widths."""
        return order_of(rate, self.context.bound, self.value, self.op.weight.source.name or "a weight")

    def acting(self, widths: Mapping[str, float]) -> float:
        """By what the matrix that acts is larger than one with entries N(0, σ²/in): √(in/fan)."""
        weight = self.op.weight
        return float((weight.drawn.in_width.bind(widths) / weight.fan.bind(widths)) ** 0.5)


def _descent(m: _Matrices, x: Vector, uses: _Uses, rule: Rule) -> list[tuple[Order, Vector]]:
    """−η Σ_i ⟨r_i, x⟩ l_i; the uses of one order together."""
    turned = m.op.weight.transposed
    left, right = (uses.right, uses.left) if turned else (uses.left, uses.right)
    along = mean_dot(x, right)  # (matrices, vectors, K)
    orders: dict[object, tuple[Order, list[float]]] = {}
    start = 0
    for part, count in uses.parts:

        def rate(widths: Mapping[str, float], part: Part = part) -> float:
            return -rule.of(rule.lr, widths) * m.acting(widths) * part.size(widths) * x.width.bind(widths)

        order = m.order(rate)
        unit, numbers = orders.setdefault(order.unit, (order._replace(number=1.0), [0.0] * start))
        for _, others in orders.values():
            others += [order.number if others is numbers else 0.0] * count
        start += count
    made = []
    for unit, numbers in orders.values():
        by = constant(np.asarray(numbers)) * along if len(set(numbers)) > 1 else numbers[0] * along
        if any(numbers):
            made.append((unit, mix(by, left)))
    return made


def _shifted(value: Value, op: Shifted, context: Context) -> Value:
    rule, made, named = op.rule, op.x, begun(op.x)[0].op.source.name or "an initial vector"  # type: ignore[attr-defined]
    if rule.weight_decay:
        decay = order_of(lambda widths: -rule.weight_decay * rule.of(rule.lr, widths), context.bound, value, named)
        made = made + decay.times(made) if decay.number else made
    for k, d in enumerate(op.d):

        def rate(widths: Mapping[str, float], k: int = k) -> float:
            return -rule.of(rule.lr, widths) * op.sizes(widths)[k]

        order = order_of(rate, context.bound, value, named)
        made = made + order.times(d) if order.number else made
    return made


CHANGES: dict[str, Callable[[_Matrices, Vector, _Uses, Rule], list[tuple[Order, Vector]]]] = {"sgd": _descent}
