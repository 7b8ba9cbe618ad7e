"""What layers are made of: W x + b."""

from __future__ import annotations

from typing import Any

from ..language import TraceError, Vector, Width, gaussian, weight
from ..language._given import shown


def affine(
    x: Vector, width: Width, sigma_w: float, sigma_b: float, batch: int | tuple[int, ...] = (), name: str | None = None
) -> Vector:
    """W x + b for every matrix of a batch, entries N(0, σ_w²/fan-in) and N(0, σ_b²); b is one for all vectors of x."""
    w = weight(width, x.width, batch, sigma_w, name=name)
    if not sigma_b:
        return w @ x
    b = gaussian(width, batch, cov=sigma_b**2, name="b")
    return w @ x + b.reshape(*w.batch, *(1,) * x.ndim) if x.ndim else w @ x + b


def made_of(f: Any, x: Vector, name: str, operation: str) -> Vector:
    """f(x) for a function of vectors that the user gave, which must make a vector for each vector of x."""
    if not callable(f):
        raise TraceError(operation, f"{name}={shown(f)} must be a function of vectors")
    made = f(x)
    if not isinstance(made, Vector):
        raise TraceError(operation, f"{name}={shown(f)} must make vectors, and it made {shown(made)}")
    if made.shape != x.shape:
        raise TraceError(operation, f"{name}={shown(f)} made shape {made.shape} of shape {x.shape}: keep the tokens")
    return made
