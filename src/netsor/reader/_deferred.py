"""Scalars of any function: the parts of a network that its framework computes.

A tensor without an axis of coordinates is an array of scalars, and a program may
contain any deterministic function of scalars. So operations on scalars need no rules:
top-k, sort, scatter, cumulative sums, masks. The reader records them as `Deferred`
tensors. Where a recorded tensor meets vectors, or is an output, it becomes scalars of
the language, by one `ns.apply` of a function that the framework computes: all recorded
operations together. A front end says how, in `Deferred.function_of`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .. import language as ns
from .._array_api import array_namespace
from .._validate import Shape
from ..functions.activations import Function
from ._arithmetic import Call
from ._axes import Scalars
from ._graph import Node, name_of

# a tensor with so many uses becomes scalars once, and not once for each use
SHARED_BY = 3
# operations of scores that take a mask as −∞
OF_MASKED_SCORES = (
    "amax",
    "argmax",
    "argsort",
    "exp",
    "logsumexp",
    "max",
    "sort",
    "topk",
)


class ScalarFunction(NamedTuple):
    """A function of scalars that a framework computes, and its pullbacks.

    Each argument holds the entries of a tensor along its last axis. A pullback is the
    gradient with respect to one argument: a function of all arguments and of the
    gradient of the result.
    """

    value: Callable[..., Any]
    pullbacks: tuple[Callable[..., Any], ...]


@dataclass(frozen=True, eq=False)
class Deferred(ABC):
    """A tensor, or several, that a framework computes from scalars.

    The invariant: it stands for the result of its node, like all values of the reader.
    Its arguments are other deferred tensors, scalars and given numbers.
    """

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call: Call

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.call.shape

    @property
    def dtype(self) -> Any:
        """The type of its entries."""
        return self.node.meta["val"].dtype

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor, and not the several results of an operation."""
        return hasattr(self.node.meta.get("val"), "dtype")

    @property
    def inputs(self) -> list[Any]:
        """The deferred tensors and the scalars that it is computed from."""
        leaves = _leaves((self.args, self.kwargs))
        return [x for x in leaves if isinstance(x, Deferred | Scalars)]

    @cached_property
    def scalars(self) -> Scalars:
        """The tensor as scalars of the language."""
        return self._rearranged() or self._applied()

    @abstractmethod
    def _rearranged(self) -> Scalars | None:
        """The scalars of another deferred tensor, rearranged, if they are no more."""

    @abstractmethod
    def function_of(
        self, leaves: Sequence[Scalars | Deferred], operations: Sequence[Deferred]
    ) -> ScalarFunction:
        """The function of some leaves that recorded operations compute together."""

    @property
    def _is_known(self) -> bool:
        return "scalars" in vars(self)

    @property
    def _is_shared(self) -> bool:
        return self.is_tensor and len(self.node.users) >= SHARED_BY

    def _applied(self) -> Scalars:
        """The scalars that one function gives, of all recorded operations together."""
        leaves: list[Scalars | Deferred] = []
        operations: list[Deferred] = []
        for x in _in_order(self):
            is_leaf = isinstance(x, Scalars) or (
                x is not self and (x._is_shared or x._is_known)
            )
            if is_leaf:
                leaves.append(x)
            else:
                operations.append(x)
        function = self.function_of(leaves, operations)
        flat = [_scalar_of(x).reshape(-1) for x in leaves]
        f = Function(name_of(self.node), function.value, derivative=function.pullbacks)
        return Scalars(ns.apply(f, *flat, axes=1))


def _leaves(x: Any) -> Iterator[Any]:
    """What lists, tuples and mappings contain."""
    if isinstance(x, Mapping):
        x = tuple(x.values())
    if not isinstance(x, list | tuple):
        yield x
        return
    for entry in x:
        yield from _leaves(entry)


def _scalar_of(x: Scalars | Deferred) -> ns.Scalar:
    """The scalars of an argument, −∞ where a mask takes them out."""
    if isinstance(x, Deferred):
        return x.scalars.value
    if x.allowed is None:
        return x.unmasked
    return ns.apply(MASK, x.unmasked, x.allowed.astype(float))


def _masked(p: Any, allowed: Any) -> Any:
    return array_namespace(p).where(allowed > 0, p, -math.inf)


MASK = Function("mask", _masked, derivative=(1.0, None))


def _in_order(root: Deferred) -> list[Any]:
    """What a tensor is computed from: arguments before what uses them.

    Shared tensors, and those that are scalars already, are not opened.
    """
    order: list[Any] = []
    finished: set[int] = set()
    pending: list[tuple[Any, bool]] = [(root, False)]
    while pending:
        x, inputs_are_done = pending.pop()
        if id(x) in finished:
            continue
        is_open = isinstance(x, Deferred) and (
            x is root or not (x._is_shared or x._is_known)
        )
        if inputs_are_done or not is_open:
            finished.add(id(x))
            order.append(x)
            continue
        pending.append((x, True))
        pending += [(y, False) for y in reversed(x.inputs)]
    return order


def are_scalars(node: Node, random: Iterable[Any]) -> bool:
    """Whether the random arguments of an operation are scalars, with masks it takes."""
    for x in random:
        if not isinstance(x, Deferred | Scalars):
            return False
        is_masked = isinstance(x, Scalars) and x.shown is not None
        if is_masked and name_of(node) not in OF_MASKED_SCORES:
            return False
    return True
