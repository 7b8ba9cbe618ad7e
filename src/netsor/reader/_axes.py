"""The axis rule: what the axes of a tensor mean in the program of a module.

Nothing in a tensor says what its axes are. In the language of netsor, the coordinates
of a vector are no axis of it, and a scalar has no coordinates. The reader of modules
connects the two by one rule:

- Each axis of a random tensor is an axis of *coordinates*, along which a width runs, or
  an axis of *indices*: batch, tokens, heads. At most one is an axis of coordinates.
- A tensor without an axis of coordinates is an array of scalars: scores, logits, norms,
  losses. Any function of scalars is allowed.
- A tensor with one is an array of vectors, and only three things may happen to it:
  functions that act on each coordinate in the same way, linear maps along axes of
  indices whose coefficients are scalars or numbers, and matrices that are parameters.
  Products summed over coordinates lead back to scalars.

An operation that breaks the rule, such as a sort along coordinates, raises `Refusal`.

These classes carry the rule:

- `Vectors`: a tensor with an axis of coordinates.
- `Scalars`: a tensor without one.
- `Linear`: a linear function of the coordinates of vectors that is not yet recognised,
  such as one half of a rotary position.
- `Random` (in `_random_parameters`): a parameter whose use is still open. It becomes a
  matrix where it acts, vectors where it is added, or rows of a table.

Tensors that depend on no random parameter are numbers, and are kept as arrays.

The invariant: a value stands for the tensor that the framework has at this node, entry
by entry and in the same shape. What only rearranges entries (heads, fused projections,
transposes) changes the `Layout` of the tensor. `Vectors.plain` turns the layout into
operations of the language: coordinates that are cut into heads are a `split`, and heads
that are flattened are a `concat`.

Nothing here depends on a framework: front ends have the tables of operations.

Examples
--------
>>> import netsor as ns
>>> from netsor.reader._axes import Scalars, Vectors
>>> from netsor.reader._layout import Permute, Reshape
>>> stream = Vectors.of(ns.gaussian(6, 4))  # of four tokens
>>> stream.shape, stream.axis
((4, 6), 1)
>>> heads = stream.viewed(Reshape((4, 2, 3))).viewed(Permute((1, 0, 2)))
>>> heads.shape, heads.axis, heads.plain.shape  # two heads of four tokens
((2, 4, 3), 2, (2, 4))
>>> Scalars(ns.dot(heads.plain, heads.plain), factor=3**0.5).shape
(2, 4, 4)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from .._array_api import Bools, Floats, Ints
from .._validate import Shape
from ..language import Scalar, Vector, concat, data, join
from ..language.operations._operation import split
from ..language.operations._rotary import Rotate
from ._layout import (
    Index,
    Layout,
    NotAViewError,
    Permute,
    Rearrangement,
    Reshape,
)

# masks up to this one take scores out of a softmax whatever their size; −∞ and the
# least number of single precision do
NEVER = -1e30


class Refusal(Exception):
    """Why an operation cannot be read.

    The reader adds the name of the operation, its module and its line of code.
    """


def refuse_if(wrong: object, why: str) -> None:
    """Raise `Refusal` if something is wrong."""
    if wrong:
        raise Refusal(why)


@dataclass(frozen=True, eq=False)
class View:
    """A tensor as a rearrangement of the tensor that it was made from."""

    layout: Layout

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.layout.shape

    def viewed(self, rearrangement: Rearrangement) -> Self:
        """The rearranged tensor."""
        try:
            layout = rearrangement.of_layout(self.layout)
        except NotAViewError:
            return self._copied(rearrangement)
        return replace(self, layout=layout)

    def _copied(self, rearrangement: Rearrangement) -> Self:
        """`viewed`, where no layout of the same storage describes the result."""
        raise Refusal("a view that is not contiguous")

    def moved(self, source: int, target: int) -> Self:
        """The tensor with one of its axes in another place."""
        return self.viewed(Permute.moving(source, target, ndim=len(self.shape)))


@dataclass(frozen=True, eq=False)
class Vectors(View):
    """A tensor with the coordinates of vectors along one of its axes.

    `layout` is that of a view of a tensor of shape (*value.shape, width), whose
    coordinates are next to each other in storage.

    Examples
    --------
    >>> import netsor as ns
    >>> from netsor.reader._axes import Vectors
    >>> tokens = Vectors.of(ns.gaussian(6, 4), axis=0)
    >>> tokens.shape, tokens.plain.shape
    ((6, 4), (4,))
    """

    value: Vector

    @classmethod
    def of(cls, value: Vector, axis: int = -1) -> Self:
        """Vectors with their coordinates along the given axis of the tensor."""
        # `axis` finds the coordinates by their stride of 1. The storage has room for
        # two coordinates or more, so that no other axis has this stride.
        width = value.width.factor
        storage = Layout.contiguous((*value.shape, max(width, 2)))
        coordinates = storage.indexed(value.ndim, slice(0, width))
        return cls(coordinates, value).moved(-1, axis)

    @property
    def is_interleaved(self) -> bool:
        """Whether no axis holds coordinates that follow each other.

        So it is after `x[..., 3:4].squeeze(-1)`, or where such a part is repeated.
        """
        nonzero_strides = [stride for stride in self.layout.strides if stride]
        least = min(nonzero_strides, default=0)
        if self.value.width.factor == 1:  # of numbers, any axis may be the coordinates
            return least not in (1, 2)
        return least != 1

    @property
    def axis(self) -> int:
        """The axis that holds the coordinates, from 0."""
        refuse_if(
            self.is_interleaved,
            "coordinates of vectors are interleaved with another axis",
        )
        strides = self.layout.strides
        least = min(stride for stride in strides if stride)
        candidates = [k for k, stride in enumerate(strides) if stride == least]
        # the last one, but axes of size 1 may share the stride with a longer one
        longer = [k for k in candidates if self.shape[k] > 1]
        return max(longer or candidates)

    @property
    def from_end(self) -> int:
        """The same axis, counted from the end: −1 is the last."""
        return self.axis - len(self.shape)

    @property
    def last(self) -> bool:
        """Whether the coordinates are along the last axis."""
        return self.from_end == -1

    @cached_property
    def _starts(self) -> Ints:
        """Where the vectors begin in their values, by the other axes of the tensor."""
        width = self.value.width.factor
        positions = self.layout.positions(without=self.axis)
        return np.asarray(positions * width // max(width, 2))

    @property
    def piece(self) -> int:
        """The length of the longest pieces of coordinates that stay together."""
        size = self.shape[self.axis]
        width = self.value.width.factor
        divisor_of_starts = int(np.gcd.reduce(self._starts, axis=None))
        return math.gcd(size, width, divisor_of_starts)

    @cached_property
    def plain(self) -> Vector:
        """The vectors, in the shape of the tensor without the axis of coordinates.

        Each is made of pieces of the stored vectors, one after the other.
        """
        size = self.shape[self.axis]
        width = self.value.width.factor
        piece = self.piece
        first_pieces = self._starts // piece
        pieces = self.value
        if piece != width:
            pieces = split(self.value, width // piece, self.value.ndim)
        if piece == size:
            return pieces.take(first_pieces)
        indices = first_pieces[..., None] + np.arange(size // piece)
        return concat(pieces.take(indices), axis=-1)

    @cached_property
    def probe(self) -> Floats:
        """Numbers that show how a module acts on coordinates: ones, and arbitrary ones.

        Their shape is (2, 1, …, coordinates).
        """
        coordinates = self.shape[-1]
        ones = np.ones(coordinates)
        arbitrary = np.random.default_rng(0).uniform(1, 2, coordinates)
        other_axes = (1,) * (len(self.shape) - 1)
        return np.stack([ones, arbitrary]).reshape(2, *other_axes, coordinates)

    def _copied(self, rearrangement: Rearrangement) -> Self:
        plain = type(self).of(self.plain, self.axis)
        refuse_if(
            plain.layout.strides == self.layout.strides,
            "a view that cuts across axes",
        )
        return plain.viewed(rearrangement)

    def pick(self, axis: int, index: Any) -> Vectors:
        """Entries along an axis that does not hold coordinates.

        An integer drops the axis; a slice or an array keeps it.
        """
        coordinate_axis = self.axis
        axis_of_plain = axis - 1 if axis > coordinate_axis else axis
        axes_before = (slice(None),) * axis_of_plain
        picked = self.plain[(*axes_before, index)]
        drops_axis = isinstance(index, int)
        if drops_axis and axis < coordinate_axis:
            coordinate_axis -= 1
        return Vectors.of(picked, coordinate_axis)

    def part(self, start: int, stop: int) -> Vectors:
        """Coordinates from start to stop."""
        return self.viewed(Index(self.axis, slice(start, stop)))


def end_to_end(parts: Sequence[Vectors], axis: int) -> Vectors:
    """Vectors joined along the axis of their coordinates.

    All are cut into pieces of one size, which are then one vector.
    """
    size = math.gcd(*(vectors.shape[axis] for vectors in parts))
    cut_parts = []
    for vectors in parts:
        coordinates_last = vectors.moved(axis, -1)
        *leading, coordinates = coordinates_last.shape
        if size == 1:  # no axis of one entry tells that it holds coordinates
            whole = coordinates_last.plain
            cut_parts.append(split(whole, coordinates, whole.ndim))
            continue
        cut = coordinates_last.viewed(Reshape((*leading, coordinates // size, size)))
        cut_parts.append(cut.plain)
    cut_pieces = join(cut_parts, axis=-1)
    return Vectors.of(concat(cut_pieces, axis=-1), axis)


@dataclass(frozen=True, eq=False)
class Root:
    """(mean squares of vectors + eps)^power.

    A module that multiplies vectors by their own root of power −1/2 computes
    `rms_norm`, which is recognised by this record.
    """

    vectors: Vectors
    radicand: Scalar  # the mean squares + eps
    eps: float = 0.0
    power: float = 1.0


@dataclass(frozen=True, eq=False)
class Average:
    """(means over the coordinates of vectors)^power.

    Vectors minus their own average are centred, which layer norms begin with.
    """

    vectors: Vectors
    power: float = 1.0


@dataclass(frozen=True, eq=False)
class Scalars:
    """A tensor of scalars, `factor · base`, in the shape of the tensor."""

    base: Scalar
    factor: float = 1.0
    # the value of `base`, if it is known to be such a root
    root: Root | None = None
    # the same for such an average
    average: Average | None = None
    # the low numbers that masks put in place of scores or added to them, 0 elsewhere.
    # `base` has those above `NEVER`; the others take scores out of a softmax
    low: Floats | None = None
    # the shape of the tensor, if it repeats `base`
    expanded: Shape | None = None

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.base.shape if self.expanded is None else self.expanded

    @cached_property
    def unmasked(self) -> Scalar:
        """All scalars, also those that a mask takes out."""
        base = self.base
        if self.expanded is not None:
            base = base.broadcast_to(self.expanded)
        if abs(self.factor - 1) < 1e-12:  # √d/√d, which is 1 up to rounding
            return base
        return self.factor * base

    @property
    def value(self) -> Scalar:
        """The scalars; a softmax must have used a mask before."""
        refuse_if(
            self.allowed is not None,
            "masked scores can only be added to, or given to a softmax",
        )
        return self.unmasked

    def lowered(self, low: Floats | None) -> Scalars:
        """The same scalars, whose mask has these low numbers too."""
        if low is None:
            return self
        low = np.broadcast_to(low, self.shape)
        if self.low is not None:
            low = self.low + low
        return replace(self, low=low)

    @property
    def allowed(self) -> Bools | None:
        """The scores that a mask leaves in a softmax; None: all."""
        if self.low is None or (self.low > NEVER).all():
            return None
        return np.asarray(self.low > NEVER)

    @property
    def shown(self) -> Bools | None:
        """The scores that no mask hides, be it −∞ or a finite low number.

        None if there is no mask.
        """
        return None if self.low is None else np.asarray(self.low == 0)

    def before(self, shape: Shape) -> Scalars:
        """The scalars as an operand beside a tensor of this shape.

        They are not repeated where broadcasting repeats them.
        """
        result = np.broadcast_shapes(self.shape, shape)
        if np.broadcast_shapes(self.base.shape, shape) == result:
            return replace(self, expanded=None)
        return self

    def viewed(self, rearrangement: Rearrangement) -> Scalars:
        """The same scalars, rearranged."""
        low = None if self.low is None else rearrangement.of_array(self.low)
        positions = np.arange(self.base.size).reshape(self.base.shape)
        positions = np.broadcast_to(positions, self.shape)
        new_positions = rearrangement.of_array(positions)
        root = average = None
        if isinstance(rearrangement, Reshape):  # the order stays that of the vectors
            average = self.average
            if self.root is not None:
                radicand = self.root.radicand.take(new_positions)
                root = replace(self.root, radicand=radicand)
        return Scalars(
            base=self.base.take(new_positions),
            factor=self.factor,
            root=root,
            average=average,
            low=low,
        )


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear function of the coordinates of each vector, known by its values.

    `image` is its value on `Vectors.probe`, an array (2, …, coordinates), whose other
    axes broadcast to those of x. The coordinates are along the last axis, or the last
    two axes while they are stacked in pairs. `settled` recognises the function.
    """

    x: Vectors
    image: Floats
    # (2, …), for each entry of the result: the first coordinate of x that it depends
    # on, and minus the last one. So the minimum joins those of two terms.
    reach: Ints

    @classmethod
    def identity(cls, x: Vectors) -> Linear:
        """The vectors themselves, as a linear function."""
        coordinates = np.arange(x.shape[-1])
        reach = np.stack([coordinates, -coordinates]).reshape(x.probe.shape)
        return cls(x, x.probe, reach)

    @classmethod
    def rearranged(cls, f: Callable[..., Any], *parts: Vectors | Linear) -> Linear:
        """Coordinates that f selects or joins; f is a function of their arrays."""
        terms = _with_equal_axes(parts)
        return cls(
            x=terms[0].x,
            image=f(*(term.image for term in terms)),
            reach=f(*(term.reach for term in terms)),
        )

    @classmethod
    def sum(cls, *parts: Vectors | Linear) -> Linear:
        """The sum of two linear functions of the same vectors."""
        first, second = _with_equal_axes(parts)
        return cls(
            x=first.x,
            image=first.image + second.image,
            reach=np.minimum(first.reach, second.reach),
        )

    @classmethod
    def scaled(cls, part: Vectors | Linear, factors: Floats) -> Linear:
        """The coordinates of a linear function, each times a number."""
        (term,) = _with_equal_axes([part])
        # what is multiplied by 0 is not used
        nowhere = term.x.shape[-1]
        reach = np.where(factors == 0, nowhere, term.reach)
        return cls(x=term.x, image=term.image * factors, reach=reach)

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        axes_of_vectors = self.x.shape[:-1]
        axes_of_image = self.image.shape[len(self.x.shape) :]
        return (*axes_of_vectors, *axes_of_image)

    @property
    def used_coordinates(self) -> tuple[int, int]:
        """The first coordinate that the function depends on, and one past the last."""
        is_used = self.image.any(axis=0)
        reach = np.broadcast_to(self.reach, self.image.shape)
        first, minus_last = reach[:, is_used]
        nowhere = self.x.shape[-1]
        if not (first < nowhere).any():
            return 0, 0
        return int(first.min()), 1 - int(minus_last.min())


