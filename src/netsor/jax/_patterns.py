"""Patterns: several equations that are one operation of the reader.

JAX has no primitive for a mean, a softmax, a layer norm or GELU. These are found by
what their equations compute, whichever library wrote them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..functions.activations import RELU, Function
from ..reader._graph import shape_of
from ._functions import Composite, Entrywise, Result, Step, known_function
from ._nodes import Node, replace_uses
from ._primitives import POINTWISE

# what changes no number
RESHAPING = (
    "broadcast_in_dim",
    "convert_element_type",
    "expand_dims",
    "reshape",
    "squeeze",
)


def joined(
    nodes: list[Node],
    outputs: list[Any],
    value: Callable[[Any], Any],
    *,
    only_known: bool = False,
) -> tuple[list[Node], list[Any]]:
    """The nodes with patterns joined, without those that nothing uses.

    `value` computes a known node. With `only_known`, functions of entries are joined if
    they are activations that netsor knows, so that factors before them remain.
    """
    joiner = Joiner(value, only_known)
    for rule in (joiner.mean, joiner.layer_norm, joiner.softmax):
        nodes, outputs = _replaced(nodes, outputs, rule)
    nodes = _used(nodes, outputs)
    nodes, outputs = _replaced(nodes, outputs, rule=joiner.function, backwards=True)
    return _used(nodes, outputs), outputs


def _replaced(
    nodes: list[Node],
    outputs: list[Any],
    rule: Callable[[Node], list[Node]],
    *,
    backwards: bool = False,
) -> tuple[list[Node], list[Any]]:
    """The nodes after a rule replaced some of them, and the outputs.

    A rule returns new nodes, the last of which stands for the old one, or none.
    """
    new_nodes: dict[Node, list[Node]] = {}
    joined_nodes: set[Node] = set()
    for node in reversed(nodes) if backwards else nodes:
        if node in joined_nodes:
            continue
        replacement = rule(node)
        if replacement:
            last = replacement[-1]
            new_nodes[node] = replacement
            joined_nodes.update(last.meta.get("joined", ()))
            replace_uses(node, last)
    result: list[Node] = []
    for node in nodes:
        result += new_nodes.get(node, [node])

    def replaced(output: Any) -> Any:
        if isinstance(output, Node) and output in new_nodes:
            return new_nodes[output][-1]
        return output

    return result, [replaced(output) for output in outputs]


def _used(nodes: list[Node], outputs: list[Any]) -> list[Node]:
    """The nodes that outputs depend on."""
    live = {x for x in outputs if isinstance(x, Node)}
    for node in reversed(nodes):
        if node in live:
            live.update(node.all_input_nodes)
    live_nodes = [node for node in nodes if node in live]
    keep_users(live_nodes)
    return live_nodes


def keep_users(nodes: list[Node]) -> None:
    """Have nodes know no users but these nodes."""
    alive = set(nodes)
    for node in nodes:
        node.users = {user: None for user in node.users if user in alive}


@dataclass(frozen=True)
class Mean:
    """The mean over some axes, which may stay with size 1."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]  # of the result

    def __call__(self, x: Any) -> Any:
        """What JAX computes."""
        return jax.numpy.mean(x, axis=self.axes).reshape(self.shape)


@dataclass(frozen=True)
class Softmax:
    """The softmax over an axis."""

    axis: int

    def __call__(self, x: Any) -> Any:
        """What JAX computes."""
        return jax.nn.softmax(x, axis=self.axis)


@dataclass(frozen=True)
class LayerNorm:
    """The layer norm over the last axis, without weight and bias."""

    eps: float

    def __call__(self, x: Any) -> Any:
        """What JAX computes."""
        centred = x - x.mean(axis=-1, keepdims=True)
        square = (centred**2).mean(axis=-1, keepdims=True)
        return centred / jax.numpy.sqrt(square + self.eps)


def _node(
    like: Node, operation: str, args: tuple[Any, ...], kwargs: Any, compute: Any
) -> Node:
    """A node that replaces another one."""
    return Node(
        op="call_function",
        operation=operation,
        target=operation,
        args=args,
        kwargs=kwargs,
        compute=compute,
        meta=dict(like.meta),
    )


