"""Every instruction of plans by its name: the functions of `_instructions`, and those of the files named below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _alike, _expectation, _instructions, _orthogonal, _triangular

RULES: dict[str, Callable[..., Any]] = {
    **{
        name: rule
        for name, rule in vars(_instructions).items()
        if getattr(rule, "__module__", "") == _instructions.__name__ and not name.startswith("_")
    },
    "factor": _triangular.factor,
    "residual": _triangular.residual,
    "solve": _triangular.solve,
    "basis": _triangular.basis,
    "spheres": _triangular.spheres,
    "span": _orthogonal.span,
    "spanned": _orthogonal.spanned,
    "along": _orthogonal.along,
    "left_over": _orthogonal.left_over,
    "lost": _orthogonal.lost,
    "reduced": _orthogonal.reduced,
    "oriented": _orthogonal.oriented,
    "alike": _alike.alike,
    "identified": _alike.identified,
    "kernel": _expectation.kernel,
    "moments": _expectation.moments,
    "tilted": _expectation.tilted,
    "tilted_means": _expectation.tilted_means,
}

# Those that take the `Ways` of an array library.
WITH_WAYS = ("factor", "residual", "solve", "basis", "spheres", "span", "spanned", "reduced", "oriented")
