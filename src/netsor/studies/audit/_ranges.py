"""Ranges of activations in words: which short formats hold them at initialisation, and by which scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..._array_api import Floats
from ..._document import FLAG, UNDECIDED, Block, Cell, Paragraph, Table
from ...models._metrics import BLOCK, ENDS, FORMATS
from ._findings import above, band

UNDERFLOW_SHARE = 0.01  # the share of numbers below the smallest of a format above which it is reported
PARTS = ("below", "scaled")  # shares of numbers below the smallest of a format, as they are and with a scale
TITLES = {  # of activations that are not called by their names
    "query": "queries",
    "key": "keys",
    "value": "values",
    "weights": "attention weights",
    "attention": "attention's output",
    "hidden": "hidden of the MLP",
    "mlp": "MLP's output",
    "embedding": "embeddings",
}
NOTE = (
    "The largest absolute value is that of all blocks: its median over initialisations, and the 5–95 % band. An "
    "activation overflows in a format if this median is above the largest number of the format. It underflows if, in "
    f"some block, more than {UNDERFLOW_SHARE:g} of its nonzero numbers are below the smallest subnormal number. The "
    "power of two is the largest scale with which 95 % of initialisations fit."
)


class FormatFit(NamedTuple):
    """How a format holds an activation; verdicts are of medians over initialisations."""

    format: str
    overflow: str  # is the largest number, of all blocks, above the largest of the format?
    underflow: str  # is the share of numbers below its smallest above SMALL, in some block?
    below: float  # that share, its median in the worst block
    scale: int  # 2^scale: the largest power of two with which 95 % of initialisations fit
    scaled: float  # the share below if each tensor has a scale of its own, from its largest number


class Range(NamedTuple):
    """The numbers of one activation, over all blocks."""

    activation: str
    block: int | None  # that with the largest number; None outside of blocks
    largest: dict[str, float]  # median, and 5 to 95 % of initialisations, over all blocks
    formats: list[FormatFit]


def ranges_of(arrays: Mapping[str, Floats]) -> list[Range]:
    """What was measured of each activation; nothing, if ranges were not asked for."""
    ranges = []
    for name in (*ENDS[:1], *BLOCK, *ENDS[1:]):
        if f"{name}_largest" in arrays:
            blocks = arrays[f"{name}_largest"]
            block = None if blocks.ndim == 1 else int(np.argmax(np.median(blocks, axis=0))) + 1
            largest = blocks.reshape(len(blocks), -1).max(axis=1)
            ends = dict(zip(("median", "low", "high"), map(float, band(largest)), strict=True))
            fits = []
            for f in FORMATS:
                below, scaled = (arrays[f"{name}_{kind}_{f.name}"].reshape(len(largest), -1) for kind in PARTS)
                below = below[:, np.argmax(np.median(below, axis=0))]
                verdicts = above(largest, f.largest), above(below, UNDERFLOW_SHARE)
                scale, left = int(f.scale(np.asarray(ends["high"]))), float(np.median(scaled, axis=0).max())
                fits.append(FormatFit(f.title, *verdicts, float(np.median(below)), scale, left))
            ranges.append(Range(name, block, ends, fits))
    return ranges


def blocks(arrays: Mapping[str, Floats]) -> list[Block]:
    """The table of activations and formats, and how to read it."""
    ranges = ranges_of(arrays)
    if not ranges:
        return []
    rows: list[list[str | Cell]] = []
    for each in ranges:
        median, low, high = (f"{value:.3g}" for value in each.largest.values())
        band_text = f"{median} ({low}–{high})" + ("" if each.block is None else f", in block {each.block}")
        rows.append([Cell(TITLES.get(each.activation, each.activation), band_text), median, *map(_cell, each.formats)])
    head = ["activation", "largest", *(fit.format for fit in ranges[0].formats)]
    return [Table(head, rows), Paragraph(NOTE)]


def _cell(fit: FormatFit) -> Cell:
    bad = [word for word, verdict in (("overflows", fit.overflow), ("underflows", fit.underflow)) if verdict == FLAG]
    if not bad:
        open_ = UNDECIDED in (fit.overflow, fit.underflow)
        return Cell("undecided" if open_ else "fits", status="open" if open_ else "good")
    smallest = next(f.smallest for f in FORMATS if f.title == fit.format)
    below = f"{fit.below:.2g} of its numbers are below 2^{smallest}; " if fit.below else ""
    left = f", and leaves {fit.scaled:.2g} below" if fit.scaled >= UNDERFLOW_SHARE else ""
    return Cell(f"{' and '.join(bad)}, 2^{fit.scale}", f"{below}a scale of 2^{fit.scale} fits{left}", "bad")
