"""The data of the paper's figures: configurations of its layer, their trials, and which
figure needs which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from ... import language as ns
from ..._decorator import program
from ..._program import Program
from ...laws import HeadSum
from ._layer import layer

WIDTHS = (16, 64, 256, 1024)
HEAD_DIM = 64  # head dimension of low-rank attention, in the paper


@dataclass(frozen=True)
class Case:
    """One configuration of the layer at one width; `score`: the score p_11 instead of
    the output.
    """

    tokens: int = 4
    heads: int = 2
    activation: str = "clip"
    width: float = math.inf
    head_dim: float | None = None  # the width, if None
    scaling: str = "sqrt"
    score: bool = False

    @property
    def program(self) -> Program:
        """The program whose law it is."""
        if self.score:
            return first_score(tokens=self.tokens, scaling=self.scaling)
        return layer(
            tokens=self.tokens,
            heads=self.heads,
            activation=self.activation,
            low_rank=self.head_dim is not None,
        )

    @property
    def widths(self) -> dict[str, float]:
        """The widths by their names."""
        return (
            {"n": self.width}
            if self.head_dim is None
            else {"n": self.width, "d": self.head_dim}
        )

    @property
    def limit(self) -> Case:
        """The same layer with all widths at infinity, where a head dimension makes no
        difference.
        """
        return replace(self, width=math.inf, head_dim=None)

    @property
    def samples(self) -> int:
        """The draws of a trial in the paper."""
        return 100_000 if self.activation == "relu" else 50_000


@program
def first_score(tokens: int = 4, scaling: str = "sqrt") -> ns.Scalar:
    """The score p_11 of one head of the layer, over √n or over n."""
    n = ns.Width("n")
    x = ns.clip(ns.weight(n, n, batch=tokens) @ ns.gaussian(n), 100.0)
    q, k = ns.weight(n, n) @ x, ns.weight(n, n) @ x
    return (ns.dot if scaling == "sqrt" else ns.mean_dot)(q, k)[0, 0]


def limit_law(case: Case) -> HeadSum:
    """The law of a case at infinite width, to many digits."""
    return _limit_law(case.limit)


@lru_cache(maxsize=32)
def _limit_law(limit: Case) -> HeadSum:
    law = limit.program.law(n=math.inf)
    assert isinstance(law, HeadSum)
    return law


@dataclass(frozen=True)
class Figure:
    """One panel of the paper: its kind of picture, its cases, and the parameter on its
    axis.
    """

    name: str
    kind: str  # density, kl, scores or heads
    title: str
    cases: tuple[Case, ...]
    parameter: str  # n, H or scaling


GROUPS = {
    "all": ("1a", "1b", "2a", "2b", "3a", "3b", "4a", "4b", "5a", "5b", "heads"),
    **{k: (f"{k}a", f"{k}b") for k in "12345"},
    "exp1": ("1a", "1b", "2b", "heads"),
    "exp2": ("2a",),
    "exp3": ("3a", "3b"),
    "exp4": ("5a", "5b"),
}
NAMES = GROUPS["all"]


def figures(tokens: int = 16) -> dict[str, Figure]:
    """All figures by name; `tokens` is the larger number of tokens of figure 4."""
    by_width = tuple(Case(width=n) for n in WIDTHS)
    many = tuple(Case(tokens=tokens, width=n) for n in WIDTHS)
    relu = tuple(Case(activation="relu", width=n) for n in WIDTHS)
    low_rank = tuple(
        Case(heads=h, width=HEAD_DIM * h, head_dim=HEAD_DIM) for h in (1, 4, 16)
    )
    heads = tuple(Case(heads=h, width=256) for h in (1, 256))
    scores = tuple(
        Case(width=256, scaling=scaling, score=True) for scaling in ("sqrt", "linear")
    )
    every = [
        Figure(
            "1a",
            "density",
            "Output of the attention layer, H = 2, s = 4",
            by_width,
            "n",
        ),
        Figure("1b", "kl", "Width n against the limit, H = 2, s = 4", by_width, "n"),
        Figure("2a", "scores", "One similarity score at width 256", scores, "scaling"),
        Figure("2b", "density", "One head and 256 heads at width 256", heads, "H"),
        Figure(
            "3a",
            "density",
            "Low-rank attention, head dimension 64, n = 64 H",
            low_rank,
            "H",
        ),
        Figure("3b", "kl", "Low-rank attention against the limit", low_rank, "H"),
        Figure(
            "4a", "density", f"Output of the attention layer, s = {tokens}", many, "n"
        ),
        Figure("4b", "kl", f"Width n against the limit, s = {tokens}", many, "n"),
        Figure("5a", "density", "Output of the attention layer, ReLU", relu, "n"),
        Figure("5b", "kl", "Width n against the limit, ReLU", relu, "n"),
        Figure("heads", "heads", "From few heads to many, at width 256", heads, "H"),
    ]
    return {figure.name: figure for figure in every}
