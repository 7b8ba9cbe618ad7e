"""Scales at initialisation that break maximal updates, found by the sizes of scores and
logits before the step.

A step aligns queries with keys, and the last vectors with the rows of the head. So it
changes a score by d times its factor, and a logit by n times the entries of the head:
scores need the factor 1/d, and a head entries of order 1/n. Before the step nothing is
aligned. A score is then √d times its factor, of order d^(−1/2), and a logit of order
n^(−1/2), or of order 1 if it is tied: the logit of a token's own word is aligned from
the start.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from ...language import Value
from ...language.operations._operation import Dot, MatMul
from ...models._training import WeightUse
from ...optim import NAMED
from ._request import Network


class Scale(NamedTuple):
    """A scale at initialisation."""

    activation: str  # that it multiplies
    measured: str  # the activation whose size before the step shows it
    expected: float  # the exponent of that size in maximal updates
    what: str  # to scale, in words
    slowed: frozenset[str]  # the kinds of weights whose updates are proportional to it
    # kinds whose updates have it as a factor once or more often: check again
    unjudged: frozenset[str] = frozenset()


def scales_of(
    networks: Sequence[tuple[float, dict[str, float], Network]], optimiser: str
) -> list[Scale]:
    """The scales of a network, from its smallest and its largest width, each with the
    numbers of its widths.
    """
    (n, sizes, first), (larger, larger_sizes, last) = networks[0], networks[-1]
    # updates proportional to gradients are proportional to the scale
    proportional = NAMED[optimiser].kind.proportional_to_gradient
    found = []
    dots, larger_dots = _dots(first), _dots(last)
    if dots and larger_dots:
        grows = math.log(
            _size(larger_dots[0], larger_sizes) / _size(dots[0], sizes)
        ) / math.log(larger / n)
        what = "the scores (with 1/d, not 1/√d)" if grows > 0 else "the scores"
        makers = _names(first.acts, [x for dot in dots for x in (dot.x, dot.y)])
        found.append(
            Scale(
                "scores",
                "scores",
                -grows / 2,
                what,
                makers if proportional else frozenset(),
            )
        )
    if (readout := _readout(first)) is not None:
        tied = [_source(act) for act in first.acts].count(_source(readout)) > 1
        whole = any(w.name == "vocabulary" for w in first.watched) and not tied
        what = (
            "the tied logits, by a factor behind them,"
            if tied
            else f"the standard deviation of {readout.kind}"
        )
        others = frozenset(act.kind for act in first.acts) - {readout.kind}
        slowed = others if proportional else frozenset()
        measured, expected = "vocabulary" if whole else "logits", 0.0 if tied else -0.5
        # the factor may be in front of the product
        unjudged = frozenset({readout.kind} if tied else ())
        found.append(Scale("logits", measured, expected, what, slowed, unjudged))
    return found


def _nearest(value: Value, kind: type[Any]) -> list[Any]:
    """The values by operations of this kind from which a value is made, without others
    of it in between.
    """
    found, pending, seen = [], [value], set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each.op, kind):
            found.append(each)
        else:
            pending += each.op.inputs
    return found


def _dots(network: Network) -> list[Dot]:
    """The products of queries and keys, of each block."""
    scores = [w.value for w in network.watched if w.name == "scores"]
    return [dot.op for value in scores for dot in _nearest(value, Dot)[:1]]


def _source(act: WeightUse) -> Any:
    """The matrix of which this is a use; that of its transpose is the same."""
    assert isinstance(act.value.op, MatMul)
    return act.value.op.weight.source


def _size(dot: Dot, sizes: dict[str, float]) -> float:
    width = dot.x.width
    return width.factor * (1.0 if width.name is None else sizes[width.name])


def _names(acts: Sequence[WeightUse], values: Collection[Value]) -> frozenset[str]:
    """The kinds of the weights that make these values."""
    makers = {id(maker) for value in values for maker in _nearest(value, MatMul)}
    return frozenset(act.kind for act in acts if id(act.value) in makers)


def _readout(network: Network) -> Any:
    """The last use of a weight that makes the logits; None if they have no single
    one.
    """
    logits = [w.value for w in network.watched if w.name in ("vocabulary", "logits")]
    makers = {id(maker) for value in logits[-1:] for maker in _nearest(value, MatMul)}
    uses = [act for act in network.acts if id(act.value) in makers]
    return uses[0] if len(uses) == 1 else None
