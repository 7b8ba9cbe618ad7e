"""A described transformer with its loss, as a program for optimiser steps.

Every parameter is a matrix. The embedding of id t is W^E e_t with e_t the t-th unit
vector of R^V, and tied logits are W^E^T y. Biases and norm gains start at 0 and 1. They
are trained only on request, because trained gains need all coordinates of the stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import language as ns
from .._array_api import Bools, array_namespace
from ..engine.graph._rewrite import Context, rewritten
from ..language.operations._operation import Apply, Gaussian, MatMul, Scale, split
from ..language.operations._score import pooled, rsqrt
from ..language.values._graph import topological_order
from ..programs._program import Program
from ._build import Inputs, Layer, Trace, n, normed, sigma_of, trace
from ._description import Description
from .measure._probed_program import ProbedProgram, matrix_kind, value_of

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
    """The kinds of weights that a model lacks, with the reason and a remedy."""
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
    """A product with a weight."""

    block: int | None  # None: outside the blocks
    kind: str  # of the weight
    value: ns.Vector


class Training(NamedTuple):
    """A network to train: the values to watch, and its loss."""

    # name → its values: one for each block, or one of the network
    watched: dict[str, tuple[ns.Value, ...]]
    masks: tuple[Bools | None, ...]  # of the scores of each block
    logits: ns.Vector  # (tokens,) in R^V
    loss: ns.Scalar
    targets: ns.Vector  # unit vectors of R^V, (tokens,)
    acts: tuple[WeightUse, ...]  # all products with weights
    # biases and gains that are parameters → "bias" or "gain"
    vectors: dict[ns.Vector, str]

    @property
    def parameters(self) -> list[ns.Weight | ns.Vector]:
        """All trained parameters."""
        return [*self.kinds(), *self.vectors]

    def kinds(self) -> dict[ns.Weight, str]:
        """The kind of each weight, as in KINDS; a tied weight is an embedding.

        A weight that acts several times has its first kind.
        """
        kinds: dict[ns.Weight, str] = {}
        sources: set[Any] = set()
        for act in self.acts:
            assert isinstance(act.value.op, MatMul)
            weight = act.value.op.weight
            if weight.source not in sources:
                sources.add(weight.source)
                kinds[weight] = act.kind
        return kinds

    def loss_of(self, logits: ns.Vector) -> ns.Scalar:
        """The mean cross-entropy of other logits (tokens,) of any size.

        It has no declared derivative.
        """
        log_means = []
        for token in range(logits.size):
            log_means.append(pooled(_log_mean_exp, logits[token : token + 1], 1))
        losses = ns.join(log_means) - _selected(logits, self.targets)
        return losses.mean() + math.log(logits.width.factor)


def training(
    model: Description,
    ids: Sequence[int],
    targets: Sequence[int],
    vectors_of: Collection[str] = (),
) -> Training:
    """Build the network on these ids, with the mean cross-entropy of their targets, a
    target id for each token.

    `vectors_of` selects the trained vectors: "bias" of block matrices and layer norms,
    "gain" of norms.
    """
    refuse(model)
    count = model.vocabulary or 0
    words = unit_vectors(ids, count)
    target_words = unit_vectors(targets, count)
    table = ns.weight(n, count, std=sigma_of(model.std_embedding, count), name="W^E")
    x, acts = _embedded(model, table @ words)
    vectors: dict[ns.Vector, str] = {}
    traced = _trained(
        trace(model, Inputs(len(ids), tuple(ids)), x),
        model,
        vectors,
        biases="bias" in vectors_of,
        gains="gain" in vectors_of,
    )
    y = traced.output
    if model.logit_scale != 1:
        y = model.logit_scale * y
    if model.tied:
        head = table.T
    else:
        std = sigma_of(model.std_logits, model.width)
        head = ns.weight(count, n, std=std, name="W^L")
    product = head @ y
    logits = product
    if model.logit_cap is not None:
        logits = model.logit_cap * ns.tanh(product / model.logit_cap)
    net = ProbedProgram(Program(traced.output, model.name, traced.probes))
    acts += _uses_in_blocks(net)
    acts.append(WeightUse(block=None, kind="head", value=product))
    watched: dict[str, tuple[ns.Value, ...]] = {"embedding": (x,)}
    for name in ("scores", "attention", "mlp", "stream"):
        watched[name] = tuple(value_of(block, name) for block in net.blocks)
    watched["final"] = (traced.output,)
    loss = cross_entropy_of(logits, target_words, words if model.tied else None)
    return Training(
        watched=watched,
        masks=traced.masks,
        logits=logits,
        loss=loss,
        targets=target_words,
        acts=tuple(acts),
        vectors=vectors,
    )


def _embedded(model: Description, x: ns.Vector) -> tuple[ns.Vector, list[WeightUse]]:
    """The first block's input from the embeddings x, and its products with weights."""
    acts = [WeightUse(block=None, kind="embedding", value=x)]
    if model.embedding_scale != 1:
        x = model.embedding_scale * x
    if model.positions == "learned" and model.std_position:
        positions = _positions(model, x.size)
        acts.append(WeightUse(block=None, kind="position", value=positions))
        x = x + positions
    if model.input_norm:
        x = normed(model, x)
    return x, acts