class Joiner:
    """The patterns: each rule returns the nodes that stand for one, or none."""

    def __init__(self, value: Callable[[Any], Any], only_known: bool = False) -> None:
        self._value = value
        self.only_known = only_known
        self._functions: dict[Any, Function | None] = {}

    def number(self, x: Any) -> float | None:
        """A known number; None if it is random, complex, or no single number."""
        if not isinstance(x, Node):
            return None
        if x.is_random or math.prod(shape_of(x)) != 1:
            return None
        value = np.asarray(self._value(x))
        return None if np.iscomplexobj(value) else float(value.reshape(()))

    # Means and norms

    def mean(self, node: Node) -> list[Node]:
        """A sum over axes, divided by the number of entries."""
        if node.target not in ("div", "mul") or len(node.args) != 2:
            return []
        kept_sums, number = node.args
        if node.target == "mul" and not _is(_stripped(kept_sums), "reduce_sum"):
            kept_sums, number = number, kept_sums
        sums = _stripped(kept_sums)  # the axes that they lose may come back
        if not _is(sums, "reduce_sum") or shape_of(node) != shape_of(kept_sums):
            return []
        if math.prod(shape_of(node)) != math.prod(shape_of(sums)):
            return []
        (x,) = sums.args
        axes = tuple(int(axis) for axis in sums.kwargs["axes"])
        count = math.prod(shape_of(x)[axis] for axis in axes)
        divisor = self._divisor(node.target, number)
        if divisor is None or abs(divisor - count) > 1e-6 * count:
            return []
        return [
            _node(
                node,
                operation="mean",
                args=(x,),
                kwargs={"axes": axes},
                compute=Mean(axes, tuple(shape_of(node))),
            )
        ]

    def _divisor(self, target: str, number: Any) -> float | None:
        """By what a division or a multiplication divides; None if it is not known."""
        factor = self.number(number)
        if target == "div" or not factor:
            return factor
        return 1 / factor

    def layer_norm(self, node: Node) -> list[Node]:
        """Centred vectors times their inverse root of the variance, and a scale."""
        if node.target not in ("div", "mul"):
            return []
        left, right = node.args
        pairs = [(left, right)]
        if node.target == "mul":
            pairs.append((right, left))
        for centred, deviation in pairs:
            x = self._centred(centred)
            if x is None:
                continue
            eps, scale = self._inverse_deviation(deviation, x, node.target)
            if eps is not None:
                return self._norm_nodes(node, x, eps, scale)
        return []

    @staticmethod
    def _norm_nodes(node: Node, x: Node, eps: float, scale: Any) -> list[Node]:
        """The layer norm of x, times a scale if there is one."""
        norm = _node(
            node,
            operation="layer_norm",
            args=(x,),
            kwargs={"eps": eps},
            compute=LayerNorm(eps),
        )
        if scale is None:
            return [norm]
        product = _node(
            node,
            operation="mul",
            args=(norm, scale),
            kwargs={},
            compute=node.compute,
        )
        return [norm, product]

    def _centred(self, node: Any) -> Node | None:
        """The vectors x of x − mean(x) over the last axis."""
        if not _is(node, "sub"):
            return None
        x, mean = node.args
        return x if self._is_mean_of(mean, x) else None

    def _is_mean_of(self, mean: Any, x: Any) -> bool:
        """Whether a node is the mean of another one over its last axis."""
        mean = _stripped(mean)
        if not _is(mean, "mean") or _stripped(mean.args[0]) is not _stripped(x):
            return False
        last = len(shape_of(mean.args[0])) - 1
        return bool(mean.kwargs["axes"] == (last,))

    def _inverse_deviation(
        self, node: Any, x: Node, target: str
    ) -> tuple[float | None, Any]:
        """The eps of 1/√(variance + eps), and a scale that multiplies it.

        `target` is how the centred vectors are combined with this node: they are
        divided by √(variance + eps), or multiplied with its inverse.
        """
        node = _stripped(node)
        if target == "div":
            if _is(node, "sqrt"):
                return self._eps(node.args[0], x), None
            return None, None
        if _is(node, "rsqrt"):
            return self._eps(node.args[0], x), None
        if _is(node, "mul"):
            for factor, scale in (node.args, node.args[::-1]):
                inverse_root = _stripped(factor)
                if _is(inverse_root, "rsqrt"):
                    return self._eps(inverse_root.args[0], x), scale
        return None, None

    def _eps(self, node: Any, x: Node) -> float | None:
        """The eps of variance + eps."""
        node = _stripped(node)
        if not _is(node, "add"):
            return None
        for variance, number in (node.args, node.args[::-1]):
            eps = self.number(number)
            if eps is not None and self._is_variance(variance, x):
                return eps
        return None

    def _is_variance(self, node: Any, x: Node) -> bool:
        """Whether a node is the variance of x over its last axis.

        It is mean((x − mean x)²), or mean(x²) − (mean x)², or the maximum of it and 0.
        """
        node = _stripped(node)
        if _is(node, "max"):
            others = [y for y in node.args if self.number(y) != 0.0]
            return len(others) == 1 and self._is_variance(others[0], x)
        if _is(node, "mean"):
            return self._is_mean_of_squared_deviations(node, x)
        if _is(node, "sub"):
            minuend, subtrahend = node.args
            return self._is_difference_of_squares(
                _stripped(minuend), _stripped(subtrahend), x
            )
        return False

    def _is_mean_of_squared_deviations(self, mean: Node, x: Node) -> bool:
        """Whether a mean is mean((x − mean x)²)."""
        squares = mean.args[0]
        centred = self._centred(_stripped(self._squared(squares)))
        last_axis = len(shape_of(squares)) - 1
        is_of_x = centred is not None and _stripped(centred) is _stripped(x)
        return is_of_x and mean.kwargs["axes"] == (last_axis,)

    def _is_difference_of_squares(
        self, mean_of_squares: Any, square_of_mean: Any, x: Node
    ) -> bool:
        """Whether two nodes are mean(x²) and (mean x)²."""
        mean = self._squared(square_of_mean)
        if not _is(mean_of_squares, "mean") or mean is None:
            return False
        squared = self._squared(mean_of_squares.args[0])
        is_of_x = squared is not None and _stripped(squared) is _stripped(x)
        return is_of_x and self._is_mean_of(mean, x)

    def _squared(self, node: Any) -> Any:
        """What is squared; None if a node is no square."""
        node = _stripped(node)
        if _is(node, "square"):
            return node.args[0]
        if _is(node, "integer_pow") and node.kwargs["y"] == 2:
            return node.args[0]
        if _is(node, "mul") and node.args[0] is node.args[1]:
            return node.args[0]
        return None

    def softmax(self, node: Node) -> list[Node]:
        """Exponentials divided by their sum over the last axis."""
        if node.target != "div":
            return []
        exponentials = node.args[0]
        sums = _stripped(node.args[1])
        if not _is(exponentials, "exp") or not _is(sums, "reduce_sum"):
            return []
        axes = tuple(int(axis) for axis in sums.kwargs["axes"])
        last = len(shape_of(node)) - 1
        if sums.args[0] is not exponentials or axes != (last,):
            return []
        scores = exponentials.args[0]
        if _is(scores, "sub") and self._is_maximum_of(scores.args[1], scores.args[0]):
            scores = scores.args[0]
        return [
            _node(
                node,
                operation="softmax",
                args=(scores,),
                kwargs={"axis": last},
                compute=Softmax(last),
            )
        ]

    def _is_maximum_of(self, node: Any, x: Any) -> bool:
        """Whether a node is the maximum of another one over its last axis."""
        while True:
            node = _stripped(node)
            if _is(node, "stop_gradient"):
                node = node.args[0]
            elif _is(node, "max"):
                inside = [y for y in node.args if self.number(y) != -math.inf]
                if len(inside) != 1:
                    return False
                (node,) = inside
            else:
                break
        return _is(node, "reduce_max") and node.args[0] is x

    # Functions of entries

    def function(self, node: Node) -> list[Node]:
        """Operations on each entry that are one function of one tensor together."""
        if not self._is_pointwise(node):
            return []
        if node.target == "max" and 0.0 in [self.number(x) for x in node.args]:
            return [self._relu(node)]
        group = self._group(node)
        if group is None or len(group) < 2:
            return []
        sources = {x for member in group for x in member.args if _is_random(x)}
        (x,) = sources.difference(group)
        if _is(_stripped(x), "mean") and all(map(_is_step_of_norm, group)):
            return []  # the reader knows roots of mean squares
        composite = self._composite(sorted(group, key=_position(group, x)), x)
        function = known_function(composite)
        if function is None:
            if self.only_known or all(_is_affine(member) for member in group):
                return []
            function = Entrywise(composite).function(node.target, 1)
        return [_of_group(node, x, function, composite, group)]

    def _relu(self, node: Node) -> Node:
        """The larger of a tensor and 0."""
        (x,) = (y for y in node.args if _is_random(y))
        composite = self._composite([node], x)
        new = _node(
            node,
            operation="relu",
            args=(x,),
            kwargs={"function": RELU},
            compute=composite,
        )
        new.target = "function"
        return new

    def _is_pointwise(self, node: Any) -> bool:
        """Whether a node acts on each entry of one tensor, beside single numbers."""
        targets = (*POINTWISE, "convert_element_type")
        if not _is_random(node) or node.target not in targets:
            return False
        tensors = [x for x in node.args if _is_random(x)]
        if any(_is_integer(x) for x in (node, *tensors)):
            return False
        if any(shape_of(x) != shape_of(node) for x in tensors):
            return False
        numbers = [self.number(x) for x in node.args if not _is_random(x)]
        return None not in numbers

    def _group(self, node: Node) -> list[Node] | None:
        """The largest group of operations that end here and begin with one tensor.

        The group grows backwards from the node. Its frontier are the tensors that it
        reads from outside; one that nothing else uses can join it.
        """
        largest: list[Node] | None = None
        group = [node]
        frontier = {x for x in node.args if _is_random(x)}
        while True:
            if len(frontier) == 1:
                largest = list(group)
            joining = [
                x
                for x in frontier
                if self._is_pointwise(x) and all(user in group for user in x.users)
            ]
            if not joining:
                return largest
            group += joining
            for x in joining:
                frontier.update(y for y in x.args if _is_random(y))
            frontier.difference_update(group)

    def _composite(self, order: list[Node], x: Node) -> Composite:
        """The function of one number that the operations compute."""
        numbers: dict[Node, int] = {x: 0}
        steps = []
        for member in order:
            args = tuple(
                Result(numbers[y]) if y in numbers else np.asarray(self.number(y))
                for y in member.args
            )
            numbers[member] = len(numbers)
            steps.append(Step(member.compute, args))
        return Composite(1, tuple(steps))


