"""One layer: the attention layer of the paper, its law against the limit and the Gaussian of infinitely many heads."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from typing import Any, cast

from .._program import Program
from ..language import inf
from ..laws import HeadSum, Law
from ..studies import paper
from ._view import Named, View, afford, view_laws

INFINITE_HEADS = "infinitely many heads"
GAUSSIAN_KURTOSIS = 0.01  # excess kurtosis below which the law is Gaussian for most purposes


@dataclass(frozen=True)
class Layer:
    """The settings: arguments of `ns.paper.layer`, widths, and draws (as many as are quick, if None)."""

    width: float = 256
    head_dim: float | None = None  # the width, if None
    tokens: int = 4
    heads: int = 2
    token: int = 0
    activation: str = "clip"
    clip: float = 100.0
    scaling: str = "sqrt"
    mask: str | None = None
    sigma_q: float = 1.0
    sigma_k: float = 1.0
    sigma_v: float = 1.0
    sigma_o: float = 1.0
    sigma_w: float = 1.0
    draws: int | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `ns.paper.layer` that differ from its defaults; tokens and heads always."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        for name in ("width", "head_dim", "draws"):
            given.pop(name, None)
        low_rank = {"low_rank": True} if self.head_dim is not None else {}
        return {"tokens": self.tokens, "heads": self.heads, **given, **low_rank}

    @property
    def widths(self) -> dict[str, float]:
        """The widths by name."""
        return {"n": self.width} if self.head_dim is None else {"n": self.width, "d": self.head_dim}

    def view(self) -> View:
        """The law at these widths, the limit, and the Gaussian of infinitely many heads."""
        if self.head_dim is not None and self.head_dim > self.width:
            raise ValueError(f"head dimension {text(self.head_dim)} must be at most the width {text(self.width)}")
        net = paper.layer(**self.arguments)
        plan = net.plan(**self.widths)  # type: ignore[arg-type]
        draws, note = afford([plan], self.draws)
        limit = _limit(tuple(self.arguments.items()), draws)
        many = limit.infinite_heads() if isinstance(limit, HeadSum) else limit.gaussian()
        laws = [Named("the limit", "limit", limit), Named(INFINITE_HEADS, "gaussian", many)]
        if any(width < inf for width in self.widths.values()):
            law = cast(Law, net.law(draws=draws, progress=False, **self.widths))  # type: ignore[arg-type]
            laws.insert(0, Named(", ".join(f"{k} = {text(v)}" for k, v in self.widths.items()), "finite", law))
        notes = [note, _enough(limit) if isinstance(limit, HeadSum) else ""]
        code = self._code(draws, isinstance(limit, HeadSum))
        return view_laws(laws, code, str(plan), tuple(filter(None, notes)))

    def _code(self, draws: int, heads: bool) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        end = ", ".join(f"{name}=ns.inf" for name in self.widths)
        at = ", ".join(f"{name}={written(width)}" for name, width in self.widths.items())
        finite = at != end
        lines = ["import matplotlib.pyplot as plt", "import netsor as ns", "", f"net = ns.paper.layer({given})"]
        lines += [f"law = net.law({at}, draws={draws:_})"] if finite else []
        lines += [
            f"limit = net.law({end}, draws={draws:_})",
            "many = limit.infinite_heads()" if heads else "many = limit.gaussian()  # which it is already",
            f"print({'law.with_error.kurtosis(), ' if finite else ''}limit.with_error.kurtosis())",
            f"print({'ns.kl(law, limit), ' if finite else ''}ns.kl(limit, many))",
        ]
        names = [*(["at this width"] if finite else []), INFINITE_HEADS, "the limit"]
        lines += [f"ns.plot({'law, ' if finite else ''}many, limit, labels={names})", "plt.savefig('laws.png')"]
        return "\n".join(lines)


@functools.lru_cache(maxsize=64)
def _limit(arguments: tuple[tuple[str, Any], ...], draws: int) -> Law:
    """The limit law, kept while the width slider is moved, because it does not change then."""
    net: Program = paper.layer(**dict(arguments))
    return cast(Law, net.law(draws=draws, progress=False, **dict.fromkeys(net.widths, inf)))  # type: ignore[arg-type]


def _enough(limit: HeadSum) -> str:
    """With H heads the excess kurtosis of the limit is that of one head over H."""
    heads = math.floor(limit.kurtosis() * limit.heads / GAUSSIAN_KURTOSIS) + 1
    return (
        "In the limit the excess kurtosis falls like 1/heads: "
        f"it is below {GAUSSIAN_KURTOSIS:g} from {heads:,} heads on."
    )


def text(width: float) -> str:
    """A width as text on the page."""
    return "∞" if width == inf else f"{width:,}"


def written(width: float) -> str:
    """A width in a line of Python."""
    return "ns.inf" if width == inf else f"{width:_}"
