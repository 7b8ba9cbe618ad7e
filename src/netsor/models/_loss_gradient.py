"""The gradient of the initial loss at the end of the network, where backward passes
begin, without sampling W.

L is a function of logits ⟨W_w, y_i⟩, and ∂L/∂y_i = Σ_w c_iw W_w with c_iw =
∂L/∂(logit). Let G be the Gram matrix of the y_i, and q = G^(−1/2) y orthonormal
directions that span them. The logits are ⟨W_w, y_i⟩ = σ (G^(1/2) N)_iw, where N_jw are
the coordinates of W_w along q_j, i.i.d. N(0, 1) in units of the standard deviation of
W. The part of W_w orthogonal to all q is Gaussian and independent of the logits. So in
law, at every finite width,

 √n ∂L/∂y_i = σ [n^(−1/2) Σ_j (c N^T)_ij q_j + Σ_k (c c^T)^(1/2)_ik z_k],  z_k = g_k −
 Σ_j (⟨g_k, q_j⟩/n) q_j,

with fresh standard Gaussian vectors g_k. Words whose vectors are in the program (tied
logits) are differentiated there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, starmap
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Array, array_namespace, eigenvectors
from .._program import Program
from ..derivatives import base
from ..engine import ExactError
from ..language import (
    Scalar,
    Value,
    Vector,
    apply,
    gaussian,
    join,
    mean_dot,
    normal,
    tanh,
    weight,
)
from ..language._check_function import declares
from ..language._derivative import width_ratio
from ..language._grad import Reverse
from ..language._graph import topological_order
from ..language._operation import Apply, Dot, Normal
from ..language._scalar import MATMUL, constant
from ..language._stop_gradient import computed_by
from ..language._vector import mix
from ..nn._embedding import root, symmetric_root
from ._build import ACTIVATIONS, Inputs, Trace, n, normed, sigma_of, trace
from ._description import Description
from ._metrics import (
    LogitMoments,
    batches,
    capped,
    first_words,
    flat,
    joined,
    more_words,
    of_logits,
    of_words,
)
from ._probed_program import ProbedProgram


def of_head(*arrays: Array, targets: Sequence[int], cap: float | None = None) -> Array:
    """Known logits (…, t, k), root (…, t, t) and noise (…, t, words) → (…, 3 + 2 t² + t
    k), the last axis as `parts`.

    Known logits, or root and noise, may be missing. The targets, one per vector, are
    columns of the known logits or, without these, of the noise. `of_logits` returns the
    first numbers. With the softmax p, c_iw = (p_iw − 1[w is the target of i])
    slope_iw/t.
    """
    return _head_ends(_HeadSums.of(*arrays, cap=cap), arrays, targets, cap)


# The shape of its result; finding it by a call takes seconds with a large vocabulary.
of_head.output_shape = lambda *cores: (  # type: ignore[attr-defined]
    parts(cores[0][-2], 0 if len(cores) == 2 else cores[0][-1])[-1].stop,
)


class _HeadSums:
    """Sums over the words seen so far: their moments, Σ_w s_iw noise_jw and Σ_w s_iw
    s_jw, with s = p · slope.
    """

    def __init__(self, seen: LogitMoments, products: Array, squares: Array) -> None:
        self.seen, self.products, self.squares = seen, products, squares

    @classmethod
    def of(cls, *arrays: Array, cap: float | None) -> _HeadSums:
        """Those of known logits (…, t, k), and of root (…, t, t) and noise (…, t,
        words), if these are given.
        """
        xp, t = array_namespace(*arrays), arrays[0].shape[-2]
        nothing = xp.zeros((t, t), dtype=arrays[0].dtype)
        sums = cls(LogitMoments(), nothing, nothing)
        if len(arrays) != 2:
            sums.seen.add(capped(arrays[0], cap) + 0.0)
        if len(arrays) > 1:
            sums.add(arrays[-2], arrays[-1], cap)
        return sums

    def add(self, root: Array, noise: Array, cap: float | None) -> None:
        """Add the words of this noise."""
        transpose = array_namespace(root, noise).matrix_transpose
        for logits, some in batches(root, noise, cap):
            slope = _slope(logits, cap)
            # e^(logit − top), which is p up to the sum of its row
            p, shrunk = self.seen.add(logits)
            p = p if cap is None else p * slope
            self.products = self.products * shrunk + p @ transpose(some)
            self.squares = self.squares * (shrunk * transpose(shrunk)) + p @ transpose(
                p
            )

    def packed(self) -> Array:
        """(…, t, 4 + 2 t): all of these, except the count of words."""
        return joined(self.seen.packed(), self.products, self.squares)

    @classmethod
    def unpacked(cls, state: Array, count: int) -> _HeadSums:
        """The sums that were packed after so many words."""
        t = state.shape[-2]
        return cls(
            LogitMoments.unpacked(state[..., :4], count),
            state[..., 4 : 4 + t],
            state[..., 4 + t :],
        )


@declares(output_shape=lambda *cores: (cores[0][-2], 4 + 2 * cores[0][-2]))
def first_head(*arrays: Array, cap: float | None) -> Array:
    """The packed sums (…, t, 4 + 2 t) of the known logits, if any, and of the first
    piece of the other words.
    """
    return _HeadSums.of(*arrays, cap=cap).packed()


@declares(output_shape=lambda *cores: cores[0])
def more_head(
    state: Array, root: Array, noise: Array, *, count: int, cap: float | None
) -> Array:
    """The packed sums (…, t, 4 + 2 t) of `count` words, and those of a further
    piece.
    """
    sums = _HeadSums.unpacked(state, count)
    sums.add(root, noise, cap)
    return sums.packed()


@declares(output_shape=lambda state, *cores: of_head.output_shape(*cores))  # type: ignore[attr-defined]
def ends_of_head(
    state: Array, *arrays: Array, targets: Sequence[int], count: int, cap: float | None
) -> Array:
    """The result of `of_head` from the packed sums of all words, `count` in number, and
    the arrays of the first.
    """
    return _head_ends(_HeadSums.unpacked(state, count), arrays, targets, cap)


def _head_ends(
    sums: _HeadSums, arrays: Sequence[Array], targets: Sequence[int], cap: float | None
) -> Array:
    """The result of `of_head`; the words of the targets are among those of these
    arrays.
    """
    xp, t, seen = array_namespace(*arrays), arrays[0].shape[-2], sums.seen
    transpose, known = xp.matrix_transpose, len(arrays) != 2
    products = sums.products / seen.mass
    squares = sums.squares / (seen.mass * transpose(seen.mass))
    if known:
        first = capped(arrays[0], cap)
        hot = xp.asarray(
            np.equal.outer(targets, np.arange(first.shape[-1])), dtype=first.dtype
        )
        c = (xp.exp(first - seen.top) / seen.mass - hot) * _slope(first, cap) / t
    else:
        root, noise = arrays
        # column j belongs to the target of vector j
        noise = xp.take(noise, xp.asarray(targets), axis=-1)
        logits = capped(root @ noise, cap)
        slope = _slope(logits, cap) + 0.0 * logits
        own = xp.linalg.diagonal(slope)[..., None]
        across = xp.exp(logits - seen.top) / seen.mass * slope * transpose(own)
        equal = xp.asarray(np.equal.outer(targets, targets), dtype=noise.dtype)
        products = products - own * transpose(noise)
        squares = squares + equal * (own * transpose(own)) - across - transpose(across)
    numbers = [
        seen.ends(),
        flat(products / t),
        flat(squares / t**2),
        *([flat(c)] if known else []),
    ]
    leading = np.broadcast_shapes(*(a.shape[:-1] for a in numbers))
    return xp.concat(
        [xp.broadcast_to(a, (*leading, a.shape[-1])) for a in numbers], axis=-1
    )


def parts(t: int, known: int) -> list[slice]:
    """The slices of the result of `of_head`: `of_logits`, Σ_w c_iw noise_jw, Σ_w c_iw
    c_jw, c of the known words.
    """
    return list(
        starmap(slice, pairwise(np.cumsum([0, 3, t * t, t * t, t * known]).tolist()))
    )


def _slope(logits: Array, cap: float | None) -> Array:
    """The derivative of a softcap, from its result."""
    return 1.0 if cap is None else 1.0 - (logits / cap) ** 2


# normals of a piece of the vocabulary, 128 MiB, unless a piece with all targets has
# more
PIECE_NUMBERS = 2**24
# in units of the machine epsilon: smaller eigenvalues of a Gram matrix count as 0
EIGENVALUE_RTOL = 500.0


class Logits(NamedTuple):
    """The logits of the last vectors (t), before a softcap: of known words, and of all
    others.

    Those of the others are root · noise: jointly N(0, root²) over the vectors and
    independent between words. There are as many as the vocabulary, drawn in pieces, and
    `ends` never has all of them in memory. Words are exchangeable, so if there are
    several pieces the targets are the first words of the first.
    """

    y: Vector  # (t,), the input of the matrix of logits
    known: Any  # scalars (t, words), or None
    root: Any  # scalars (t, t), or None
    noise: tuple[Any, ...]  # scalars (t, words) of each piece
    cap: float | None
    # positions of ids among the known words; None: they are among the others
    column: dict[int, int] | None

    def parts(self) -> tuple[Scalar, ...]:
        """The logits of the whole vocabulary, in parts (t, words), known words
        first.
        """
        known = () if self.known is None else (self.known,)
        return tuple(
            self._capped(part)
            for part in (*known, *(self.root @ noise for noise in self.noise))
        )

    def columns(self, ids: Sequence[int]) -> list[int]:
        """The columns of these targets, one per vector: of the known words, or of the
        first piece.
        """
        column = self.column
        if column is None and len(self.noise) > 1:
            column = {target: k for k, target in enumerate(dict.fromkeys(ids))}
        return list(ids) if column is None else [column[target] for target in ids]

    def of(self, ids: Sequence[int]) -> Scalar:
        """(t,): for each vector the logit of one id, which must occur if logits are
        tied.
        """
        own, columns = np.arange(len(ids)), np.array(self.columns(ids))
        if self.column is None:
            return self._capped((self.root @ self.noise[0][:, columns])[own, own])
        return self._capped(self.known[own, columns])

    def first(self, count: int) -> Logits:
        """The logits of the first vectors, if their number was passed to `words`."""
        known = None if self.known is None else self.known[:count]
        noise = tuple(piece[:count] for piece in self.noise)
        root = None if self.root is None else self.root[:count, :count]
        return self._replace(y=self.y[:count], known=known, root=root, noise=noise)

    def ends(self) -> Scalar:
        """(3,): standard deviation of the logits, mean of log Σ e^logit, largest
        probability.
        """
        known = () if self.known is None else (self.known,)
        if len(self.noise) < 2:
            given = (*known,) if self.root is None else (self.root, *self.noise, *known)
            return apply(
                partial(of_logits, cap=self.cap), *given, axes=2, name="of_logits"
            )
        first = apply(
            partial(first_words, cap=self.cap),
            self.root,
            self.noise[0],
            *known,
            axes=2,
            name="of_logits",
        )
        state, count = self.accumulated(more_words, first)
        return apply(partial(of_words, count=count), state, axes=2, name="of_logits")

    def accumulated(
        self, more: Callable[..., Any], state: Scalar
    ) -> tuple[Scalar, int]:
        """A state after the first piece and all others, each added by `more`, and the
        number of words.
        """
        count = self.noise[0].shape[-1] + (
            0 if self.known is None else self.known.shape[-1]
        )
        for noise in self.noise[1:]:
            state = apply(
                partial(more, count=count, cap=self.cap),
                state,
                self.root,
                noise,
                axes=2,
                name="of_logits",
            )
            count += noise.shape[-1]
        return state, count

    def _capped(self, logits: Scalar) -> Scalar:
        return logits if self.cap is None else self.cap * tanh(logits / self.cap)


def words(
    model: Description, traced: Trace, y: Vector, limit: bool, first: int | None = None
) -> Logits:
    """The logits of the last vectors y; `limit` means n = ∞, where tied logits of
    occurring ids keep their fluctuation.

    At the width of the model ⟨e_t, y⟩ fluctuates like the logits of other words
    (`Embedding.logits`). `first` is the number of vectors that `Logits.first` will
    select; None: all are used together.
    """
    others, known, column = model.vocabulary or 0, None, None
    if model.readout == "transform":
        hidden = (
            weight(n, n, std=sigma_of(model.std_logits, model.width), name="W^T") @ y
        )
        y = normed(model, ACTIVATIONS[model.activation](hidden))
    if model.logit_scale != 1:
        y = model.logit_scale * y
    if model.tied:  # ⟨e_t, y⟩ for occurring ids t, and 0 for padding, whose vector is 0
        assert traced.table is not None
        ids = traced.table.ids
        known = traced.table.vectors.logits(
            y, len(ids), fan_in=model.width, spread=limit
        )
        others, column = others - len(ids), {i: k for k, i in enumerate(ids)}
        if model.padding in ids:
            known = known * np.where(np.array(ids) == model.padding, 0.0, 1.0)
        elif model.padding is not None:
            known, others = (
                join([known, constant(np.zeros((y.size, 1)))], axis=1),
                others - 1,
            )
    if not others:
        return Logits(y, known, None, (), model.logit_cap, column)
    factor = root(gram := mean_dot(y, y))
    if first is not None:
        factor = apply(
            partial(_split_root, first=first),
            gram,
            axes=2,
            name="root",
            bounded=False,
            lipschitz=False,
        )
    std = sigma_of(model.std_embedding if model.tied else model.std_logits, model.width)
    return Logits(
        y, known, std * factor, _pieces(y.size, others), model.logit_cap, column
    )


def _pieces(vectors: int, words: int) -> tuple[Scalar, ...]:
    """The normals of all words, in as few pieces as memory allows; the first has room
    for the target of each vector.
    """
    size = max(vectors, PIECE_NUMBERS // vectors)
    starts = range(0, words, size)
    return tuple(
        normal((vectors, min(size, words - start)), name="words") for start in starts
    )


def _split_root(gram: Any, first: int) -> Any:
    """[[R, 0], [C R⁺, S]], a root of [[A, C^T], [C, D]]: R is the symmetric root of A,
    S that of D − C A⁺ C^T.
    """
    # The gradient of the loss needs the first rows to be the root of the first vectors.
    xp = array_namespace(gram)
    lower = gram[..., first:, :first] @ inverse_root(gram[..., :first, :first])
    rest = gram[..., first:, first:] - lower @ xp.matrix_transpose(lower)
    upper = [
        symmetric_root(gram[..., :first, :first]),
        xp.zeros_like(gram[..., :first, first:]),
    ]
    rows = [xp.concat(each, axis=-1) for each in (upper, [lower, symmetric_root(rest)])]
    return xp.concat(rows, axis=-2)


def inverse_root(gram: Any) -> Any:
    """The symmetric G^(−1/2) of positive semidefinite matrices; 0 on their null
    space.
    """
    xp = array_namespace(gram)
    values, vectors = eigenvectors(gram)
    real = values > EIGENVALUE_RTOL * xp.finfo(gram.dtype).eps * xp.max(
        xp.abs(values), axis=-1, keepdims=True
    )
    inverse = xp.where(real, 1.0 / xp.sqrt(xp.where(real, values, 1.0)), 0.0)
    return (vectors * inverse[..., None, :]) @ xp.matrix_transpose(vectors)


class Loss(NamedTuple):
    """A loss, and the cotangents from which its backward pass starts."""

    seeds: tuple[tuple[Value, Value], ...]  # values and their cotangents
    # the squared gradient of the words that are not in the program
    head: Scalar | None = None
    head_size: float = 0.0  # the mean of Σ |W|² over these
    tied: bool = False  # whether these words are rows of the embedding
    constants: tuple[Value, ...] = ()  # values whose gradient is already in the seeds


def readout(y: Vector) -> Loss:
    """Without logits: the mean over vectors of n^(−1/2) ⟨r_i, y_i⟩, with random
    readouts r_i.
    """
    return Loss(((y, gaussian(y.width, y.size, name="r").reshape(*y.shape) / y.size),))


def cross_entropy(
    model: Description, words: Logits, targets: Sequence[int]
) -> tuple[Loss, Scalar]:
    """The initial loss, for one target id per vector, and the result of
    `Logits.ends`.
    """
    y, t = words.y, words.y.size
    count = 0 if words.known is None else words.known.shape[-1]
    columns = tuple(words.columns(targets))
    given = [a for a in (words.known, words.root, *words.noise[:1]) if a is not None]
    if len(words.noise) < 2:
        sums = apply(
            partial(of_head, targets=columns, cap=words.cap),
            *given,
            axes=2,
            name="of_head",
        )
    else:
        first = apply(
            partial(first_head, cap=words.cap), *given, axes=2, name="of_head"
        )
        state, seen = words.accumulated(more_head, first)
        ends = partial(ends_of_head, targets=columns, count=seen, cap=words.cap)
        sums = apply(ends, state, *given, axes=2, name="of_head")
    where = parts(t, count)
    along, square = (sums[where[k]].reshape(t, t) for k in (1, 2))
    gram, seeds, head = mean_dot(y, y), list[tuple[Value, Value]](), None
    if words.root is not None:
        head = model.width * (square * gram).sum()
        std = model.std_embedding if model.tied else model.std_logits
        seeds.append(
            (y, sigma_of(std, model.width) * _gradient(y, gram, along, square))
        )
    if words.known is not None:
        c = sums[where[3]].reshape(t, count)
        seeds.append((words.known, c))
        # its vector is 0 but has a gradient
        if model.padding is not None and words.column is not None:
            own = c[:, words.column.get(model.padding, len(words.column))]
            padded = model.width * (own[:, None] * own * gram).sum()
            head = padded if head is None else head + padded
    size = (model.vocabulary or 0) * model.width * model.std_logits**2
    return Loss(tuple(seeds), head, size, model.tied), sums[where[0]]


def _gradient(y: Vector, gram: Scalar, along: Scalar, square: Scalar) -> Vector:
    """√n ∂L/∂y over σ, from the words that are not in the program (the equation
    above).
    """
    q = mix(apply(inverse_root, gram, axes=2, bounded=False, lipschitz=False), y)
    u = mix(root(square), gaussian(y.width, y.size, name="W^L"))
    return u + mix(width_ratio((), (y.width,)) * along - mean_dot(u, q), q)


class End(NamedTuple):
    """The end of a network."""

    row: dict[str, Scalar]  # its quantities, by name
    logits: tuple[Scalar, ...]  # all logits, in parts
    loss: Loss | None  # with gradients


@dataclass
class ModelEnd:
    """The end of a described model on given inputs. Its logits are sampled without
    their matrix.
    """

    model: Description
    inputs: Inputs

    @cached_property
    def traced(self) -> Trace:
        """The network."""
        return trace(self.model, self.inputs)

    @cached_property
    def net(self) -> ProbedProgram:
        """The network, as probes."""
        return ProbedProgram(
            Program(self.traced.output, self.model.name, self.traced.probes)
        )

    def end(self, limit: bool, gradients: bool, ranges: bool) -> End:
        """The logits, their loss and the seeds of its gradient; `limit` means n = ∞."""
        y = self.traced.output
        if not self.model.vocabulary:
            return End({}, (), readout(y) if gradients else None)
        # the last token has logits too, although it has no target
        if ranges and self._next:
            every = words(self.model, self.traced, y, limit, y.size - 1)
            logits = every.first(y.size - 1)
        else:
            every = logits = self.logits(limit)
        if gradients and limit and self.model.tied:
            raise ExactError(
                logits.y,
                "the logit of a token's own id grows with the root of the width if"
                " logits are tied, and so do the cotangents of scores: the gradient has"
                " a part along the embeddings, which the stream has too",
                instead="gradients of a model whose logits are not tied have a limit",
            )
        loss, ends = (
            cross_entropy(self.model, logits, self.targets)
            if gradients
            else (None, logits.ends())
        )
        row = {
            "logit_std": ends[0],
            "loss": ends[1] - logits.of(self.targets).mean(),
            "max_probability": ends[2],
        }
        return End(row, every.parts() if ranges else (), loss)

    def logits(self, limit: bool) -> Logits:
        """The logits of the tokens that have a target."""
        y = self.traced.output
        y = y[:1] if self.model.readout == "class" else y[:-1] if self._next else y
        return words(self.model, self.traced, y, limit)

    @property
    def _next(self) -> bool:
        """Whether tokens predict the next token."""
        return self.model.readout != "class" and (
            self.model.causal or self.model.decoder_layers > 0
        )

    @property
    def targets(self) -> tuple[int, ...]:
        """The targets of these tokens; for classes, which are exchangeable, the
        first.
        """
        ids = self.inputs.decoder_ids or self.inputs.ids
        return (0,) if self.model.readout == "class" else ids[1:] if self._next else ids


def program_loss(
    net: ProbedProgram, seeds: list[tuple[Value, Value]], widths: Mapping[str, float]
) -> Loss:
    """The loss of a program, with seeds for the vectors whose logits were sampled
    without their matrix.
    """
    if not seeds:
        output = net.program.outputs[0]
        return readout(
            output if isinstance(output, Vector) and output.ndim else net.streams[-1]
        )
    blocks = set(topological_order(net.streams))
    values = [
        value
        for value in topological_order([value for value, _ in seeds])
        if value not in blocks
    ]
    drawn = {value: match for value in values if (match := drawn_words(value))}
    back = Reverse(seeds, drawn, constants=drawn)
    more, head, size = list(seeds), constant(np.zeros(())), 0.0
    for value, words in drawn.items():
        y, std, transposed = words.y, words.std, words.transposed
        c, noise = (
            a.transpose() if transposed else a for a in (back.of(value), words.noise)
        )
        square, gram = c @ c.transpose(), mean_dot(y, y)
        if std:
            more.append(
                (y, std * _gradient(y, gram, c @ noise.transpose() / std, square))
            )
        if not words.frozen:
            head = head + y.width.bind(widths) * (square * gram).sum()
            size += noise.shape[1] * std**2
    tied = any(words.transposed for words in drawn.values())
    moved = any(not words.frozen for words in drawn.values())
    return Loss(tuple(more), head if moved else None, size, tied, tuple(drawn))


class DrawnWords(NamedTuple):
    """The logits of words without their matrix: `nn.logits`, (vectors, words), or
    `Embedding.logits`, transposed.
    """

    y: Vector
    noise: Scalar
    std: float
    transposed: bool
    frozen: bool  # whether their vectors are given in derivatives


def drawn_words(value: Value) -> DrawnWords | None:
    """The logits that a value is, if it is such a product."""
    match value.op:
        case Apply(
            f, (Scalar(op=Apply(g, (Scalar(op=Dot(y, z)),))), Scalar() as noise)
        ):
            transposed = False
        case Apply(
            f, (Scalar() as noise, Scalar(op=Apply(g, (Scalar(op=Dot(y, z)),))))
        ):
            transposed = True
        case _:
            return None
    normals = computed_by(noise)
    if (
        f is not MATMUL
        or base(g) is not symmetric_root
        or y is not z
        or not isinstance(normals.op, Normal)
    ):
        return None
    return DrawnWords(y, noise, normals.op.std, transposed, normals is not noise)
