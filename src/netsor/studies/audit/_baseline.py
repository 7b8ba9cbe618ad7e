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

# the block (0: the embedding, None: the output) and the quantity of a number
NumberKey = tuple[int | None, str]
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
        """A sentence; the median has digits enough to differ from the ends."""
        if self.block is None:
            position = ""
        elif self.block == 0:
            position = " at the embedding"
        else:
            position = f" in block {self.block}"
        side = "above" if self.median > self.high else "below"
        for digits in range(4, 18):  # enough to distinguish the median from the ends
            median = f"{self.median:.{digits}g}"
            low = f"{self.low:.{digits}g}"
            high = f"{self.high:.{digits}g}"
            if median not in (low, high):
                break
        quantity = f"{EVERY[self.quantity].title}{position} at {self.tokens:,} tokens"
        return (
            f"{quantity} has a median of {median}, {self.distance:.2g} {side} its band"
            f" of {low} to {high}"
        )


class EarlierLength(NamedTuple):
    """The bands of an earlier audit at one length."""

    draws: int
    widths: str
    ids: tuple[int, ...] | None  # None: different ones
    bands: dict[NumberKey, tuple[float, float]]  # low and high


@dataclass(frozen=True)
class Baseline:
    """A validated earlier audit of a model."""

    source: Any  # the path, or the object
    sizes: str
    lengths: dict[int, EarlierLength]

    @classmethod
    def of(cls, source: str | Path | Mapping[str, Any] | Baseline) -> Baseline:
        """Read the output of `netsor audit --json`, a file or an object."""
        if isinstance(source, Baseline):
            return source
        if isinstance(source, Mapping):
            return cls._parsed(source, source)
        if not isinstance(source, str | Path):
            raise ArgumentError(
                "baseline",
                source,
                "the path of a JSON file, or the result of as_dict()",
            )
        try:
            content = fields(Path(source))
        except (OSError, ValueError) as error:
            reason: Any = error
            if isinstance(error, OSError) and error.strerror:
                reason = error.strerror
            raise ArgumentError(
                "baseline", str(source), f"a readable JSON file of an audit: {reason}"
            ) from None
        return cls._parsed(content, str(source))

    @classmethod
    def _parsed(cls, content: Mapping[str, Any], source: Any) -> Baseline:
        """The bands in a JSON object, checked."""
        try:
            lengths = {}
            for length in content.get("lengths", [content]):
                tokens = whole(length["tokens"], "tokens")
                lengths[tokens] = _earlier(length)
            if not lengths:
                raise ValueError("no length")
            sizes = content["sizes"]
            if not isinstance(sizes, str):
                raise ValueError(f"sizes={shown(sizes)} must be text")
            return cls(source, sizes, lengths)
        except KeyError as error:
            reason = f"it has no {error.args[0]!r}"
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"it is damaged ({error})"
        raise ArgumentError("baseline", source, f"an audit: {reason}; {SOURCE}")

    def check(self, request: Request, model: Model) -> None:
        """Reject an audit of other quantities, or of a model of other sizes."""
        if model.sizes != self.sizes:
            self._reject(
                f"of the same model: it has {self.sizes}, and {model.name}"
                f" {model.sizes}"
            )
        for tokens in request.lengths:
            if tokens not in self.lengths:
                lengths = join_words([f"{length:,}" for length in self.lengths])
                self._reject(f"an audit of {tokens:,} tokens, not of {lengths}")
            self._check_length(request, model, tokens)

    def _check_length(self, request: Request, model: Model, tokens: int) -> None:
        """Reject other widths, token ids or quantities at one length, and too few
        draws.
        """
        earlier = self.lengths[tokens]
        if earlier.widths != ("inf" if request.widths == "inf" else "actual"):
            self._reject(f"at the same widths, not at {earlier.widths!r}")
        ids = request.ids_of(model)
        if earlier.ids != ids:
            self._reject(
                f"of the same token ids: it has {_listed(earlier.ids)}, and this"
                f" audit {_listed(ids)}"
            )
        for block, quantity in _number_keys(request, model, tokens):
            if (block, quantity) not in earlier.bands:
                position = "" if block is None else f" in block {block}"
                self._reject(
                    f"an audit with {quantity}{position} at {tokens:,} tokens, which"
                    " this audit measures: audit the same quantities, or write the"
                    " baseline again"
                )
        draws = request.draws_of(tokens)
        level = self._level_of_each(request, model)

        def can_be_below(count: int) -> bool:
            """Whether even the largest of `count` new draws is below the band too often
            by chance.
            """
            return _below_band(count, count, earlier.draws) > level

        if can_be_below(draws):
            fewest = draws
            while fewest < MAX_USEFUL_DRAWS and can_be_below(fewest):
                fewest += 1
            self._reject(
                f"comparable with {draws} draws of {tokens:,} tokens, but has"
                f" {earlier.draws}: give {fewest} or more"
            )

    def _reject(self, allowed: str) -> NoReturn:
        """Raise the error for a baseline that cannot be used."""
        raise ArgumentError("baseline", self.source, allowed)

    def compared(self, request: Request, model: Model) -> int:
        """How many numbers of an audit of this model are compared with bands."""
        return sum(
            len(_number_keys(request, model, tokens)) for tokens in request.lengths
        )

    def _level_of_each(self, request: Request, model: Model) -> float:
        """The probability allowed at each end of each band, so that all together have
        LEVEL.
        """
        return LEVEL / (2 * self.compared(request, model))

    def departures(self, audit: LengthResult) -> list[Departure]:
        """The numbers of a checked audit that have left their bands, the largest change
        first.
        """
        level = self._level_of_each(audit.request, audit.model)
        departures = []
        for result in audit.lengths:
            earlier = self.lengths[result.tokens]
            k = _rank(result.best.draws, earlier.draws, level)
            for block, quantity in result.best.numbers:
                draws = np.sort(result.best.by_block(quantity)[block])
                low, high = earlier.bands[block, quantity]
                # either audit may have been drawn in single precision
                rounding = EQUALITY_RTOL["float32"] * max(abs(low), abs(high))
                is_above_low = draws[k - 1] >= low - rounding  # X_(k)
                is_below_high = draws[-k] <= high + rounding  # X_(n+1−k)
                if not (is_above_low and is_below_high):  # true for NaN, too
                    departure = Departure(
                        quantity=quantity,
                        tokens=result.tokens,
                        block=block,
                        median=float(np.median(draws)),
                        low=low,
                        high=high,
                    )
                    departures.append(departure)
        return sorted(departures, key=_relative_change, reverse=True)