def _uses_in_blocks(net: ProbedProgram) -> list[WeightUse]:
    """The products with the weights of all blocks, which are counted from 1."""
    acts = []
    for block, kinds in enumerate(net.matrices, 1):
        for kind, values in kinds.items():
            acts += [WeightUse(block, kind, value) for value in values]
    return acts


def _positions(model: Description, tokens: int) -> ns.Vector:
    """The learned vectors of the first positions, (tokens,)."""
    size = model.length or tokens
    matrix = ns.weight(n, size, std=sigma_of(model.std_position, size), name="W^P")
    return matrix @ unit_vectors(range(tokens), size)


class _TrainedParameters:
    """The rewrite that gives matrices biases and norms gains, as in trained code.

    `vectors` collects what it adds, with the kind of each.
    """

    def __init__(
        self,
        model: Description,
        vectors: dict[ns.Vector, str],
        *,
        biases: bool,
        gains: bool,
    ) -> None:
        self.model = model
        self.vectors = vectors
        self.biases = biases
        self.gains = gains
        # the kinds of matrices whose biases are in the program already
        self.have_bias = set()
        if model.bias_in:
            self.have_bias.add("in")
        if model.bias_out:
            self.have_bias.add("out")

    def change(self, old: ns.Value, new: Any) -> ns.Value:
        """What takes the place of the value `old` of the program.

        `new` is the same value with changed inputs.
        """
        match new.op:
            case MatMul(ns.Weight(batch=(heads,)) as w, x, False):
                new = self._one_matrix(w, x, heads)
            case MatMul(w) if self.biases and self._lacks_bias(new.op):
                new = new + self._parameter(w.out_width, 0.0, "bias")
            case Gaussian(factor=factor) if self.biases and factor.any():
                self.vectors[new] = "bias"  # a random bias of the description
            case Scale(ns.Scalar(op=Apply(f)), _) if _is_norm(f.f):
                new = self._with_gain(new)
        return new  # type: ignore[no-any-return]

    def _parameter(self, width: ns.Width, start: float, kind: str) -> ns.Vector:
        """A new parameter with all entries equal to `start`."""
        vector = ns.gaussian(width, mean=start, cov=0.0, name=kind)
        self.vectors[vector] = kind
        return vector

    def _lacks_bias(self, op: MatMul) -> bool:
        """Whether a product with a matrix of a block has no bias yet."""
        is_table = op.weight.source.name in TABLES
        return not is_table and matrix_kind(op, n) not in self.have_bias

    def _one_matrix(self, w: ns.Weight, x: ns.Vector, heads: int) -> ns.Vector:
        """The products W_h x of all heads by one matrix, split: real code has one
        matrix too, and Muon depends on it.
        """
        all_heads = ns.weight(
            heads * w.out_width, w.in_width, std=w.std, name=w.source.name
        )
        product = all_heads @ x
        if self.biases:
            product = product + self._parameter(all_heads.out_width, 0.0, "bias")
        return split(product, heads, 0)

    def _with_gain(self, normed: ns.Vector) -> ns.Vector:
        """The result of a norm with its gain and its bias, as far as these are due."""
        if self.gains:
            normed = self._parameter(normed.width, 1.0, "gain") * normed
        if self.biases and self.model.norm == "layer":
            normed = normed + self._parameter(normed.width, 0.0, "bias")
        return normed


