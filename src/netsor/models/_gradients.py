"""The backward half of the quantities of an audit: gradients of the first loss, block by block and by kind of weight.

One pass back through the program has the cotangents √n ∂L/∂x of the stream and of all that matrices made. A matrix that
made y_i = W x_i has ∂L/∂W = Σ_i (∂L/∂y_i) x_i^T, so |∂L/∂W|² is a sum over pairs of tokens of products of two Gram
matrices. Cotangents and widths are in the units of the model: at n = ∞ its own widths turn means into sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from ..language import Scalar, Value, Vector, apply, join, mean_dot, stack
from ..language._grad import Reverse, Use
from ..language._graph import topological_order
from ..language._operation import MatMul
from ..language._scalar import constant
from ._build import Trace, matrix_kind, values_by_block
from ._description import Description
from ._loss import Loss
from ._metrics import of_pairs

KINDS = ("query", "key", "value", "output", "in", "gate", "out")


def layer_names(model: Description) -> tuple[str, ...]:
    """The numbers of a block, in order: ratios are to the mean of |W|², so a matrix of zeros has none."""
    return ("grad_mean_square", *_both(model, [kind for kind in KINDS if kind != "gate" or model.gated]))


def final_names(model: Description) -> tuple[str, ...]:
    """Those of the whole network."""
    embedding = ["embedding"] if _has_embedding(model) else []
    return ("grad_input", *_both(model, [*embedding, "head"] if _has_head(model) else embedding))


def _both(model: Description, kinds: Iterable[str]) -> list[str]:
    found = [(kind, [f"grad_{kind}", f"grad_{kind}_ratio"][: 2 if _std(model, kind) else 1]) for kind in kinds]
    return [name for _, names in found for name in names]


def _has_embedding(model: Description) -> bool:
    """Whether inputs are rows of a matrix, or are multiplied by one; else they are just vectors."""
    return model.vocabulary is not None or model.inputs == "patches"


def _has_head(model: Description) -> bool:
    """Whether the matrix of logits is one of its own."""
    return model.vocabulary is not None and not model.tied


def _std(model: Description, kind: str) -> float:
    fields = {"query": "q", "key": "k", "value": "v", "output": "o", "head": "logits"}
    found: float = getattr(model, f"std_{fields.get(kind, kind)}")
    return found


def gradients(model: Description, traced: Trace, loss: Loss) -> tuple[Scalar, ...]:
    """A row for each block, in the order of `layer_names`, and one for the network, in that of `final_names`."""
    streams = [traced.embedded, *(layer.stream for layer in traced.layers)]
    table = None if traced.table is None else traced.table.vectors.vectors
    leaves = [value for value in (*streams, table) if value is not None]
    reached = set(topological_order([value for value, _ in loss.seeds]))
    back = Reverse(loss.seeds, [leaf for leaf in leaves if leaf in reached], lambda op: True)

    def square(x: Vector) -> Scalar:
        """|√n ∂L/∂x|²/n of each vector: |∂L/∂x|²."""
        if x not in reached:
            return constant(np.zeros(())).broadcast_to(x.shape)
        one = back.of(x)[..., None]
        return mean_dot(one, one)[..., 0, 0]

    uses: dict[Value, Use] = {use.value: use for use in back.uses}
    rows = []
    for stream, products in zip(streams[1:], values_by_block(traced), strict=True):
        found: dict[str, list[Value]] = {}
        for value in products:
            if isinstance(value.op, MatMul):
                found.setdefault(matrix_kind(value.op), []).append(value)
        first = square(stream).mean() / model.width
        rows.append(join([stack([first]), _norms(model, layer_names(model)[1:], found, uses)]))
    return (*rows, _ends(model, traced, loss, uses, square, table))


def _ends(
    model: Description,
    traced: Trace,
    loss: Loss,
    uses: dict[Value, Use],
    square: Callable[[Vector], Scalar],
    table: Vector | None,
) -> Scalar:
    norms: dict[str, tuple[Scalar, float]] = {}
    words = model.vocabulary or 0
    if table is None:
        patches = [value for value, use in uses.items() if use.op.weight.source.name == "W^P"]
        found = _norms(model, ["grad_embedding"], {"embedding": patches}, uses)[0]
        norms["embedding"] = found, _size(model, patches)
    elif _has_embedding(model):
        found = square(table).sum()
        if model.tied and loss.head is not None:
            found = found + loss.head
        norms["embedding"] = found, words * model.width * model.std_embedding**2
    if _has_head(model):
        assert loss.head is not None
        norms["head"] = loss.head, words * model.width * model.std_logits**2
    return _row(final_names(model), norms, square(traced.embedded).mean() / model.width)


def _row(names: Sequence[str], norms: dict[str, tuple[Scalar, float]], first: Scalar) -> Scalar:
    made = [first]
    for name in names[1:]:
        kind = name.removeprefix("grad_").removesuffix("_ratio")
        norm, size = norms[kind]
        made.append(norm / size if name.endswith("_ratio") else norm)
    return stack(made)


def _norms(
    model: Description, names: Sequence[str], found: Mapping[str, Sequence[Value]], uses: dict[Value, Use]
) -> Scalar:
    """Σ |∂L/∂W|² over the matrices of each kind, which act once each; `ratio`s are over the mean of Σ |W|²."""
    grams: list[Scalar] = []
    sums: list[tuple[float, tuple[int, ...]]] = []  # a factor, and where Gram matrices of cotangents are among all
    places: dict[str, list[int]] = {}
    for kind, values in found.items():
        places[kind] = []
        for value in (value for value in values if value in uses):
            use, weight = uses[value], uses[value].op.weight
            count = weight.members.size
            d, x = use.d.reshape(count, -1), use.op.x.reshape(count if use.op.each else 1, -1)
            places[kind].append(len(grams))
            grams += [weight.in_width.bind(model.widths()) * mean_dot(d, d), mean_dot(x, x)]
    for name in names:
        kind = name.removeprefix("grad_").removesuffix("_ratio")
        by = 1 / _size(model, found[kind]) if name.endswith("_ratio") else 1.0
        sums.append((by, tuple(places[kind])))
    if not grams:
        return constant(np.zeros(len(names)))
    return apply(partial(of_pairs, sums=tuple(sums)), *grams, axes=3, name="of_pairs")


def _size(model: Description, values: Iterable[Value]) -> float:
    """The mean of Σ |W|²."""
    weights = [value.op.weight for value in values if isinstance(value.op, MatMul)]
    return sum(w.std**2 * w.members.size * w.out_width.bind(model.widths()) for w in weights)
