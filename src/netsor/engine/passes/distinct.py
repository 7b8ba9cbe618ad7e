"""Repeated members of a weight: W[[0, 0, 1]] x is W[[0, 1]] x, taken twice.

Identity: two members with one index are one matrix, so what they make of one vector is one vector. With `each`, where
member b acts on x[b], a member that occurs twice acts twice: its second time is a use of the same matrix again.
After this pass the members of every weight are distinct, which lowering relies on: it cannot be switched off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...language._array import Value
from ...language._join import join
from ...language._operation import MatMul
from ...language._vector import Vector
from ...language._weight import Weight
from ._rewrite import Context, rewritten


def distinct(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with every member of a weight at most once in a MatMul."""

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case MatMul(weight, x, each):
                members = weight.members.ravel()
                if len(np.unique(members)) < len(members):
                    return _each(new, weight, x) if each else _all(new, weight, x)
        return new

    return rewritten(outputs, context, change)


def _all(value: Value, weight: Weight, x: Vector) -> Value:
    found, back = np.unique(weight.members.ravel(), return_inverse=True)
    product = replace(weight, members=found) @ x
    return product[back.ravel()].reshape(*value.shape)


def _each(value: Value, weight: Weight, x: Vector) -> Value:
    members = weight.members.ravel()
    rows = x.reshape(len(members), -1)
    rounds: list[list[int]] = []  # the places of the first occurrence of each member, of the second, …
    for place, member in enumerate(members.tolist()):
        for chosen in rounds:
            if all(members[k] != member for k in chosen):
                chosen.append(place)
                break
        else:
            rounds.append([place])
    parts = [replace(weight, members=members[chosen]).each(rows[chosen]) for chosen in rounds]
    order = np.argsort(np.concatenate(rounds))
    return join(parts)[order].reshape(*value.shape)