def _with_equal_axes(parts: Sequence[Vectors | Linear]) -> list[Linear]:
    """Functions of the same vectors, whose images have equal axes but the last."""
    functions = [
        part if isinstance(part, Linear) else Linear.identity(part) for part in parts
    ]
    shapes = [function.image.shape[:-1] for function in functions]
    common = np.broadcast_shapes(*shapes)

    def expanded(array: Any) -> Any:
        return np.broadcast_to(array, (*common, array.shape[-1]))

    return [
        replace(f, image=expanded(f.image), reach=expanded(f.reach)) for f in functions
    ]


def same_vectors(*parts: Any) -> bool:
    """Whether all parts are functions of the same vectors, one of them a `Linear`."""
    functions = [part for part in parts if isinstance(part, Linear)]
    if not functions:
        return False
    vectors = functions[0].x
    return all(
        part.x is vectors if isinstance(part, Linear) else part is vectors
        for part in parts
    )


# The recognition of linear functions


class Frequencies(tuple[float, ...]):
    """The frequencies θ_f that a module computes, instead of a `Stretch`.

    A `Stretch` scales the usual base^(−2f/r); these replace it.
    """

    def of(self, theta: Floats) -> Floats:
        """The frequencies, whatever base^(−2f/r) is."""
        return np.array(self)


