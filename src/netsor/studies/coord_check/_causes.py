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


class SizedNetwork(NamedTuple):
    """A network at one width of the check, with the numbers of its widths by name."""

    width: float
    widths: dict[str, float]
    network: Network


def scales_of(
    smallest: SizedNetwork, largest: SizedNetwork, optimiser: str
) -> list[Scale]:
    """The scales of a network, from its smallest and its largest width."""
    # updates proportional to gradients are proportional to the scale
    is_proportional = NAMED[optimiser].kind.proportional_to_gradient
    scales = (
        _scale_of_scores(smallest, largest, is_proportional),
        _scale_of_logits(smallest.network, is_proportional),
    )
    return [scale for scale in scales if scale is not None]


def _scale_of_scores(
    smallest: SizedNetwork, largest: SizedNetwork, is_proportional: bool
) -> Scale | None:
    """The factor of ⟨q, k⟩ as a scale; None if no scores are watched.

    Before the step scores should be of order d^(−1/2), so the expected exponent is
    minus half of that of the head's dimension d.
    """
    dots = _dots(smallest.network)
    larger_dots = _dots(largest.network)
    if not dots or not larger_dots:
        return None
    ratio = _size(larger_dots[0], largest.widths) / _size(dots[0], smallest.widths)
    # the power of n by which the dimension of a head grows
    growth = math.log(ratio) / math.log(largest.width / smallest.width)
    slowed: frozenset[str] = frozenset()
    if is_proportional:
        queries_and_keys = [vector for dot in dots for vector in (dot.x, dot.y)]
        slowed = _kinds_that_make(queries_and_keys, smallest.network.acts)
    return Scale(
        activation="scores",
        measured="scores",
        expected=-growth / 2,
        what="the scores (with 1/d, not 1/√d)" if growth > 0 else "the scores",
        slowed=slowed,
    )


def _scale_of_logits(network: Network, is_proportional: bool) -> Scale | None:
    """The standard deviation of the head, or the factor of tied logits; None if the
    logits have no single readout.
    """
    readout = _readout(network)
    if readout is None:
        return None
    sources = [_source(act) for act in network.acts]
    is_tied = sources.count(_source(readout)) > 1
    has_vocabulary = any(watched.name == "vocabulary" for watched in network.watched)
    slowed: frozenset[str] = frozenset()
    if is_proportional:
        slowed = frozenset(act.kind for act in network.acts) - {readout.kind}
    if is_tied:
        return Scale(
            activation="logits",
            measured="logits",
            expected=0.0,
            what="the tied logits, by a factor behind them,",
            slowed=slowed,
            # the factor may be in front of the product
            unjudged=frozenset({readout.kind}),
        )
    return Scale(
        activation="logits",
        measured="vocabulary" if has_vocabulary else "logits",
        expected=-0.5,
        what=f"the standard deviation of {readout.kind}",
        slowed=slowed,
    )


def _nearest(value: Value, kind: type[Any]) -> list[Any]:
    """The nearest ancestors of a value, itself included, that an operation of this kind
    computes: the search stops at each of them.

    For example, the nearest `MatMul` of W₂ φ(W₁ x) + W₃ x are W₂ φ(W₁ x) and W₃ x, but
    not W₁ x.
    """
    nearest = []
    pending = [value]
    seen = set()
    while pending:
        ancestor = pending.pop()
        if id(ancestor) in seen:
            continue
        seen.add(id(ancestor))
        if isinstance(ancestor.op, kind):
            nearest.append(ancestor)
        else:
            pending += ancestor.op.inputs
    return nearest


def _dots(network: Network) -> list[Dot]:
    """The products ⟨q, k⟩ that scores are computed from, one for each block."""
    dots = []
    for watched in network.watched:
        if watched.name == "scores":
            products = _nearest(watched.value, Dot)
            dots += [product.op for product in products[:1]]
    return dots


def _source(act: WeightUse) -> Any:
    """The matrix of which this is a use; that of its transpose is the same."""
    assert isinstance(act.value.op, MatMul)
    return act.value.op.weight.source


def _size(dot: Dot, widths: dict[str, float]) -> float:
    """The number of coordinates of the vectors of a product."""
    width = dot.x.width
    return width.factor * (1.0 if width.name is None else widths[width.name])


def _kinds_that_make(
    values: Collection[Value], acts: Sequence[WeightUse]
) -> frozenset[str]:
    """The kinds of the weights whose products these values are computed from, without
    further weights in between.
    """
    products: set[int] = set()
    for value in values:
        products |= _nearest_products(value)
    return frozenset(act.kind for act in acts if id(act.value) in products)


def _nearest_products(value: Value) -> set[int]:
    """The identities of the nearest products of a weight and a vector from which a
    value is computed.
    """
    return {id(product) for product in _nearest(value, MatMul)}


def _readout(network: Network) -> Any:
    """The last use of a weight that makes the logits; None if they have no single
    one.
    """
    logits = [w.value for w in network.watched if w.name in ("vocabulary", "logits")]
    if not logits:
        return None
    products = _nearest_products(logits[-1])
    uses = [act for act in network.acts if id(act.value) in products]
    return uses[0] if len(uses) == 1 else None
