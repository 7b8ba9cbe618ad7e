"""How a law was obtained, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """How a law was obtained, and what is known of it.

    `quadrature_error`, of Gaussian expectations or of single precision, is relative: every component's covariance is
    known up to this share of itself, and its mean up to this share of its standard deviation (of the law's, for outputs
    known by draws; of itself, if it is not random).
    """

    status: str
    method: str
    random_numbers: int = 0
    seed: int | None = None
    quadrature_error: float = 0.0
    notes: tuple[str, ...] = ()