def _relative_change(departure: Departure) -> float:
    """The distance from the band, relative to the size of the numbers."""
    ends = abs(departure.low), abs(departure.high)
    return departure.distance / max(abs(departure.median), *ends)


def summary(baseline: Baseline, compared: int, departures: Sequence[Departure]) -> str:
    """The verdict, in a line."""
    name = "baseline"
    if isinstance(baseline.source, str):
        name = f"baseline {shown(baseline.source)}"
    if not departures:
        return f"{name}: all {compared:,} medians are within their bands"
    return (
        f"{name}: {len(departures):,} of {compared:,} medians left their bands;"
        f" {departures[0]}"
    )


def _number_keys(request: Request, model: Model, tokens: int) -> list[NumberKey]:
    """The block and quantity of each number of an audit at one length; nothing is
    drawn.
    """
    case = request.subject(model, tokens, request.widths == "inf")
    return list(draws_of_ones(case).numbers)


def _earlier(content: Mapping[str, Any]) -> EarlierLength:
    """The bands in the JSON object of one length, checked."""
    bands: dict[NumberKey, tuple[float, float]] = {}
    # quantities of the output are null without logits
    final = {name: band for name, band in content["final"].items() if band is not None}
    rows: list[tuple[int | None, Any]] = [(0, content["embedding"])]
    rows += enumerate(content["layers"], 1)
    rows.append((None, final))
    for block, row in rows:
        for quantity, band in row.items():
            low = float(band["low"])
            median = float(band["median"])
            high = float(band["high"])
            if not -math.inf < low <= median <= high < math.inf:
                raise ValueError(f"{quantity} has no band")
            bands[block, quantity] = low, high
    draws = whole(content["draws"], "draws", least=DECIDE)
    if content["widths"] not in ("actual", "inf"):
        raise ValueError("no widths")
    ids = content["ids"]
    if ids is not None:
        ids = tuple(whole(token_id, "ids", least=0) for token_id in ids)
    return EarlierLength(draws=draws, widths=content["widths"], ids=ids, bands=bands)


def _listed(ids: Sequence[int] | None) -> str:
    """Token ids, in a message."""
    return "different ones" if ids is None else shown(list(ids))


def _rank(draws: int, earlier_draws: int, level: float) -> int:
    """The rank k of the new draw that must be inside the earlier band: the least k,
    from the upper median on, whose draw is below the band with a probability of at most
    `level`, if nothing has changed.

    In the equations at the top, n is `draws`, n₀ is `earlier_draws`, and the condition
    is P(X_(k) < Y_(r)) ≤ level. For example, with 32 draws in both audits the upper
    median has the rank 17, and k = 17 for the level 1e-4, but 19 for 1e-5. The largest
    rank, k = n, is returned without a test: `Baseline.check` has rejected audits in
    which it fails.
    """
    ranks = range(draws // 2 + 1, draws)

    def is_rare(k: int) -> bool:
        """Whether P(X_(k) < Y_(r)) is at most the level."""
        return _below_band(k, draws, earlier_draws) <= level

    # the probability falls with k, so `is_rare` is false up to some k and then true
    return ranks.start + bisect_left(ranks, True, key=is_rare)


def _below_band(k: int, draws: int, earlier_draws: int) -> float:
    """P(X_(k) < Y_(r)): the probability that the k-th smallest of n new draws is below
    the band of n₀ earlier ones, if all their orders are equally likely.

    By symmetry it is also that of the k-th largest above the band. n is `draws` and n₀
    is `earlier_draws`.
    """
    # the number of earlier draws below X_(k) is beta-binomial (n₀, k, n − k + 1)
    r = math.floor(LOW * (earlier_draws - 1)) + 2
    return float(scipy.stats.betabinom.cdf(r - 1, earlier_draws, k, draws - k + 1))