# largest error of angles and frequencies, which modules compute in single precision
TOLERANCE = 1e-4
# largest departure from 1 of a factor that counts as 1
GAIN_TOLERANCE = 1e-6


def settled(linear: Linear) -> Vectors:
    """The vectors that a linear function yields, recognised by its image of the probe.

    They are a part of each vector, multiples of its coordinates, or a rotation.
    """
    x = linear.x
    refuse_if(
        len(linear.shape) > len(x.shape),
        "pairs of coordinates that are not set end to end",
    )
    start = 0
    stop = x.shape[-1]
    if linear.shape[-1] < stop:
        start, stop = linear.used_coordinates
    refuse_if(
        stop - start != linear.shape[-1],
        "coordinates of a vector are combined in a way that is not a rotary position",
    )
    combined = x.part(start, stop)
    before = x.probe[..., start:stop]
    after = linear.image
    factor = after[0]  # the image of ones
    rounding = 1e-12 * np.abs(after).max()
    if not np.allclose(after[1], factor * before[1], rtol=1e-9, atol=rounding):
        return _rotated(combined, before, after)
    if np.ptp(factor, axis=-1).any():
        return Vectors.of(
            combined.plain * data(np.broadcast_to(factor, combined.shape))
        )
    if (factor == 1).all():
        return combined
    return Vectors.of(factor[..., 0] * combined.plain)


