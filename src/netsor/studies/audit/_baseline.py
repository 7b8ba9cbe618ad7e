"""Changes since an earlier audit: new medians compared with the earlier bands.

Let Y be the n₀ earlier draws of a number, X the n new ones. The low end of the earlier
band is at most Y_(r), the r-th smallest, r = ⌊0.05 (n₀ − 1)⌋ + 2. If nothing has
changed, all orders of X and Y are equally likely, so the number of Y below X_(k) is
beta-binomial (n₀, k, n − k + 1). P(X_(k) < Y_(r)), the probability of fewer than r,
does not depend on the law; ties make it smaller. A number has left its band if X_(k) is
below it, or X_(n+1−k) above it, with the least k from the upper median on for which
this probability is at most LEVEL over twice the count of numbers: with many draws this
is the median, with few a draw beyond it. So numbers of an unchanged model leave their
bands with a probability of at most LEVEL in all, however they depend on each other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy

from ..._validate import ArgumentError, shown, whole
from ...runtime._files import fields
from ._cases import Model
from ._findings import DECIDE, EQUALITY_RTOL, LEVEL, LOW, MAX_USEFUL_DRAWS
from ._measurements import LengthResult, draws_of_ones
from ._quantities import EVERY, join_words
from ._request import Request

# a block, 0 the embedding and None the output; a quantity
Place = tuple[int | None, str]
SOURCE = (
    "write it with `netsor audit --json`, or take audit.json from the folder of --out"
)


class Departure(NamedTuple):
    """A number whose median has left the band that it had in an earlier audit.

    Parameters
    ----------
    quantity : str
        Its name.
    tokens, block : int
        The length of the input; the block, 0 for the embedding and None at the output.
    median, low, high : float
        The new median, and the ends of the earlier band.
    """

    quantity: str
    tokens: int
    block: int | None
    median: float
    low: float
    high: float

    @property
    def distance(self) -> float:
        """From the median to the nearer end of the band."""
        return max(self.low - self.median, self.median - self.high)

    def __str__(self) -> str:
        if self.block is None:
            where = ""
        elif self.block == 0:
            where = " at the embedding"
        else:
            where = f" in block {self.block}"
        side = "above" if self.median > self.high else "below"
        for digits in range(4, 18):  # enough to distinguish the median from the ends
            median, low, high = (
                f"{value:.{digits}g}" for value in (self.median, self.low, self.high)
            )
            if median not in (low, high):
                break
        what = f"{EVERY[self.quantity].title}{where} at {self.tokens:,} tokens"
        return (
            f"{what} has a median of {median}, {self.distance:.2g} {side} its band of"
            f" {low} to {high}"
        )


class EarlierLength(NamedTuple):
    """The bands of an earlier audit at one length."""

    draws: int
    widths: str
    ids: tuple[int, ...] | None  # None: different ones
    bands: dict[Place, tuple[float, float]]


@dataclass(frozen=True)
class Baseline:
    """A validated earlier audit of a model."""

    source: Any  # the path, or the given object
    sizes: str
    lengths: dict[int, EarlierLength]

    @classmethod
    def of(cls, given: str | Path | Mapping[str, Any] | Baseline) -> Baseline:
        """Read the output of `netsor audit --json`, a file or an object."""
        if isinstance(given, Baseline):
            return given
        if not isinstance(given, str | Path | Mapping):
            raise ArgumentError(
                "baseline", given, "the path of a JSON file, or the result of as_dict()"
            )
        source = given if isinstance(given, Mapping) else str(given)
        try:
            content: Mapping[str, Any] = (
                given if isinstance(given, Mapping) else fields(Path(given))
            )
        except (OSError, ValueError) as error:
            why = error.strerror or error if isinstance(error, OSError) else error
            raise ArgumentError(
                "baseline", source, f"a readable JSON file of an audit: {why}"
            ) from None
        try:
            lengths = {
                whole(each["tokens"], "tokens"): _earlier(each)
                for each in content.get("lengths", [content])
            }
            if not lengths or not isinstance(content["sizes"], str):
                raise ValueError("no length")
            return cls(source, content["sizes"], lengths)
        except KeyError as error:
            why = f"it has no {error.args[0]!r}"
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            why = f"it is damaged ({error})"
        raise ArgumentError("baseline", source, f"an audit: {why}; {SOURCE}")

    def check(self, request: Request, model: Model) -> None:
        """Reject an audit of other quantities, or of a model of other sizes."""

        def refuse(allowed: str) -> NoReturn:
            raise ArgumentError("baseline", self.source, allowed)

        if model.sizes != self.sizes:
            refuse(
                f"of the same model: it has {self.sizes}, and {model.name}"
                f" {model.sizes}"
            )
        for tokens in request.lengths:
            if tokens not in self.lengths:
                known = join_words([f"{length:,}" for length in self.lengths])
                refuse(f"an audit of {tokens:,} tokens, not of {known}")
            earlier = self.lengths[tokens]
            if earlier.widths != ("inf" if request.widths == "inf" else "actual"):
                refuse(f"at the same widths, not at {earlier.widths!r}")
            ids = request.ids_of(model)
            if earlier.ids != ids:
                refuse(
                    f"of the same token ids: it has {_listed(earlier.ids)}, and this"
                    f" audit {_listed(ids)}"
                )
            for block, quantity in _places(request, model, tokens):
                if (block, quantity) not in earlier.bands:
                    what = (
                        f"{quantity}{'' if block is None else f' in block {block}'} at"
                        f" {tokens:,} tokens"
                    )
                    remedy = "audit the same quantities, or write the baseline again"
                    refuse(f"an audit with {what}, which this audit measures: {remedy}")
            draws, before, level = (
                request.draws_of(tokens),
                earlier.draws,
                LEVEL / (2 * self.compared(request, model)),
            )
            if _beyond(draws, draws, before) > level:
                enough = (
                    n
                    for n in range(draws, MAX_USEFUL_DRAWS)
                    if _beyond(n, n, before) <= level
                )
                fewest = next(enough, MAX_USEFUL_DRAWS)
                refuse(
                    f"comparable with {draws} draws of {tokens:,} tokens, but has"
                    f" {before}: give {fewest} or more"
                )

    def compared(self, request: Request, model: Model) -> int:
        """The number of comparisons."""
        return sum(len(_places(request, model, tokens)) for tokens in request.lengths)

    def departures(self, audit: LengthResult) -> list[Departure]:
        """The numbers of a checked audit that have left their bands, the largest change
        first.
        """
        level, left = LEVEL / (2 * self.compared(audit.request, audit.model)), []
        for result in audit.lengths:
            earlier = self.lengths[result.tokens]
            k = _rank(result.best.draws, earlier.draws, level)
            for block, quantity in result.best.numbers:
                draws = np.sort(result.best.by_block(quantity)[block])
                low, high = earlier.bands[block, quantity]
                # an audit chooses its precision
                same = EQUALITY_RTOL["float32"] * max(abs(low), abs(high))
                # NaN has left it too
                if not (draws[k - 1] >= low - same and draws[-k] <= high + same):
                    left.append(
                        Departure(
                            quantity,
                            result.tokens,
                            block,
                            float(np.median(draws)),
                            low,
                            high,
                        )
                    )
        # by their change relative to their size
        return sorted(
            left,
            key=lambda d: d.distance / max(abs(d.median), abs(d.low), abs(d.high)),
            reverse=True,
        )


def summary(baseline: Baseline, compared: int, left: Sequence[Departure]) -> str:
    """The verdict, in a line."""
    name = (
        f"baseline {shown(baseline.source)}"
        if isinstance(baseline.source, str)
        else "baseline"
    )
    if not left:
        return f"{name}: all {compared:,} medians are within their bands"
    return f"{name}: {len(left):,} of {compared:,} medians left their bands; {left[0]}"


def _places(request: Request, model: Model, tokens: int) -> list[Place]:
    """The block and quantity of each number of an audit at one length; nothing is
    drawn.
    """
    return list(
        draws_of_ones(request.subject(model, tokens, request.widths == "inf")).numbers
    )


def _earlier(content: Mapping[str, Any]) -> EarlierLength:
    """The bands in the JSON object of one length."""
    bands: dict[Place, tuple[float, float]] = {}
    # as without logits
    final = {name: band for name, band in content["final"].items() if band is not None}
    for block, row in [
        (0, content["embedding"]),
        *enumerate(content["layers"], 1),
        (None, final),
    ]:
        for quantity, band in row.items():
            low, median, high = (float(band[end]) for end in ("low", "median", "high"))
            if not -math.inf < low <= median <= high < math.inf:
                raise ValueError(f"{quantity} has no band")
            bands[block, quantity] = low, high
    draws = whole(content["draws"], "draws", least=DECIDE)
    if content["widths"] not in ("actual", "inf"):
        raise ValueError("no widths")
    ids = content["ids"]
    if ids is not None:
        ids = tuple(whole(each, "ids", least=0) for each in ids)
    return EarlierLength(draws, content["widths"], ids, bands)


def _listed(ids: Sequence[int] | None) -> str:
    """Token ids, in a message."""
    return "different ones" if ids is None else shown(list(ids))


def _rank(draws: int, before: int, level: float) -> int:
    """The least rank k, from the upper median on, that is below the earlier band with
    at most this probability.
    """
    ranks = range(draws // 2 + 1, draws)  # the probability falls with k
    return ranks.start + bisect_left(
        ranks, True, key=lambda k: _beyond(k, draws, before) <= level
    )


def _beyond(k: int, draws: int, before: int) -> float:
    """P(X_(k) < Y_(r)), or of the other end, if all orders are equally likely."""
    r = math.floor(LOW * (before - 1)) + 2
    return float(scipy.stats.betabinom.cdf(r - 1, before, k, draws - k + 1))
