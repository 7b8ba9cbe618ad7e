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

from ..._array_api import Array, array_namespace, eigenvectors, symmetric_root
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
from ...nn._embedding import root
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
    """The slices of the last axis of the result of `of_head`, for t vectors."""

    logits: slice  # the 3 numbers of `of_logits`
    products: slice  # Σ_w c_iw noise_jw, of a (t, t) matrix
    squares: slice  # Σ_w c_iw c_jw, of a (t, t) matrix
    known: slice  # c_iw of the known words, of a (t, known words) matrix


def head_parts(t: int, known_words: int) -> HeadParts:
    """The slices for t vectors and so many known words.

    For example, 2 vectors and 5 known words have 3 + 4 + 4 + 10 numbers.
    """
    logits_end = 3
    products_end = logits_end + t * t
    squares_end = products_end + t * t
    known_end = squares_end + t * known_words
    return HeadParts(
        logits=slice(0, logits_end),
        products=slice(logits_end, products_end),
        squares=slice(products_end, squares_end),
        known=slice(squares_end, known_end),
    )


def _head_output_shape(*argument_shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the result of `of_head`, which takes seconds to find by a call.

    The arguments are the shapes of those of `of_head`: a root and noise, after the
    known logits (vectors, words), if there are any.
    """
    *_, vectors, last = argument_shapes[0]
    has_known_words = len(argument_shapes) != 2
    known_words = last if has_known_words else 0
    last_part = head_parts(vectors, known_words).known
    return (last_part.stop,)


def _state_shape(*argument_shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of packed sums, from those of the arguments of `first_head`."""
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
    """The numbers from which backward passes begin: (…, numbers), as in `HeadParts`.

    The arrays are known logits (…, t, known words), or root (…, t, t) and noise (…, t,
    words) of the other logits root · noise, or all three in this order. The targets,
    one per vector, are columns of the known logits or, without these, of the noise.
    With the softmax p, c_iw = (p_iw − 1[w is the target of i]) slope_iw/t.
    """
    return _head_ends(_HeadSums.of(*arrays, cap=cap), arrays, targets, cap)


class _HeadSums:
    """Sums over the words so far, with s_iw = e^(logit_iw − top_i) · slope_iw.

    These are the moments of the logits, and the (…, t, t) matrices of products Σ_w s_iw
    noise_jw and of squares Σ_w s_iw s_jw. The largest logit of a row is `moments.top`.
    """

    def __init__(self, moments: LogitMoments, products: Array, squares: Array) -> None:
        self.moments = moments
        self.products = products
        self.squares = squares

    @classmethod
    def of(cls, *arrays: Array, cap: float | None) -> _HeadSums:
        """The sums over the words of the arrays of `of_head`.

        Known words have a part only in the moments.
        """
        xp = array_namespace(*arrays)
        t = arrays[0].shape[-2]
        zeros = xp.zeros((t, t), dtype=arrays[0].dtype)
        sums = cls(LogitMoments(), zeros, zeros)
        has_known_words = len(arrays) != 2
        has_noise = len(arrays) > 1
        if has_known_words:
            sums.moments.add(capped(arrays[0], cap) + 0.0)  # a copy: `add` overwrites
        if has_noise:
            root, noise = arrays[-2:]
            sums.add(root, noise, cap)
        return sums

    def add(self, root: Array, noise: Array, cap: float | None) -> None:
        """Add the words of this noise (…, t, words)."""
        transpose = array_namespace(root, noise).matrix_transpose
        for logits, noise_of_batch in batches(root, noise, cap):
            slope = _slope(logits, cap)
            s, shrunk = self.moments.add(logits)
            if cap is not None:
                s = s * slope
            self.products = self.products * shrunk + s @ transpose(noise_of_batch)
            shrunk_squares = self.squares * (shrunk * transpose(shrunk))
            self.squares = shrunk_squares + s @ transpose(s)

    def packed(self) -> Array:
        """All of these but the count of words, as one array (…, t, 4 + 2 t)."""
        return joined(self.moments.packed(), self.products, self.squares)

    @classmethod
    def unpacked(cls, state: Array, count: int) -> _HeadSums:
        """The sums that were packed after so many words."""
        t = state.shape[-2]
        return cls(
            moments=LogitMoments.unpacked(state[..., :4], count),
            products=state[..., 4 : 4 + t],
            squares=state[..., 4 + t :],
        )


@declares(output_shape=_state_shape)
def first_head(*arrays: Array, cap: float | None) -> Array:
    """The packed sums of known logits, if any, and the first piece of other words.

    The arrays are those of `of_head`.
    """
    return _HeadSums.of(*arrays, cap=cap).packed()


@declares(output_shape=_same_state_shape)
def more_head(
    state: Array, root: Array, noise: Array, *, count: int, cap: float | None
) -> Array:
    """Packed sums (…, t, 4 + 2 t) after the words root · noise of a further piece.

    `state` are those of the first `count` words.
    """
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
    """The result of `of_head`, from the sums over all words.

    The targets are among the words of `arrays`, which are those of `of_head`.
    """
    xp = array_namespace(*arrays)
    t = arrays[0].shape[-2]
    moments = sums.moments
    # divided by the mass, s = e^(logit − top) · slope becomes p · slope
    mass = moments.mass
    products = sums.products / mass
    squares = sums.squares / (mass * xp.matrix_transpose(mass))
    if len(arrays) == 2:
        products, squares = _without_targets(
            products, squares, moments=moments, arrays=arrays, targets=targets, cap=cap
        )
        return joined(moments.ends(), flat(products / t), flat(squares / t**2))

    # the targets are known words, which have no part in products and squares
    logits = capped(arrays[0], cap)
    is_target = np.equal.outer(targets, np.arange(logits.shape[-1]))
    one_hot = xp.asarray(is_target, dtype=logits.dtype)
    p = xp.exp(logits - moments.top) / mass
    c = (p - one_hot) * _slope(logits, cap) / t
    return joined(moments.ends(), flat(products / t), flat(squares / t**2), flat(c))


def _without_targets(
    products: Array,
    squares: Array,
    moments: LogitMoments,
    arrays: Sequence[Array],
    targets: Sequence[int],
    cap: float | None,
) -> tuple[Array, Array]:
    """The sums with 1[w is the target of i] subtracted from p, for random words.

    `products` and `squares` are those without targets, and `arrays` the root and the
    noise of all words. All matrices are (…, t, t), and column j belongs to the target
    of vector j.
    """
    xp = array_namespace(*arrays)
    transpose = xp.matrix_transpose
    root, noise = arrays
    noise = xp.take(noise, xp.asarray(targets), axis=-1)
    logits = capped(root @ noise, cap)
    slope = _slope(logits, cap) + 0.0 * logits
    slope_at_target = xp.linalg.diagonal(slope)[..., None]
    p = xp.exp(logits - moments.top) / moments.mass
    # c_iw c_jw at the target w of j, or of i, or of both
    at_one_target = p * slope * transpose(slope_at_target)
    has_same_target = np.equal.outer(targets, targets)
    same_target = xp.asarray(has_same_target, dtype=noise.dtype)
    at_both_targets = slope_at_target * transpose(slope_at_target)
    products = products - slope_at_target * transpose(noise)
    squares = squares + same_target * at_both_targets
    squares = squares - at_one_target - transpose(at_one_target)
    return products, squares


def _slope(logits: Array, cap: float | None) -> Array:
    """The derivative of a softcap, from its results `logits`; 1 without a softcap."""
    return 1.0 if cap is None else 1.0 - (logits / cap) ** 2


# Normals of a piece of the vocabulary, 128 MiB. A piece with all targets may have more.
PIECE_NUMBERS = 2**24
# Eigenvalues of a Gram matrix below this share of the largest, in units of the machine
# epsilon, count as 0.
EIGENVALUE_RTOL = 500.0


class Logits(NamedTuple):
    """The logits of the last t vectors, before a softcap.

    Known words have vectors in the program. The logits of the others are root · noise:
    jointly N(0, root²) over the vectors and independent between words. There are as
    many as the vocabulary, drawn in pieces, and `ends` never has all of them in memory.
    Words are exchangeable, so if there are several pieces the targets are the first
    words of the first.
    """

    y: Vector  # (t,), the input of the matrix of logits
    known: Any  # scalars (t, words), or None
    root: Any  # scalars (t, t), or None
    noise: tuple[Any, ...]  # scalars (t, words) of each piece
    cap: float | None
    # positions of ids among the known words; None: they are among the others
    column: dict[int, int] | None

    @property
    def is_in_pieces(self) -> bool:
        """Whether the other words are drawn in several pieces, which are never in
        memory together.
        """
        return len(self.noise) > 1

    def parts(self) -> tuple[Scalar, ...]:
        """The logits of the whole vocabulary in parts (t, words), known words first."""
        logits = []
        if self.known is not None:
            logits.append(self.known)
        for noise in self.noise:
            logits.append(self.root @ noise)
        return tuple(map(self._capped, logits))

    def columns(self, ids: Sequence[int]) -> list[int]:
        """The columns of these targets, one per vector.

        They are columns of the known words or, without these, of the first piece. With
        several pieces, the targets 7, 9 and 7 become the columns 0, 1 and 0.
        """
        if self.column is not None:
            return [self.column[target] for target in ids]
        if not self.is_in_pieces:
            return list(ids)
        different_ids = list(dict.fromkeys(ids))
        return [different_ids.index(target) for target in ids]

    def of(self, ids: Sequence[int]) -> Scalar:
        """The logit of one id for each vector, (t,).

        If logits are tied, the ids must be among the known words.
        """
        vectors = np.arange(len(ids))
        columns = np.array(self.columns(ids))
        if self.column is not None:
            return self._capped(self.known[vectors, columns])
        # the logits of all these words for all vectors, (t, t): take the diagonal
        logits = self.root @ self.noise[0][:, columns]
        return self._capped(logits[vectors, vectors])

    def first(self, count: int) -> Logits:
        """The logits of the first `count` vectors.

        The number must be that which was passed to `words` as `first`.
        """
        known = self.known
        root = self.root
        if known is not None:
            known = known[:count]
        if root is not None:
            root = root[:count, :count]
        noise = tuple(of_words[:count] for of_words in self.noise)
        return self._replace(y=self.y[:count], known=known, root=root, noise=noise)

    def ends(self) -> Scalar:
        """Standard deviation of the logits, mean of log Σ e^logit, largest probability.

        They are the three entries of the scalar.
        """
        known = [] if self.known is None else [self.known]
        if not self.is_in_pieces:
            root_and_noise = [] if self.root is None else [self.root, *self.noise]
            return apply(
                partial(of_logits, cap=self.cap),
                *root_and_noise,
                *known,
                axes=2,
                name="of_logits",
            )
        state_of_first = apply(
            partial(first_words, cap=self.cap),
            self.root,
            self.noise[0],
            *known,
            axes=2,
            name="of_logits",
        )
        state, count = self.accumulated(more_words, state_of_first)
        return apply(partial(of_words, count=count), state, axes=2, name="of_logits")

    def accumulated(
        self, more: Callable[..., Any], state: Scalar
    ) -> tuple[Scalar, int]:
        """The state after all pieces, from that after the first; and the number of
        words.

        `more` adds a piece to the state: `more_words` or `more_head`.
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
        """Logits after a soft cap, if the model has one."""
        return logits if self.cap is None else self.cap * tanh(logits / self.cap)


def words(
    model: Description, traced: Trace, y: Vector, limit: bool, first: int | None = None
) -> Logits:
    """The logits of the last vectors y (t,) of a model with a vocabulary.

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
    other_words = model.vocabulary or 0  # words without a vector in the program
    known = None
    column = None
    if model.tied:
        assert traced.table is not None
        known = _tied_logits(model, traced, y, limit)
        other_words -= known.shape[-1]
        column = {token: k for k, token in enumerate(traced.table.ids)}
    if not other_words:
        return Logits(
            y, known=known, root=None, noise=(), cap=model.logit_cap, column=column
        )
    gram = mean_dot(y, y)
    root_of_gram = root(gram)
    if first is not None:
        root_of_gram = apply(
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
        root=std * root_of_gram,
        noise=_pieces(y.size, other_words),
        cap=model.logit_cap,
        column=column,
    )


def _tied_logits(model: Description, traced: Trace, y: Vector, limit: bool) -> Scalar:
    """The logits ⟨e_t, y⟩ (vectors, words) of the ids t that occur, and of padding.

    The vector of padding is 0, and so are its logits. They come last unless the id of
    padding occurs.
    """
    assert traced.table is not None
    ids = traced.table.ids
    known = traced.table.vectors.logits(y, len(ids), fan_in=model.width, spread=limit)
    if model.padding is None:
        return known
    if model.padding in ids:
        is_padding = np.array(ids) == model.padding
        return known * np.where(is_padding, 0.0, 1.0)
    of_padding = constant(np.zeros((y.size, 1)))
    return join([known, of_padding], axis=1)


def _pieces(vectors: int, words: int) -> tuple[Scalar, ...]:
    """The normals (vectors, words) of all words, in as few pieces as memory allows.

    The first piece has room for the target of each vector.
    """
    words_in_piece = max(vectors, PIECE_NUMBERS // vectors)
    pieces = []
    for start in range(0, words, words_in_piece):
        count = min(words_in_piece, words - start)
        pieces.append(normal((vectors, count), name="words"))
    return tuple(pieces)


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
    """The symmetric G^(−1/2) of semidefinite matrices (…, s, s); 0 on their null
    space.
    """
    xp = array_namespace(gram)
    values, vectors = eigenvectors(gram)
    largest = xp.max(xp.abs(values), axis=-1, keepdims=True)
    smallest = EIGENVALUE_RTOL * xp.finfo(gram.dtype).eps * largest
    is_positive = values > smallest
    roots = xp.sqrt(xp.where(is_positive, values, 1.0))
    inverse_roots = xp.where(is_positive, 1.0 / roots, 0.0)
    return (vectors * inverse_roots[..., None, :]) @ xp.matrix_transpose(vectors)


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
    """The initial loss for one target id per vector, and `Logits.ends`.

    With c_iw = ∂L/∂(logit of word w for vector i), the squared gradient of the vectors
    of some words is n Σ_ij Σ_w c_iw c_jw ⟨y_i, y_j⟩/n.
    """
    y = words.y
    t = y.size
    numbers = _head_numbers(words, tuple(words.columns(targets)))
    known_words = 0
    if words.known is not None:
        known_words = words.known.shape[-1]
    positions = head_parts(t, known_words)
    gram = mean_dot(y, y)
    seeds: list[tuple[Value, Value]] = []
    head = None
    if words.root is not None:
        products = numbers[positions.products].reshape(t, t)
        squares = numbers[positions.squares].reshape(t, t)
        head = model.width * (squares * gram).sum()
        std = model.std_embedding if model.tied else model.std_logits
        gradient = _gradient(y, gram, products, squares)
        seeds.append((y, sigma_of(std, model.width) * gradient))
    if words.known is not None:
        c = numbers[positions.known].reshape(t, known_words)
        seeds.append((words.known, c))
        of_padding = _gradient_of_padding(model, words, c, gram)
        if of_padding is not None:
            head = of_padding if head is None else head + of_padding
    head_size = (model.vocabulary or 0) * model.width * model.std_logits**2
    loss = Loss(tuple(seeds), head=head, head_size=head_size, tied=model.tied)
    return loss, numbers[positions.logits]


def _gradient_of_padding(
    model: Description, words: Logits, c: Scalar, gram: Scalar
) -> Scalar | None:
    """The squared gradient of the vector of padding, which is 0 itself; None if the
    logits have none.

    `c` are ∂L/∂logits of the known words, (t, words), and `gram` ⟨y_i, y_j⟩/n.
    """
    if model.padding is None or words.column is None:
        return None
    column = words.column.get(model.padding, len(words.column))
    c_padding = c[:, column]
    c_of_pairs = c_padding[:, None] * c_padding
    return model.width * (c_of_pairs * gram).sum()


def _head_numbers(words: Logits, columns: tuple[int, ...]) -> Scalar:
    """The numbers from which the backward pass of the loss begins, (numbers,), as in
    `HeadParts`; the targets are in these columns of the known words, or else of the
    first piece of the others.

    Logits that are one array are read at once, by `of_head`. Those in pieces are read
    piece by piece: their sums are accumulated, and the numbers follow from the sums and
    the first piece, which has all targets.
    """
    # every array is a matrix for each draw: its last two axes
    apply_to_matrices = partial(apply, axes=2, name="of_head")
    arrays: list[Scalar] = []
    if words.known is not None:
        arrays.append(words.known)
    if words.root is not None:
        arrays += [words.root, words.noise[0]]
    if not words.is_in_pieces:
        whole = partial(of_head, targets=columns, cap=words.cap)
        return apply_to_matrices(whole, *arrays)
    first_piece = partial(first_head, cap=words.cap)
    state = apply_to_matrices(first_piece, *arrays)
    state, count = words.accumulated(more_head, state)
    after_all = partial(ends_of_head, targets=columns, count=count, cap=words.cap)
    return apply_to_matrices(after_all, state, *arrays)


def _gradient(y: Vector, gram: Scalar, products: Scalar, squares: Scalar) -> Vector:
    """√n ∂L/∂y over σ from the words outside the program: the equation at the top of
    this file.

    `gram` are ⟨y_i, y_j⟩/n, `products` c N^T and `squares` c c^T, all (t, t).
    """
    root_inverse = apply(inverse_root, gram, axes=2, bounded=False, lipschitz=False)
    q = mix(root_inverse, y)  # orthonormal, up to √n
    # (c c^T)^(1/2) g, which still has a part along the q
    u = mix(root(squares), gaussian(y.width, y.size, name="W^L"))
    along_q = width_ratio((), (y.width,)) * products - mean_dot(u, q)
    return u + mix(along_q, q)


class End(NamedTuple):
    """The end of a network: its logits and its loss."""

    row: dict[str, Scalar]  # its quantities, by name; empty without logits or a loss
    logits: tuple[Scalar, ...]  # all logits, in parts; empty unless their range is due
    loss: Loss | None  # None without gradients


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
        """The logits, their loss and the seeds of its gradient; `limit` means n = ∞.

        `ranges` asks for the logits of all tokens.
        """
        y = self.traced.output
        if not self.model.vocabulary:
            loss = readout(y) if gradients else None
            return End(row={}, logits=(), loss=loss)
        if ranges and self._predicts_next:
            # the last token has logits too, although it has no target
            with_target = y.size - 1
            all_logits = words(self.model, self.traced, y, limit, first=with_target)
            logits = all_logits.first(with_target)
        else:
            logits = self.logits(limit)
            all_logits = logits
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
        elif self._predicts_next:
            y = y[:-1]
        return words(self.model, self.traced, y, limit)

    @property
    def _predicts_next(self) -> bool:
        """Whether tokens predict the next token."""
        if self.model.readout == "class":
            return False
        return self.model.causal or self.model.decoder_layers > 0

    @property
    def targets(self) -> tuple[int, ...]:
        """The targets of these tokens.

        Classes are exchangeable: their target is the first.
        """
        if self.model.readout == "class":
            return (0,)
        ids = self.inputs.decoder_ids or self.inputs.ids
        return ids[1:] if self._predicts_next else ids


def program_loss(
    net: ProbedProgram, seeds: list[tuple[Value, Value]], widths: Mapping[str, float]
) -> Loss:
    """The loss of a program whose logits or loss have the cotangents `seeds`.

    Vectors whose logits were sampled without their matrix get cotangents too. Without
    seeds, it is the loss of random readouts.
    """
    if not seeds:
        output = net.program.outputs[0]
        if isinstance(output, Vector) and output.ndim:
            return readout(output)
        return readout(net.streams[-1])
    drawn = _words_outside_blocks(net, seeds)
    backward = Reverse(seeds, drawn, constants=drawn)
    all_seeds = list(seeds)
    head = constant(np.zeros(()))
    head_size = 0.0
    for value, words in drawn.items():
        y = words.y
        std = words.std
        c = backward.cotangent(value)  # ∂L/∂logits
        noise = words.noise
        if words.transposed:
            c = c.transpose()
            noise = noise.transpose()
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
    """The logits without their matrix on which the loss depends, but no block does."""
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
    """The logits that a value is, if it is a product of normals and the root of a Gram
    matrix, in either order; None for any other value.
    """
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
