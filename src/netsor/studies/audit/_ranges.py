"""Ranges of activations in words: which short formats hold them at initialisation, and by which scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ..._document import FLAG, UNDECIDED, Block, Cell, Paragraph, Table
from ...models._metrics import BLOCK, ENDS, FORMATS, Format
from ._findings import above, band

UNDERFLOW_SHARE = 0.01  # the share of numbers below the smallest of a format above which it is reported
TITLES = {
    "stream": "stream",
    "query": "queries",
    "key": "keys",
    "value": "values",
    "scores": "scores",
    "weights": "attention weights",
    "attention": "attention's output",
    "hidden": "hidden of the MLP",
    "mlp": "MLP's output",
    "embedding": "embeddings",
    "logits": "logits",
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
    largest: tuple[float, float, float]  # median, and 5 to 95 % of initialisations, over all blocks
    held: tuple[FormatFit, ...]


def ranges_of(arrays: Mapping[str, Floats]) -> list[Range]:
    """What was measured of each activation; nothing, if ranges were not asked for."""
    return [_range(name, arrays) for name in (*ENDS[:1], *BLOCK, *ENDS[1:]) if f"{name}_largest" in arrays]


def _range(name: str, arrays: Mapping[str, Floats]) -> Range:
    largest = arrays[f"{name}_largest"]
    blocks = largest if largest.ndim == 2 else largest[:, None]
    block = None if largest.ndim == 1 else int(np.argmax(np.median(blocks, axis=0))) + 1
    every = blocks.max(axis=1)
    median, low, high = (float(v) for v in band(every))
    return Range(name, block, (median, low, high), tuple(_held(name, f, arrays, every) for f in FORMATS))


def _held(name: str, f: Format, arrays: Mapping[str, Floats], largest: Floats) -> FormatFit:
    below, scaled = (arrays[f"{name}_{kind}_{f.name}"].reshape(len(largest), -1) for kind in ("below", "scaled"))
    worst, left = (int(np.argmax(np.median(a, axis=0))) for a in (below, scaled))
    high = np.asarray(band(largest)[2])
    return FormatFit(
        f.title,
        above(largest, f.largest),
        above(below[:, worst], UNDERFLOW_SHARE),
        float(np.median(below[:, worst])),
        int(f.scale(high)),
        float(np.median(scaled[:, left])),
    )


def blocks(arrays: Mapping[str, Floats]) -> list[Block]:
    """The table of activations and formats, and how to read it."""
    ranges = ranges_of(arrays)
    if not ranges:
        return []
    rows: list[list[str | Cell]] = []
    for each in ranges:
        median, low, high = each.largest
        where = "" if each.block is None else f", in block {each.block}"
        first = Cell(TITLES[each.activation], f"{median:.3g} ({low:.3g}–{high:.3g}){where}")
        rows.append([first, f"{median:.3g}", *map(_cell, each.held)])
    head = ["activation", "largest", *(held.format for held in ranges[0].held)]
    return [Table(head, rows), Paragraph(NOTE)]


def _cell(held: FormatFit) -> Cell:
    bad = [word for word, verdict in (("overflows", held.overflow), ("underflows", held.underflow)) if verdict == FLAG]
    if not bad:
        open_ = UNDECIDED in (held.overflow, held.underflow)
        return Cell("undecided" if open_ else "fits", status="open" if open_ else "good")
    smallest = next(f.smallest for f in FORMATS if f.title == held.format)
    below = f"{held.below:.2g} of its numbers are below 2^{smallest}; " if held.below else ""
    left = f", and leaves {held.scaled:.2g} below" if held.scaled >= UNDERFLOW_SHARE else ""
    note = f"{below}a scale of 2^{held.scale} fits{left}"
    return Cell(f"{' and '.join(bad)}, 2^{held.scale}", note, "bad")


def as_list(arrays: Mapping[str, Floats]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "activation": each.activation,
            "block": each.block,
            "largest": dict(zip(("median", "low", "high"), each.largest, strict=True)),
            "formats": [held._asdict() for held in each.held],
        }
        for each in ranges_of(arrays)
    ]