class Rotation(NamedTuple):
    """How rotary positions turn pairs of coordinates: as complex numbers."""

    turns: Any  # (tokens, pairs), the complex factor of each pair
    gain: float  # the absolute value of all factors
    interleaved: bool  # pairs are (2f, 2f + 1), and not (f, f + r/2)
    # pairs (2f, 2f + 1) become pairs (f, f + r/2) of the result
    sorted: bool = False


def _rotated(x: Vectors, before: Floats, after: Floats) -> Vectors:
    """Vectors of which all coordinates, or the last ones, have rotary positions."""
    first_changed = int(
        np.flatnonzero((after != before).reshape(-1, x.shape[-1]).any(axis=0))[0]
    )
    try:
        return _rotated_from_first(x, before, after)
    except Refusal:
        if first_changed == 0:
            raise
    last_part = x.part(first_changed, x.shape[-1])
    rotated = _rotated_from_first(
        last_part, before[..., first_changed:], after[..., first_changed:]
    )
    return end_to_end([x.part(0, first_changed), rotated], rotated.axis)


def _rotated_from_first(x: Vectors, before: Floats, after: Floats) -> Vectors:
    """Vectors with the rotary positions that turn the probe `before` into `after`.

    Both have the shape (2, …, coordinates). Rotary positions are recognised by this
    effect: each pair of coordinates, as a complex number, is multiplied by e^(iθ).
    Sequences of a batch may have positions of their own.
    """
    varying = _varying_axes(after)
    if len(varying) > 1:
        return _rotated_one_by_one(x, before, after, batch_axis=varying[0])
    token_axis = varying[0] if varying else after.ndim - 3
    tokens = x.shape[token_axis]
    size = x.shape[-1]
    before = before.reshape(2, 1, size)
    # the image has an axis of the two probes before those of x, and is the same along
    # all but that of the tokens: (2, tokens or 1, coordinates)
    rows = after.shape[token_axis + 1]
    tokens_last = np.moveaxis(after, token_axis + 1, -2)
    after = tokens_last.reshape(2, -1, rows, size)[:, 0]
    # the coordinates from `changed` on stay as they are
    differs = (after != before).any(axis=(0, 1))  # (coordinates,)
    changed = int(np.flatnonzero(differs)[-1]) + 1
    try:
        rotation = _rotation(before, after, turned=changed, tokens=tokens)
    except Refusal:  # pairs (f, f + r/2) of all coordinates, the last by the angle 0
        rotation = _rotation(before, after, turned=size, tokens=tokens)
    value = _turned_by_tokens(x.moved(token_axis, -2).plain, rotation)
    if abs(rotation.gain - 1) >= GAIN_TOLERANCE:
        value = rotation.gain * value
    if rotation.sorted:
        value = _even_before_odd(value, size)
    return Vectors.of(value).moved(-2, token_axis)


