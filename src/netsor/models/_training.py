"""A described transformer with its loss, as a program for optimiser steps; every
parameter is a matrix.

The embedding of id t is W^E e_t with e_t the t-th unit vector of R^V, and tied logits
are W^E^T y. Biases and norm gains start at 0 and 1. They are trained only on request,
because trained gains need all coordinates of the stream.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import language as ns
from .._array_api import Bools, array_namespace
from .._program import Program
from ..engine.passes._rewrite import Context, rewritten
from ..language._graph import topological_order
from ..language._operation import Apply, Gaussian, MatMul, Scale
from ..language._score import pooled, rsqrt, split
from ._build import Inputs, Layer, Trace, n, normed, sigma_of, trace
from ._description import Description
from ._probed_program import ProbedProgram, matrix_kind, value_of

TABLES = ("W^E", "W^P")  # names of the matrices of embeddings and positions
VECTORS = ("bias", "gain")  # parameters that are vectors
KINDS = (
    "embedding",
    "position",
    "query",
    "key",
    "value",
    "output",
    "in",
    "gate",
    "out",
    "head",
)


def absent_kinds(model: Description) -> dict[str, str]:
    """The kinds of weights that a model does not have, each with the reason and what to
    set instead.
    """
    absent = {}
    if model.positions != "learned":
        absent["position"] = (
            f"positions={model.positions!r} have no weights: leave it out"
        )
    elif not model.std_position:
        absent["position"] = (
            "std_position=0, and nothing is added for positions: set std_position"
            " above 0"
        )
    if not model.gated:
        absent["gate"] = "gated=False, and its perceptron has no gate: leave it out"
    if model.tied:
        absent["head"] = (
            "tied=True, and its logits use the embedding: set embedding, and logits for"
            " their factor"
        )
    return absent


class WeightUse(NamedTuple):
    """A product with a weight: its block (None: outside the blocks), and the kind of
    the weight.
    """

    block: int | None
    kind: str
    value: ns.Vector


class Training(NamedTuple):
    """A network to train: the values to watch, and its loss."""

    watched: dict[str, tuple[ns.Value, ...]]  # one per block, or one
    masks: tuple[Bools | None, ...]  # of the scores of each block
    logits: ns.Vector  # (tokens,) in R^V
    loss: ns.Scalar
    targets: ns.Vector  # unit vectors of R^V
    acts: tuple[WeightUse, ...]
    # biases and gains that are parameters, "bias" or "gain"
    vectors: dict[ns.Vector, str]

    @property
    def parameters(self) -> list[ns.Weight | ns.Vector]:
        """All trained parameters."""
        return [*self.kinds(), *self.vectors]

    def kinds(self) -> dict[ns.Weight, str]:
        """The kinds of the weights; a tied weight is an embedding."""
        by_source: dict[Any, tuple[ns.Weight, str]] = {}
        for act in self.acts:
            assert isinstance(act.value.op, MatMul)
            by_source.setdefault(
                act.value.op.weight.source, (act.value.op.weight, act.kind)
            )
        return dict(by_source.values())

    def loss_of(self, logits: ns.Vector) -> ns.Scalar:
        """The loss of other logits of any size; it has no declared derivative."""
        sums = ns.join(
            [pooled(_log_mean_exp, logits[i : i + 1], 1) for i in range(logits.size)]
        )
        return (sums - _own(logits, self.targets)).mean() + math.log(
            logits.width.factor
        )


def training(
    model: Description,
    ids: Sequence[int],
    targets: Sequence[int],
    vectors_of: Collection[str] = (),
) -> Training:
    """Build the network on these ids, with the mean cross-entropy of their targets.

    `vectors_of` selects the trained vectors: "bias" of block matrices and layer norms,
    "gain" of norms.
    """
    refuse(model)
    biases, gains = (name in vectors_of for name in VECTORS)
    count = model.vocabulary or 0
    words, last = unit_vectors(ids, count), unit_vectors(targets, count)
    table = ns.weight(n, count, std=sigma_of(model.std_embedding, count), name="W^E")
    x = table @ words
    acts = [WeightUse(None, "embedding", x)]
    x = x if model.embedding_scale == 1 else model.embedding_scale * x
    if model.positions == "learned" and model.std_position:
        size = model.length or len(ids)
        positions = ns.weight(
            n, size, std=sigma_of(model.std_position, size), name="W^P"
        )
        at = positions @ unit_vectors(range(len(ids)), size)
        acts.append(WeightUse(None, "position", at))
        x = x + at
    x = normed(model, x) if model.input_norm else x
    vectors: dict[ns.Vector, str] = {}
    traced = _trained(
        trace(model, Inputs(len(ids), tuple(ids)), x), model, vectors, biases, gains
    )
    y = traced.output if model.logit_scale == 1 else model.logit_scale * traced.output
    head = (
        table.T
        if model.tied
        else ns.weight(
            count, n, std=sigma_of(model.std_logits, model.width), name="W^L"
        )
    )
    product = head @ y
    logits = (
        product
        if model.logit_cap is None
        else model.logit_cap * ns.tanh(product / model.logit_cap)
    )
    net = ProbedProgram(Program(traced.output, model.name, traced.probes))
    for block, kinds in enumerate(net.matrices, 1):
        acts += [
            WeightUse(block, kind, value)
            for kind, values in kinds.items()
            for value in values
        ]
    acts.append(WeightUse(None, "head", product))
    names = ("scores", "attention", "mlp", "stream")
    inside = {
        name: tuple(value_of(block, name) for block in net.blocks) for name in names
    }
    watched = {"embedding": (x,), **inside, "final": (traced.output,)}
    loss = cross_entropy_of(logits, last, words if model.tied else None)
    return Training(watched, traced.masks, logits, loss, last, tuple(acts), vectors)


def _trained(
    traced: Trace,
    model: Description,
    vectors: dict[ns.Vector, str],
    biases: bool,
    gains: bool,
) -> Trace:
    """Use one matrix for all heads, as in real code, since Muon depends on it, and add
    the trained `vectors`.
    """

    def parameter(width: ns.Width, start: float, kind: str) -> ns.Vector:
        new_value = ns.gaussian(width, mean=start, cov=0.0, name=kind)
        vectors[new_value] = kind
        return new_value

    # biases already traced
    without = {
        kind for kind, std in (("in", model.bias_in), ("out", model.bias_out)) if std
    }

    def change(old: ns.Value, new: Any) -> ns.Value:
        match new.op:
            case MatMul(ns.Weight(batch=(heads,)) as w, x, False):
                one = ns.weight(
                    heads * w.out_width, w.in_width, std=w.std, name=w.source.name
                )
                new = one @ x
                new = split(
                    new + parameter(one.out_width, 0.0, "bias") if biases else new,
                    heads,
                    0,
                )
            case MatMul(w) if (
                biases
                and w.source.name not in TABLES
                and matrix_kind(new.op, n) not in without
            ):
                new = new + parameter(w.out_width, 0.0, "bias")
            case Gaussian(factor=factor) if biases and factor.any():
                vectors[new] = "bias"
            case Scale(ns.Scalar(op=Apply(f)), _) if (
                isinstance(f.f, partial) and f.f.func is rsqrt
            ):
                new = parameter(new.width, 1.0, "gain") * new if gains else new
                new = (
                    new + parameter(new.width, 0.0, "bias")
                    if biases and model.norm == "layer"
                    else new
                )
        return new  # type: ignore[no-any-return]

    outputs = [
        traced.output,
        *(value for layer in traced.layers for value in layer[:6]),
    ]
    output, *values = rewritten(
        outputs, Context({}, dict.fromkeys(topological_order(outputs), 0)), change
    )
    layers = tuple(Layer(*values[k : k + 6]) for k in range(0, len(values), 6))  # type: ignore[arg-type]
    return traced._replace(layers=layers, output=output)  # type: ignore[arg-type]


def refuse(model: Description) -> None:
    """Raise an error for models whose training is not supported."""
    needed = {
        "inputs": "tokens",
        "readout": "linear",
        "decoder_layers": 0,
        "experts": None,
        "shared": False,
    }
    for name, value in (needed | {"std_type": 0.0, "padding": None}).items():
        if (given := getattr(model, name)) != value:
            said = (
                f"{name}={given!r} of {model.name} must be {value!r} to be trained here"
            )
            raise ValueError(
                f"{said}: set it, or write the network as a program with ns.probe"
            )
    if model.vocabulary is None:
        raise ValueError(
            f"vocabulary=None of {model.name}: training needs logits for its loss"
        )


def unit_vectors(ids: Sequence[int], count: int) -> ns.Vector:
    """One unit vector per id."""
    if max(ids, default=0) >= count:
        raise ValueError(
            f"the id {max(ids)} of a token has no logit: the head has {count}"
        )
    return ns.data(np.equal.outer(ids, np.arange(count)).astype(float))


def _own(logits: ns.Vector, units: ns.Vector) -> ns.Scalar:
    """(tokens,): the logit of each token that its unit vector selects."""
    return logits.width.factor * ns.mean_dot(logits[:, None], units[:, None])[:, 0, 0]


def cross_entropy_of(
    logits: ns.Vector, targets: ns.Vector, words: ns.Vector | None = None
) -> ns.Scalar:
    """The mean cross-entropy of targets (unit vectors); `words` are the tokens' own
    unit vectors, for tied logits.
    """
    count = logits.width.factor
    # the tied logit of a token's own id is large: subtract it before the exponential
    shift = [] if words is None else [_own(logits, words)]
    slopes = (exponential, partial(exponential, sign=-1.0))[: 1 + len(shift)]
    e = ns.nonlin(exponential, logits, *shift, name="exp", derivative=slopes)
    sums = ns.apply(
        _log, ns.mean_dot(e, ns.ones(count)), name="log", derivative=_inverse
    )
    return (sum(shift, sums) - _own(logits, targets)).mean() + math.log(count)


def exponential(logits: Any, shift: Any = 0.0, *, sign: float = 1.0) -> Any:
    """±e^(logits − shift)."""
    return sign * array_namespace(logits).exp(logits - shift)


def _log(mass: Any) -> Any:
    xp = array_namespace(mass)
    return xp.log(xp.where(mass > 0, mass, 1.0))


def _inverse(mass: Any) -> Any:
    return 1.0 / mass


def _log_mean_exp(numbers: Any) -> Any:
    xp = array_namespace(numbers)
    top = xp.max(numbers, axis=-1, keepdims=True)
    return top + xp.log(xp.mean(xp.exp(numbers - top), axis=-1, keepdims=True))
