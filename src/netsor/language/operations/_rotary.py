"""Rotary positions, which make scores depend on the distance between tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._validate import LARGEST, TraceError, numbers, real, refused, shown
from ..values._array import (
    Backward,
    Box,
    Cotangents,
    Entrywise,
    Index,
    Lowering,
    Notation,
    Register,
    Samples,
    Value,
    VectorAccess,
)
from ..values._scalar import Floats
from ..values._vector import Vector, as_vector


class Stretch(NamedTuple):
    """RoPE scaling as in Llama 3.1.

    It divides low frequencies of rotary positions by `factor`, and keeps high ones. A
    frequency θ makes c = θ · original / 2π turns in the original context. It is kept
    if c > high, divided by `factor` if c < low, and interpolated linearly in c
    otherwise.

    Parameters
    ----------
    factor, original : float
        The divisor of low frequencies, and the length of the original context.
    low, high : float
        Turns below which a frequency is low, and above which it is high.

    Examples
    --------
    >>> of_llama = ns.models.Stretch(factor=8.0, low=1.0, high=4.0, original=8192.0)
    >>> print(of_llama.of(np.array([1.0, 1e-4])))
    [1.00e+00 1.25e-05]
    """

    factor: float
    low: float
    high: float
    original: float

    def of(self, theta: Any) -> Any:
        """The scaled frequencies of an array of frequencies θ."""
        turns = theta * self.original / (2 * math.pi)  # c
        # 0 for low frequencies, 1 for high ones
        position = (turns - self.low) / (self.high - self.low)
        share_kept = position.clip(0.0, 1.0)
        scale = share_kept + (1.0 - share_kept) / self.factor
        return theta * scale


class Rotate(Entrywise):
    """V: y[…, i] = R_{t_i} x[…, i] for token i at position t_i = positions[i].

    R_t rotates the pair of coordinates (f, f + r/2) among the first r = fraction·n by
    the angle t θ_f, with θ_f = base^(−2f/r), scaled by `stretch` if given. It leaves
    the others unchanged. With `interleaved`, the pair is (2f, 2f + 1). Both have the
    same law until coordinates are grouped or meet numbers that differ between them.
    """

    acts = VectorAccess.BY_POSITION
    kind = "rotation"
    without_limit = "rotary positions"
    x: Vector
    positions: Floats
    base: float
    fraction: float
    stretch: Stretch | None = None
    interleaved: bool = False

    @property
    def is_linear(self) -> bool:
        """True: a rotation is a linear map, though not the same one in every frame."""
        return True

    def angles(self, width: int) -> Floats:
        """t_i θ_f, of shape (tokens, r/2), at a finite width.

        Raises ValueError if r is odd, or not an integer up to rounding.
        """
        r = round(self.fraction * width)
        if r % 2 or abs(r - self.fraction * width) > 1e-9 * width:
            rotated = f"width {width}"
            if self.fraction != 1:
                rotated = f"{self.fraction:g} of {rotated}"
            raise ValueError(
                f"rotary rotates pairs of coordinates, but {rotated} is not an even"
                " number: bind an even width"
            )
        theta = self.base ** (-2.0 * np.arange(r // 2) / max(r, 1))
        if self.stretch is not None:
            theta = self.stretch.of(theta)
        return np.outer(self.positions, theta)

    def restricted_to(self, box: Box) -> Rotate:
        """Select tokens."""
        return replace(self, positions=self.positions[box[-1]])

    def sample(self, value: Value, samples: Samples) -> Floats:
        """Multiply pairs of coordinates, as complex numbers, by e^(i t θ)."""
        x = samples[self.x]  # (replicas, …, tokens, width)
        angles = self.angles(x.shape[-1])
        rotated_coordinates = np.arange(2 * angles.shape[-1])
        # the coordinates that are real parts, and those that are imaginary parts
        if self.interleaved:
            real, imaginary = rotated_coordinates.reshape(-1, 2).T
        else:
            real, imaginary = rotated_coordinates.reshape(2, -1)
        pairs = x[..., real] + 1j * x[..., imaginary]
        turned = pairs * np.exp(1j * angles)
        rotated: Floats = x.copy()
        rotated[..., real] = turned.real
        rotated[..., imaginary] = turned.imag
        return rotated

    def lower(self, value: Value, lowering: Lowering) -> Register:
        """An instruction of the plan; rotations of many vectors share the angles."""
        x = lowering.coordinates(self.x)
        width = x.shape[-1]

        def cos_and_sin() -> tuple[Register, ...]:
            """Registers (tokens, 1, r/2) of the cosines and sines of all angles."""
            angles = self.angles(width)[:, None, :]
            constant = lowering.builder.constant
            return constant(np.cos(angles)), constant(np.sin(angles))

        positions = self.positions.shape, self.positions.tobytes()
        key = Rotate, positions, self.base, self.fraction, self.stretch, width
        return lowering.builder.step(
            "rotate",
            x,
            *lowering.shared(key, cos_and_sin),
            label="coordinates turned by positions",
            interleaved=self.interleaved,
        )

    def cotangents(self, result: Any, d: Any, backward: Backward) -> Cotangents:
        """Rotated back."""
        back = replace(self, x=d, positions=-self.positions)
        return [(0, Vector(back, d.shape, d.width))]

    def bounded(self, inputs: bool | None) -> bool | None:
        """If x is: each pair keeps its norm."""
        return inputs

    def open_point(self) -> tuple[str, str]:
        """Coordinates are treated alike in the paper."""
        return "alike", "rotates pairs of coordinates, which the paper does not cover"

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """rotary(x)."""
        return f"rotary({inputs[0]})"

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """R x, with the base and the position of R; primed for interleaved pairs."""
        symbol = "R"
        if self.fraction != 1:
            symbol = rf"R^{{({notation.number(self.fraction)})}}"
        if self.interleaved:
            symbol += "'"
        subscript = [notation.number(self.base)]
        if self.stretch is not None:
            subscript += map(notation.number, self.stretch)
        subscript.append(f"t({i[-1]})")
        (x,) = notation.inputs(value, i)
        return rf"{symbol}_{{{', '.join(subscript)}}} \, {x}"


def rotary(
    x: Vector,
    positions: npt.ArrayLike | None = None,
    base: float = 10000.0,
    fraction: float = 1.0,
    stretch: Stretch | None = None,
) -> Vector:
    """Rotate each vector by the position of its token, along the last axis of x.

    At position t, the pair of coordinates (f, f + r/2) is rotated by t · base^(−2f/r),
    among the first r = fraction · width coordinates; r must be even at every width that
    you bind. If the width of x is infinite, only products of rotated vectors have a law
    (`dot`, `mean_dot`); for anything else, such as gradients, keep it finite or
    extrapolate (``method="extrapolate"``).

    Parameters
    ----------
    x : Vector
        Queries or keys, (…, tokens).
    positions : array_like of float, optional
        One position per token; 0, 1, … by default.
    base : float
        The base of the frequencies.
    fraction : float
        The fraction of coordinates to rotate, above 0 and at most 1.
    stretch : Stretch, optional
        Scaling of low frequencies, as in Llama 3.1; needs a base above 1.

    Examples
    --------
    >>> ns.rotary(ns.gaussian(ns.Width("d"), (2, 5))).shape
    (2, 5)
    """
    as_vector(x, "rotary")
    if not x.shape:
        raise TraceError(
            "rotary", "needs an axis of tokens, got one vector: x[None] has one token"
        )
    if positions is None:
        positions = np.arange(x.shape[-1])
    times = numbers(positions, "rotary", "positions")
    if times.shape != x.shape[-1:]:
        raise TraceError(
            "rotary",
            f"positions of shape {times.shape} must have shape {x.shape[-1:]}, one per"
            " token",
        )
    base = real(base, "base", "rotary", above=0)
    if stretch is not None:
        stretch = checked_stretch(stretch, "stretch", "rotary")
        if base <= 1:
            raise TraceError(
                "rotary", f"base={base:g} must be above 1 with stretch={shown(stretch)}"
            )
    fraction = real(fraction, "fraction", "rotary", above=0, most=1)
    op = Rotate(x=x, positions=times, base=base, fraction=fraction, stretch=stretch)
    if np.abs(times).max() > LARGEST * min(1.0, base):  # θ_f lies between 1 and 1/base
        raise TraceError(
            "rotary",
            f"positions={shown(positions)} with base={base:g} make angles above 2^53",
        )
    if x.width.name is None:
        try:
            op.angles(x.width.factor)
        except ValueError as error:
            raise TraceError("rotary", str(error)) from None
    return Vector(op, x.shape, x.width)


def checked_stretch(stretch: Any, name: str, operation: str = "") -> Stretch:
    """Check the numbers of a RoPE scaling: a `Stretch`, or a tuple in its order."""
    if isinstance(stretch, tuple) and len(stretch) == 4:
        fields = [real(number, name, operation, above=0) for number in stretch]
        checked = Stretch(*fields)
        if checked.low < checked.high:
            return checked
    raise refused(
        name,
        stretch,
        "four positive numbers (factor, low, high, original) with low below high",
        operation,
    )