def _trained(
    traced: Trace,
    model: Description,
    vectors: dict[ns.Vector, str],
    *,
    biases: bool,
    gains: bool,
) -> Trace:
    """The network with one matrix for all heads and with trained vectors, which are
    added to `vectors` with their kinds.
    """
    parameters = _TrainedParameters(model, vectors, biases=biases, gains=gains)
    # the fields of a layer that every model has, from `stream` to `weights`
    common_fields = 6
    outputs = [traced.output]
    for layer in traced.layers:
        outputs += layer[:common_fields]  # type: ignore[arg-type]
    context = Context({}, dict.fromkeys(topological_order(outputs), 0))
    # the rewritten values in the same order: the output, then the fields of each layer
    output, *fields = rewritten(outputs, context, parameters.change)
    layers: list[Layer] = []
    for start in range(0, len(fields), common_fields):
        of_layer: list[Any] = fields[start : start + common_fields]
        layers.append(Layer(*of_layer))
    return traced._replace(layers=tuple(layers), output=output)  # type: ignore[arg-type]


def _is_norm(f: Any) -> bool:
    """Whether a function is the inverse length by which a norm scales."""
    return isinstance(f, partial) and f.func is rsqrt


def refuse(model: Description) -> None:
    """Raise an error for models whose training is not supported."""
    supported = {
        "inputs": "tokens",
        "readout": "linear",
        "decoder_layers": 0,
        "experts": None,
        "shared": False,
        "std_type": 0.0,
        "padding": None,
    }
    for name, value in supported.items():
        actual = getattr(model, name)
        if actual != value:
            raise ValueError(
                f"{name}={actual!r} of {model.name} must be {value!r} to be trained"
                " here: set it, or write the network as a program with ns.probe"
            )
    if model.vocabulary is None:
        raise ValueError(
            f"vocabulary=None of {model.name}: training needs logits for its loss"
        )


def unit_vectors(ids: Sequence[int], count: int) -> ns.Vector:
    """The unit vector e_id of R^count for each id, (ids,)."""
    if max(ids, default=0) >= count:
        raise ValueError(f"the token id {max(ids)} has no logit: the head has {count}")
    return ns.data(np.equal.outer(ids, np.arange(count)).astype(float))


def _selected(logits: ns.Vector, units: ns.Vector) -> ns.Scalar:
    """(tokens,): the logit of each token that its unit vector selects."""
    products = ns.mean_dot(logits[:, None], units[:, None])  # over the width
    return logits.width.factor * products[:, 0, 0]


def cross_entropy_of(
    logits: ns.Vector, targets: ns.Vector, words: ns.Vector | None = None
) -> ns.Scalar:
    """The mean cross-entropy of targets (unit vectors), for logits (tokens,) in R^V.

    `words` are the tokens' own unit vectors, for tied logits: the tied logit of a
    token's own id is large, so it is subtracted before the exponential.
    """
    count = logits.width.factor  # V
    shift: ns.Scalar | None = None
    arguments: list[Any] = [logits]
    derivatives: list[Callable[..., Any]] = [exponential]
    if words is not None:
        shift = _selected(logits, words)
        arguments.append(shift)
        derivatives.append(partial(exponential, sign=-1.0))
    e = ns.nonlin(exponential, *arguments, name="exp", derivative=tuple(derivatives))
    mean_exp = ns.mean_dot(e, ns.ones(count))
    log_mean_exp = ns.apply(_log, mean_exp, name="log", derivative=_inverse)
    if shift is not None:
        log_mean_exp = log_mean_exp + shift
    return (log_mean_exp - _selected(logits, targets)).mean() + math.log(count)


def exponential(logits: Any, shift: Any = 0.0, *, sign: float = 1.0) -> Any:
    """±e^(logits − shift)."""
    return sign * array_namespace(logits).exp(logits - shift)


def _log(mass: Any) -> Any:
    """log, and 0 for numbers that are not positive."""
    xp = array_namespace(mass)
    return xp.log(xp.where(mass > 0, mass, 1.0))


def _inverse(mass: Any) -> Any:
    """The derivative of `_log`."""
    return 1.0 / mass


def _log_mean_exp(numbers: Any) -> Any:
    """log of the mean of e^x over the last axis: (…, numbers) → (…, 1)."""
    xp = array_namespace(numbers)
    largest = xp.max(numbers, axis=-1, keepdims=True)
    mean = xp.mean(xp.exp(numbers - largest), axis=-1, keepdims=True)
    return largest + xp.log(mean)
