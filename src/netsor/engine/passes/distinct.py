"""What was written twice is one: W x and W x, and of W[[0, 0, 1]] x the first two.

Identity: what one matrix makes of one vector is one vector. So W x − W x is 0, and no rounding of W x read off what W
did before. Of W[[0, 0, 1]] x it is enough to make W[[0, 1]] x. With `each`, where member b acts on x[b], a member that
occurs twice acts twice: its second time is a use of the same matrix again.
After this pass the members of every weight are distinct, which lowering relies on: it cannot be switched off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...language._array import Value, field_names
from ...language._content import content_of
from ...language._join import join
from ...language._operation import MatMul
from ...language._vector import Vector
from ...language._weight import Weight
from ._rewrite import Context, rewritten


def distinct(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with every product of matrices and vectors once, and every member of a weight once in it."""
    products: dict[Any, Value] = {}

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case MatMul(weight, x, each):
                members = weight.members.ravel()
                fields = {name: getattr(weight, name) for name in field_names(Weight)}
                key = *({**fields, "members": content_of(weight.members)}.values()), x, each
                if key in products:
                    return products[key]
                if len(np.unique(members)) < len(members):
                    new = _each(new, weight, x) if each else _all(new, weight, x)
                products[key] = new
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
