"""Fourier transforms by real tensors, against those of torch."""

from __future__ import annotations

import pytest
import torch

from tests.internals import COMPLEX_FUNCTIONS, ComplexPairs

GENERATOR = torch.Generator().manual_seed(0)
NUMBERS = torch.randn(3, 6, 5, generator=GENERATOR, dtype=torch.float64)
NORMS = (None, "backward", "ortho", "forward")


def _differs(function, x, **options):
    expected = function(x, **options)
    found = COMPLEX_FUNCTIONS[function](x, **options)
    if isinstance(found, ComplexPairs):
        found = torch.complex(found.real, found.imag)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("n", [None, 4, 9])
def test_transforms_along_one_axis(n, dim, norm):
    options = {"n": n, "dim": dim, "norm": norm}
    for function in (torch.fft.fft, torch.fft.ifft, torch.fft.rfft):
        _differs(function, NUMBERS, **options)
    _differs(torch.fft.irfft, torch.fft.rfft(NUMBERS, dim=dim), **options)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "options", [{}, {"dim": (0, 1)}, {"s": (4, 8)}, {"s": (4, 8), "dim": (1, 0)}]
)
def test_transforms_along_several_axes(options, norm):
    options = {**options, "norm": norm}
    pairs = (
        (torch.fft.rfft2, torch.fft.irfft2),
        (torch.fft.rfftn, torch.fft.irfftn),
    )
    for function, inverse in pairs:
        _differs(function, NUMBERS, **options)
        _differs(inverse, function(NUMBERS, **options), **options)
    for function in (torch.fft.fft2, torch.fft.fftn):
        _differs(function, NUMBERS, **options)


def test_arithmetic_of_pairs():
    x = torch.complex(NUMBERS, NUMBERS.flip(1))
    y = x.flip(0)
    a, b = ComplexPairs.of(x), ComplexPairs.of(y)
    found = {
        "product": (a * b, x * y),
        "product with a tensor": (torch.mul(NUMBERS, a), NUMBERS * x),
        "product with complex numbers": (a * y, x * y),
        "sum": (a + b, x + y),
        "sum with a tensor": (NUMBERS + a, NUMBERS + x),
        "quotient": (a / 2.0, x / 2.0),
        "conjugate": (a.conj(), x.conj().resolve_conj()),
        "part": (a[:, 1:, None], x[:, 1:, None]),
        "transpose": (a.transpose(0, 1), x.transpose(0, 1)),
    }
    for name, (pairs, expected) in found.items():
        numbers = torch.complex(pairs.real, pairs.imag)
        torch.testing.assert_close(numbers, expected, msg=name)
    torch.testing.assert_close(torch.view_as_real(a), torch.view_as_real(x))
