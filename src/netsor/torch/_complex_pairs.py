"""Complex numbers and Fourier transforms as real tensors, which graphs can record.

A Fourier transform is a product with cosines and sines. Along tokens, it is a linear
map of vectors with given coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# methods that move entries, or keep them as they are
REARRANGE = (
    *("reshape", "view", "flatten", "unflatten", "unsqueeze", "squeeze"),
    *("transpose", "permute", "movedim", "expand", "contiguous", "narrow"),
)


@dataclass(frozen=True, eq=False)
class ComplexPairs:
    """Complex numbers as real tensors: their real and imaginary parts.

    It stands for `torch.view_as_complex(x)` of coordinates in pairs (2f, 2f + 1), and
    for Fourier transforms.
    """

    real: Any
    imag: Any

    @classmethod
    def of(cls, x: Any) -> ComplexPairs:
        """The pairs of a tensor, which may be real."""
        if isinstance(x, cls):
            return x
        if x.is_complex():
            return cls(x.real, x.imag)
        return cls(x, torch.zeros_like(x))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in FUNCTIONS_OF_PAIRS:
            function = FUNCTIONS_OF_PAIRS[func]
            return function(*args, **(kwargs or {}))
        return NotImplemented

    def __mul__(self, other: Any) -> ComplexPairs:
        """The product with a number, a tensor or other pairs.

        (a + ib)(c + id) = ac − bd + i(ad + bc).
        """
        a = self.real
        b = self.imag
        is_real_tensor = isinstance(other, torch.Tensor) and not other.is_complex()
        if isinstance(other, int | float) or is_real_tensor:
            return ComplexPairs(a * other, b * other)
        c = other.real
        d = other.imag
        return ComplexPairs(real=a * c - b * d, imag=a * d + b * c)

    def __rmul__(self, other: Any) -> ComplexPairs:
        """The same product."""
        return self.__mul__(other)

    def __add__(self, other: Any) -> ComplexPairs:
        """The sum with a tensor or with other pairs."""
        second = ComplexPairs.of(other)
        return ComplexPairs(self.real + second.real, self.imag + second.imag)

    def __radd__(self, other: Any) -> ComplexPairs:
        """The same sum."""
        return self.__add__(other)

    def __truediv__(self, number: float) -> ComplexPairs:
        """The numbers divided by one."""
        return ComplexPairs(self.real / number, self.imag / number)

    def __getitem__(self, key: Any) -> ComplexPairs:
        """A part of the numbers."""
        return ComplexPairs(self.real[key], self.imag[key])

    def __getattr__(self, name: str) -> Any:
        """A method that rearranges the real and the imaginary parts alike."""
        if name not in REARRANGE:
            raise AttributeError(f"complex numbers have no {name} here")

        def method(*args: Any, **options: Any) -> ComplexPairs:
            real = getattr(self.real, name)(*args, **options)
            return ComplexPairs(real, getattr(self.imag, name)(*args, **options))

        return method

    def conj(self) -> ComplexPairs:
        """The conjugate numbers."""
        return ComplexPairs(self.real, -self.imag)

    @property
    def device(self) -> Any:
        """The device of the numbers."""
        return self.real.device

    @property
    def shape(self) -> Any:
        """The shape of the complex tensor."""
        return self.real.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return int(self.real.ndim)


def _product(left: Any, right: Any) -> Any:
    """`torch.mul` of two factors, one of which is pairs."""
    return left * right if isinstance(left, ComplexPairs) else right * left


def _sum(left: Any, right: Any) -> Any:
    """`torch.add` of two terms, one of which is pairs."""
    return left + right if isinstance(left, ComplexPairs) else right + left


def _as_real(x: ComplexPairs) -> Any:
    """`torch.view_as_real`."""
    return torch.stack((x.real, x.imag), -1)


FUNCTIONS_OF_PAIRS: dict[Any, Callable[..., Any]] = {
    torch.view_as_real: _as_real,
    torch.Tensor.__mul__: _product,
    torch.mul: _product,
    torch.Tensor.__add__: _sum,
    torch.add: _sum,
    torch.real: lambda x: x.real,
    torch.imag: lambda x: x.imag,
    torch.conj: ComplexPairs.conj,
}
pytree.register_pytree_node(
    ComplexPairs,
    lambda x: ([x.real, x.imag], None),
    lambda parts, _: ComplexPairs(*parts),
)


def complex_pairs(x: Any) -> Any:
    """`view_as_complex` by real tensors."""
    coordinates = x.flatten(-2)
    return ComplexPairs(coordinates[..., ::2], coordinates[..., 1::2])


# Fourier transforms


def _fft(
    x: Any, n: int | None = None, dim: int = -1, norm: str | None = None
) -> ComplexPairs:
    """`torch.fft.fft`."""
    return _transformed(ComplexPairs.of(x), n, dim, norm, sign=-1)


def _ifft(
    x: Any, n: int | None = None, dim: int = -1, norm: str | None = None
) -> ComplexPairs:
    """`torch.fft.ifft`."""
    return _transformed(ComplexPairs.of(x), n, dim, norm, sign=1)


def _rfft(
    x: Any, n: int | None = None, dim: int = -1, norm: str | None = None
) -> ComplexPairs:
    """`torch.fft.rfft`: the first half of the frequencies."""
    size = x.shape[dim] if n is None else n
    whole = _fft(x, size, dim, norm)
    half = size // 2 + 1
    return ComplexPairs(
        whole.real.narrow(dim, 0, half), whole.imag.narrow(dim, 0, half)
    )


def _irfft(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """`torch.fft.irfft`: real numbers, of the first half of the frequencies.

    The other frequencies have the conjugate numbers.
    """
    pairs = ComplexPairs.of(x)
    size = 2 * (pairs.shape[dim] - 1) if n is None else n
    half = size // 2 + 1
    real = _of_size(pairs.real, half, dim)
    imaginary = _of_size(pairs.imag, half, dim)
    cosines, sines = _waves(size, half, like=real)
    # frequencies that are their own conjugates count once
    counts = torch.full((half,), 2.0, dtype=real.dtype)
    counts[0] = 1.0
    if size % 2 == 0:
        counts[-1] = 1.0
    sums = real @ (cosines * counts).T - imaginary @ (sines * counts).T
    return (sums * _scale(size, norm, sign=1)).movedim(-1, dim)


def _rfft2(
    x: Any, s: Any = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> ComplexPairs:
    """`torch.fft.rfft2`."""
    return _rfftn(x, s, dim, norm)


def _irfft2(
    x: Any, s: Any = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> Any:
    """`torch.fft.irfft2`."""
    return _irfftn(x, s, dim, norm)


def _fft2(
    x: Any, s: Any = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
) -> ComplexPairs:
    """`torch.fft.fft2`."""
    return _fftn(x, s, dim, norm)


def _fftn(
    x: Any, s: Any = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> ComplexPairs:
    """`torch.fft.fftn`: a transform along one axis after the other."""
    pairs = ComplexPairs.of(x)
    for axis, size in _axes_and_sizes(x, s, dim):
        pairs = _fft(pairs, size, axis, norm)
    return pairs


def _rfftn(
    x: Any, s: Any = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> ComplexPairs:
    """`torch.fft.rfftn`: the first half of the frequencies along the last axis."""
    *others, (last, last_size) = _axes_and_sizes(x, s, dim)
    pairs = _rfft(x, last_size, last, norm)
    for axis, size in others:
        pairs = _fft(pairs, size, axis, norm)
    return pairs


def _irfftn(
    x: Any, s: Any = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Any:
    """`torch.fft.irfftn`."""
    *others, (last, last_size) = _axes_and_sizes(x, s, dim)
    for axis, size in others:
        x = _ifft(x, size, axis, norm)
    return _irfft(x, last_size, last, norm)


def _axes_and_sizes(
    x: Any, sizes: Any, dim: Sequence[int] | None
) -> list[tuple[int, int | None]]:
    """The axes of a transform, all or the last ones by default, and new sizes."""
    if dim is None:
        dim = range(-len(x.shape if sizes is None else sizes), 0)
    return [*zip(dim, sizes or (None,) * len(dim), strict=True)]


def _transformed(
    x: ComplexPairs, n: int | None, dim: int, norm: str | None, *, sign: int
) -> ComplexPairs:
    """Σ_t x_t exp(±2πi k t/n) for each frequency k."""
    size = x.shape[dim] if n is None else n
    real, imaginary = _of_size(x.real, size, dim), _of_size(x.imag, size, dim)
    cosines, sines = _waves(size, size, like=real)
    scale = _scale(size, norm, sign=sign)
    new_real = real @ cosines - sign * (imaginary @ sines)
    new_imaginary = imaginary @ cosines + sign * (real @ sines)
    return ComplexPairs(
        (new_real * scale).movedim(-1, dim), (new_imaginary * scale).movedim(-1, dim)
    )


def _of_size(x: Any, size: int, dim: int) -> Any:
    """A tensor with the axis of a transform last, cut or filled with zeros."""
    x = x.movedim(dim, -1)
    if x.shape[-1] > size:
        return x[..., :size]
    if x.shape[-1] < size:
        return torch.nn.functional.pad(x, (0, size - x.shape[-1]))
    return x


def _waves(size: int, frequencies: int, like: Any) -> tuple[Any, Any]:
    """cos(2π k t/size) and sin(2π k t/size), (size, frequencies)."""
    t = torch.arange(size)[:, None]
    k = torch.arange(frequencies)
    # modulo the period, so that large products lose no digits
    angles = (t * k % size).double() * (2 * math.pi / size)
    cosines = angles.cos().to(like.dtype)
    sines = angles.sin().to(like.dtype)
    return cosines, sines


def _scale(size: int, norm: str | None, *, sign: int) -> float:
    """The factor of a transform, or of an inverse one (`sign` 1)."""
    if norm == "ortho":
        return 1 / math.sqrt(size)
    is_divided = sign > 0 if norm in (None, "backward") else sign < 0
    return 1 / size if is_divided else 1.0


# functions of torch that make complex numbers, and what computes them by pairs
COMPLEX_FUNCTIONS = {
    torch.view_as_complex: complex_pairs,
    torch.fft.fft: _fft,
    torch.fft.ifft: _ifft,
    torch.fft.rfft: _rfft,
    torch.fft.irfft: _irfft,
    torch.fft.fft2: _fft2,
    torch.fft.rfft2: _rfft2,
    torch.fft.irfft2: _irfft2,
    torch.fft.fftn: _fftn,
    torch.fft.rfftn: _rfftn,
    torch.fft.irfftn: _irfftn,
}
