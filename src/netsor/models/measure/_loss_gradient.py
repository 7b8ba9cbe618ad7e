"""The gradient of the initial loss by the last vectors, where backward passes begin.

The matrix W of the logits is not sampled. L is a function of logits ⟨W_w, y_i⟩, and
∂L/∂y_i = Σ_w c_iw W_w with c_iw = ∂L/∂(logit). Let G be the Gram matrix of the y_i, and
q = G^(−1/2) y orthonormal directions that span them. The logits are ⟨W_w, y_i⟩ = σ
(G^(1/2) N)_iw, where N_jw are the coordinates of W_w along q_j, i.i.d. N(0, 1) in units
of the standard deviation of W. The part of W_w orthogonal to all q is Gaussian and
independent of the logits. So in law, at every finite width,

 √n ∂L/∂y_i = σ [n^(−1/2) Σ_j (c N^T)_ij q_j + Σ_k (c c^T)^(1/2)_ik z_k],  z_k = g_k −
 Σ_j (⟨g_k, q_j⟩/n) q_j,

with fresh standard Gaussian vectors g_k. Words whose vectors are in the program (tied
logits) are differentiated there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Array, array_namespace, eigenvectors
from ...engine import ExactError
from ...functions.derivatives import base
from ...language import (
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
from ...language.autodiff._derivative import width_ratio
from ...language.autodiff._grad import Reverse
from ...language.operations._operation import Apply, Dot, Normal
from ...language.operations._stop_gradient import computed_by
from ...language.theorem._check_function import declares
from ...language.values._graph import topological_order
from ...language.values._scalar import MATMUL, constant
from ...language.values._vector import mix
from ...nn._embedding import root, symmetric_root
from ...programs._program import Program
from .._build import ACTIVATIONS, Inputs, Trace, n, normed, sigma_of, trace
from .._description import Description
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


class HeadParts(NamedTuple):
    """Where the result of `of_head` has its parts."""

    logits: slice  # the numbers of `of_logits`
    products: slice  # Σ_w c_iw noise_jw
    squares: slice  # Σ_w c_iw c_jw
    known: slice  # c of the known words


def parts(t: int, known: int) -> HeadParts:
    """The parts of the result of `of_head` for t vectors and some known words."""
    products = 3
    squares = products + t * t
    of_known = squares + t * t
    return HeadParts(
        logits=slice(0, products),
        products=slice(products, squares),
        squares=slice(squares, of_known),
        known=slice(of_known, of_known + t * known),
    )


def _head_output_shape(*argument_shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the result of `of_head`, which takes seconds to find by a call."""
    vectors = argument_shapes[0][-2]
    only_noise = len(argument_shapes) == 2
    known_words = 0 if only_noise else argument_shapes[0][-1]
    return (parts(vectors, known_words).known.stop,)