def _of_group(
    node: Node, x: Node, function: Any, composite: Composite, group: list[Node]
) -> Node:
    """A node that is a function of x, in the place of a group that ends with `node`."""
    replacement = _node(
        node,
        operation=function.name,
        args=(x,),
        kwargs={"function": function},
        compute=composite,
    )
    replacement.target = "function"
    replacement.meta["joined"] = group
    return replacement


def _position(group: list[Node], x: Node) -> Callable[[Node], int]:
    """The depth of each operation of a group that begins with x: arguments first."""
    members = set(group)
    depths: dict[Node, int] = {x: 0}

    def depth_of(node: Node) -> int:
        if node not in depths:
            arguments = [y for y in node.args if y in members or y is x]
            depths[node] = 1 + max(map(depth_of, arguments), default=0)
        return depths[node]

    return depth_of


def _is(x: Any, target: str) -> bool:
    """Whether a node is random and of this primitive or pattern."""
    return isinstance(x, Node) and x.is_random and x.target == target


def _is_random(x: Any) -> bool:
    """Whether an argument is random."""
    return isinstance(x, Node) and x.is_random


def _is_integer(node: Node) -> bool:
    """Whether the entries of a result are integers, as those of sort by argument."""
    return bool(jax.numpy.issubdtype(node.meta["val"].dtype, np.integer))


def _is_affine(node: Node) -> bool:
    """Whether an operation is a shift or a multiple."""
    if node.target in ("add", "sub", "mul", "div"):
        return sum(_is_random(x) for x in node.args) == 1
    return node.target in ("neg", "convert_element_type")


def _is_step_of_norm(node: Node) -> bool:
    """Whether an operation is a shift, a multiple or a power."""
    return _is_affine(node) or node.target in ("sqrt", "rsqrt", "integer_pow", "pow")


def _stripped(x: Any) -> Any:
    """The node whose numbers a node repeats, or has in another shape."""
    while isinstance(x, Node) and x.is_random and x.target in RESHAPING:
        x = x.args[0]
    return x