def _rotated_one_by_one(
    x: Vectors, before: Floats, after: Floats, batch_axis: int
) -> Vectors:
    """`_rotated_from_first` for each sequence of a batch by itself."""
    sequences = []
    for number in range(x.shape[batch_axis]):
        sequence = x.pick(batch_axis, slice(number, number + 1))
        after_of_sequence = after.take([number], axis=batch_axis + 1)
        rotated = _rotated_from_first(sequence, before, after_of_sequence)
        sequences.append(rotated.plain)
    return Vectors.of(join(sequences, batch_axis))


def _turned_by_tokens(value: Vector, rotation: Rotation) -> Vector:
    """Vectors (…, tokens) whose pairs are turned by the angles of their tokens.

    All tokens of a run are turned as the first one, and from it to each token.
    """
    angles = np.angle(rotation.turns)  # (tokens, pairs)
    differences = np.diff(angles, axis=0)
    # from −π to π
    steps = np.remainder(differences + math.pi, 2 * math.pi) - math.pi
    turned_runs = []
    for run in _runs(steps):
        frequencies = np.zeros(angles.shape[-1])
        if len(run) > 1:
            frequencies = steps[run.start : run.stop - 1].mean(axis=0)
        as_first_token = _turned(
            value[..., run.start : run.stop],
            positions=np.ones(len(run)),
            frequencies=angles[run.start],
            interleaved=rotation.interleaved,
        )
        turned = _turned(
            as_first_token,
            positions=np.arange(len(run)),
            frequencies=frequencies,
            interleaved=rotation.interleaved,
        )
        turned_runs.append(turned)
    if len(turned_runs) == 1:
        return turned_runs[0]
    return join(turned_runs, axis=-1)