def _state_shape(*argument_shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of packed sums, from those of a first piece of words."""
    vectors = argument_shapes[0][-2]
    return (vectors, 4 + 2 * vectors)  # of each vector: 4 moments, products, squares


def _same_state_shape(
    state: tuple[int, ...], *argument_shapes: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape of packed sums after a further piece of words."""
    return state


def _ends_shape(
    state: tuple[int, ...], *argument_shapes: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape of the result of `of_head`, from packed sums and the first piece."""
    return _head_output_shape(*argument_shapes)


@declares(output_shape=_head_output_shape)
def of_head(*arrays: Array, targets: Sequence[int], cap: float | None = None) -> Array:
    """The ends of backward passes, in the last axis as in `HeadParts`.

    The arrays are known logits (…, t, k), the root (…, t, t) and noise (…, t, words);
    known logits, or root and noise, may be missing. The targets, one per vector, are
    columns of the known logits or, without these, of the noise. With the softmax p,
    c_iw = (p_iw − 1[w is the target of i]) slope_iw/t.
    """
    return _head_ends(_HeadSums.of(*arrays, cap=cap), arrays, targets, cap)


class _HeadSums:
    """Sums over the words seen so far, with s = p · slope.

    These are their moments (`seen`), Σ_w s_iw noise_jw and Σ_w s_iw s_jw.
    """

    def __init__(self, seen: LogitMoments, products: Array, squares: Array) -> None:
        self.seen = seen
        self.products = products
        self.squares = squares

    @classmethod
    def of(cls, *arrays: Array, cap: float | None) -> _HeadSums:
        """The sums over the words of the arrays of `of_head`."""
        xp = array_namespace(*arrays)
        t = arrays[0].shape[-2]
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
        for logits, noise_of_batch in batches(root, noise, cap):
            slope = _slope(logits, cap)
            # e^(logit − top), which is p up to the sum of its row
            p, shrunk = self.seen.add(logits)
            if cap is not None:
                p = p * slope
            self.products = self.products * shrunk + p @ transpose(noise_of_batch)
            shrunk_squares = self.squares * (shrunk * transpose(shrunk))
            self.squares = shrunk_squares + p @ transpose(p)

    def packed(self) -> Array:
        """All of these but the count of words, as one array (…, t, 4 + 2 t)."""
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


@declares(output_shape=_state_shape)
def first_head(*arrays: Array, cap: float | None) -> Array:
    """The packed sums of known logits, if any, and the first piece of other words."""
    return _HeadSums.of(*arrays, cap=cap).packed()


@declares(output_shape=_same_state_shape)
def more_head(
    state: Array, root: Array, noise: Array, *, count: int, cap: float | None
) -> Array:
    """The packed sums of `count` words and those of a further piece."""
    sums = _HeadSums.unpacked(state, count)
    sums.add(root, noise, cap)
    return sums.packed()


@declares(output_shape=_ends_shape)
def ends_of_head(
    state: Array, *arrays: Array, targets: Sequence[int], count: int, cap: float | None
) -> Array:
    """The result of `of_head` from the packed sums of all `count` words.

    `arrays` are those of the first piece.
    """
    return _head_ends(_HeadSums.unpacked(state, count), arrays, targets, cap)


def _head_ends(
    sums: _HeadSums, arrays: Sequence[Array], targets: Sequence[int], cap: float | None
) -> Array:
    """The result of `of_head`; the targets are among the words of these arrays."""
    xp = array_namespace(*arrays)
    transpose = xp.matrix_transpose
    t = arrays[0].shape[-2]
    seen = sums.seen
    known = len(arrays) != 2
    products = sums.products / seen.mass
    squares = sums.squares / (seen.mass * transpose(seen.mass))
    if known:
        logits = capped(arrays[0], cap)
        is_target = np.equal.outer(targets, np.arange(logits.shape[-1]))
        one_hot = xp.asarray(is_target, dtype=logits.dtype)
        p = xp.exp(logits - seen.top) / seen.mass
        c = (p - one_hot) * _slope(logits, cap) / t
    else:
        root, noise = arrays
        # column j belongs to the target of vector j
        noise = xp.take(noise, xp.asarray(targets), axis=-1)
        logits = capped(root @ noise, cap)
        slope = _slope(logits, cap) + 0.0 * logits
        own_slope = xp.linalg.diagonal(slope)[..., None]
        p = xp.exp(logits - seen.top) / seen.mass
        across = p * slope * transpose(own_slope)
        same_target = xp.asarray(np.equal.outer(targets, targets), dtype=noise.dtype)
        products = products - own_slope * transpose(noise)
        squares = squares + same_target * (own_slope * transpose(own_slope))
        squares = squares - across - transpose(across)
    numbers = [seen.ends(), flat(products / t), flat(squares / t**2)]
    if known:
        numbers.append(flat(c))
    return joined(*numbers)


def _slope(logits: Array, cap: float | None) -> Array:
    """The derivative of a softcap, from its result."""
    return 1.0 if cap is None else 1.0 - (logits / cap) ** 2


# Normals of a piece of the vocabulary, 128 MiB. A piece with all targets may have more.
PIECE_NUMBERS = 2**24
# Eigenvalues of a Gram matrix below this share of the largest, in units of the machine
# epsilon, count as 0.
EIGENVALUE_RTOL = 500.0


class Logits(NamedTuple):
    """The logits of the last t vectors, before a softcap.

    Known words have vectors in the program. The logits of the others are root · noise:
    jointly N(0, root²) over the vectors and
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
        """The logits of the whole vocabulary in parts (t, words), known words first."""
        logits = [] if self.known is None else [self.known]
        logits += [self.root @ noise for noise in self.noise]
        return tuple(self._capped(part) for part in logits)

    def columns(self, ids: Sequence[int]) -> list[int]:
        """The columns of these targets, one per vector.

        They are columns of the known words or of the first piece.
        """
        if self.column is not None:
            return [self.column[target] for target in ids]
        if len(self.noise) < 2:
            return list(ids)
        # targets are the first words of the first piece
        different = list(dict.fromkeys(ids))
        return [different.index(target) for target in ids]

    def of(self, ids: Sequence[int]) -> Scalar:
        """The logit of one id for each vector, (t,).

        The id must occur if logits are tied.
        """
        vectors = np.arange(len(ids))
        columns = np.array(self.columns(ids))
        if self.column is None:
            logits = self.root @ self.noise[0][:, columns]
            return self._capped(logits[vectors, vectors])
        return self._capped(self.known[vectors, columns])

    def first(self, count: int) -> Logits:
        """The logits of the first vectors, if their number was passed to `words`."""
        known = None if self.known is None else self.known[:count]
        noise = tuple(piece[:count] for piece in self.noise)
        root = None if self.root is None else self.root[:count, :count]
        return self._replace(y=self.y[:count], known=known, root=root, noise=noise)

    def ends(self) -> Scalar:
        """Standard deviation of the logits, mean of log Σ e^logit, largest probability.

        They are the three entries of the scalar.
        """
        known = [] if self.known is None else [self.known]
        if len(self.noise) < 2:
            root_and_noise = [] if self.root is None else [self.root, *self.noise]
            return apply(
                partial(of_logits, cap=self.cap),
                *root_and_noise,
                *known,
                axes=2,
                name="of_logits",
            )
        state = apply(
            partial(first_words, cap=self.cap),
            self.root,
            self.noise[0],
            *known,
            axes=2,
            name="of_logits",
        )
        state, count = self.accumulated(more_words, state)
        return apply(partial(of_words, count=count), state, axes=2, name="of_logits")

    def accumulated(
        self, more: Callable[..., Any], state: Scalar
    ) -> tuple[Scalar, int]:
        """The state after all pieces, from that after the first, and the words' number.

        `more` adds a piece to the state.
        """
        count = self.noise[0].shape[-1]
        if self.known is not None:
            count += self.known.shape[-1]
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
    """The logits of the last vectors y.

    `limit` means n = ∞, where tied logits of occurring ids keep their fluctuation. At
    the width of the model ⟨e_t, y⟩ fluctuates like the logits of other words
    (`Embedding.logits`). `first` is the number of vectors that `Logits.first` will
    select; None: all are used together.
    """
    if model.readout == "transform":
        std = sigma_of(model.std_logits, model.width)
        hidden = weight(n, n, std=std, name="W^T") @ y
        y = normed(model, ACTIVATIONS[model.activation](hidden))
    if model.logit_scale != 1:
        y = model.logit_scale * y
    others = model.vocabulary or 0
    known, column = None, None
    if model.tied:
        assert traced.table is not None
        ids = traced.table.ids
        known = _tied_logits(model, traced, y, limit)
        others -= known.shape[-1]
        column = {token: k for k, token in enumerate(ids)}
    if not others:
        return Logits(
            y, known=known, root=None, noise=(), cap=model.logit_cap, column=column
        )
    gram = mean_dot(y, y)
    factor = root(gram)
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
        y,
        known=known,
        root=std * factor,
        noise=_pieces(y.size, others),
        cap=model.logit_cap,
        column=column,
    )


def _tied_logits(model: Description, traced: Trace, y: Vector, limit: bool) -> Scalar:
    """The logits ⟨e_t, y⟩ of the ids t that occur, and 0 of padding.

    The vector of padding is 0. Its logits come last unless its id occurs.
    """
    assert traced.table is not None
    ids = traced.table.ids
    known = traced.table.vectors.logits(y, len(ids), fan_in=model.width, spread=limit)
    if model.padding is None:
        return known
    if model.padding in ids:
        return known * np.where(np.array(ids) == model.padding, 0.0, 1.0)
    return join([known, constant(np.zeros((y.size, 1)))], axis=1)


def _pieces(vectors: int, words: int) -> tuple[Scalar, ...]:
    """The normals of all words, in as few pieces as memory allows.

    The first piece has room for the target of each vector.
    """
    size = max(vectors, PIECE_NUMBERS // vectors)
    starts = range(0, words, size)
    return tuple(
        normal((vectors, min(size, words - start)), name="words") for start in starts
    )


def _split_root(gram: Any, first: int) -> Any:
    """The root [[R, 0], [C R⁺, S]] of [[A, C^T], [C, D]], with A of the first vectors.

    R is the symmetric root of A, and S that of D − C A⁺ C^T. The gradient of the loss
    needs the first rows to be the root of the first vectors.
    """
    xp = array_namespace(gram)
    a = gram[..., :first, :first]
    c = gram[..., first:, :first]
    d = gram[..., first:, first:]
    lower = c @ inverse_root(a)
    schur = d - lower @ xp.matrix_transpose(lower)
    zeros = xp.zeros_like(gram[..., :first, first:])
    upper_rows = xp.concat([symmetric_root(a), zeros], axis=-1)
    lower_rows = xp.concat([lower, symmetric_root(schur)], axis=-1)
    return xp.concat([upper_rows, lower_rows], axis=-2)


def inverse_root(gram: Any) -> Any:
    """The symmetric G^(−1/2) of semidefinite matrices; 0 on their null space."""
    xp = array_namespace(gram)
    values, vectors = eigenvectors(gram)
    largest = xp.max(xp.abs(values), axis=-1, keepdims=True)
    positive = values > EIGENVALUE_RTOL * xp.finfo(gram.dtype).eps * largest
    inverse = xp.where(positive, 1.0 / xp.sqrt(xp.where(positive, values, 1.0)), 0.0)
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
    """The loss of a network without logits.

    It is the mean over vectors of n^(−1/2) ⟨r_i, y_i⟩, with random readouts r_i.
    """
    readouts = gaussian(y.width, y.size, name="r").reshape(*y.shape)
    return Loss(seeds=((y, readouts / y.size),))


def cross_entropy(
    model: Description, words: Logits, targets: Sequence[int]
) -> tuple[Loss, Scalar]:
    """The initial loss for one target id per vector, and `Logits.ends`."""
    y = words.y
    t = y.size
    sums = _head_sums(words, tuple(words.columns(targets)))
    known_words = 0 if words.known is None else words.known.shape[-1]
    where = parts(t, known_words)
    products = sums[where.products].reshape(t, t)
    squares = sums[where.squares].reshape(t, t)
    gram = mean_dot(y, y)
    seeds: list[tuple[Value, Value]] = []
    head = None
    if words.root is not None:
        head = model.width * (squares * gram).sum()
        std = model.std_embedding if model.tied else model.std_logits
        gradient = _gradient(y, gram, products, squares)
        seeds.append((y, sigma_of(std, model.width) * gradient))
    if words.known is not None:
        c = sums[where.known].reshape(t, known_words)
        seeds.append((words.known, c))
        # the vector of padding is 0 but has a gradient
        if model.padding is not None and words.column is not None:
            of_padding = c[:, words.column.get(model.padding, len(words.column))]
            padded = model.width * (of_padding[:, None] * of_padding * gram).sum()
            head = padded if head is None else head + padded
    head_size = (model.vocabulary or 0) * model.width * model.std_logits**2
    loss = Loss(tuple(seeds), head=head, head_size=head_size, tied=model.tied)
    return loss, sums[where.logits]


def _head_sums(words: Logits, columns: tuple[int, ...]) -> Scalar:
    """The result of `of_head`, for targets in these columns."""
    arrays = [] if words.known is None else [words.known]
    if words.root is not None:
        arrays += [words.root, words.noise[0]]
    if len(words.noise) < 2:
        return apply(
            partial(of_head, targets=columns, cap=words.cap),
            *arrays,
            axes=2,
            name="of_head",
        )
    state = apply(partial(first_head, cap=words.cap), *arrays, axes=2, name="of_head")
    state, count = words.accumulated(more_head, state)
    return apply(
        partial(ends_of_head, targets=columns, count=count, cap=words.cap),
        state,
        *arrays,
        axes=2,
        name="of_head",
    )


def _gradient(y: Vector, gram: Scalar, products: Scalar, squares: Scalar) -> Vector:
    """√n ∂L/∂y over σ from the words outside the program (the equation above)."""
    q = mix(apply(inverse_root, gram, axes=2, bounded=False, lipschitz=False), y)
    u = mix(root(squares), gaussian(y.width, y.size, name="W^L"))
    return u + mix(width_ratio((), (y.width,)) * products - mean_dot(u, q), q)


class End(NamedTuple):
    """The end of a network."""

    row: dict[str, Scalar]  # its quantities, by name
    logits: tuple[Scalar, ...]  # all logits, in parts
    loss: Loss | None  # with gradients


@dataclass
class ModelEnd:
    """The end of a described model on some inputs.

    Its logits are sampled without their matrix.
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
            all_logits = words(self.model, self.traced, y, limit, y.size - 1)
            logits = all_logits.first(y.size - 1)
        else:
            all_logits = logits = self.logits(limit)
        if gradients and limit and self.model.tied:
            raise ExactError(
                logits.y,
                "the logit of a token's own id grows with the root of the width if"
                " logits are tied, and so do the cotangents of scores: the gradient has"
                " a part along the embeddings, which the stream has too",
                instead="gradients of a model whose logits are not tied have a limit",
            )
        loss = None
        if gradients:
            loss, ends = cross_entropy(self.model, logits, self.targets)
        else:
            ends = logits.ends()
        row = {
            "logit_std": ends[0],
            "loss": ends[1] - logits.of(self.targets).mean(),
            "max_probability": ends[2],
        }
        return End(row, logits=all_logits.parts() if ranges else (), loss=loss)

    def logits(self, limit: bool) -> Logits:
        """The logits of the tokens that have a target."""
        y = self.traced.output
        if self.model.readout == "class":
            y = y[:1]
        elif self._next:
            y = y[:-1]
        return words(self.model, self.traced, y, limit)

    @property
    def _next(self) -> bool:
        """Whether tokens predict the next token."""
        return self.model.readout != "class" and (
            self.model.causal or self.model.decoder_layers > 0
        )

    @property
    def targets(self) -> tuple[int, ...]:
        """The targets of these tokens.

        Classes are exchangeable: their target is the first.
        """
        if self.model.readout == "class":
            return (0,)
        ids = self.inputs.decoder_ids or self.inputs.ids
        return ids[1:] if self._next else ids


def program_loss(
    net: ProbedProgram, seeds: list[tuple[Value, Value]], widths: Mapping[str, float]
) -> Loss:
    """The loss of a program whose logits have the cotangents `seeds`.

    Vectors whose logits were sampled without their matrix get cotangents too.
    """
    if not seeds:
        output = net.program.outputs[0]
        if isinstance(output, Vector) and output.ndim:
            return readout(output)
        return readout(net.streams[-1])
    drawn = _words_outside_blocks(net, seeds)
    backward = Reverse(seeds, drawn, constants=drawn)
    all_seeds = list(seeds)
    head, head_size = constant(np.zeros(())), 0.0
    for value, words in drawn.items():
        y, std = words.y, words.std
        # ∂L/∂logits and their normals
        c, noise = backward.cotangent(value), words.noise
        if words.transposed:
            c, noise = c.transpose(), noise.transpose()
        squares = c @ c.transpose()
        gram = mean_dot(y, y)
        if std:
            products = c @ noise.transpose() / std
            all_seeds.append((y, std * _gradient(y, gram, products, squares)))
        if not words.frozen:
            head = head + y.width.bind(widths) * (squares * gram).sum()
            head_size += noise.shape[1] * std**2
    all_frozen = all(words.frozen for words in drawn.values())
    return Loss(
        tuple(all_seeds),
        head=None if all_frozen else head,
        head_size=head_size,
        tied=any(words.transposed for words in drawn.values()),
        constants=tuple(drawn),
    )


def _words_outside_blocks(
    net: ProbedProgram, seeds: list[tuple[Value, Value]]
) -> dict[Value, DrawnWords]:
    """The logits without their matrix that the loss depends on, but no block."""
    in_blocks = set(topological_order(net.streams))
    drawn: dict[Value, DrawnWords] = {}
    for value in topological_order([value for value, _ in seeds]):
        if value in in_blocks:
            continue
        words = drawn_words(value)
        if words is not None:
            drawn[value] = words
    return drawn


class DrawnWords(NamedTuple):
    """The logits of words without their matrix.

    They are `nn.logits`, (vectors, words), or `Embedding.logits`, transposed.
    """

    y: Vector
    noise: Scalar
    std: float
    transposed: bool
    frozen: bool  # whether their vectors are constants in derivatives


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
    is_root_times_noise = f is MATMUL and base(g) is symmetric_root and y is z
    normals = computed_by(noise)
    if not is_root_times_noise or not isinstance(normals.op, Normal):
        return None
    return DrawnWords(
        y,
        noise=noise,
        std=normals.op.std,
        transposed=transposed,
        frozen=normals is not noise,
    )