def _runs(steps: Floats) -> list[range]:
    """The tokens with consecutive positions, in order: all for usual positions.

    `steps` are the differences of angles of neighbouring tokens. Those of padding may
    be 0, and positions then begin again.
    """
    runs = []
    tokens = len(steps) + 1
    start = 0
    while start < tokens:
        stop = start + 1
        while stop < tokens and _is_small(steps[stop - 1] - steps[start]):
            stop += 1
        runs.append(range(start, stop))
        start = stop
    return runs


def _is_small(differences: Floats) -> bool:
    """Whether angles are the same up to the rounding of modules."""
    return bool((np.abs(differences) <= TOLERANCE).all())


def _turned(
    value: Vector, positions: Any, frequencies: Floats, interleaved: bool
) -> Vector:
    """Vectors (…, tokens) whose pairs are turned by position times frequency."""
    if not frequencies.any():
        return value
    op = Rotate(
        x=value,
        positions=positions,
        base=1.0,  # which `Frequencies` replace
        fraction=2 * len(frequencies) / value.width.factor,
        stretch=Frequencies(frequencies),  # type: ignore[arg-type]
        interleaved=interleaved,
    )
    return Vector(op, value.shape, value.width)


def _even_before_odd(value: Vector, size: int) -> Vector:
    """Vectors with their even coordinates before the odd ones."""
    coordinates = split(value, size, value.ndim)  # along a new last axis
    even_then_odd = [*range(0, size, 2), *range(1, size, 2)]
    return concat(coordinates[..., even_then_odd], axis=-1)


def _varying_axes(image: Floats) -> list[int]:
    """The axes of the tensor along which the image of the probe varies.

    They are that of tokens, which may come before the heads, and those of the batch.
    """
    refuse_if(image.ndim <= 2, "constants of coordinates that differ by no position")
    inner_axes = range(1, image.ndim - 1)  # after that of the two probes
    return [axis - 1 for axis in inner_axes if np.ptp(image, axis=axis).any()]


def _rotation(before: Floats, after: Floats, turned: int, tokens: int) -> Rotation:
    """The rotation of the first `turned` coordinates, in one of three layouts.

    `before` is (2, 1, coordinates) and `after` (2, tokens or 1, coordinates). A pair of
    coordinates is a complex number, which the rotation multiplies by `gain` e^(iθ).
    """
    half = np.arange(turned // 2)
    halves = half, half + turned // 2  # pairs (f, f + r/2)
    neighbours = 2 * half, 2 * half + 1  # pairs (2f, 2f + 1)
    # the pairs before the rotation, and where it writes them
    layouts = ((halves, halves), (neighbours, neighbours), (neighbours, halves))
    for old_pairs, new_pairs in layouts:
        old = _as_complex(before, old_pairs)
        new = _as_complex(after, new_pairs)
        turns = np.broadcast_to(new[0] / old[0], (tokens, len(half)))
        gain = float(abs(turns[0, 0])) if turned > 1 else 1.0
        atol = TOLERANCE * gain
        # the second probe is turned as the first one
        one_angle = np.allclose(new[1], turns * old[1], rtol=0, atol=atol)
        one_gain = np.allclose(abs(turns), gain, rtol=0, atol=atol)
        # coordinates that stay would not grow with the others
        all_grow = turned == before.shape[-1] or abs(gain - 1) < GAIN_TOLERANCE
        if one_angle and one_gain and turned % 2 == 0 and all_grow:
            return Rotation(
                turns=turns,
                gain=gain,
                interleaved=old_pairs is neighbours,
                sorted=old_pairs is not new_pairs,
            )
    raise Refusal(
        "coordinates are not turned in pairs (f, f + r/2) or (2f, 2f + 1) by one angle"
        " each"
    )


def _as_complex(x: Floats, pairs: tuple[Ints, Ints]) -> Any:
    """Pairs of coordinates along the last axis as complex numbers."""
    real, imaginary = pairs
    return x[..., real] + 1j * x[..., imaginary]
